import { count, counted, duration } from "../format";
import { pinOf, tiersOf } from "./describe";
import { type Icicle, ROOT } from "./icicle";

/** The most rows. The widest nodes come first, so that what is left out is small. */
const MAX_ROWS = 200;

interface Props {
  icicle: Icicle;
  /** The node whose continuations are listed. */
  zoom: number;
  selected: number;
  store: string;
  onSelect: (place: number) => void;
  onZoom: (place: number) => void;
}

/** The same as the picture, as text: the continuations of one node. */
export function Table({ icicle, zoom, selected, store, onSelect, onZoom }: Props) {
  const first = icicle.first[zoom] ?? 0;
  const total = icicle.count[zoom] ?? 0;
  const places = Array.from({ length: Math.min(total, MAX_ROWS) }, (_, idx) => first + idx);
  return (
    <div class="scroll tree-table" tabIndex={0} role="region" aria-label="Nodes">
      <table>
        <caption class="unseen">
          {zoom === ROOT ? "Nodes at the start of their prompts" : "Continuations of the node"}
        </caption>
        <thead>
          <tr>
            <th scope="col">Tokens</th>
            <th scope="col" class="num">
              With continuations
            </th>
            <th scope="col" class="num">
              Continuations
            </th>
            <th scope="col" class="num">
              Hits
            </th>
            <th scope="col">Last used</th>
            <th scope="col">Tier</th>
            <th scope="col">Pinned</th>
          </tr>
        </thead>
        <tbody>
          {places.map((place) => {
            const node = icicle.nodes[place - 1];
            if (node === undefined) return null;
            const children = icicle.count[place] ?? 0;
            return (
              <tr key={node.id} aria-current={place === selected ? "true" : undefined}>
                <th scope="row">
                  <button type="button" class="link" onClick={() => onSelect(place)}>
                    {count(node.first_token)} to {count(node.first_token + node.tokens)}
                  </button>
                </th>
                <td class="num">{count(icicle.width[place] ?? 0)}</td>
                <td class="num">
                  {children > 0 ? (
                    <button
                      type="button"
                      class="link"
                      onClick={() => {
                        onSelect(place);
                        onZoom(place);
                      }}
                    >
                      {count(children)}
                      <span class="unseen"> {children === 1 ? "continuation" : "continuations"}, show</span>
                    </button>
                  ) : (
                    "0"
                  )}
                </td>
                <td class="num">{count(node.hits)}</td>
                <td>{duration(node.age_ms)} ago</td>
                <td>{tiersOf(node, store)}</td>
                <td>{pinOf(node) ?? "no"}</td>
              </tr>
            );
          })}
        </tbody>
      </table>
      {total === 0 && <p class="facts">Nothing continues this node.</p>}
      {total > MAX_ROWS && <p class="facts">{counted(total - MAX_ROWS, "shorter node")} left out.</p>}
    </div>
  );
}
