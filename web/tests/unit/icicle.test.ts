import { expect, test } from "vitest";

import {
  type Box,
  type Icicle,
  type KvNode,
  layOut,
  nodeAt,
  numBelow,
  numberOf,
  numRows,
  pathTo,
  ROOT,
  sibling,
  visit,
  windowOf,
} from "../../src/views/cache/icicle";
import { numOnlyStored } from "../../src/views/cache/load";
import { madeTree } from "../made";

function node(number: number, parent: number | null, tokens: number): KvNode {
  return { ...madeTree(1, 1)[0], id: `${number}-${String(number).padStart(4, "0")}`, parent, tokens } as KvNode;
}

/** A prompt of 100 tokens with two continuations, one of which goes on, and a prompt of its own. */
const NODES = [node(7, 3, 50), node(3, null, 100), node(9, 3, 10), node(5, 9, 200), node(1, null, 40)];

function placeOf(icicle: Icicle, number: number): number {
  return icicle.nodes.findIndex((each) => numberOf(each.id) === number) + 1;
}

function rectangle(icicle: Icicle, number: number): number[] {
  const place = placeOf(icicle, number);
  return [icicle.left[place], icicle.width[place], icicle.depth[place]] as number[];
}

function boxes(icicle: Icicle, place: number, width: number, rows: number): Box[] {
  const drawn: Box[] = [];
  visit(icicle, windowOf(icicle, place), { width, rows }, (box) => drawn.push(box));
  return drawn;
}

test("a node is as wide as its tokens and those of all that continue it, the widest sibling first", () => {
  const icicle = layOut(NODES);
  expect(icicle.width[ROOT]).toBe(400);
  expect(rectangle(icicle, 3)).toEqual([0, 360, 1]);
  expect(rectangle(icicle, 1)).toEqual([360, 40, 1]);
  expect(rectangle(icicle, 9)).toEqual([0, 210, 2]);
  expect(rectangle(icicle, 7)).toEqual([210, 50, 2]);
  expect(rectangle(icicle, 5)).toEqual([0, 200, 3]);
  expect([3, 9, 7, 1].map((number) => icicle.deepest[placeOf(icicle, number)])).toEqual([3, 3, 2, 1]);
  expect(pathTo(icicle, placeOf(icicle, 5)).map((place) => icicle.nodes[place - 1]?.id)).toEqual([
    "3-0003",
    "9-0009",
    "5-0005",
  ]);
  expect([numBelow(icicle, ROOT), numBelow(icicle, placeOf(icicle, 3))]).toEqual([5, 3]);
});

test("the order of the list and a node that is listed twice change nothing", () => {
  const places = (nodes: KvNode[]) => NODES.map((each) => rectangle(layOut(nodes), numberOf(each.id)));
  expect(places(NODES.toReversed())).toEqual(places(NODES));
  expect(places([...NODES, NODES[0] as KvNode])).toEqual(places(NODES));
});

test("a node without its parent hangs from the root, a circle is left out, and lanes have numbers of their own", () => {
  const icicle = layOut([
    node(4, 99, 25),
    node(5, 6, 1),
    node(6, 5, 1),
    { ...node(8, 7, 10), id: "1.8-0008" },
    { ...node(7, null, 20), id: "1.7-0007" },
  ]);
  expect(icicle.nodes.map((each) => each.id)).toEqual(["1.7-0007", "4-0004", "1.8-0008"]);
  expect(rectangle(icicle, 8)).toEqual([0, 10, 2]);
});

test("an empty tree has nothing to draw but its root", () => {
  const icicle = layOut([]);
  expect(boxes(icicle, ROOT, 100, 5)).toEqual([]);
  expect(nodeAt(icicle, 0, 1)).toBeUndefined();
});

test("a point belongs to the node that is drawn there", () => {
  const icicle = layOut(NODES);
  for (const { place, x, width, row } of boxes(icicle, ROOT, 400, 9)) {
    expect(nodeAt(icicle, x, row)).toBe(place);
    expect(nodeAt(icicle, x + width - 0.01, row)).toBe(place);
  }
  // Beside the continuations there are the node's own tokens.
  expect(nodeAt(icicle, 300, 2)).toBeUndefined();
  expect([nodeAt(icicle, -1, 1), nodeAt(icicle, 400, 1)]).toEqual([undefined, undefined]);
});

test("a zoomed node is as wide as the picture, below two nodes of its path", () => {
  const icicle = layOut(NODES);
  expect(boxes(icicle, placeOf(icicle, 9), 105, 9)).toEqual([
    { place: ROOT, x: 0, width: 105, row: 0 },
    { place: placeOf(icicle, 3), x: 0, width: 105, row: 1 },
    { place: placeOf(icicle, 9), x: 0, width: 105, row: 2 },
    { place: placeOf(icicle, 5), x: 0, width: 100, row: 3 },
  ]);
  expect(boxes(icicle, placeOf(icicle, 5), 100, 2).map(({ place, row }) => [place, row])).toEqual([
    [placeOf(icicle, 3), 0],
    [placeOf(icicle, 9), 1],
  ]);
});

test("nodes that are narrower than a pixel are drawn as one", () => {
  const icicle = layOut([node(1, null, 1000), ...Array.from({ length: 100 }, (_, idx) => node(idx + 2, 1, 1))]);
  expect(boxes(icicle, ROOT, 110, 9).map(({ place, row }) => [place, row])).toEqual([
    [ROOT, 0],
    [1, 1],
    [-1, 2],
  ]);
  expect(boxes(icicle, ROOT, 1100, 9)).toHaveLength(102);
  // What lies below them has no row.
  const deep = layOut([node(1, null, 10_000), node(2, 1, 1), node(3, 2, 1)]);
  expect([numRows(deep, windowOf(deep, ROOT), 100), numRows(deep, windowOf(deep, 2), 100)]).toEqual([3, 4]);
});

test("siblings are walked to the ends of their row", () => {
  const icicle = layOut(NODES);
  const [three, one] = [placeOf(icicle, 3), placeOf(icicle, 1)];
  expect([sibling(icicle, three, 1), sibling(icicle, one, 1), sibling(icicle, three, -1)]).toEqual([one, one, three]);
  expect(sibling(icicle, ROOT, 1)).toBe(ROOT);
});

test("in any tree children lie within their parents, beside each other, and boxes of a row do not overlap", () => {
  for (const seed of [1, 2, 3, 4, 5]) {
    const icicle = layOut(madeTree(2000, seed));
    expect(icicle.nodes).toHaveLength(2000);
    const right = (place: number): number => (icicle.left[place] as number) + (icicle.width[place] as number);
    const misplaced = icicle.nodes
      .map((_, idx) => idx + 1)
      .filter((place) => {
        const parent = icicle.parent[place] as number;
        const isWithin =
          (icicle.left[place] as number) >= (icicle.left[parent] as number) && right(place) <= right(parent);
        return !isWithin || (sibling(icicle, place, 1) !== place && icicle.left[place + 1] !== right(place));
      });
    expect(misplaced).toEqual([]);
    const ends = new Map<number, number>();
    const overlapping = boxes(icicle, 1 + (seed % 3), 500, 40)
      .sort((a, b) => a.x - b.x)
      .filter(({ row, x, width }) => {
        const end = ends.get(row) ?? 0;
        ends.set(row, x + width);
        return x < end - 1e-6 || x + width > 500 + 1e-6;
      });
    expect(overlapping).toEqual([]);
  }
});

test("a frame of 100,000 nodes visits few of them", () => {
  const icicle = layOut(madeTree(100_000, 9));
  expect(icicle.nodes).toHaveLength(100_000);
  expect(boxes(icicle, ROOT, 1200, 30).length).toBeLessThan(1200 * 30);
  expect(boxes(icicle, ROOT, 1200, 30).length).toBeGreaterThan(100);
});

test("a chain of 50,000 turns is laid out without recursion", () => {
  const chain = Array.from({ length: 50_000 }, (_, idx) => node(idx, idx === 0 ? null : idx - 1, 2));
  expect(layOut(chain).deepest[ROOT]).toBe(50_000);
});

test("blocks that no node has are only in the store, and lanes cannot be told apart", () => {
  const nodes = NODES.map((each, idx) => ({ ...each, stored: idx }));
  const totals = { disk: {}, host: null, tenants: [{ disk_blocks: 9 }, { disk_blocks: 5 }, { disk_blocks: null }] };
  expect(numOnlyStored({ ...totals, lanes: [{ lane: 0 }] }, nodes)).toBe(4);
  expect(numOnlyStored({ ...totals, lanes: [{ lane: 0 }, { lane: 1 }] }, nodes)).toBeUndefined();
  // The store was looked at before the tree.
  expect(numOnlyStored({ ...totals, tenants: [], lanes: [{ lane: 0 }] }, nodes)).toBe(0);
});
