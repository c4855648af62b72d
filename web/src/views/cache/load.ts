// The tree from the server, and news of it.

import { getJson, request } from "../../api/client";
import { sseEvents } from "../../api/sse";
import type { KvNode } from "./icicle";

/** The most nodes that the picture has. */
export const MAX_NODES = 200_000;
const PAGE = 1000;

export interface Tree {
  nodes: KvNode[];
  /** True if the server has more nodes than `MAX_NODES`. */
  isCut: boolean;
  /** Milliseconds that the pages took. */
  tookMs: number;
  numPages: number;
}

/** What `/v1/kv` tells of the tiers, as far as the view shows it. */
export interface Totals {
  disk: object | null;
  host: object | null;
  lanes: { lane: number }[];
  tenants: { disk_blocks: number | null }[];
}

/**
 * Returns the number of blocks that only the store has, which the tree does not list. It is about right, because the
 * store and the tree are looked at at different times. None of several lanes can be told apart.
 */
export function numOnlyStored({ lanes, tenants }: Totals, nodes: readonly KvNode[]): number | undefined {
  if (lanes.length !== 1) return undefined;
  const stored = tenants.reduce((sum, { disk_blocks: blocks }) => sum + (blocks ?? 0), 0);
  return Math.max(stored - nodes.reduce((sum, node) => sum + node.stored, 0), 0);
}

/** Of which model, if the server has several, and of which lane. */
export interface Place {
  model: string;
  lane: number;
}

export function query({ model, lane }: Place, more: Record<string, string> = {}): string {
  const parameters = new URLSearchParams(more);
  if (model !== "") parameters.set("model", model);
  if (lane > 0) parameters.set("lane", String(lane));
  const text = parameters.toString();
  return text === "" ? "" : `?${text}`;
}

/** Fetches the whole tree, page by page. */
export async function loadTree(place: Place, signal: AbortSignal): Promise<Tree> {
  const begin = performance.now();
  const nodes: KvNode[] = [];
  let after: number | null = null;
  let numPages = 0;
  do {
    const page: { data: KvNode[]; next: number | null } = await getJson(
      `v1/kv/tree${query(place, { limit: String(PAGE), ...(after === null ? {} : { after: String(after) }) })}`,
      signal,
    );
    for (const node of page.data) nodes.push(node);
    after = page.next;
    numPages += 1;
  } while (after !== null && nodes.length < MAX_NODES);
  return { nodes, isCut: after !== null, tookMs: performance.now() - begin, numPages };
}

/** Calls `onChange` for each event of the cache until the stream ends. */
export async function watch(model: string, onChange: () => void, signal: AbortSignal): Promise<void> {
  const response = await request(`v1/kv/events${query({ model, lane: 0 })}`, { signal });
  for await (const event of sseEvents(response)) {
    if ("data" in event) onChange();
  }
}
