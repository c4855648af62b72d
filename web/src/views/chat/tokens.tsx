import { useState } from "preact/hooks";

import type { Token, Turn } from "../../history/tree";
import { goOnFrom, runs } from "./run";

/** Returns a class from 0 (certain) to 5 (unlikely). */
function rank(logprob: number): number {
  const probability = Math.exp(logprob);
  return [0.9, 0.7, 0.5, 0.3, 0.1].filter((bound) => probability < bound).length;
}

export function percent(logprob: number): string {
  const value = Math.exp(logprob) * 100;
  if (value > 0 && value < 0.1) return "< 0.1 %";
  return `${value.toFixed(value < 10 ? 1 : 0)} %`;
}

/** Makes spaces and line breaks of a token visible. */
function visible(text: string): string {
  return text.replace(/ /g, "␣").replace(/\n/g, "⏎").replace(/\t/g, "⇥") || "∅";
}

/** The tokens of an answer, coloured by probability. The chosen one shows what else could have stood in its place. */
export function Tokens({ conversation, turn }: { conversation: string; turn: Turn }) {
  const [place, setPlace] = useState<number>();
  const tokens = turn.tokens ?? [];
  const chosen = place === undefined ? undefined : tokens[place];
  const busy = runs.value.has(conversation);
  return (
    <div class="tokens">
      <p class="tokens-text">
        {tokens.map((token, index) => (
          <button
            key={index}
            type="button"
            class={`token rank-${rank(token.logprob)}`}
            aria-pressed={index === place}
            aria-label={`${token.text.trim() || visible(token.text)}, ${percent(token.logprob)}`}
            onMouseEnter={() => setPlace(index)}
            onFocus={() => setPlace(index)}
            onClick={() => setPlace(index)}
          >
            {token.text}
          </button>
        ))}
      </p>
      <div class="alternatives" aria-live="off">
        {chosen && place !== undefined ? (
          <>
            <span class="alternatives-title">
              Token {place + 1}: <code>{visible(chosen.text)}</code> {percent(chosen.logprob)}
            </span>
            {chosen.top.map((other: Token | { text: string; logprob: number }) => (
              <button
                key={other.text}
                type="button"
                class="alternative"
                disabled={busy || other.text === chosen.text}
                title="Go on from this one, in a new branch"
                onClick={() => goOnFrom(conversation, turn, place, { ...other, top: chosen.top })}
              >
                <code>{visible(other.text)}</code> {percent(other.logprob)}
              </button>
            ))}
          </>
        ) : (
          "Point at a token to see what else could have stood there. Choose another one to go on from it."
        )}
      </div>
    </div>
  );
}
