import { effect, signal } from "@preact/signals";

import type { Parameters } from "../../history/tree";
import { keep, recall } from "../../storage";

/** What an answer must look like. The texts of all kinds are kept while another one is chosen. */
export type Format = { kind: "text" | "json" | "schema" | "regex"; schema: string; regex: string };

export type Settings = {
  /** The chosen model; empty for the first one that the server lists. */
  model: string;
  parameters: Parameters;
  /** The number of answers side by side. */
  answers: number;
  format: Format;
  /** The tools as JSON, as the user wrote them. */
  tools: string;
  useTools: boolean;
  /** Asks for the probabilities of tokens. */
  probabilities: boolean;
};

const KEY = "trunkline.settings";

const DEFAULTS: Settings = {
  model: "",
  parameters: {},
  answers: 1,
  format: { kind: "text", schema: "", regex: "" },
  tools: "",
  useTools: false,
  probabilities: false,
};

function stored(): Settings {
  try {
    const kept = JSON.parse(recall("browser", KEY) ?? "{}") as Partial<Settings>;
    return { ...DEFAULTS, ...kept, format: { ...DEFAULTS.format, ...kept.format } };
  } catch {
    return DEFAULTS;
  }
}

/** How the next answers are made. They hold for all conversations and are kept in this browser. */
export const settings = signal<Settings>(stored());

effect(() => {
  keep("browser", KEY, JSON.stringify(settings.value));
});

export function change(part: Partial<Settings>): void {
  settings.value = { ...settings.value, ...part };
}

export function setParameter(name: string, value: unknown): void {
  const parameters = { ...settings.value.parameters };
  if (value === undefined || value === "") delete parameters[name];
  else parameters[name] = value;
  change({ parameters });
}
