/** The data of conversations. A conversation is a tree of turns; the chosen child of each turn makes the shown path. */

import type { TierTokens } from "../api/types";

export type Role = "user" | "assistant" | "tool";

/** A text file that precedes the text of a user's turn. */
export type Attachment = { name: string; text: string };

export type ToolCall = { id: string; name: string; arguments: string };

/** A generated token, its logprob, and the likeliest tokens at its place. */
export type Token = { text: string; logprob: number; top: { text: string; logprob: number }[] };

export type Stats = {
  promptTokens: number;
  cachedTokens: number;
  /** The cached tokens by tier; absent if the device had all of them. */
  cachedTiers?: TierTokens;
  outputTokens: number;
  acceptedDrafts?: number;
  /** From sending the request to the first piece of text. */
  firstMs: number;
  /** From the first piece of text to the last. */
  restMs: number;
};

/** Why an answer is not complete, with the code of `ApiError`. */
export type Failure = { code: string; message: string; status: number; param?: string; retryAfter?: number };

/**
 * `streaming` is being written by a tab. `cut` has lost its stream, by a reload or a lost connection, and can be
 * continued. `stopped` was stopped by the user, and `failed` was refused.
 */
export type TurnState = "done" | "streaming" | "cut" | "stopped" | "failed";

/** The sampling parameters of a request, by their names in the API. */
export type Parameters = Record<string, unknown>;

export type Turn = {
  id: string;
  parent: string | null;
  role: Role;
  content: string;
  created: number;
  state: TurnState;
  attachments?: Attachment[];
  reasoning?: string;
  toolCalls?: ToolCall[];
  /** Of a tool's turn: the call that it answers. */
  toolCallId?: string;
  model?: string;
  seed?: number;
  parameters?: Parameters;
  /** Answers that one request generated side by side share a group. */
  group?: string;
  /** The place of the answer in its group. */
  choice?: number;
  finish?: string;
  stats?: Stats;
  tokens?: Token[];
  failure?: Failure;
  /** The answer that this one repeats with the same seed. */
  repeats?: string;
  /** The tab that streams it. */
  tab?: string;
  /** The stream that the server keeps of it, and how much of the text and how many tokens were there before. */
  stream?: { id: string; text: number; tokens: number };
  /** True if its text is not that of one request, because the user changed it or let the model go on. */
  patched?: boolean;
};

/** What the list of conversations shows of each. Times are in milliseconds since 1970. */
export type Entry = { id: string; title: string; updated: number; created: number };

export type Conversation = {
  id: string;
  title: string;
  /** True if the user has chosen the title. */
  named: boolean;
  created: number;
  updated: number;
  system: string;
  turns: Record<string, Turn>;
  /** The chosen child of each turn; that of the key `""` is the first turn. */
  chosen: Record<string, string>;
};

export function newId(): string {
  const bytes = crypto.getRandomValues(new Uint8Array(12));
  return Array.from(bytes, (byte) => byte.toString(36).padStart(2, "0")).join("");
}

export function newConversation(now = Date.now()): Conversation {
  return { id: newId(), title: "", named: false, created: now, updated: now, system: "", turns: {}, chosen: {} };
}

/** Returns the turns with this parent, oldest first. */
export function childrenOf(conversation: Conversation, parent: string | null): Turn[] {
  return Object.values(conversation.turns)
    .filter((turn) => turn.parent === parent)
    .sort((a, b) => a.created - b.created || (a.choice ?? 0) - (b.choice ?? 0) || (a.id < b.id ? -1 : 1));
}

/** Returns the turn itself and the others with the same parent, oldest first. */
export function siblingsOf(conversation: Conversation, id: string): Turn[] {
  const turn = conversation.turns[id];
  return turn ? childrenOf(conversation, turn.parent) : [];
}

function chosenChild(conversation: Conversation, parent: string | null): Turn | undefined {
  const chosen = conversation.turns[conversation.chosen[parent ?? ""] ?? ""];
  return chosen && chosen.parent === parent ? chosen : childrenOf(conversation, parent).at(-1);
}

/** Returns the shown turns, from the first one. */
export function pathOf(conversation: Conversation): Turn[] {
  const path: Turn[] = [];
  let next = chosenChild(conversation, null);
  while (next) {
    path.push(next);
    next = chosenChild(conversation, next.id);
  }
  return path;
}

/** Returns the turns from the first one to this one. */
export function pathTo(conversation: Conversation, id: string | null): Turn[] {
  const path: Turn[] = [];
  for (let turn = conversation.turns[id ?? ""]; turn; turn = conversation.turns[turn.parent ?? ""]) path.unshift(turn);
  return path;
}

/** Adds turns and shows the first of each parent. A turn that exists is replaced. */
export function withTurns(conversation: Conversation, turns: Turn[], now = Date.now()): Conversation {
  const chosen = { ...conversation.chosen };
  for (const turn of [...turns].reverse()) if (!conversation.turns[turn.id]) chosen[turn.parent ?? ""] = turn.id;
  const added = Object.fromEntries(turns.map((turn) => [turn.id, turn]));
  return { ...conversation, turns: { ...conversation.turns, ...added }, chosen, updated: now };
}

/** Shows the path through this turn. */
export function withChosen(conversation: Conversation, id: string): Conversation {
  const chosen = { ...conversation.chosen };
  for (const turn of pathTo(conversation, id)) chosen[turn.parent ?? ""] = turn.id;
  return { ...conversation, chosen };
}

/** Removes a turn and everything below it. */
export function withoutTurn(conversation: Conversation, id: string, now = Date.now()): Conversation {
  const turns = { ...conversation.turns };
  const chosen = { ...conversation.chosen };
  const doomed = [id];
  for (let next = doomed.pop(); next !== undefined; next = doomed.pop()) {
    delete turns[next];
    delete chosen[next];
    for (const turn of Object.values(turns)) if (turn.parent === next) doomed.push(turn.id);
  }
  for (const [parent, child] of Object.entries(chosen)) if (!turns[child]) delete chosen[parent];
  return { ...conversation, turns, chosen, updated: now };
}

/** Joins the turns that two tabs have of one conversation: theirs without `dropped` ones, and ours that `isOurs` names. */
export function mergedTurns(
  theirs: Record<string, Turn>,
  ours: Record<string, Turn>,
  dropped: ReadonlySet<string>,
  isOurs: (id: string) => boolean,
): Record<string, Turn> {
  const all = [...Object.values(theirs), ...Object.values(ours).filter(({ id }) => isOurs(id))];
  return Object.fromEntries(all.filter(({ id }) => !dropped.has(id)).map((turn) => [turn.id, turn]));
}

const MAX_TITLE = 60;

/** Returns a title made from the first words of the first turn. */
export function titleFrom(text: string): string {
  const line = text.trim().split(/\n/, 1)[0]?.trim() ?? "";
  if (line.length <= MAX_TITLE) return line;
  const cut = line.slice(0, MAX_TITLE);
  return `${cut.slice(0, Math.max(cut.lastIndexOf(" "), MAX_TITLE / 2)).trimEnd()}…`;
}
