// What a histogram has observed between two looks at it.

import type { Histogram } from "./metrics";

/** Returns the increase of a counter, which begins at 0 again when the router restarts. */
export function increase(before: number, after: number): number {
  return after < before ? after : after - before;
}

/** Returns the observations between two looks. */
export function difference(before: Histogram, after: Histogram): Histogram {
  const known = new Map(before.bounds.map((bound, idx) => [bound, before.counts[idx] ?? 0]));
  const hasRestarted = after.bounds.some((bound, idx) => (after.counts[idx] ?? 0) < (known.get(bound) ?? 0));
  if (hasRestarted) return after;
  return {
    bounds: after.bounds,
    counts: after.bounds.map((bound, idx) => (after.counts[idx] ?? 0) - (known.get(bound) ?? 0)),
    sum: after.sum - before.sum,
  };
}

/** Returns the number of observations. */
export function count(histogram: Histogram): number {
  return histogram.counts.at(-1) ?? 0;
}

/**
 * Returns the value below which this fraction of the observations lies, or undefined without any.
 *
 * Observations are taken to be spread evenly within their bucket, as Prometheus's `histogram_quantile` has it, so the
 * result is exact only to the bucket's width. Beyond the last finite bound it is that bound.
 */
export function quantile(histogram: Histogram, fraction: number): number | undefined {
  const { bounds, counts } = histogram;
  const rank = fraction * count(histogram);
  if (!(rank > 0)) return undefined;
  const idx = counts.findIndex((below) => below >= rank);
  const bound = bounds[idx];
  if (bound === undefined) return undefined;
  const [lowest, below] = idx === 0 ? [0, 0] : [bounds[idx - 1] ?? 0, counts[idx - 1] ?? 0];
  if (bound === Infinity) return idx === 0 ? undefined : lowest;
  return lowest + ((bound - lowest) * (rank - below)) / ((counts[idx] ?? 0) - below);
}
