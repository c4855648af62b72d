import { effect } from "@preact/signals";

import type { Turn } from "../../history/tree";
import { conversation } from "./conversations";
import { resume, runs } from "./run";

/** The streams that this tab has looked for already. */
const tried = new Set<string>();

/** Follows the answers of the shown conversation that a reload or another tab has left behind. */
export function watchLeft(): void {
  effect(() => {
    const { id, turns } = conversation.value;
    if (runs.value.has(id)) return;
    const left = Object.values(turns).filter(({ state, stream }) => state === "cut" && stream && !tried.has(stream.id));
    const stream = left[0]?.stream?.id;
    if (stream === undefined) return;
    tried.add(stream);
    const choice = ({ choice }: Turn) => choice ?? 0;
    const own = left.filter((turn) => turn.stream?.id === stream).sort((a, b) => choice(a) - choice(b));
    queueMicrotask(() => resume(id, own));
  });
}
