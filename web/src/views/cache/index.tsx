import { useId, useMemo, useState } from "preact/hooks";

import { getJson } from "../../api/client";
import type { ModelCard } from "../../api/types";
import { bytes, count, counted } from "../format";
import { KeyQuestion, Problem } from "../key";
import { usePolling } from "../polling";
import { Details } from "./details";
import { type Icicle, layOut, numBelow, numberOf, pathTo, ROOT } from "./icicle";
import { useLiveTree } from "./live";
import { MAX_NODES, numOnlyStored, query, type Totals } from "./load";
import { AGE_NAMES, type Colouring, HIT_NAMES } from "./paint";
import { Picture } from "./picture";
import { Table } from "./table";
import "../panels.css";
import "./cache.css";

const COLOURINGS: [Colouring, string][] = [
  ["tier", "Tier"],
  ["age", "Age"],
  ["hits", "Hits"],
];

export function CacheView() {
  const models = usePolling(loadedModels, 10_000);
  const [chosen, setChosen] = useState("");
  const model = models.value?.includes(chosen) ? chosen : (models.value?.[0] ?? "");
  const totals = usePolling((signal) => getJson<Totals>(`v1/kv${query({ model, lane: 0 })}`, signal), 30_000, model);
  const [wantedLane, setLane] = useState(0);
  const lanes = totals.value?.lanes.map(({ lane }) => lane) ?? [0];
  const lane = lanes.includes(wantedLane) ? wantedLane : 0;
  const place = { model, lane };
  const live = useLiveTree(place);
  const store = totals.value?.host
    ? { name: "host memory", colour: "--tier-host" }
    : { name: "disk", colour: "--tier-disk" };
  return (
    <main class="page-scroll" tabIndex={0} aria-labelledby="cache-title">
      <div class="page">
        <header class="page-head">
          <h1 id="cache-title">Cache</h1>
          {live.tree && live.error === undefined && (
            <Summary tree={live.tree} totals={totals.value} store={store.name} />
          )}
          <span class="spacer" />
          {models.value && models.value.length > 1 && (
            <Choice label="Model" value={model} options={models.value.map((id) => [id, id])} onChange={setChosen} />
          )}
          {lanes.length > 1 && (
            <Choice
              label="Lane"
              value={String(lane)}
              options={lanes.map((each) => [String(each), `Lane ${each}`])}
              onChange={(value) => setLane(Number(value))}
            />
          )}
        </header>
        {live.error !== undefined && <Problem error={live.error} />}
        {live.tree ? (
          <Tree
            key={`${lane} ${model}`}
            nodes={live.tree.nodes}
            isCut={live.tree.isCut}
            place={place}
            store={store}
            onChanged={live.again}
          />
        ) : (
          live.error === undefined && <p class="note">Loading…</p>
        )}
      </div>
      <KeyQuestion />
    </main>
  );
}

async function loadedModels(signal: AbortSignal): Promise<string[]> {
  const { data } = await getJson<{ data: ModelCard[] }>("v1/models", signal);
  return data.filter(({ parent, status }) => !parent && (status?.value ?? "loaded") === "loaded").map(({ id }) => id);
}

interface SummaryProps {
  tree: { nodes: Parameters<typeof layOut>[0]; isCut: boolean };
  totals: Totals | undefined;
  store: string;
}

function Summary({ tree, totals, store }: SummaryProps) {
  const tokens = tree.nodes.reduce((sum, node) => sum + node.tokens, 0);
  const size = tree.nodes.reduce((sum, node) => sum + node.bytes, 0);
  const onlyStored = (!tree.isCut && totals && numOnlyStored(totals, tree.nodes)) || 0;
  return (
    <p class="facts">
      {counted(tokens, "token")} in {counted(tree.nodes.length, "node")}, {bytes(size)} on the device
      {onlyStored > 0 &&
        `, and about ${counted(onlyStored, "block")} only ${store === "disk" ? "on disk" : `in ${store}`}`}
    </p>
  );
}

interface TreeProps {
  nodes: Parameters<typeof layOut>[0];
  isCut: boolean;
  place: { model: string; lane: number };
  store: { name: string; colour: string };
  onChanged: () => void;
}

function Tree({ nodes, isCut, place, store, onChanged }: TreeProps) {
  const icicle = useMemo(() => layOut(nodes), [nodes]);
  // Numbers outlive a node's other changes, such as a split; the id does not.
  const places = useMemo(() => new Map(icicle.nodes.map((node, idx) => [numberOf(node.id), idx + 1])), [icicle]);
  const [zoomed, setZoomed] = useState<number>();
  const [chosen, setChosen] = useState<number>();
  const [colouring, setColouring] = useState<Colouring>("tier");
  const [form, setForm] = useState<"picture" | "table">("picture");
  const [said, setSaid] = useState("");
  const zoom = zoomed === undefined ? ROOT : (places.get(zoomed) ?? ROOT);
  const selected = chosen === undefined ? -1 : (places.get(chosen) ?? -1);
  const numberAt = (at: number): number | undefined => {
    const node = icicle.nodes[at - 1];
    return node && numberOf(node.id);
  };
  const node = icicle.nodes[selected - 1];
  const below = useMemo(
    () => ({ tokens: icicle.width[selected] ?? 0, nodes: selected > ROOT ? numBelow(icicle, selected) : 0 }),
    [icicle, selected],
  );
  const common = {
    icicle,
    zoom,
    selected,
    onSelect: (at: number) => setChosen(numberAt(at)),
    onZoom: (at: number) => setZoomed(numberAt(at)),
  };
  if (icicle.nodes.length === 0) {
    return <p class="panel note">Nothing is cached yet. Send a chat, and its prompt appears here.</p>;
  }
  return (
    <>
      <section class="panel" aria-label="Tree">
        <header class="panel-head">
          <Path icicle={icicle} zoom={zoom} onZoom={common.onZoom} />
          <span class="controls">
            {form === "picture" && (
              <Segments label="Colour" value={colouring} options={COLOURINGS} onChange={setColouring} />
            )}
            <Segments
              label="Form"
              value={form}
              options={[
                ["picture", "Picture"],
                ["table", "Table"],
              ]}
              onChange={setForm}
            />
          </span>
        </header>
        {form === "picture" ? (
          <>
            <Picture {...common} colouring={colouring} store={store} />
            <Legend colouring={colouring} store={store.name} />
          </>
        ) : (
          <Table {...common} store={store.name} />
        )}
        {isCut && <p class="facts">The cache has more than the {count(MAX_NODES)} nodes that are shown.</p>}
      </section>
      <p class="facts said" role="status">
        {said}
      </p>
      {node ? (
        <Details
          node={node}
          below={below}
          place={place}
          store={store.name}
          onChanged={(text) => {
            setSaid(text);
            onChanged();
          }}
        />
      ) : (
        <p class="facts">
          {chosen === undefined
            ? "Choose a node to see its length, hits and tier."
            : "The chosen node has left the cache, or was joined with another one."}
        </p>
      )}
    </>
  );
}

/** The way from the whole cache to the node that fills the picture. */
function Path({ icicle, zoom, onZoom }: { icicle: Icicle; zoom: number; onZoom: (at: number) => void }) {
  const path = pathTo(icicle, zoom);
  // The middle of a long path is left out.
  const shown = path.length > 4 ? [path[0] as number, -1, ...path.slice(-2)] : path;
  return (
    <nav class="path" aria-label="Path">
      <button type="button" class="link" onClick={() => onZoom(ROOT)} aria-current={zoom === ROOT ? "true" : undefined}>
        All
      </button>
      {shown.map((at) => (
        <span key={at}>
          <span aria-hidden="true"> › </span>
          {at < 0 ? (
            "…"
          ) : (
            <button
              type="button"
              class="link"
              onClick={() => onZoom(at)}
              aria-current={at === zoom ? "true" : undefined}
            >
              {counted(icicle.nodes[at - 1]?.tokens ?? 0, "token")}
            </button>
          )}
        </span>
      ))}
    </nav>
  );
}

function Legend({ colouring, store }: { colouring: Colouring; store: string }) {
  const fills: [string, string][] =
    colouring === "tier"
      ? [
          ["fill-device", "device only"],
          [store === "disk" ? "fill-disk" : "fill-host", store === "disk" ? "also on disk" : `also in ${store}`],
        ]
      : (colouring === "age" ? AGE_NAMES : HIT_NAMES).map((name, idx) => [`fill-${colouring}-${idx}`, name]);
  return (
    <ul class="legend" aria-label="Legend">
      {fills.map(([fill, name]) => (
        <li key={fill}>
          <span class={`swatch ${fill}`} /> {name}
        </li>
      ))}
      <li>
        <span class="swatch mark-pinned" /> pinned
      </li>
      <li>
        <span class="swatch mark-held" /> in use
      </li>
      <li>
        <span class="swatch mark-shared" /> shared by several
      </li>
    </ul>
  );
}

interface SegmentsProps<T extends string> {
  label: string;
  value: T;
  options: readonly (readonly [T, string])[];
  onChange: (value: T) => void;
}

function Segments<T extends string>({ label, value, options, onChange }: SegmentsProps<T>) {
  const name = useId();
  return (
    <fieldset class="segments">
      <legend class="unseen">{label}</legend>
      {options.map(([option, text]) => (
        <label key={option}>
          <input type="radio" name={name} checked={option === value} onChange={() => onChange(option)} />
          <span>{text}</span>
        </label>
      ))}
    </fieldset>
  );
}

interface ChoiceProps {
  label: string;
  value: string;
  options: readonly (readonly [string, string])[];
  onChange: (value: string) => void;
}

function Choice({ label, value, options, onChange }: ChoiceProps) {
  return (
    <select class="select" aria-label={label} value={value} onChange={(event) => onChange(event.currentTarget.value)}>
      {options.map(([option, text]) => (
        <option key={option} value={option}>
          {text}
        </option>
      ))}
    </select>
  );
}
