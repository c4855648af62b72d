import { useEffect, useState } from "preact/hooks";

import { apiKey, getJson, request } from "../../api/client";
import { Button } from "../../ui/button";
import { Dialog } from "../../ui/dialog";
import { sentence } from "../failure";
import { bytes, count, counted, duration } from "../format";
import { pinOf, tiersOf } from "./describe";
import type { KvNode } from "./icicle";
import { type Place, query } from "./load";

interface Props {
  node: KvNode;
  /** The tokens of the node and of all that continue it, and the number of those. */
  below: { tokens: number; nodes: number };
  place: Place;
  store: string;
  /** Called after a change, with what happened. */
  onChanged: (said: string) => void;
}

const TIMES: [label: string, seconds: number][] = [
  ["5 minutes", 300],
  ["1 hour", 3600],
  ["8 hours", 28_800],
  ["1 day", 86_400],
];

export function Details({ node, below, place, store, onChanged }: Props) {
  const [asks, setAsks] = useState<"pin" | "unpin" | "forget">();
  const pin = pinOf(node);
  const facts: [string, string][] = [
    ["Length", counted(node.tokens, "token")],
    ["With continuations", `${counted(below.tokens, "token")} in ${counted(below.nodes + 1, "node")}`],
    ["Size", `${counted(node.blocks, "block")}, ${bytes(node.bytes)}`],
    ["Tier", tiersOf(node, store)],
    ["Hits", count(node.hits)],
    ["Last used", `${duration(node.age_ms)} ago`],
    ["In use", node.held > node.pinned ? counted(node.held, "block") : "no"],
    ["Pinned", pin ?? "no"],
    ["Continuations", node.children === 0 ? "none" : count(node.children)],
    ...(node.prompt_cache_keys.length > 0 ? ([["Keys", node.prompt_cache_keys.join(", ")]] as [string, string][]) : []),
    ["Namespace", node.namespace],
  ];
  return (
    <section class="panel details" aria-labelledby="node-title">
      <header class="panel-head">
        <h2 id="node-title">
          Tokens {count(node.first_token)} to {count(node.first_token + node.tokens)}
        </h2>
        <span class="row-actions">
          <Button onClick={() => setAsks("pin")}>Pin…</Button>
          {pin !== undefined && <Button onClick={() => setAsks("unpin")}>Unpin…</Button>}
          <Button onClick={() => setAsks("forget")}>Forget…</Button>
        </span>
      </header>
      <dl>
        {facts.map(([name, value]) => (
          <div key={name}>
            <dt>{name}</dt>
            <dd>{value}</dd>
          </div>
        ))}
      </dl>
      {apiKey.value !== "" && <Text key={node.id} node={node} place={place} />}
      {asks !== undefined && (
        <Ask
          what={asks}
          node={node}
          below={below}
          place={place}
          onClose={() => setAsks(undefined)}
          onDone={(said) => {
            setAsks(undefined);
            onChanged(said);
          }}
        />
      )}
    </section>
  );
}

/** The node's text, which the server shows only to its tenant and to admins, and only with keys. */
function Text({ node, place }: { node: KvNode; place: Place }) {
  const [shown, setShown] = useState<{ text: string; tokens: number }>();
  const [failure, setFailure] = useState<string>();
  const [wanted, setWanted] = useState(false);
  useEffect(() => {
    if (!wanted) return;
    const aborter = new AbortController();
    getJson<{ text: string | null; text_tokens: number }>(
      `v1/kv/tree/${node.id}${query({ ...place, lane: 0 }, { text: "true" })}`,
      aborter.signal,
    ).then(
      ({ text, text_tokens }) => setShown({ text: text ?? "", tokens: text_tokens }),
      (error: unknown) => setFailure(sentence(error)),
    );
    return () => aborter.abort();
  }, [wanted]);
  if (failure) return <p class="problem">{failure}</p>;
  if (shown === undefined) {
    return (
      <Button disabled={wanted} onClick={() => setWanted(true)}>
        Show its text
      </Button>
    );
  }
  return (
    <>
      {shown.tokens < node.tokens && <p class="facts">The first {counted(shown.tokens, "token")}:</p>}
      <pre class="text" tabIndex={0} aria-label="Text of the node">
        {shown.text}
      </pre>
    </>
  );
}

interface AskProps extends Omit<Props, "onChanged" | "store"> {
  what: "pin" | "unpin" | "forget";
  onClose: () => void;
  onDone: (said: string) => void;
}

/** Asks before something is changed. */
function Ask({ what, node, below, place, onClose, onDone }: AskProps) {
  const [ttl, setTtl] = useState(3600);
  const [failure, setFailure] = useState<string>();
  const [busy, setBusy] = useState(false);
  const end = node.first_token + node.tokens;

  const act = async (): Promise<void> => {
    setBusy(true);
    setFailure(undefined);
    const path = `v1/kv/tree/${node.id}${what === "forget" ? "" : "/pin"}${query({ ...place, lane: 0 })}`;
    try {
      const response = await request(
        path,
        what === "pin" ? { method: "POST", body: JSON.stringify({ ttl_s: ttl }) } : { method: "DELETE" },
      );
      const answer = (await response.json()) as {
        pinned_tokens?: number;
        ttl_s?: number;
        unpinned_blocks?: number;
        removed_blocks?: number;
      };
      if (what === "pin")
        onDone(`${counted(answer.pinned_tokens ?? 0, "token")} pinned for ${duration((answer.ttl_s ?? ttl) * 1000)}.`);
      else if (what === "unpin") onDone(`${counted(answer.unpinned_blocks ?? 0, "block")} no longer pinned.`);
      else onDone(`${counted(answer.removed_blocks ?? 0, "block")} forgotten.`);
    } catch (error) {
      setFailure(sentence(error));
      setBusy(false);
    }
  };

  const texts = {
    pin: { title: "Pin this prompt?", action: "Pin", kind: "main" },
    unpin: { title: "End the pins?", action: "Unpin", kind: "main" },
    forget: { title: "Forget this node?", action: "Forget", kind: "danger" },
  } as const;
  const { title, action, kind } = texts[what];
  return (
    <Dialog
      title={title}
      onClose={onClose}
      actions={
        <>
          <Button onClick={onClose}>Cancel</Button>
          <Button kind={kind} disabled={busy} onClick={() => void act()}>
            {action}
          </Button>
        </>
      }
    >
      {what === "pin" && (
        <>
          <p>
            The {counted(end, "token")} from the start of the prompt to the end of this node stay in the cache, whatever
            else needs room. They count towards what its tenant may pin.
          </p>
          <label class="pin-field">
            For
            <select class="select" value={ttl} onChange={(event) => setTtl(Number(event.currentTarget.value))}>
              {TIMES.map(([label, seconds]) => (
                <option key={seconds} value={seconds}>
                  {label}
                </option>
              ))}
            </select>
          </label>
        </>
      )}
      {what === "unpin" && (
        <p>The pins of this prompt and of everything that continues it end, also those that other requests made.</p>
      )}
      {what === "forget" && (
        <p>
          {counted(below.tokens, "token")} in {counted(below.nodes + 1, "node")} leave all tiers, and prompts that
          continue them are computed again. What is in use or pinned stays.
        </p>
      )}
      {failure && (
        <p class="problem" role="alert">
          {failure}
        </p>
      )}
    </Dialog>
  );
}
