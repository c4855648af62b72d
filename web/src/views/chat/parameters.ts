import { signal } from "@preact/signals";

import { getJson, isRecord } from "../../api/client";

/** A sampling parameter as the server's own document describes it. */
export type Parameter = {
  name: string;
  kind: "number" | "integer" | "boolean" | "text" | "texts";
  help: string;
  minimum?: number;
  maximum?: number;
  exclusiveMinimum?: number;
  default?: number;
};

export type ParameterGroup = { title: string; parameters: Parameter[] };

const LAST_GROUP = "More";

/**
 * The order of the panel. A parameter that the server does not describe is left out, and a sampling parameter that is
 * not named here comes last.
 */
const GROUPS: [title: string, names: string[]][] = [
  ["Sampling", ["temperature", "top_p", "top_k", "min_p", "seed"]],
  ["Length", ["max_completion_tokens", "min_tokens", "stop", "ignore_eos"]],
  [
    "Repetition",
    [
      "presence_penalty",
      "frequency_penalty",
      "repetition_penalty",
      "dry_multiplier",
      "dry_base",
      "dry_allowed_length",
      "dry_penalty_last_n",
    ],
  ],
  ["Reasoning", ["reasoning_effort", "thinking_token_budget"]],
  [
    LAST_GROUP,
    [
      "typical_p",
      "top_n_sigma",
      "xtc_probability",
      "xtc_threshold",
      "skip_special_tokens",
      "speculation",
      "service_tier",
      "cache_salt",
      "timeout",
    ],
  ],
];

/** Values of a slider where the server's range is much wider than what is useful. */
export const USUAL: Record<string, [least: number, most: number]> = {
  temperature: [0, 2],
  repetition_penalty: [0.8, 1.5],
  dry_multiplier: [0, 2],
  dry_base: [1, 4],
  dry_allowed_length: [0, 20],
  top_n_sigma: [0, 5],
};

/** The parameters once `/openapi.json` was read. */
export const groups = signal<ParameterGroup[] | undefined>(undefined);

export async function fetchParameters(): Promise<void> {
  groups.value = parametersOf(await getJson<unknown>("openapi.json"));
}

/** Reads the sampling parameters of chats, with their ranges and descriptions, from an OpenAPI document. */
export function parametersOf(document: unknown): ParameterGroup[] {
  const properties = dig(document, "components", "schemas", "ChatCompletionRequest", "properties");
  if (!isRecord(properties)) return [];
  const named = new Set(GROUPS.flatMap(([, names]) => names));
  const others = Object.entries(properties)
    .filter(([name, schema]) => !named.has(name) && isRecord(schema) && "x-default-set-by" in schema)
    .map(([name]) => name);
  return GROUPS.map(([title, names]) => ({
    title,
    parameters: [...names, ...(title === LAST_GROUP ? others : [])].flatMap(
      (name) => parameterOf(name, properties[name]) ?? [],
    ),
  })).filter(({ parameters }) => parameters.length > 0);
}

function dig(value: unknown, ...names: string[]): unknown {
  return names.reduce((inner, name) => (isRecord(inner) ? inner[name] : undefined), value);
}

function parameterOf(name: string, schema: unknown): Parameter | undefined {
  if (!isRecord(schema)) return undefined;
  const types = [schema.type].flat();
  const alternative = Array.isArray(schema.oneOf)
    ? schema.oneOf.find((each) => isRecord(each) && "$ref" in each)
    : undefined;
  const described = schema.description ?? (isRecord(alternative) ? alternative.description : undefined);
  const kind = (["integer", "number", "boolean"] as const).find((each) => types.includes(each));
  const parameter: Parameter = {
    name,
    kind: kind ?? (name === "stop" ? "texts" : "text"),
    help: typeof described === "string" ? described.replace(/\s*\n\s*/g, " ") : "",
  };
  for (const bound of ["minimum", "maximum", "exclusiveMinimum", "default"] as const) {
    const value = schema[bound];
    if (typeof value === "number") parameter[bound] = value;
  }
  return parameter;
}

/** Returns what is wrong with a value, as a sentence, or undefined. */
export function problemWith(
  { kind, minimum, maximum, exclusiveMinimum }: Parameter,
  value: unknown,
): string | undefined {
  if (value === undefined) return undefined;
  if (kind === "number" || kind === "integer") {
    if (typeof value !== "number" || !Number.isFinite(value)) return "This is not a number.";
    if (kind === "integer" && !Number.isInteger(value)) return "This must be a whole number.";
    if (minimum !== undefined && value < minimum) return `The least value is ${minimum}.`;
    if (exclusiveMinimum !== undefined && value <= exclusiveMinimum)
      return `The value must be above ${exclusiveMinimum}.`;
    if (maximum !== undefined && value > maximum) return `The largest value is ${maximum}.`;
  }
  return undefined;
}

/** Returns the range in words, such as `0 to 1`. */
export function rangeOf({ minimum, maximum, exclusiveMinimum }: Parameter): string {
  const low = exclusiveMinimum !== undefined ? `above ${exclusiveMinimum}` : minimum;
  if (low !== undefined && maximum !== undefined) return `${low} to ${maximum}`;
  if (low !== undefined) return exclusiveMinimum !== undefined ? `${low}` : `from ${low}`;
  return maximum !== undefined ? `up to ${maximum}` : "";
}
