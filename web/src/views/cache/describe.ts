// What a node is, in words.

import { count, counted, duration } from "../format";
import type { KvNode } from "./icicle";

/** Where the blocks of a node lie. `store` is the name of the tier below the device. */
export function tiersOf(node: KvNode, store: string): string {
  if (node.stored === 0) return "device";
  return node.stored >= node.blocks
    ? `device and ${store}`
    : `device, and ${count(node.stored)} of ${counted(node.blocks, "block")} in ${store}`;
}

/** How a node is pinned, or undefined if it is not. */
export function pinOf(node: KvNode): string | undefined {
  if (node.pinned + node.disk_pinned === 0) return undefined;
  return node.pin_ends_in_ms === null ? "by a prompt that continues it" : `for ${duration(node.pin_ends_in_ms)} more`;
}

/** A sentence that a screen reader says when a node is reached. */
export function describe(node: KvNode, below: number, store: string): string {
  const facts = [
    `${counted(node.tokens, "token")} from ${count(node.first_token)} on`,
    below > node.tokens ? `${count(below)} with what continues it` : undefined,
    node.children > 0 ? counted(node.children, "continuation") : "no continuation",
    counted(node.hits, "hit"),
    `used ${duration(node.age_ms)} ago`,
    `on ${tiersOf(node, store)}`,
    node.held > node.pinned ? "in use" : undefined,
    pinOf(node) === undefined ? undefined : "pinned",
  ];
  return `${facts.filter((fact) => fact !== undefined).join(", ")}.`;
}
