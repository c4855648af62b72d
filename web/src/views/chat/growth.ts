import type { Chunk, TokenLogprob } from "../../api/types";
import type { Stats, Token, Turn } from "../../history/tree";

/** Collects the pieces of the answers to one request. */
export class Growth {
  readonly turns: Turn[];
  readonly #began: Stats[];
  readonly #tokens: Token[][];
  #sent = 0;
  #timed = true;
  #first: number | undefined;
  #last = 0;
  /** True if anything has arrived since the request was last sent. */
  grown = false;

  constructor(turns: Turn[]) {
    this.turns = turns.map((turn) => ({ ...turn }));
    this.#began = turns.map(({ stats }) => stats ?? NOTHING);
    this.#tokens = turns.map(({ tokens }) => [...(tokens ?? [])]);
  }

  /** Takes back what came of the kept stream, which is read again from its beginning. */
  rewind(): void {
    this.turns.forEach((turn, index) => {
      const { text = 0, tokens = 0 } = turn.stream ?? {};
      turn.content = turn.content.slice(0, text);
      this.#tokens[index] = (turn.tokens ?? []).slice(0, tokens);
      delete turn.toolCalls;
      delete turn.finish;
      delete turn.stats;
      if (text === 0) delete turn.reasoning;
      if (tokens) turn.tokens = [...(this.#tokens[index] ?? [])];
      else delete turn.tokens;
    });
    // What has been generated meanwhile arrives at once, so times tell nothing.
    this.#timed = false;
  }

  /** Notes that the request is sent at `now`, in milliseconds of any clock, and that the server keeps its stream. */
  send(now: number, id: string): void {
    this.#timed = true;
    for (const turn of this.turns) turn.stream = { id, text: turn.content.length, tokens: turn.tokens?.length ?? 0 };
    this.#sent = now;
    this.#first = undefined;
    this.grown = false;
    this.turns.forEach((turn, index) => {
      this.#began[index] = turn.stats ?? NOTHING;
    });
  }

  add(chunk: Chunk, now: number): void {
    for (const { index, delta, logprobs, finish_reason: finish } of chunk.choices) {
      const turn = this.turns[index];
      if (!turn) continue;
      if (delta.content) turn.content += delta.content;
      if (delta.reasoning_content) turn.reasoning = (turn.reasoning ?? "") + delta.reasoning_content;
      for (const call of delta.tool_calls ?? []) {
        const calls = [...(turn.toolCalls ?? [])];
        const known = calls[call.index] ?? { id: "", name: "", arguments: "" };
        calls[call.index] = {
          id: known.id || (call.id ?? ""),
          name: known.name + (call.function?.name ?? ""),
          arguments: known.arguments + (call.function?.arguments ?? ""),
        };
        turn.toolCalls = calls;
      }
      if (logprobs?.content) {
        const tokens = this.#tokens[index] ?? [];
        tokens.push(...logprobs.content.map(tokenOf));
        turn.tokens = [...tokens];
      }
      if (finish) turn.finish = finish;
      if (delta.content || delta.reasoning_content || delta.tool_calls) {
        this.#first ??= now;
        this.#last = now;
        this.grown = true;
      }
    }
    if (chunk.usage) this.#count(chunk.usage);
  }

  #count(usage: NonNullable<Chunk["usage"]>): void {
    this.turns.forEach((turn, index) => {
      const before = this.#began[index] ?? NOTHING;
      turn.stats = {
        promptTokens: usage.prompt_tokens,
        cachedTokens: usage.prompt_tokens_details?.cached_tokens ?? 0,
        // The server counts the tokens of all choices together.
        outputTokens: before.outputTokens + usage.completion_tokens / this.turns.length,
        firstMs: this.#timed ? (this.#first ?? this.#last) - this.#sent : 0,
        restMs: this.#timed ? before.restMs + (this.#last - (this.#first ?? this.#last)) : 0,
      };
      const tiers = usage.prompt_tokens_details?.cached_tokens_details;
      if (tiers) turn.stats.cachedTiers = tiers;
      const drafts = usage.completion_tokens_details?.accepted_prediction_tokens;
      if (drafts) turn.stats.acceptedDrafts = (before.acceptedDrafts ?? 0) + drafts;
    });
  }
}

const NOTHING: Stats = { promptTokens: 0, cachedTokens: 0, outputTokens: 0, firstMs: 0, restMs: 0 };

function tokenOf({ token, logprob, top_logprobs: top }: TokenLogprob & { top_logprobs?: TokenLogprob[] }): Token {
  return { text: token, logprob, top: (top ?? []).map((each) => ({ text: each.token, logprob: each.logprob })) };
}

/** A shorter time than this, in milliseconds, measures only how pieces arrive together. */
const MEASURABLE_MS = 20;

/** Returns tokens a second after the first one. */
export function tokensPerSecond({ outputTokens, restMs }: Stats): number | undefined {
  return outputTokens > 1 && restMs >= MEASURABLE_MS ? ((outputTokens - 1) * 1000) / restMs : undefined;
}
