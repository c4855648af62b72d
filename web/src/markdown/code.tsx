import { signal } from "@preact/signals";
import type { ComponentChildren } from "preact";
import { useEffect, useMemo, useState } from "preact/hooks";

import { Icon } from "../ui/icon";
import type { Piece, highlight as Highlight } from "./highlight";

/** The highlighter, once the first block of code has fetched it. */
const highlighter = signal<typeof Highlight | undefined>(undefined);
let fetching = false;

function fetchHighlighter(): void {
  if (fetching) return;
  fetching = true;
  import("./highlight").then(
    (module) => {
      highlighter.value = module.highlight;
    },
    () => {
      // The code stays readable without colours, and the next block tries again.
      fetching = false;
    },
  );
}

/** While it grows, a longer block has no colours, because each new piece would colour all of it again. */
const MAX_GROWING = 12_000;
const MAX_COLOURED = 200_000;

type Props = { code: string; language: string; growing?: boolean };

export function CodeBlock({ code, language, growing = false }: Props) {
  useEffect(fetchHighlighter, []);
  const highlight = highlighter.value;
  const name = language.trim().split(/\s/, 1)[0] ?? "";
  const content = useMemo<ComponentChildren>(() => {
    if (!highlight || code.length > (growing ? MAX_GROWING : MAX_COLOURED)) return code;
    return highlight(code, name).map(piece);
  }, [highlight, code, name, growing]);
  return (
    <div class="code">
      <div class="code-head">
        <span>{name || "text"}</span>
        <CopyButton text={code} label="Copy code" />
      </div>
      <pre tabIndex={0} aria-label={`Code${name ? `, ${name}` : ""}`}>
        <code>{content}</code>
      </pre>
    </div>
  );
}

function piece(each: Piece, index: number): ComponentChildren {
  return each.kind ? (
    <span key={index} class={`c-${each.kind}`}>
      {each.text}
    </span>
  ) : (
    each.text
  );
}

export function CopyButton({ text, label }: { text: string; label: string }) {
  const [copied, setCopied] = useState(false);
  const copy = async () => {
    if (!(await copyText(text))) return;
    setCopied(true);
    setTimeout(() => setCopied(false), 1500);
  };
  return (
    <button type="button" class="copy" aria-label={copied ? "Copied" : label} title={label} onClick={() => void copy()}>
      <Icon name={copied ? "check" : "copy"} size={15} />
      <span aria-hidden="true">{copied ? "Copied" : "Copy"}</span>
    </button>
  );
}

/** Copies a text, also on a page that was not fetched securely, where browsers offer no clipboard. */
export async function copyText(text: string): Promise<boolean> {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    const area = document.createElement("textarea");
    area.value = text;
    area.className = "unseen";
    document.body.append(area);
    area.select();
    const copied = document.execCommand("copy");
    area.remove();
    return copied;
  }
}
