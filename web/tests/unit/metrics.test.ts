import { expect, test } from "vitest";

import { parseMetrics } from "../../src/views/server/metrics";

test("samples have labels, values and signs of any form", () => {
  const metrics = parseMetrics(
    [
      '# HELP a Text with a{b="c"} 7',
      "# TYPE a counter",
      'a{x="1",y="two words"} 3',
      'a{ x = "2" , } 4.5e1 1795300000000',
      "plain 2",
      "up +Inf",
      "down -Inf",
      "",
      "nonsense",
      'open{x="1',
      "a_b:c 6",
    ].join("\n"),
  );
  expect(metrics.sum("a")).toBe(48);
  expect(metrics.sum("a", { x: "1" })).toBe(3);
  expect(metrics.sum("a", { x: "1", y: "other" })).toBe(0);
  expect([metrics.sum("plain"), metrics.sum("up"), metrics.sum("down")]).toEqual([2, Infinity, -Infinity]);
  expect([metrics.sum("nonsense"), metrics.sum("open"), metrics.sum("a_b:c")]).toEqual([0, 0, 6]);
  expect([...metrics.by("a", "x")]).toEqual([
    ["1", 3],
    ["2", 45],
  ]);
});

test("escapes in labels are resolved, and a brace in one does not end them", () => {
  const metrics = parseMetrics('a{x="a\\"b\\\\c\\nd}e",y="2"} 1');
  expect([...metrics.by("a", "x").keys()]).toEqual(['a"b\\c\nd}e']);
  expect(metrics.sum("a", { y: "2" })).toBe(1);
});

test("histograms of several models are added", () => {
  const lines = (model: string, counts: [string, number][]) => [
    ...counts.map(([bound, count]) => `t_bucket{model="${model}",le="${bound}"} ${count}`),
    `t_sum{model="${model}"} 1.5`,
    `t_count{model="${model}"} ${counts.at(-1)?.[1]}`,
  ];
  const text = [
    ...lines("a", [
      ["0.1", 1],
      ["+Inf", 4],
    ]),
    ...lines("b", [
      ["0.1", 2],
      ["0.2", 3],
      ["+Inf", 3],
    ]),
  ].join("\n");
  expect(parseMetrics(text).histogram("t")).toEqual({ bounds: [0.1, 0.2, Infinity], counts: [3, 3, 7], sum: 3 });
  expect(parseMetrics(text).histogram("t", { model: "a" })).toEqual({
    bounds: [0.1, Infinity],
    counts: [1, 4],
    sum: 1.5,
  });
  expect(parseMetrics("").histogram("t")).toEqual({ bounds: [], counts: [], sum: 0 });
});
