import { computed } from "@preact/signals";

import { models } from "../../api/server";
import type { ModelCard } from "../../api/types";
import { settings } from "./settings";

/** The chosen model, or the first one if the server does not list the chosen one. */
export const chosenModel = computed<ModelCard | undefined>(
  () => models.value.find(({ id }) => id === settings.value.model) ?? models.value[0],
);

/** Returns a model's name without the account of its repository. */
export function shortName(id: string): string {
  return id.split("/").at(-1) || id;
}

const STATES: Record<string, string> = {
  unloaded: "not in memory",
  queued: "waits for memory",
  loading: "loading",
  unloading: "unloading",
  failed: "failed",
};

/** Returns what is worth knowing of a model's state, or an empty text if it is ready. */
export function stateOf(card: ModelCard): string {
  const value = card.status?.value ?? "loaded";
  return STATES[value] ?? (value === "loaded" ? "" : value);
}
