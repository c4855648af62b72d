import type { Token, Tokens } from "marked";
import type { ComponentChildren, JSX } from "preact";
import { useRef } from "preact/hooks";

import { type Block, blocksOf, GrowingBlocks } from "./blocks";
import { CodeBlock } from "./code";
import { decodeEntities, safeAddress } from "./links";
import { memo } from "./memo";
import "./markdown.css";

/**
 * Shows Markdown that a model wrote. Every piece becomes a text node or an element made here: HTML is shown as text,
 * images are links, and links lead only to http, https and mailto.
 */
export function Markdown({ text, growing = false }: { text: string; growing?: boolean }) {
  const growth = useRef<GrowingBlocks | undefined>(undefined);
  const whole = useRef<{ text: string; blocks: Block[] } | undefined>(undefined);
  let blocks: Block[];
  if (growing) {
    growth.current ??= new GrowingBlocks();
    blocks = growth.current.update(text);
  } else {
    if (whole.current?.text !== text) whole.current = { text, blocks: blocksOf(text) };
    blocks = whole.current.blocks;
  }
  const last = blocks.length - 1;
  return (
    <div class="markdown">
      {blocks.map((block, index) => (
        <ShownBlock key={index} block={block} growing={growing && index === last} />
      ))}
    </div>
  );
}

const ShownBlock = memo(
  ({ block, growing }: { block: Block; growing: boolean }) => (
    <>{block.token ? shown(block.token, 0, growing) : <p class="plain">{block.text}</p>}</>
  ),
  (before, after) => before.block.raw === after.block.raw && before.growing === after.growing,
);

const MAX_DEPTH = 50;

function all(tokens: Token[] | undefined, depth: number): ComponentChildren {
  if (depth > MAX_DEPTH) return tokens?.map((token) => token.raw).join("");
  return tokens?.map((token) => shown(token, depth + 1));
}

function shown(token: Token, depth: number, growing = false): ComponentChildren {
  switch (token.type) {
    case "space":
    case "def":
      return null;
    case "heading": {
      // The page's own heading is above, and no heading may skip a level too far.
      const Heading = `h${Math.min((token as Tokens.Heading).depth + 2, 6)}` as "h3";
      return <Heading class={`h${(token as Tokens.Heading).depth}`}>{all(token.tokens, depth)}</Heading>;
    }
    case "paragraph":
      return <p>{all(token.tokens, depth)}</p>;
    case "text":
      return token.tokens ? all(token.tokens, depth) : decodeEntities((token as Tokens.Text).text);
    case "escape":
      return (token as Tokens.Escape).text;
    case "strong":
      return <strong>{all(token.tokens, depth)}</strong>;
    case "em":
      return <em>{all(token.tokens, depth)}</em>;
    case "del":
      return <del>{all(token.tokens, depth)}</del>;
    case "codespan":
      return <code>{(token as Tokens.Codespan).text}</code>;
    case "code":
      return (
        <CodeBlock code={(token as Tokens.Code).text} language={(token as Tokens.Code).lang ?? ""} growing={growing} />
      );
    case "blockquote":
      return <blockquote>{all(token.tokens, depth)}</blockquote>;
    case "list":
      return list(token as Tokens.List, depth);
    case "table":
      return table(token as Tokens.Table, depth);
    case "hr":
      return <hr />;
    case "br":
      return <br />;
    case "link":
      return link((token as Tokens.Link).href, all(token.tokens, depth), token.raw);
    case "image": {
      const { href, text, raw } = token as Tokens.Image;
      return link(href, `Image: ${text || href}`, raw);
    }
    case "checkbox":
      return null;
    default:
      // HTML, and whatever a later version of the parser knows.
      return token.raw;
  }
}

function link(href: string, children: ComponentChildren, raw: string): ComponentChildren {
  const address = safeAddress(href);
  if (!address) return raw;
  return (
    <a href={address} title={address} target="_blank" rel="noopener noreferrer nofollow">
      {children}
    </a>
  );
}

function list(token: Tokens.List, depth: number): JSX.Element {
  const items = token.items.map((item, index) => (
    <li key={index} class={item.task ? "task" : undefined}>
      {item.task && (
        <input type="checkbox" checked={item.checked} disabled aria-label={item.checked ? "done" : "to do"} />
      )}
      {all(item.tokens, depth)}
    </li>
  ));
  if (!token.ordered) return <ul>{items}</ul>;
  return <ol start={typeof token.start === "number" ? token.start : 1}>{items}</ol>;
}

function table(token: Tokens.Table, depth: number): JSX.Element {
  const side = (align: string | null) => (align ? `align-${align}` : undefined);
  return (
    <div class="table" role="region" aria-label="Table" tabIndex={0}>
      <table>
        <thead>
          <tr>
            {token.header.map((cell, index) => (
              <th key={index} class={side(cell.align)}>
                {all(cell.tokens, depth)}
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          {token.rows.map((row, number) => (
            <tr key={number}>
              {row.map((cell, index) => (
                <td key={index} class={side(cell.align)}>
                  {all(cell.tokens, depth)}
                </td>
              ))}
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}
