import { useId } from "preact/hooks";

import { bytes, count, counted, percent, rate, seconds } from "../format";
import type { AdapterRow, KvTotals, StoreTier, UsageRow } from "./answers";
import { increase } from "./histogram";
import type { History } from "./look";

/** A bar of parts, each with the class of its colour. Parts of nothing are left out. */
function Bar({ parts, total, label }: { parts: { size: number; colour: string }[]; total: number; label: string }) {
  const drawn = [];
  let x = 0;
  for (const { size, colour } of parts) {
    const width = total > 0 ? Math.min((size / total) * 100, 100 - x) : 0;
    if (width > 0) drawn.push(<rect key={colour} class={colour} x={x} width={width} height="1" />);
    x += width;
  }
  return (
    <svg class="bar" viewBox="0 0 100 1" preserveAspectRatio="none" role="img" aria-label={label}>
      {drawn}
    </svg>
  );
}

interface TiersProps {
  kv: KvTotals;
  models: string[];
  model: string;
  onModel: (model: string) => void;
}

export function Tiers({ kv, models, model, onModel }: TiersProps) {
  const { device, host, disk, object_store: objects } = kv;
  const inUse = device.held - device.pinned;
  const choice = useId();
  return (
    <section class="panel" aria-labelledby="tiers-title">
      <header class="panel-head">
        <h2 id="tiers-title">Cache</h2>
        {models.length > 1 && (
          <>
            <label class="unseen" for={choice}>
              Model
            </label>
            <select id={choice} class="select" value={model} onChange={(event) => onModel(event.currentTarget.value)}>
              {models.map((id) => (
                <option key={id}>{id}</option>
              ))}
            </select>
          </>
        )}
      </header>
      <dl class="tiers">
        <dt>
          Device
          <span class="facts">
            {bytes(device.bytes)} in {counted(device.blocks, "block")} of {count(kv.block_size)} tokens
          </span>
        </dt>
        <dd>
          <Bar
            label={[
              `${percent(inUse / device.blocks)} in use`,
              `${percent(device.pinned / device.blocks)} pinned`,
              `${percent(device.cached / device.blocks)} cached`,
            ].join(", ")}
            total={device.blocks}
            parts={[
              { size: inUse, colour: "part-used" },
              { size: device.pinned, colour: "part-pinned" },
              { size: device.cached, colour: "part-cached" },
            ]}
          />
          <ul class="legend">
            <Part colour="part-used" text={`${count(inUse)} in use`} />
            <Part colour="part-pinned" text={`${count(device.pinned)} pinned`} />
            <Part colour="part-cached" text={`${count(device.cached)} cached`} />
            <Part colour="part-free" text={`${count(device.free)} free`} />
          </ul>
        </dd>
        {host && <Store name="Host memory" tier={host} blockBytes={kv.block_bytes} colour="part-host" />}
        {disk && <Store name="Disk" tier={disk} blockBytes={kv.block_bytes} colour="part-disk" />}
        {objects && (
          <>
            <dt>Object store</dt>
            <dd>
              <span class="facts">
                {counted(objects.put_blocks, "block")} uploaded ({bytes(objects.put_bytes)}),{" "}
                {count(objects.got_blocks)} downloaded, {count(objects.waiting_blocks)} waiting
                {objects.failed > 0 && `, ${counted(objects.failed, "failure")}`}
              </span>
            </dd>
          </>
        )}
      </dl>
    </section>
  );
}

function Part({ colour, text }: { colour: string; text: string }) {
  return (
    <li>
      <span class={`swatch ${colour}`} /> {text}
    </li>
  );
}

function Store({
  name,
  tier,
  blockBytes,
  colour,
}: {
  name: string;
  tier: StoreTier;
  blockBytes: number;
  colour: string;
}) {
  return (
    <>
      <dt>
        {name}
        <span class="facts">
          {bytes(tier.slots * blockBytes)} in {counted(tier.slots, "block")}
        </span>
      </dt>
      <dd>
        <Bar
          label={`${percent(tier.blocks / Math.max(tier.slots, 1))} used`}
          total={tier.slots}
          parts={[{ size: tier.blocks, colour }]}
        />
        <ul class="legend">
          <Part colour={colour} text={`${count(tier.blocks)} used, ${count(tier.pinned)} of them pinned`} />
          <Part colour="part-free" text={`${count(tier.slots - tier.blocks)} free`} />
        </ul>
        <span class="facts">{counted(tier.restored, "block")} read back so far</span>
      </dd>
    </>
  );
}

export function Lanes({ history, kv }: { history: History; kv: KvTotals }) {
  const looks = history.looks;
  const now = looks.at(-1);
  const before = looks.at(-6) ?? looks[0];
  if (now === undefined || before === undefined) return null;
  const elapsed = Math.max((now.at - before.at) / 1000, 1e-3);
  return (
    <section class="panel" aria-labelledby="lanes-title">
      <header class="panel-head">
        <h2 id="lanes-title">Lanes</h2>
      </header>
      <div class="scroll" tabIndex={0} role="group" aria-label="Table">
        <table>
          <thead>
            <tr>
              <th scope="col">Lane</th>
              <th scope="col">Shard</th>
              <th scope="col" class="num">
                Running
              </th>
              <th scope="col" class="num">
                Tokens/s
              </th>
              <th scope="col" class="num">
                In use
              </th>
              <th scope="col" class="num wide-only">
                Cached
              </th>
            </tr>
          </thead>
          <tbody>
            {[...now.lanes].map(([name, lane]) => {
              const totals = kv.lanes.find((each) => String(each.lane) === name);
              const tokens = increase(before.lanes.get(name)?.tokens ?? lane.tokens, lane.tokens);
              return (
                <tr key={name}>
                  <th scope="row">{name}</th>
                  <td>
                    <span class="state">
                      <span class={`mark ${lane.isDraining ? "warn" : lane.isReady ? "ok" : "bad"}`} />
                      {lane.isDraining ? "Drains" : lane.isReady ? "Connected" : "Away"}
                    </span>
                  </td>
                  <td class="num">{count(lane.running)}</td>
                  <td class="num">{rate(tokens / elapsed)}</td>
                  <td class="num">
                    {count(lane.held)}
                    {totals && totals.blocks > 0 && <span class="facts"> {percent(lane.held / totals.blocks)}</span>}
                  </td>
                  <td class="num wide-only">{count(lane.cached)}</td>
                </tr>
              );
            })}
          </tbody>
        </table>
      </div>
    </section>
  );
}

export function Tenants({ history, kv, windowMs }: { history: History; kv: KvTotals | undefined; windowMs: number }) {
  const { looks } = history;
  const now = looks.at(-1);
  const before = looks.find(({ at }) => at >= (now?.at ?? 0) - windowMs);
  if (now === undefined || before === undefined) return null;
  const rows = [...now.tenants].map(([name, tenant]) => {
    const then = before.tenants.get(name) ?? tenant;
    const cache = kv?.tenants.find(({ tenant: owner }) => owner === name);
    return {
      name,
      cache,
      outputs: tenant.outputTokens - then.outputTokens,
      device: tenant.deviceSeconds - then.deviceSeconds,
    };
  });
  const total = rows.reduce((sum, { device }) => sum + Math.max(device, 0), 0);
  return (
    <section class="panel" aria-labelledby="tenants-title">
      <header class="panel-head">
        <h2 id="tenants-title">Tenants</h2>
        <span class="facts">the last minute</span>
      </header>
      <div class="scroll" tabIndex={0} role="group" aria-label="Table">
        <table>
          <thead>
            <tr>
              <th scope="col">Tenant</th>
              <th scope="col">Device</th>
              <th scope="col" class="num">
                Replies
              </th>
              <th scope="col" class="num">
                Blocks
              </th>
            </tr>
          </thead>
          <tbody>
            {rows.map(({ name, cache, outputs, device }) => (
              <tr key={name}>
                <th scope="row">{name}</th>
                <td class="with-bar">
                  <Bar
                    label={percent(total > 0 ? device / total : 0)}
                    total={total}
                    parts={[{ size: device, colour: "part-used" }]}
                  />
                  <span class="facts">{percent(total > 0 ? device / total : 0)}</span>
                </td>
                <td class="num">{count(Math.max(outputs, 0))}</td>
                <td class="num">
                  {cache ? count(cache.device_blocks) : "–"}
                  {cache && cache.device_share_blocks > 0 && (
                    <span class="facts"> of {count(cache.device_share_blocks)} guaranteed</span>
                  )}
                </td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
    </section>
  );
}

/** What was used in the present hour. */
export function Used({ rows }: { rows: readonly UsageRow[] }) {
  const latest = Math.max(...rows.map(({ start_time }) => start_time), 0);
  const shown = rows.filter(({ start_time }) => start_time === latest);
  const sum = (of: (row: UsageRow) => number): number => shown.reduce((total, row) => total + of(row), 0);
  const prompts = sum(({ prompt_tokens }) => prompt_tokens);
  const facts: [string, string][] = [
    ["Replies begun", count(sum(({ requests }) => requests))],
    ["Tokens of prompts", count(prompts)],
    ["From the cache", prompts > 0 ? percent(sum(({ cached_tokens }) => cached_tokens) / prompts) : "–"],
    ["Tokens of replies", count(sum(({ output_tokens }) => output_tokens))],
    ["Device time", seconds(sum(({ device_seconds }) => device_seconds))],
  ];
  return (
    <section class="panel" aria-labelledby="used-title">
      <header class="panel-head">
        <h2 id="used-title">This hour</h2>
      </header>
      <dl class="figures">
        {facts.map(([name, value]) => (
          <div key={name}>
            <dt>{name}</dt>
            <dd>{value}</dd>
          </div>
        ))}
      </dl>
    </section>
  );
}

/** What each state of an adapter is called, and the colour of its mark. */
const ADAPTER_STATES: Record<string, { name: string; mark: string }> = {
  open: { name: "Open", mark: "ok" },
  opening: { name: "Is being opened", mark: "warn" },
  unopened: { name: "Not asked for yet", mark: "off" },
  unusable: { name: "Unusable", mark: "bad" },
};

export function Adapters({ rows, slots, loaded }: { rows: readonly AdapterRow[]; slots: number; loaded: number }) {
  return (
    <section class="panel" aria-labelledby="adapters-title">
      <header class="panel-head">
        <h2 id="adapters-title">Adapters</h2>
        <span class="facts">
          {count(loaded)} of {counted(slots, "place")} in use
        </span>
      </header>
      <ul class="rows">
        {rows.map(({ name, path, state, rank, num_bytes, problem }) => (
          <li key={name} class="row">
            <div class="row-main">
              <strong class="name">{name}</strong>
              <span class="facts">
                {[
                  path !== name && path,
                  rank !== null && `rank ${rank}`,
                  num_bytes !== null && bytes(num_bytes),
                  problem,
                ]
                  .filter((fact) => typeof fact === "string")
                  .join(" · ")}
              </span>
            </div>
            <span class="state">
              <span class={`mark ${ADAPTER_STATES[state]?.mark ?? "off"}`} /> {ADAPTER_STATES[state]?.name ?? state}
            </span>
          </li>
        ))}
      </ul>
    </section>
  );
}
