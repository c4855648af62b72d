import { pathOf } from "../../history/tree";
import { conversation } from "./conversations";
import { chosenModel } from "./model";
import { cachedParts } from "./tiers";

/** How much of the model's context the conversation takes, and which part of it the last answer found in the cache. */
export function ContextGauge() {
  const most = chosenModel.value?.max_model_len;
  const stats = pathOf(conversation.value).findLast((turn) => turn.stats)?.stats;
  if (!most || !stats) return null;
  const parts = [
    ...cachedParts(stats).map(({ tier, tokens, where }) => ({
      kind: `tier-${tier}`,
      tokens,
      what: tier === "device" ? "read from the cache" : `read from ${where}`,
    })),
    { kind: "gauge-computed", tokens: stats.promptTokens - stats.cachedTokens, what: "computed" },
    { kind: "gauge-written", tokens: stats.outputTokens, what: "written" },
  ];
  const used = parts.reduce((sum, { tokens }) => sum + tokens, 0);
  const share = Math.min(1, used / most);
  const count = (tokens: number) => Math.round(tokens).toLocaleString("en");
  const detail = parts.map(({ tokens, what }) => `${count(tokens)} ${what}`).join(", ");
  const text = `${count(used)} of ${count(most)} tokens of the context are used. The last answer: ${detail}.`;
  let begin = 0;
  return (
    <span class={`gauge ${share > 0.9 ? "full" : ""}`} title={text}>
      <svg viewBox="0 0 64 6" width="64" height="6" role="img" aria-label={text}>
        <rect width="64" height="6" rx="3" class="gauge-all" />
        {parts.map(({ kind, tokens }) => {
          // A part that is there at all is at least a hair wide.
          const width = tokens > 0 ? Math.max(1, (64 * tokens) / most) : 0;
          const at = begin;
          begin += width;
          return (
            <rect key={kind} x={at} width={Math.max(0, Math.min(width, 64 - at))} height="6" class={kind} />
          );
        })}
      </svg>
      <span aria-hidden="true">{share < 0.01 ? "< 1" : Math.round(share * 100)} %</span>
    </span>
  );
}
