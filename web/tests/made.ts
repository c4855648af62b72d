// A made tree, for tests and measurements.

import type { KvNode } from "../src/views/cache/icicle";

/** Returns a tree of conversations that share prefixes. The same seed gives the same tree. */
export function madeTree(size: number, seed: number): KvNode[] {
  const random = mulberry(seed);
  const below = (limit: number): number => Math.floor(random() * limit);
  const nodes: KvNode[] = [];
  // System prompts, which conversations begin with, and the last turns of conversations that go on.
  const shared: KvNode[] = [];
  const open: KvNode[] = [];
  for (let idx = 0; idx < size; idx++) {
    const kind = random();
    const turn = below(open.length);
    const parent = kind < 0.002 ? undefined : kind < 0.2 ? shared[below(shared.length)] : open[turn];
    const tokens = 64 * (1 + below(parent === undefined ? 40 : 12));
    const blocks = tokens / 64;
    const node: KvNode = {
      id: `${idx * 7 + 1}-${below(2 ** 32)
        .toString(16)
        .padStart(8, "0")}${"0".repeat(24)}`,
      parent: parent === undefined ? null : Number(parent.id.split("-")[0]),
      namespace: "7be1d2f0",
      first_token: parent === undefined ? 0 : parent.first_token + parent.tokens,
      tokens,
      blocks,
      bytes: blocks * 760_320,
      held: random() < 0.05 ? blocks : 0,
      stored: random() < 0.6 ? blocks : 0,
      pinned: random() < 0.02 ? blocks : 0,
      disk_pinned: 0,
      pin_ends_in_ms: null,
      prompt_cache_keys: [],
      children: 0,
      hits: below(20),
      age_ms: below(3_600_000),
    };
    nodes.push(node);
    if (parent === undefined) {
      shared.push(node);
    } else {
      parent.children += 1;
      // A turn is the last one, or another answer branches off beside it.
      if (kind >= 0.2 && random() < 0.9) open[turn] = node;
      else if (open.length < 300 || kind < 0.2) open[open.length < 300 ? open.length : below(300)] = node;
    }
  }
  return nodes;
}

function mulberry(seed: number): () => number {
  let state = seed;
  return () => {
    state = (state + 0x6d2b79f5) | 0;
    let mixed = Math.imul(state ^ (state >>> 15), 1 | state);
    mixed = (mixed + Math.imul(mixed ^ (mixed >>> 7), 61 | mixed)) ^ mixed;
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32;
  };
}
