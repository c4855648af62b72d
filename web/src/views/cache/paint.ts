// Draws the icicle on a canvas.

import { token } from "../colours";
import { count } from "../format";
import { type Box, type Icicle, type KvNode, ROOT, visit, type Window } from "./icicle";

export type Colouring = "tier" | "age" | "hits";

/** The colours of nodes, by coarse steps, so that each frame sets few of them. */
export interface Palette {
  device: string;
  stored: string;
  /** From just used to long ago. */
  ages: string[];
  /** From no hit to many. */
  hits: string[];
  root: string;
  several: string;
  text: string;
  pinned: string;
  held: string;
  shared: string;
  selected: string;
  font: string;
}

/** Upper bounds of the ages that have a colour each, in milliseconds; older nodes have the last one. */
export const AGE_BOUNDS = [10_000, 60_000, 600_000, 3_600_000];
export const AGE_NAMES = ["under 10 s", "under 1 min", "under 10 min", "under 1 h", "older"];
/** Upper bounds of the hits that have a colour each. */
export const HIT_BOUNDS = [1, 2, 4, 10];
export const HIT_NAMES = ["none", "1", "2 to 3", "4 to 9", "10 and more"];
/** How much of the colour each step has, the rest being the surface. Text is readable on all of them. */
const STEPS = [0.55, 0.42, 0.31, 0.21, 0.13];

export function palette(context: CanvasRenderingContext2D, storeToken: string): Palette {
  // A canvas writes any opaque colour as six digits.
  const rgb = (name: string): number[] => {
    context.fillStyle = token(name);
    const digits = String(context.fillStyle).slice(1);
    return [0, 2, 4].map((at) => Number.parseInt(digits.slice(at, at + 2), 16));
  };
  const surface = rgb("--surface");
  const mixed = (name: string, share: number): string => {
    const colour = rgb(name);
    return `rgb(${colour.map((part, idx) => Math.round(part * share + (surface[idx] ?? 0) * (1 - share))).join(" ")})`;
  };
  return {
    device: mixed("--tier-device", 0.32),
    stored: mixed(storeToken, 0.36),
    ages: STEPS.map((share) => mixed("--series-3", share)),
    hits: STEPS.toReversed().map((share) => mixed("--series-2", share)),
    root: token("--surface-3"),
    several: mixed("--text-3", 0.25),
    text: token("--text"),
    pinned: token("--warn"),
    held: token("--ok"),
    shared: token("--text-3"),
    selected: token("--text"),
    font: getComputedStyle(document.body).fontFamily,
  };
}

function step(bounds: number[], value: number): number {
  const idx = bounds.findIndex((bound) => value < bound);
  return idx < 0 ? bounds.length : idx;
}

export function colourOf(node: KvNode, colouring: Colouring, colours: Palette): string {
  switch (colouring) {
    case "tier":
      return node.stored > 0 ? colours.stored : colours.device;
    case "age":
      return colours.ages[step(AGE_BOUNDS, node.age_ms)] ?? colours.several;
    case "hits":
      return colours.hits[step(HIT_BOUNDS, node.hits)] ?? colours.several;
  }
}

export interface Frame {
  icicle: Icicle;
  window: Window;
  width: number;
  height: number;
  rowHeight: number;
  colouring: Colouring;
  colours: Palette;
  selected: number;
  hovered: number;
}

const MIN_LABEL = 46;
const STRIPE = 3;

/** Draws a frame and returns the number of rectangles. The context is scaled to CSS pixels. */
export function paint(context: CanvasRenderingContext2D, frame: Frame): number {
  const { icicle, window, width, height, rowHeight, colours } = frame;
  context.clearRect(0, 0, width, height);
  const boxes: Box[] = [];
  visit(icicle, window, { width, rows: Math.ceil(height / rowHeight) }, (box) => boxes.push(box));
  const gap = rowHeight >= 12 ? 2 : 1;
  const inner = rowHeight - gap;
  let fill = "";
  for (const { place, x, width: wide, row } of boxes) {
    const node = icicle.nodes[place - 1];
    const next =
      place === ROOT ? colours.root : node === undefined ? colours.several : colourOf(node, frame.colouring, colours);
    if (next !== fill) context.fillStyle = fill = next;
    context.fillRect(x, row * rowHeight, wide > 3 ? wide - 1 : wide, inner);
  }
  paintMarks(context, frame, boxes, inner);
  if (rowHeight >= 16) paintLabels(context, frame, boxes, inner);
  const outlined = [
    [frame.hovered, 1],
    [frame.selected, 2],
  ] as const;
  for (const [wanted, line] of outlined) {
    const box = wanted > ROOT ? boxes.find(({ place }) => place === wanted) : undefined;
    if (box === undefined) continue;
    context.strokeStyle = colours.selected;
    context.lineWidth = line;
    context.strokeRect(
      box.x + line / 2,
      box.row * rowHeight + line / 2,
      Math.max(box.width - 1 - line, 1),
      inner - line,
    );
  }
  return boxes.length;
}

/** Marks pinned nodes above, shared ones below, and those in use at the left. */
function paintMarks(
  context: CanvasRenderingContext2D,
  { icicle, rowHeight, colours }: Frame,
  boxes: Box[],
  inner: number,
): void {
  const stripe = Math.min(STRIPE, inner / 4);
  const kinds: [string, (node: KvNode) => boolean, (box: Box) => [number, number, number, number]][] = [
    [
      colours.shared,
      (node) => node.children > 1,
      ({ x, width, row }) => [x, row * rowHeight + inner - stripe / 2, width - 1, stripe / 2],
    ],
    [
      colours.pinned,
      (node) => node.pinned + node.disk_pinned > 0,
      ({ x, width, row }) => [x, row * rowHeight, width - 1, stripe],
    ],
    [colours.held, (node) => node.held > node.pinned, ({ x, row }) => [x, row * rowHeight, stripe, inner]],
  ];
  for (const [colour, has, area] of kinds) {
    context.fillStyle = colour;
    for (const box of boxes) {
      const node = box.place > ROOT ? icicle.nodes[box.place - 1] : undefined;
      if (node !== undefined && box.width >= 3 && has(node)) context.fillRect(...area(box));
    }
  }
}

function paintLabels(context: CanvasRenderingContext2D, frame: Frame, boxes: Box[], inner: number): void {
  const { icicle, rowHeight, colours } = frame;
  context.fillStyle = colours.text;
  context.font = `12px ${colours.font}`;
  context.textBaseline = "middle";
  for (const { place, x, width, row } of boxes) {
    if (width < MIN_LABEL || place < 0) continue;
    const node = icicle.nodes[place - 1];
    const tokens = node?.tokens ?? icicle.width[ROOT] ?? 0;
    const key = node?.prompt_cache_keys.at(-1);
    // Digits are about as wide as each other, so that text need not be measured: 7 pixels each.
    const short = count(tokens);
    const long =
      node === undefined ? `all · ${short} tokens` : `${short} tokens${key === undefined ? "" : ` · ${key}`}`;
    const room = width - 16;
    const text = long.length * 7 <= room ? long : short.length * 7 <= room ? short : "";
    if (text !== "") context.fillText(text, x + 8, row * rowHeight + inner / 2 + 1);
  }
}
