// The layout of the KV tree as an icicle: a rectangle for each node, as wide as the tokens of the node and of all that
// continue it, with its continuations below it. Pure, so that it can be tested without a canvas.

/** A node of the tree, as `/v1/kv/tree` answers it. */
export interface KvNode {
  id: string;
  parent: number | null;
  namespace: string;
  first_token: number;
  tokens: number;
  blocks: number;
  bytes: number;
  held: number;
  stored: number;
  pinned: number;
  disk_pinned: number;
  pin_ends_in_ms: number | null;
  prompt_cache_keys: string[];
  children: number;
  hits: number;
  age_ms: number;
}

/**
 * The laid out tree. The arrays have an element for each node, parents before children; the first one is the root,
 * which stands for the whole cache and is no node of the server.
 */
export interface Icicle {
  /** The server's nodes, shifted by one: `nodes[i - 1]` is at place `i`. */
  nodes: KvNode[];
  parent: Int32Array;
  depth: Uint32Array;
  /** The left edge and the width, as tokens. A child lies within its parent. */
  left: Float64Array;
  width: Float64Array;
  /** The children of place `i` are the places `first[i]` to `first[i] + count[i] - 1`, the widest one first. */
  first: Int32Array;
  count: Int32Array;
  /** The depth of the deepest node at or below each place. */
  deepest: Uint32Array;
}

export const ROOT = 0;

/** Returns the number by which children name their parent: `12` of `12-27a3…`, and of lane 1's `1.12-27a3…`. */
export function numberOf(id: string): number {
  const place = id.slice(0, id.indexOf("-"));
  return Number(place.slice(place.indexOf(".") + 1));
}

/**
 * Lays out nodes in any order. A node whose parent is missing, as between two pages of a tree that changes, hangs from
 * the root. Of nodes with the same number the last one counts. O(n log n) without recursion, because a chain of turns
 * can be deep.
 */
export function layOut(listed: readonly KvNode[]): Icicle {
  const byNumber = new Map<number, KvNode>();
  for (const node of listed) byNumber.set(numberOf(node.id), node);
  const found = [...byNumber.values()];
  const index = new Map([...byNumber.keys()].map((number, idx) => [number, idx]));
  const parents = found.map((node) => (node.parent === null ? -1 : (index.get(node.parent) ?? -1)));
  const childrenOf = found.map((): number[] => []);
  const roots: number[] = [];
  parents.forEach((parent, idx) => (childrenOf[parent] ?? roots).push(idx));

  // Parents first. Nodes in a circle, which only a faulty answer has, are not reached.
  const order = [...roots];
  for (let at = 0; at < order.length; at++) {
    for (const child of childrenOf[order[at] as number] as number[]) order.push(child);
  }
  const total = new Float64Array(found.length);
  for (const idx of order.toReversed()) {
    total[idx] = (total[idx] as number) + (found[idx] as KvNode).tokens;
    const parent = parents[idx] as number;
    if (parent >= 0) total[parent] = (total[parent] as number) + (total[idx] as number);
  }
  // The id decides between equal widths, so that the picture stays as it is from one look to the next.
  const byWidth = (a: number, b: number): number =>
    (total[b] as number) - (total[a] as number) || (keyOf(found[a]) < keyOf(found[b]) ? -1 : 1);
  const size = order.length + 1;
  const icicle: Icicle = {
    nodes: [],
    parent: new Int32Array(size).fill(-1),
    depth: new Uint32Array(size),
    left: new Float64Array(size),
    width: new Float64Array(size),
    first: new Int32Array(size),
    count: new Int32Array(size),
    deepest: new Uint32Array(size),
  };
  icicle.width[ROOT] = roots.reduce((sum, idx) => sum + (total[idx] as number), 0);
  // Places are given out in the order in which parents are met, so that siblings lie side by side.
  const places = [-1];
  for (let place = 0; place < places.length; place++) {
    const idx = places[place] as number;
    const children = (idx < 0 ? roots : (childrenOf[idx] as number[])).sort(byWidth);
    icicle.first[place] = places.length;
    icicle.count[place] = children.length;
    const depth = (icicle.depth[place] as number) + 1;
    let left = icicle.left[place] as number;
    for (const child of children) {
      const at = places.length;
      places.push(child);
      icicle.nodes.push(found[child] as KvNode);
      icicle.parent[at] = place;
      icicle.depth[at] = depth;
      icicle.left[at] = left;
      icicle.width[at] = total[child] as number;
      left += total[child] as number;
    }
  }
  icicle.deepest.set(icicle.depth);
  for (let place = size - 1; place > ROOT; place--) {
    const parent = icicle.parent[place] as number;
    icicle.deepest[parent] = Math.max(icicle.deepest[parent] as number, icicle.deepest[place] as number);
  }
  return icicle;
}

function keyOf(node: KvNode | undefined): string {
  return node?.id.slice(node.id.indexOf("-") + 1) ?? "";
}

/** The part of the tree that a picture shows: tokens `left` to `left + width`, and rows from `row` on. */
export interface Window {
  left: number;
  width: number;
  row: number;
}

/** The rows above a zoomed node that show where it comes from. */
export const ROWS_ABOVE = 2;

/** Returns the window in which a node is as wide as the picture, below the last nodes of the path to it. */
export function windowOf(icicle: Icicle, place: number): Window {
  return {
    left: icicle.left[place] ?? 0,
    width: Math.max(icicle.width[place] ?? 0, 1),
    row: Math.max((icicle.depth[place] ?? 0) - ROWS_ABOVE, 0),
  };
}

/** A rectangle to draw, in pixels. `place` is a node, or -1 for several that are each narrower than a pixel. */
export interface Box {
  place: number;
  x: number;
  width: number;
  row: number;
}

/**
 * Calls `draw` for each rectangle of a window that is at least a pixel wide, and for the rest of each row of siblings
 * as one. The cost depends on the pixels and rows, and hardly on the size of the tree.
 */
export function visit(
  icicle: Icicle,
  window: Window,
  size: { width: number; rows: number },
  draw: (box: Box) => void,
): void {
  const scale = size.width / window.width;
  const end = window.left + window.width;
  const stack = [ROOT];
  while (stack.length > 0) {
    const place = stack.pop() as number;
    const row = (icicle.depth[place] as number) - window.row;
    if (row >= size.rows) continue;
    if (row > -1) {
      const x = ((icicle.left[place] as number) - window.left) * scale;
      const from = Math.max(x, 0);
      const to = Math.min(x + (icicle.width[place] as number) * scale, size.width);
      if (to > from) draw({ place, x: from, width: to - from, row });
    }
    const first = icicle.first[place] as number;
    const last = first + (icicle.count[place] as number);
    for (let child = firstBefore(icicle, first, last, window.left); child < last; child++) {
      const left = icicle.left[child] as number;
      if (left >= end) break;
      const width = (icicle.width[child] as number) * scale;
      if (width >= 1) {
        stack.push(child);
        continue;
      }
      // Siblings are sorted by width, so all further ones are narrower, too.
      if (row + 1 > -1 && row + 1 < size.rows) {
        const lastRight = (icicle.left[last - 1] as number) + (icicle.width[last - 1] as number);
        const x = Math.max((left - window.left) * scale, 0);
        const to = Math.min((lastRight - window.left) * scale, size.width);
        if (to > x) draw({ place: -1, x, width: to - x, row: row + 1 });
      }
      break;
    }
  }
}

/** Returns the number of rows that have something to draw, which may be fewer than the levels of the tree. */
export function numRows(icicle: Icicle, window: Window, width: number): number {
  let last = 0;
  visit(icicle, window, { width, rows: Infinity }, ({ row }) => (last = Math.max(last, row)));
  return last + 1;
}

/** Returns the node at a point, or undefined where there is none. */
export function nodeAt(icicle: Icicle, token: number, depth: number): number | undefined {
  let place = ROOT;
  if (token < 0 || token >= (icicle.width[ROOT] ?? 0)) return undefined;
  while ((icicle.depth[place] as number) < depth) {
    const first = icicle.first[place] as number;
    const child = firstBefore(icicle, first, first + (icicle.count[place] as number), token);
    if (child >= first + (icicle.count[place] as number)) return undefined;
    const left = icicle.left[child] as number;
    if (token < left || token >= left + (icicle.width[child] as number)) return undefined;
    place = child;
  }
  return place;
}

/** Returns the first of the siblings `first` to `last - 1` that ends behind `token`, or `last`. */
function firstBefore(icicle: Icicle, first: number, last: number, token: number): number {
  let [low, high] = [first, last];
  while (low < high) {
    const middle = (low + high) >> 1;
    if ((icicle.left[middle] as number) + (icicle.width[middle] as number) > token) high = middle;
    else low = middle + 1;
  }
  return low;
}

/** Returns the sibling `step` places to the right, or the node itself at the end of its row. */
export function sibling(icicle: Icicle, place: number, step: 1 | -1): number {
  const parent = icicle.parent[place] ?? -1;
  if (parent < 0) return place;
  const first = icicle.first[parent] as number;
  const next = place + step;
  return next >= first && next < first + (icicle.count[parent] as number) ? next : place;
}

/** Returns the nodes from the start of the prompt to this one, without the root. */
export function pathTo(icicle: Icicle, place: number): number[] {
  const path: number[] = [];
  for (let at = place; at > ROOT; at = icicle.parent[at] as number) path.push(at);
  return path.reverse();
}

/** Returns the number of nodes below a node. */
export function numBelow(icicle: Icicle, place: number): number {
  let num = 0;
  const stack = [place];
  while (stack.length > 0) {
    const at = stack.pop() as number;
    const count = icicle.count[at] as number;
    num += count;
    for (let idx = 0; idx < count; idx++) stack.push((icicle.first[at] as number) + idx);
  }
  return num;
}
