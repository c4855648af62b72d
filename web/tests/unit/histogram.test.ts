import { expect, test } from "vitest";

import { count, difference, increase, quantile } from "../../src/views/server/histogram";
import type { Histogram } from "../../src/views/server/metrics";

const BOUNDS = [1, 2, 4, Infinity];

function histogram(...counts: number[]): Histogram {
  return { bounds: BOUNDS, counts, sum: 0 };
}

test("a difference has what came between two looks", () => {
  const between = difference({ ...histogram(1, 3, 3, 4), sum: 10 }, { ...histogram(1, 5, 9, 10), sum: 25 });
  expect(between).toEqual({ bounds: BOUNDS, counts: [0, 2, 6, 6], sum: 15 });
  expect(count(between)).toBe(6);
});

test("a counter that fell has begun again", () => {
  expect(increase(5, 7)).toBe(2);
  expect(increase(5, 3)).toBe(3);
  const after = histogram(0, 1, 1, 1);
  expect(difference(histogram(2, 3, 3, 4), after)).toBe(after);
});

test("a histogram that was not there before counts from zero", () => {
  expect(difference({ bounds: [], counts: [], sum: 0 }, histogram(1, 1, 1, 2)).counts).toEqual([1, 1, 1, 2]);
});

test("quantiles lie within their bucket, as Prometheus has them", () => {
  const ten = histogram(0, 10, 10, 10);
  expect(quantile(ten, 0.5)).toBe(1.5);
  expect(quantile(ten, 1)).toBe(2);
  expect(quantile(histogram(5, 10, 10, 10), 0.25)).toBe(0.5);
  expect(quantile(histogram(5, 10, 20, 20), 0.75)).toBe(3);
  // The empty bucket between has no part in it.
  expect(quantile(histogram(1, 1, 2, 2), 0.9)).toBeCloseTo(3.6);
});

test("quantiles beyond the last bound are that bound, and there are none without observations", () => {
  expect(quantile(histogram(0, 0, 1, 10), 0.99)).toBe(4);
  expect(quantile(histogram(0, 0, 0, 0), 0.5)).toBeUndefined();
  expect(quantile({ bounds: [], counts: [], sum: 0 }, 0.5)).toBeUndefined();
  expect(quantile({ bounds: [Infinity], counts: [3], sum: 0 }, 0.5)).toBeUndefined();
});
