import { marked, type Token } from "marked";

/** A block of Markdown at the top level. `text` is set instead of `token` if the text is not parsed. */
export type Block = { raw: string; token?: Token; text?: string };

/** Longer texts are shown as they are, because parsing them would block the page. */
const MAX_PARSED = 300_000;
/** Blocks nested deeper than this make the parser recurse too deeply. */
const DEEP = /^(?:[ \t]*(?:>|[-*+]|\d{1,9}[.)])){60}/m;

/** Parses a whole text into blocks. */
export function blocksOf(text: string): Block[] {
  if (text.length > MAX_PARSED || DEEP.test(text)) return [{ raw: text, text }];
  try {
    return marked.lexer(text).map((token) => ({ raw: token.raw, token }));
  } catch {
    return [{ raw: text, text }];
  }
}

/**
 * Parses a text that grows.
 *
 * Text that is appended can change only the last block, so blocks before it are kept as the same objects, which need not
 * be rendered again. A definition of a link (`[name]: address`) acts only on what is parsed with it; the finished
 * answer is parsed as a whole.
 */
export class GrowingBlocks {
  #text = "";
  #blocks: Block[] = [];

  update(whole: string): Block[] {
    // As the parser does, so that the lengths of blocks are places in the text.
    const text = whole.replace(/\r\n?/g, "\n");
    if (text === this.#text) return this.#blocks;
    let kept = 0;
    if (this.#text !== "" && text.startsWith(this.#text)) {
      // The last block that is not blank may go on, also behind blank lines.
      kept = this.#blocks.length - 1;
      while (kept > 0 && this.#blocks[kept]?.token?.type === "space") kept -= 1;
      // Two lists with different bullets, or a table below a paragraph, are decided by the next characters.
      kept = Math.max(kept - 1, 0);
    }
    const stable = this.#blocks.slice(0, kept);
    const begin = stable.reduce((sum, block) => sum + block.raw.length, 0);
    const rest = this.#text.slice(0, begin) === text.slice(0, begin) ? blocksOf(text.slice(begin)) : undefined;
    this.#blocks = rest ? [...stable, ...rest] : blocksOf(text);
    this.#text = text;
    return this.#blocks;
  }
}
