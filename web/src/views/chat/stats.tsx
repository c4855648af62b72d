import type { Turn } from "../../history/tree";
import { tokensPerSecond } from "./growth";

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
  const share = promptTokens > 0 ? cachedTokens / promptTokens : 0;
  const cached = `${count(cachedTokens)} of the prompt's ${count(promptTokens)} tokens came from the cache`;
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
          <rect width={40 * share} height="4" rx="2" class="cached-hit" />
        </svg>
        {Math.round(share * 100)} % cached
      </span>
    </span>
  );
}
