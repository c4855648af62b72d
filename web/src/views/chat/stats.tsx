import type { Turn } from "../../history/tree";
import { tokensPerSecond } from "./growth";
import { cachedParts } from "./tiers";

function seconds(ms: number): string {
  return ms < 10_000 ? `${(ms / 1000).toFixed(2)} s` : `${(ms / 1000).toFixed(1)} s`;
}

function count(value: number): string {
  return Math.round(value).toLocaleString("en");
}

/** Speed, length and the cached part of the prompt, under an answer. */
export function StatsLine({ turn: { stats, state, group } }: { turn: Turn }) {
  if (!stats || state === "streaming") return null;
  const speed = tokensPerSecond(stats);
  const { promptTokens, cachedTokens, outputTokens, firstMs, acceptedDrafts } = stats;
  const share = (tokens: number): number => (promptTokens > 0 ? tokens / promptTokens : 0);
  const parts = cachedParts(stats);
  const below = parts.filter(({ tier }) => tier !== "device");
  const tiers = parts.map(({ tokens, where }) => `${count(tokens)} from ${where}`).join(", ");
  const cached =
    `${count(cachedTokens)} of the prompt's ${count(promptTokens)} tokens came from the cache` +
    (below.length > 0 ? `: ${tiers}` : "");
  let begin = 0;
  return (
    <span class="stats">
      {speed !== undefined && <span title="Tokens a second after the first one">{speed.toFixed(1)} tok/s</span>}
      {firstMs > 0 && <span title="Time to the first token">{seconds(firstMs)}</span>}
      {/* The server counts the tokens of answers side by side together. */}
      <span title={group ? "Generated tokens, on average of the answers" : "Generated tokens"}>
        {group && "about "}
        {count(outputTokens)} tokens{acceptedDrafts ? `, ${count(acceptedDrafts)} drafted` : ""}
      </span>
      <span class="cached" title={cached}>
        <svg viewBox="0 0 40 4" width="40" height="4" role="img" aria-label={cached}>
          <rect width="40" height="4" rx="2" class="cached-all" />
          {parts.map(({ tier, tokens }) => {
            const at = begin;
            begin += 40 * share(tokens);
            return <rect key={tier} x={at} width={begin - at} height="4" class={`tier-${tier}`} />;
          })}
        </svg>
        {Math.round(share(cachedTokens) * 100)} % cached
        {below.map(({ tier, tokens }) => (
          <span key={tier} class="cached-tier">
            <svg viewBox="0 0 8 8" width="8" height="8" aria-hidden="true">
              <rect width="8" height="8" rx="2" class={`tier-${tier}`} />
            </svg>
            {Math.round(share(tokens) * 100)} % {tier}
          </span>
        ))}
      </span>
    </span>
  );
}
