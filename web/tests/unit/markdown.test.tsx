import { render } from "preact";
import { afterEach, describe, expect, it } from "vitest";

import { blocksOf, GrowingBlocks } from "../../src/markdown/blocks";
import { highlight } from "../../src/markdown/highlight";
import { decodeEntities, safeAddress } from "../../src/markdown/links";
import { Markdown } from "../../src/markdown/markdown";
import { XSS } from "./xss";

const place = document.createElement("div");
document.body.append(place);

function show(text: string, growing = false): HTMLElement {
  render(<Markdown text={text} growing={growing} />, place);
  return place;
}

afterEach(() => render(null, place));

/** Elements that the page makes from Markdown, with the attributes that they may have. */
const ALLOWED: Record<string, string[]> = {
  DIV: ["class", "role", "aria-label", "tabindex"],
  A: ["href", "title", "target", "rel"],
  OL: ["start"],
  LI: ["class"],
  INPUT: ["type", "checked", "disabled", "aria-label"],
  PRE: ["tabindex", "aria-label"],
  BUTTON: ["type", "class", "aria-label", "title"],
  SPAN: ["class", "aria-hidden"],
  TH: ["class"],
  TD: ["class"],
};
const PLAIN = "P STRONG EM DEL CODE BLOCKQUOTE UL HR BR TABLE THEAD TBODY TR H3 H4 H5 H6".split(" ");

function check(root: HTMLElement): void {
  for (const element of root.querySelectorAll("*")) {
    // Icons are constants of the page.
    if (element.closest("svg")) continue;
    const allowed = ALLOWED[element.tagName] ?? (PLAIN.includes(element.tagName) ? ["class"] : undefined);
    expect(allowed, `<${element.tagName}>`).toBeDefined();
    for (const { name } of element.attributes) expect(allowed, `${element.tagName} ${name}`).toContain(name);
    if (element.tagName === "A") {
      expect(element.getAttribute("href")).toMatch(/^(https?:\/\/|mailto:)/);
      expect(element.getAttribute("rel")).toBe("noopener noreferrer nofollow");
    }
  }
}

describe("Markdown", () => {
  it.each(XSS)("shows %j as text", (text) => {
    check(show(text));
    for (let end = 1; end <= text.length; end++) check(show(text.slice(0, end), true));
  });

  it("shows what is not allowed as it was written", () => {
    expect(show("a <b>c</b> <script>d</script>").textContent).toBe("a <b>c</b> <script>d</script>");
    expect(show("[x](javascript:alert(1))").textContent).toBe("[x](javascript:alert(1))");
    expect(show("a &lt;b&gt; &amp; &#x41; `&lt;`").textContent).toBe("a <b> & A &lt;");
  });

  it("shows an image as a link that says so", () => {
    const links = show("![a cat](https://a.example/cat.png)").querySelectorAll("a");
    expect([...links].map((link) => [link.textContent, link.href])).toEqual([
      ["Image: a cat", "https://a.example/cat.png"],
    ]);
    expect(place.querySelector("img")).toBeNull();
  });

  it("shows lists, tables, headings and code", () => {
    const text =
      "# T\n\n1. a\n2. **b**\n\n- [x] done\n\n| h |\n|:-:|\n| c |\n\n```rust\nfn main() {}\n```\n\n> q\n\na  \nb ~~d~~";
    const root = show(text);
    check(root);
    for (const wanted of [
      "h3.h1",
      "ol li strong",
      "li.task input",
      "td.align-center",
      "pre code",
      "blockquote",
      "br",
      "del",
    ]) {
      expect(root.querySelector(wanted), wanted).not.toBeNull();
    }
  });

  it("does not hang or overflow on hostile nesting", () => {
    const texts = [
      ">".repeat(50_000),
      "- ".repeat(20_000),
      "*".repeat(50_000),
      "[".repeat(20_000),
      "`".repeat(50_000),
      "![".repeat(20_000) + "]",
    ];
    const begin = performance.now();
    for (const text of texts) check(show(text));
    expect(performance.now() - begin).toBeLessThan(5000);
  });
});

describe("GrowingBlocks", () => {
  const text =
    "# Title\n\nA paragraph\nof two lines.\n\n- one\n- two\n\n  more of two\n- three\n\n1. x\n   - y\n\n\n```py\n# no heading\n\nprint(1)\n```\n\n" +
    "| a | b |\n|---|---|\n| 1 | 2 |\n\nSetext\n===\n\n> quote\nlazy\n\n    indented\n\n    code\n\n***\n\nend\r\nof it\r\n\r\nlast";

  it("equals a whole parse at every length", () => {
    const growing = new GrowingBlocks();
    for (let end = 0; end <= text.length; end++) {
      const part = text.slice(0, end);
      expect(
        growing.update(part).map((block) => block.token),
        JSON.stringify(part),
      ).toEqual(blocksOf(part).map((block) => block.token));
    }
  });

  it("keeps the blocks that cannot change", () => {
    const growing = new GrowingBlocks();
    const before = growing.update("one\n\ntwo\n\nthree\n\nfour");
    const after = growing.update("one\n\ntwo\n\nthree\n\nfour and more");
    expect(after[0]).toBe(before[0]);
    expect(after[2]).toBe(before[2]);
  });
});

describe("links", () => {
  it("lead only to absolute http, https and mailto addresses", () => {
    expect(safeAddress("https://a.example/x?y#z")).toBe("https://a.example/x?y#z");
    expect(safeAddress("mailto:a@b.example")).toBe("mailto:a@b.example");
    for (const bad of ["javascript:1", "java\nscript:1", "//a.example", "/x", "x", "", "data:,x", "http://"]) {
      expect(safeAddress(bad), bad).toBeUndefined();
    }
  });

  it("decodes references once", () => {
    expect(decodeEntities("&amp;lt; &#x1F980; &#0; &#xD800; &nope; &toString;")).toBe(
      "&lt; 🦀 \uFFFD \uFFFD &nope; &toString;",
    );
  });
});

describe("highlight", () => {
  it("loses no character in any language", () => {
    const code = "fn main() { let x = \"é\\n\"; /* c */ } # <b a='c'>&amp;</b> 0x1F `${y}` -- z\n+a\n-b\n";
    for (const language of "rust py js ts tsx html css json bash sql yaml toml go java c cpp c# diff md nothing __proto__ constructor".split(
      " ",
    )) {
      expect(
        highlight(code, language)
          .map((piece) => piece.text)
          .join(""),
        language,
      ).toBe(code);
    }
  });

  it("knows keywords, strings and comments", () => {
    const kinds = highlight('let a = "b"; // c', "rust").map((piece) => [piece.kind, piece.text]);
    expect(kinds).toContainEqual(["keyword", "let"]);
    expect(kinds).toContainEqual(["string", '"b"']);
    expect(kinds).toContainEqual(["comment", "// c"]);
  });
});
