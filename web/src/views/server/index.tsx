import { useEffect, useRef, useState } from "preact/hooks";

import { getJson, request } from "../../api/client";
import type { ModelCard } from "../../api/types";
import { count, duration, percent, rate, seconds } from "../format";
import { KeyQuestion, Problem } from "../key";
import { usePolling } from "../polling";
import type { AdapterRow, KvTotals, UsageRow } from "./answers";
import { History, type Look, lookAt, type Quantiles } from "./look";
import { parseMetrics } from "./metrics";
import { Models } from "./models";
import { Adapters, Lanes, Tenants, Tiers, Used } from "./panels";
import { Spark } from "./spark";
import { StepStrip } from "./steps";
import { LastSteps } from "./strip";
import "../panels.css";
import "./server.css";

/** The time that the pictures show. At first they show less, so that what there is can be seen. */
const SPANS_MS = [30_000, 60_000, 120_000];
const SHOWN_MS = 180_000;
/** Percentiles and shares are those of the last minute. */
const WINDOW_MS = 60_000;
/** Rates are those of the last seconds, so that they do not jump. */
const RATE_MS = 4_000;

async function look(signal: AbortSignal): Promise<Look> {
  const response = await request("metrics", { signal });
  const text = await response.text();
  return lookAt(parseMetrics(text), performance.now());
}

const list = async <T,>(path: string, signal: AbortSignal): Promise<T[]> =>
  (await getJson<{ data: T[] }>(path, signal)).data;

export function ServerView() {
  const metrics = usePolling(look, 1000);
  const models = usePolling((signal) => list<ModelCard>("v1/models", signal), 3000);
  // The first model is the one that the routes of the cache speak of.
  const loaded =
    models.value?.filter(({ parent, status }) => !parent && (status?.value ?? "loaded") === "loaded") ?? [];
  const [chosen, setChosen] = useState("");
  const model = loaded.some(({ id }) => id === chosen) ? chosen : (loaded[0]?.id ?? "");
  const query = model === "" ? "" : `?model=${encodeURIComponent(model)}`;
  const kv = usePolling((signal) => getJson<KvTotals>(`v1/kv${query}`, signal), 5000, query);
  const adapters = usePolling((signal) => getJson<AdapterRow[]>(`lora-adapters${query}`, signal), 10_000, query);
  const usage = usePolling((signal) => list<UsageRow>(`v1/usage?from=${hourAgo()}`, signal), 30_000);

  const [history, setHistory] = useState(() => new History(SHOWN_MS));
  const last = useRef<Look | undefined>(undefined);
  useEffect(() => {
    if (metrics.value === undefined || metrics.value === last.current) return;
    last.current = metrics.value;
    const next = metrics.value;
    setHistory((past) => past.with(next));
  }, [metrics.value]);

  const failure = metrics.error ?? models.error;
  const now = history.latest;
  return (
    <main class="page-scroll" tabIndex={0} aria-labelledby="server-title">
      <div class="page">
        <header class="page-head">
          <h1 id="server-title">Server</h1>
          {now && failure === undefined && (
            <p class="state">
              <span class={`mark ${now.isReady ? "ok" : "warn"}`} />
              {now.isReady
                ? "Ready"
                : loaded.length === 0 && models.value !== undefined
                  ? "No model is in memory"
                  : "Waits for its shard"}
            </p>
          )}
        </header>
        {failure !== undefined && <Problem error={failure} />}
        {now ? <Live history={history} now={now} /> : failure === undefined && <p class="note">Loading…</p>}
        {now && <LastSteps model={model} numLanes={kv.value?.lanes.length ?? 1} />}
        {now && (
          <div class="columns">
            {models.value && <Models cards={models.value} onChange={models.again} />}
            {kv.value && <Tiers kv={kv.value} models={loaded.map(({ id }) => id)} model={model} onModel={setChosen} />}
            {kv.value && now.lanes.size > 0 && <Lanes history={history} kv={kv.value} />}
            {now.tenants.size > 0 && <Tenants history={history} kv={kv.value} windowMs={WINDOW_MS} />}
            {usage.value && <Used rows={usage.value} />}
            {adapters.value && adapters.value.length > 0 && (
              <Adapters rows={adapters.value} slots={now.adapterSlots} loaded={now.adaptersLoaded} />
            )}
          </div>
        )}
      </div>
      <KeyQuestion />
    </main>
  );
}

/** Returns the start of the present hour in seconds since 1970. */
function hourAgo(): number {
  return Math.floor(Date.now() / 3_600_000) * 3600;
}

function Live({ history, now }: { history: History; now: Look }) {
  const times = history.looks.map(({ at }) => at);
  const known = now.at - (history.looks[0]?.at ?? now.at);
  const spanMs = SPANS_MS.find((span) => known <= span) ?? SHOWN_MS;
  const from = now.at - spanMs;
  const each = history.seconds();
  // The first look has nothing before it.
  const rates = [undefined, ...history.looks.slice(1).map((_, idx) => history.window(RATE_MS, idx + 1))];
  const recent = history.window(RATE_MS);
  const minute = history.window(WINDOW_MS);
  const windows = history.looks.map((_, idx) => history.window(WINDOW_MS / 4, idx));
  const tile = { times, from };
  return (
    <>
      <div class="tiles" role="group" aria-label="Now">
        <Tile
          {...tile}
          label="Requests"
          value={`${count(now.running)} running`}
          detail={`${count(now.queued)} waiting`}
          id="requests"
          series={[
            { colour: "--series-1", values: history.looks.map(({ running }) => running) },
            { colour: "--series-3", values: history.looks.map(({ queued }) => queued) },
          ]}
          at={(idx) =>
            `${count(history.looks[idx]?.running ?? 0)} running, ${count(history.looks[idx]?.queued ?? 0)} waiting`
          }
        />
        <Tile
          {...tile}
          label="Replies"
          value={`${rate(recent?.outputRate ?? 0)} tokens/s`}
          detail={`${rate(recent?.promptRate ?? 0)} tokens/s of prompts computed`}
          id="rate"
          series={[
            { colour: "--series-1", values: rates.map((value) => value?.outputRate) },
            { colour: "--series-2", values: rates.map((value) => value?.promptRate) },
          ]}
          at={(idx) => `${rate(rates[idx]?.outputRate ?? 0)} tokens/s, prompts ${rate(rates[idx]?.promptRate ?? 0)}`}
        />
        <Tile
          {...tile}
          label="Time to the first token"
          {...percentiles(minute?.firstToken)}
          id="ttft"
          series={[
            { colour: "--series-1", values: windows.map((value) => value?.firstToken?.p50) },
            { colour: "--series-3", values: windows.map((value) => value?.firstToken?.p95) },
          ]}
          at={(idx) => pointOf(windows[idx]?.firstToken)}
        />
        <Tile
          {...tile}
          label="Time between tokens"
          {...percentiles(minute?.betweenTokens)}
          id="itl"
          series={[
            { colour: "--series-1", values: windows.map((value) => value?.betweenTokens?.p50) },
            { colour: "--series-3", values: windows.map((value) => value?.betweenTokens?.p95) },
          ]}
          at={(idx) => pointOf(windows[idx]?.betweenTokens)}
        />
        <Tile
          {...tile}
          label="Prompts from the cache"
          value={minute?.hitShare === undefined ? "–" : percent(minute.hitShare)}
          detail={minute?.hitShare === undefined ? "no prompt in the last minute" : "of the last minute's tokens"}
          id="hits"
          series={[{ colour: "--series-4", values: windows.map((value) => value?.hitShare) }]}
          at={(idx) => (windows[idx]?.hitShare === undefined ? "no prompt" : percent(windows[idx]?.hitShare ?? 0))}
        />
        <Tile
          {...tile}
          label="Device"
          value={`${percent(recent?.busy ?? 0)} at work`}
          detail={recent?.stepSeconds === undefined ? "no step" : `${seconds(recent.stepSeconds)} a step`}
          id="busy"
          series={[{ colour: "--series-2", values: rates.map((value) => value?.busy) }]}
          at={(idx) => `${percent(rates[idx]?.busy ?? 0)} at work`}
        />
      </div>
      <StepStrip seconds={each} spanMs={spanMs} />
    </>
  );
}

function percentiles(found: Quantiles | undefined): { value: string; detail: string } {
  return found === undefined
    ? { value: "–", detail: "none in the last minute" }
    : { value: seconds(found.p50), detail: `95 % ${seconds(found.p95)} · 99 % ${seconds(found.p99)}` };
}

function pointOf(found: Quantiles | undefined): string {
  return found === undefined ? "none" : `half within ${seconds(found.p50)}, 95 % within ${seconds(found.p95)}`;
}

interface TileProps {
  id: string;
  label: string;
  value: string;
  detail: string;
  times: readonly number[];
  from: number;
  series: Parameters<typeof Spark>[0]["series"];
  /** What the picture shows at a moment. */
  at: (idx: number) => string;
}

function Tile({ id, label, value, detail, times, from, series, at }: TileProps) {
  const [point, setPoint] = useState<number>();
  const moment = point === undefined ? undefined : times[point];
  const ago = moment === undefined ? 0 : (times.at(-1) ?? moment) - moment;
  return (
    <section class="tile" data-tile={id} aria-label={label}>
      <h2>{label}</h2>
      <p class="value">{value}</p>
      <p class="detail">
        {moment !== undefined && point !== undefined
          ? `${ago < 1000 ? "now" : `${duration(ago)} ago`}: ${at(point)}`
          : detail}
      </p>
      <Spark times={times} from={from} series={series} onPoint={setPoint} />
    </section>
  );
}
