// What the metrics say at a moment, and what happened between two moments.

import { count, difference, increase, quantile } from "./histogram";
import type { Histogram, Metrics } from "./metrics";

export interface TenantLook {
  requests: number;
  promptTokens: number;
  cachedTokens: number;
  outputTokens: number;
  deviceSeconds: number;
}

export interface LaneLook {
  isReady: boolean;
  isDraining: boolean;
  running: number;
  held: number;
  cached: number;
  steps: number;
  tokens: number;
}

/** The numbers of one answer of `/metrics` that the view shows. */
export interface Look {
  /** In milliseconds, of a clock that never goes back. */
  at: number;
  running: number;
  queued: number;
  outputTokens: number;
  promptTokens: number;
  hitTokens: number;
  scheduledTokens: number;
  draftedTokens: number;
  steps: number;
  stepSeconds: number;
  firstToken: Histogram;
  betweenTokens: Histogram;
  isReady: boolean;
  tenants: Map<string, TenantLook>;
  lanes: Map<string, LaneLook>;
  adapterSlots: number;
  adaptersLoaded: number;
}

export function lookAt(metrics: Metrics, at: number): Look {
  const tenants = new Map<string, TenantLook>();
  for (const [name, requests] of metrics.by("trunkline_tenant_requests_total", "tenant")) {
    const of = (metric: string): number => metrics.sum(`trunkline_tenant_${metric}_total`, { tenant: name });
    tenants.set(name, {
      requests,
      promptTokens: of("prompt_tokens"),
      cachedTokens: of("cached_tokens"),
      outputTokens: of("output_tokens"),
      deviceSeconds: of("device_seconds"),
    });
  }
  const lanes = new Map<string, LaneLook>();
  for (const [lane, ready] of metrics.by("trunkline_lane_ready", "lane")) {
    const of = (metric: string): number => metrics.sum(`trunkline_lane_${metric}`, { lane });
    lanes.set(lane, {
      isReady: ready > 0,
      isDraining: of("draining") > 0,
      running: of("running_sequences"),
      held: of("kv_blocks_held"),
      cached: of("kv_blocks_cached"),
      steps: of("steps_total"),
      tokens: of("scheduled_tokens_total"),
    });
  }
  return {
    at,
    running: metrics.sum("trunkline_running_sequences"),
    queued: metrics.sum("trunkline_queued_sequences"),
    outputTokens: metrics.sum("trunkline_output_tokens_total"),
    promptTokens: metrics.sum("trunkline_prompt_tokens_total"),
    hitTokens: metrics.sum("trunkline_prefix_hit_tokens_total"),
    scheduledTokens: metrics.sum("trunkline_scheduled_tokens_total"),
    draftedTokens: metrics.sum("trunkline_drafted_tokens_total"),
    steps: metrics.sum("trunkline_steps_total"),
    stepSeconds: metrics.sum("trunkline_step_duration_seconds_sum"),
    firstToken: metrics.histogram("trunkline_time_to_first_token_seconds"),
    betweenTokens: metrics.histogram("trunkline_inter_token_seconds"),
    isReady: metrics.sum("trunkline_shard_ready") > 0,
    tenants,
    lanes,
    adapterSlots: metrics.sum("trunkline_adapter_slots"),
    adaptersLoaded: metrics.sum("trunkline_adapter_slots_loaded"),
  };
}

/** What happened between two looks. Rates are by the second. */
export interface Between {
  seconds: number;
  outputRate: number;
  /** Tokens of prompts that were computed, so without those from the cache. */
  promptRate: number;
  steps: number;
  /** The mean time of a step, if there was one. */
  stepSeconds: number | undefined;
  /** The part of the time for which the devices worked on steps, 0 to 1. */
  busy: number;
  /** The part of the prompts that the cache had, if there were prompts. */
  hitShare: number | undefined;
  firstToken: Quantiles | undefined;
  betweenTokens: Quantiles | undefined;
}

export interface Quantiles {
  count: number;
  p50: number;
  p95: number;
  p99: number;
}

export function between(before: Look, after: Look): Between {
  const elapsed = Math.max((after.at - before.at) / 1000, 1e-3);
  const outputs = increase(before.outputTokens, after.outputTokens);
  const prompts = increase(before.promptTokens, after.promptTokens);
  const drafted = increase(before.draftedTokens, after.draftedTokens);
  const scheduled = increase(before.scheduledTokens, after.scheduledTokens);
  const steps = increase(before.steps, after.steps);
  const stepSeconds = increase(before.stepSeconds, after.stepSeconds);
  return {
    seconds: elapsed,
    outputRate: outputs / elapsed,
    // Each output but a request's first one takes the computing of the one before it.
    promptRate: Math.max(scheduled - outputs - drafted, 0) / elapsed,
    steps,
    stepSeconds: steps > 0 ? stepSeconds / steps : undefined,
    // A step counts when it ends, so a second may have more than its share.
    busy: Math.min(stepSeconds / elapsed / Math.max(numReady(after), 1), 1),
    hitShare: prompts > 0 ? Math.min(increase(before.hitTokens, after.hitTokens) / prompts, 1) : undefined,
    firstToken: quantiles(difference(before.firstToken, after.firstToken)),
    betweenTokens: quantiles(difference(before.betweenTokens, after.betweenTokens)),
  };
}

function numReady(look: Look): number {
  return [...look.lanes.values()].filter(({ isReady }) => isReady).length;
}

function quantiles(histogram: Histogram): Quantiles | undefined {
  const [p50, p95, p99] = [0.5, 0.95, 0.99].map((fraction) => quantile(histogram, fraction));
  return p50 === undefined || p95 === undefined || p99 === undefined
    ? undefined
    : { count: count(histogram), p50, p95, p99 };
}

/** The looks of the last minutes. */
export class History {
  readonly #looks: Look[];
  readonly #keepMs: number;

  constructor(keepMs: number, looks: Look[] = []) {
    this.#keepMs = keepMs;
    this.#looks = looks;
  }

  /** Returns a history that ends with this look. */
  with(look: Look): History {
    const first = this.#looks.findIndex((each) => each.at >= look.at - this.#keepMs);
    return new History(this.#keepMs, [...(first < 0 ? [] : this.#looks.slice(first)), look]);
  }

  get looks(): readonly Look[] {
    return this.#looks;
  }

  get latest(): Look | undefined {
    return this.#looks.at(-1);
  }

  /** Returns what happened in the last `ms` before a look, or in the time that is known. */
  window(ms: number, last = this.#looks.length - 1): Between | undefined {
    const after = this.#looks[last];
    if (after === undefined) return undefined;
    let first = last;
    while (first > 0 && after.at - (this.#looks[first - 1] as Look).at <= ms + 500) first -= 1;
    return first === last ? undefined : between(this.#looks[first] as Look, after);
  }

  /** Returns what happened before each look since the one before it. */
  seconds(): { at: number; value: Between }[] {
    return this.#looks.slice(1).map((look, idx) => ({ at: look.at, value: between(this.#looks[idx] as Look, look) }));
  }
}
