import "./prism";
import Prism from "prismjs/components/prism-core";
import "prismjs/components/prism-clike";
import "prismjs/components/prism-markup";
import "prismjs/components/prism-css";
import "prismjs/components/prism-javascript";
import "prismjs/components/prism-typescript";
import "prismjs/components/prism-jsx";
import "prismjs/components/prism-tsx";
import "prismjs/components/prism-json";
import "prismjs/components/prism-python";
import "prismjs/components/prism-rust";
import "prismjs/components/prism-go";
import "prismjs/components/prism-java";
import "prismjs/components/prism-kotlin";
import "prismjs/components/prism-c";
import "prismjs/components/prism-cpp";
import "prismjs/components/prism-csharp";
import "prismjs/components/prism-ruby";
import "prismjs/components/prism-swift";
import "prismjs/components/prism-bash";
import "prismjs/components/prism-docker";
import "prismjs/components/prism-sql";
import "prismjs/components/prism-yaml";
import "prismjs/components/prism-toml";
import "prismjs/components/prism-diff";
import "prismjs/components/prism-markdown";

/** A piece of code with one colour. */
export type Piece = { text: string; kind?: Kind };
type Kind = "comment" | "keyword" | "string" | "number" | "function" | "type" | "inserted" | "deleted";

const NAMES: Record<string, string> = {
  sh: "bash",
  shell: "bash",
  zsh: "bash",
  console: "bash",
  py: "python",
  rs: "rust",
  js: "javascript",
  mjs: "javascript",
  node: "javascript",
  ts: "typescript",
  rb: "ruby",
  kt: "kotlin",
  golang: "go",
  "c++": "cpp",
  cc: "cpp",
  h: "c",
  hpp: "cpp",
  "c#": "csharp",
  cs: "csharp",
  yml: "yaml",
  md: "markdown",
  dockerfile: "docker",
  patch: "diff",
  vue: "markup",
  jsonc: "json",
  json5: "json",
};

const KINDS: Record<string, Kind> = {
  comment: "comment",
  prolog: "comment",
  doctype: "comment",
  cdata: "comment",
  shebang: "comment",
  blockquote: "comment",
  keyword: "keyword",
  atrule: "keyword",
  rule: "keyword",
  important: "keyword",
  operator: "keyword",
  tag: "keyword",
  title: "keyword",
  string: "string",
  char: "string",
  regex: "string",
  "attr-value": "string",
  "template-string": "string",
  "triple-quoted-string": "string",
  url: "string",
  number: "number",
  boolean: "number",
  constant: "number",
  symbol: "number",
  null: "number",
  function: "function",
  "function-definition": "function",
  "function-variable": "function",
  macro: "function",
  decorator: "function",
  selector: "function",
  "attr-name": "function",
  property: "function",
  key: "function",
  "class-name": "type",
  builtin: "type",
  namespace: "type",
  "type-definition": "type",
  table: "type",
  variable: "type",
  inserted: "inserted",
  "inserted-sign": "inserted",
  deleted: "deleted",
  "deleted-sign": "deleted",
  coord: "type",
};

/** Splits code into pieces with a kind each. A language that is not known gives one piece. */
export function highlight(code: string, language: string): Piece[] {
  const lower = language.toLowerCase();
  const grammar = Prism.languages[NAMES[lower] ?? lower];
  if (!grammar || typeof grammar === "function") return [{ text: code }];
  const pieces: Piece[] = [];
  flatten(Prism.tokenize(code, grammar), undefined, pieces);
  return pieces;
}

type PrismToken = { type: string; content: PrismContent };
type PrismContent = string | PrismToken | (string | PrismToken)[];

function flatten(content: PrismContent, outer: Kind | undefined, pieces: Piece[]): void {
  if (typeof content === "string") {
    const last = pieces.at(-1);
    if (last && last.kind === outer) last.text += content;
    else pieces.push(outer ? { text: content, kind: outer } : { text: content });
  } else if (Array.isArray(content)) {
    for (const each of content) flatten(each, outer, pieces);
  } else {
    const kind = content.type === "interpolation" ? undefined : (KINDS[content.type] ?? outer);
    flatten(content.content, kind, pieces);
  }
}
