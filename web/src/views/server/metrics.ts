// Prometheus text, as `/metrics` answers it (https://prometheus.io/docs/instrumenting/exposition_formats/).

export type Labels = Record<string, string>;

interface Sample {
  labels: Labels;
  value: number;
}

/** Observations up to each bound, in ascending order of the bounds; the last bound is infinite. */
export interface Histogram {
  bounds: number[];
  counts: number[];
  sum: number;
}

/** The samples of one answer. A missing metric has no samples, so that its sum is 0. */
export class Metrics {
  readonly #samples: Map<string, Sample[]>;

  constructor(samples: Map<string, Sample[]>) {
    this.#samples = samples;
  }

  /** Returns the sum of a metric's samples that have these labels, such as over all models. */
  sum(name: string, labels: Labels = {}): number {
    return this.#matching(name, labels).reduce((sum, sample) => sum + sample.value, 0);
  }

  /** Returns the sums of a metric's samples by the value of a label, in the order of their first samples. */
  by(name: string, label: string): Map<string, number> {
    const sums = new Map<string, number>();
    for (const { labels, value } of this.#samples.get(name) ?? []) {
      const key = labels[label];
      if (key !== undefined) sums.set(key, (sums.get(key) ?? 0) + value);
    }
    return sums;
  }

  /** Returns the sum of the histograms with this name. */
  histogram(name: string, labels: Labels = {}): Histogram {
    const counts = new Map<number, number>();
    for (const sample of this.#matching(`${name}_bucket`, labels)) {
      const bound = number(sample.labels.le ?? "");
      if (!Number.isNaN(bound)) counts.set(bound, (counts.get(bound) ?? 0) + sample.value);
    }
    const bounds = [...counts.keys()].sort((a, b) => a - b);
    return { bounds, counts: bounds.map((bound) => counts.get(bound) ?? 0), sum: this.sum(`${name}_sum`, labels) };
  }

  #matching(name: string, labels: Labels): Sample[] {
    const samples = this.#samples.get(name) ?? [];
    const wanted = Object.entries(labels);
    return wanted.length === 0
      ? samples
      : samples.filter((sample) => wanted.every(([key, value]) => sample.labels[key] === value));
  }
}

/** Parses Prometheus text. Comments, and lines that are no samples, are left out. */
export function parseMetrics(text: string): Metrics {
  const samples = new Map<string, Sample[]>();
  for (const line of text.split("\n")) {
    const parsed = parseLine(line);
    if (parsed === undefined) continue;
    const known = samples.get(parsed.name);
    if (known === undefined) samples.set(parsed.name, [parsed.sample]);
    else known.push(parsed.sample);
  }
  return new Metrics(samples);
}

function parseLine(line: string): { name: string; sample: Sample } | undefined {
  const name = /^\s*([a-zA-Z_:][a-zA-Z0-9_:]*)/.exec(line);
  if (name?.[1] === undefined) return undefined;
  let at = name[0].length;
  const labels: Labels = {};
  if (line[at] === "{") {
    const end = parseLabels(line, at + 1, labels);
    if (end === undefined) return undefined;
    at = end;
  }
  // A timestamp may follow the value.
  const [digits] = line.slice(at).trim().split(/\s+/);
  const value = number(digits ?? "");
  return Number.isNaN(value) && digits !== "NaN" ? undefined : { name: name[1], sample: { labels, value } };
}

/** Parses labels from `at` and returns the place behind their `}`. */
function parseLabels(line: string, at: number, labels: Labels): number | undefined {
  // The value is quoted, with `\\`, `\"` and `\n` for characters that cannot stand in it.
  const label = /\s*([a-zA-Z_][a-zA-Z0-9_]*)\s*=\s*"((?:[^"\\]|\\.)*)"\s*,?/y;
  const end = /\s*\}/y;
  for (;;) {
    end.lastIndex = at;
    if (end.test(line)) return end.lastIndex;
    label.lastIndex = at;
    const [, key, value] = label.exec(line) ?? [];
    if (key === undefined || value === undefined) return undefined;
    labels[key] = value.replace(/\\(.)/g, (_, char: string) => (char === "n" ? "\n" : char));
    at = label.lastIndex;
  }
}

function number(text: string): number {
  if (text === "+Inf") return Infinity;
  if (text === "-Inf") return -Infinity;
  return text === "" ? Number.NaN : Number(text);
}
