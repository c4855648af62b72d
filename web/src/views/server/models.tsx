import { useState } from "preact/hooks";

import { request } from "../../api/client";
import type { ModelCard } from "../../api/types";
import { Button } from "../../ui/button";
import { sentence } from "../failure";
import { bytes, count } from "../format";

type Order = "load" | "unload" | "pin" | "unpin";

/** What each state is called, and the colour of its mark. */
const STATES: Record<string, { name: string; mark: string }> = {
  loaded: { name: "In memory", mark: "ok" },
  unloaded: { name: "Not in memory", mark: "off" },
  queued: { name: "Waits for memory", mark: "warn" },
  loading: { name: "Is being loaded", mark: "warn" },
  unloading: { name: "Is leaving the memory", mark: "warn" },
  failed: { name: "Could not be loaded", mark: "bad" },
};

export function Models({ cards, onChange }: { cards: readonly ModelCard[]; onChange: () => void }) {
  const models = cards.filter(({ parent }) => !parent);
  const isOnDemand = models.some(({ status }) => status !== undefined);
  const [failure, setFailure] = useState<string>();
  const [busy, setBusy] = useState<string>();

  const order = async (model: string, what: Order): Promise<void> => {
    setFailure(undefined);
    setBusy(model);
    const done = request(`v1/models/${encodeURI(model)}/${what}`, { method: "POST" });
    // The answer comes when the model is there; until then the list shows how far it is.
    const shown = setTimeout(onChange, 200);
    try {
      await done;
    } catch (error) {
      setFailure(sentence(error));
    } finally {
      clearTimeout(shown);
      setBusy(undefined);
      onChange();
    }
  };

  return (
    <section class="panel" aria-labelledby="models-title">
      <header class="panel-head">
        <h2 id="models-title">{models.length === 1 ? "Model" : "Models"}</h2>
      </header>
      {failure && (
        <p class="problem" role="alert">
          {failure}
        </p>
      )}
      <ul class="rows">
        {models.map(({ id, max_model_len, status }) => {
          const state =
            status === undefined ? STATES.loaded : (STATES[status.value] ?? { name: status.value, mark: "off" });
          const facts = [
            max_model_len !== undefined && `${count(max_model_len)} tokens of context`,
            status?.memory_bytes && bytes(status.memory_bytes),
            status?.pinned && "pinned",
            status?.detail,
          ].filter((fact) => typeof fact === "string");
          return (
            <li key={id} class="row">
              <div class="row-main">
                <strong class="name">{id}</strong>
                <span class="facts">{facts.join(" · ")}</span>
              </div>
              <span class="state">
                <span class={`mark ${state?.mark}`} /> {state?.name}
              </span>
              {isOnDemand && status !== undefined && (
                <span class="row-actions">
                  {["unloaded", "failed"].includes(status.value) ? (
                    <Button disabled={busy !== undefined} onClick={() => void order(id, "load")}>
                      Load
                    </Button>
                  ) : (
                    <Button
                      disabled={busy !== undefined || status.pinned === true || status.value !== "loaded"}
                      onClick={() => void order(id, "unload")}
                    >
                      Unload
                    </Button>
                  )}
                  <Button disabled={busy !== undefined} onClick={() => void order(id, status.pinned ? "unpin" : "pin")}>
                    {status.pinned ? "Unpin" : "Pin"}
                  </Button>
                </span>
              )}
            </li>
          );
        })}
      </ul>
    </section>
  );
}
