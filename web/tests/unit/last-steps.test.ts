import { expect, test } from "vitest";

import { describe, joined, layOut, MAX_ROWS, type Step } from "../../src/views/server/last-steps";

function step(number: number, names: string, others?: Step["others"]): Step {
  const sequences = [...names].map((sequence) => ({
    sequence,
    prefill_tokens: 0,
    decode_tokens: 1,
    draft_tokens: 0,
    accepted_draft_tokens: 0,
  }));
  return { number, lane: 0, end_time: number, device_seconds: number / 1000, sequences, ...(others && { others }) };
}

const rows = (steps: Step[]): number[][] => layOut(steps).columns.map((cells) => cells.map(({ row }) => row));

test("a sequence keeps its row, and a row is used again after the sequence's last step", () => {
  // "a" is not in the third step, and its row is not free before its last one.
  const steps = [step(1, "a"), step(2, "ab"), step(3, "b"), step(4, "ac"), step(5, "cd")];
  expect(rows(steps)).toEqual([[0], [0, 1], [1], [0, 1], [1, 0]]);
  expect(layOut(steps)).toMatchObject({ rows: 2, longestSeconds: 0.005 });
});

test("more sequences than rows share the last one, and other tenants have a row below", () => {
  const names = Array.from({ length: MAX_ROWS + 3 }, (_, idx) => String.fromCharCode(97 + idx)).join("");
  const strip = layOut([step(1, names, { prefill_tokens: 8, decode_tokens: 2 })]);
  const cells = strip.columns[0] ?? [];
  expect(cells.slice(MAX_ROWS - 1, -1).map(({ row }) => row)).toEqual(Array(4).fill(MAX_ROWS - 1));
  expect(cells.at(-1)).toEqual({ row: MAX_ROWS, prefill: 8, decode: 2, accepted: 0, isOthers: true });
  expect(strip.rows).toBe(MAX_ROWS + 1);
});

test("answers continue each other, and a restarted server begins anew", () => {
  const first = joined({ data: [], last: 0 }, { data: [step(1, "a"), step(2, "a")], last: 2 });
  const second = joined(first, { data: [step(2, "a"), step(3, "a")], last: 3 });
  expect(second.data.map(({ number }) => number)).toEqual([1, 2, 3]);
  expect(joined(second, { data: [], last: 3 })).toBe(second);
  expect(joined(second, { data: [step(1, "x")], last: 1 }).data.map(({ number }) => number)).toEqual([1]);
});

test("a step is told as a sentence", () => {
  const prefill = { sequence: "a", request_id: "req-1", prefill_tokens: 21, decode_tokens: 0, draft_tokens: 0 };
  const drafted = { sequence: "b", prefill_tokens: 0, decode_tokens: 1, draft_tokens: 8 };
  const sequences = [
    { ...prefill, accepted_draft_tokens: 0 },
    { ...drafted, accepted_draft_tokens: 3 },
  ];
  const told = { ...step(7, "", { prefill_tokens: 64, decode_tokens: 1 }), sequences };
  expect(describe(told, 2)).toBe(
    "Step 7 on lane 0, 7.0 ms. req-1: 21 tokens of the prompt; " +
      "sequence b: 1 token of the reply, 3 of 8 drafts accepted; other tenants: about 65 tokens.",
  );
  expect(describe(step(1, "abcdefgh"), 1)).toMatch(/sequence f: 1 token of the reply; 2 more sequences\.$/);
});
