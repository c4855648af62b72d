import { expect, test } from "vitest";

import { between, History, lookAt } from "../../src/views/server/look";
import { parseMetrics } from "../../src/views/server/metrics";

interface Numbers {
  output?: number;
  prompt?: number;
  hit?: number;
  scheduled?: number;
  steps?: number;
  stepSeconds?: number;
  /** Observations of 1 s and of 3 s. */
  first?: [number, number];
}

function text({
  output = 0,
  prompt = 0,
  hit = 0,
  scheduled = 0,
  steps = 0,
  stepSeconds = 0,
  first = [0, 0],
}: Numbers): string {
  const [short, long] = first;
  return `
trunkline_running_sequences 2
trunkline_queued_sequences 1
trunkline_output_tokens_total ${output}
trunkline_prompt_tokens_total ${prompt}
trunkline_prefix_hit_tokens_total ${hit}
trunkline_scheduled_tokens_total ${scheduled}
trunkline_steps_total ${steps}
trunkline_step_duration_seconds_sum ${stepSeconds}
trunkline_time_to_first_token_seconds_bucket{le="1"} ${short}
trunkline_time_to_first_token_seconds_bucket{le="2"} ${short}
trunkline_time_to_first_token_seconds_bucket{le="4"} ${short + long}
trunkline_time_to_first_token_seconds_bucket{le="+Inf"} ${short + long}
trunkline_shard_ready 1
trunkline_lane_ready{lane="0"} 1
trunkline_lane_ready{lane="1"} 0
trunkline_lane_running_sequences{lane="0"} 2
trunkline_tenant_requests_total{tenant="alice"} 3
trunkline_tenant_output_tokens_total{tenant="alice"} 40
`;
}

const look = (at: number, numbers: Numbers) => lookAt(parseMetrics(text(numbers)), at);

test("a look has lanes and tenants by name", () => {
  const { running, queued, isReady, lanes, tenants } = look(0, {});
  expect([running, queued, isReady]).toEqual([2, 1, true]);
  expect([...lanes.entries()].map(([lane, { isReady: ready, running: num }]) => [lane, ready, num])).toEqual([
    ["0", true, 2],
    ["1", false, 0],
  ]);
  expect(tenants.get("alice")).toMatchObject({ requests: 3, outputTokens: 40, promptTokens: 0 });
});

test("rates and shares are those of the time between two looks", () => {
  const before = look(1000, {
    output: 100,
    prompt: 50,
    hit: 10,
    scheduled: 500,
    steps: 10,
    stepSeconds: 1,
    first: [9, 1],
  });
  const after = look(3000, {
    output: 120,
    prompt: 90,
    hit: 40,
    scheduled: 540,
    steps: 20,
    stepSeconds: 1.5,
    first: [9, 3],
  });
  const value = between(before, after);
  expect(value).toMatchObject({
    seconds: 2,
    outputRate: 10,
    promptRate: 10,
    steps: 10,
    stepSeconds: 0.05,
    busy: 0.25,
    hitShare: 0.75,
  });
  // Only the two observations between the looks count.
  expect(value.firstToken).toEqual({ count: 2, p50: 3, p95: 3.9, p99: 3.98 });
  expect(value.betweenTokens).toBeUndefined();
});

test("nothing happened between two equal looks, and a restart of the router begins anew", () => {
  const numbers: Numbers = { output: 100, prompt: 50, scheduled: 500, steps: 10, first: [1, 1] };
  const idle = between(look(0, numbers), look(1000, numbers));
  expect(idle).toMatchObject({
    outputRate: 0,
    promptRate: 0,
    steps: 0,
    stepSeconds: undefined,
    hitShare: undefined,
    firstToken: undefined,
  });
  expect(between(look(0, numbers), look(1000, { output: 5, scheduled: 5 }))).toMatchObject({
    outputRate: 5,
    promptRate: 0,
  });
});

test("a history forgets what is older than its time, and its windows end at a look", () => {
  let history = new History(5000);
  expect(history.window(1000)).toBeUndefined();
  for (let second = 0; second < 10; second++) history = history.with(look(second * 1000, { output: second * second }));
  expect(history.looks.map(({ at }) => at / 1000)).toEqual([4, 5, 6, 7, 8, 9]);
  expect(history.window(1000)?.outputRate).toBe(17);
  expect(history.window(2000)?.outputRate).toBe(16);
  expect(history.window(60_000)?.outputRate).toBe(13);
  expect(history.window(1000, 1)?.outputRate).toBe(9);
  expect(history.seconds().map(({ value }) => value.outputRate)).toEqual([9, 11, 13, 15, 17]);
});
