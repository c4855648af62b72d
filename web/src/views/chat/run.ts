import { signal } from "@preact/signals";

import { type ChatEvent, dropStream, followChat, streamChat } from "../../api/chat";
import { ApiError } from "../../api/client";
import { connection, models, noteGone, refresh, untilUp } from "../../api/server";
import { keeper } from "../../history/store";
import {
  type Failure,
  newId,
  pathOf,
  pathTo,
  type Token,
  type Turn,
  type TurnState,
  withoutTurn,
  withTurns,
} from "../../history/tree";
import { conversation, endLive, peek, retitle, saveNow, scheduleGrowing, setLive, tabId, update } from "./conversations";
import { Growth } from "./growth";
import { type Asked, askedBy, bodyOf, messagesOf } from "./request";
import { chosenModel } from "./model";
import { settings } from "./settings";

/** A request that is being answered. */
type Run = { turns: string[]; abort: AbortController };

/** The running requests by their conversations. A conversation has at most one. */
export const runs = signal<ReadonlyMap<string, Run>>(new Map());
/** What is happening instead of an answer, by conversation: that a model is loaded, or the server is gone. */
export const notes = signal<ReadonlyMap<string, string>>(new Map());
/** Read to users of screen readers. */
export const announcement = signal("");

/** The most times that one answer goes on after lost connections without a new token in between. */
const MAX_FRUITLESS = 8;

function note(conversation: string, text: string | undefined): void {
  if (notes.peek().get(conversation) === text) return;
  const next = new Map(notes.peek());
  if (text === undefined) next.delete(conversation);
  else next.set(conversation, text);
  notes.value = next;
}

export function stop(conversation: string): void {
  runs.peek().get(conversation)?.abort.abort();
}

/** Adds a user's turn, or a tool's results, below `parent`, and answers it. */
export function say(
  conversation: string,
  turns: Omit<Turn, "id" | "created" | "state" | "parent">[],
  parent: string | null,
): void {
  if (runs.peek().has(conversation)) return;
  let last = parent;
  const created = turns.map((turn): Turn => {
    const full: Turn = { ...turn, id: newId(), created: Date.now(), state: "done", parent: last };
    last = full.id;
    return full;
  });
  update(conversation, (before) => retitle(withTurns(before, created)));
  if (last !== null) answer(conversation, last);
}

/** Answers the turn `parent`. With `asked`, it asks for the same as an earlier answer did, which `repeats` names. */
export function answer(conversation: string, parent: string, asked?: Asked, repeats?: string): void {
  if (runs.peek().has(conversation)) return;
  const wanted = asked ?? askedBy(settings.peek(), chosenModel.peek()?.id ?? settings.peek().model);
  const group = newId();
  const created = Date.now();
  const turns = Array.from({ length: wanted.answers }, (_, choice): Turn => {
    const turn: Turn = { id: newId(), parent, role: "assistant", content: "", created, state: "streaming", tab: tabId };
    Object.assign(turn, { model: wanted.model, seed: wanted.seed, parameters: wanted.parameters });
    if (wanted.answers > 1) Object.assign(turn, { group, choice });
    if (repeats) turn.repeats = repeats;
    return turn;
  });
  for (const turn of turns) setLive(turn);
  update(conversation, (before) => withTurns(before, turns));
  void run(conversation, turns, wanted);
}

/** Answers again after a failure. A failed answer without any text does not stay as a branch. */
export function retry(conversation: string, turn: Turn): void {
  const { parent } = turn;
  if (parent === null || runs.peek().has(conversation)) return;
  if (!turn.content && !turn.reasoning) update(conversation, (before) => withoutTurn(before, turn.id));
  answer(conversation, parent);
}

/** Answers again what failed because of the key, once there is another. */
export function retryWithKey(): void {
  const { id } = conversation.peek();
  const last = pathOf(conversation.peek()).at(-1);
  if (last?.failure?.code !== "invalid_api_key") return;
  if (last.content) goOn(id, last);
  else retry(id, last);
}

/** Returns what an answer was asked with. */
export function askedOf(turn: Turn, answers: number): Asked {
  const { model = "", seed = 0, parameters = {} } = turn;
  return { model, seed, answers, parameters };
}

/** Continues an answer that was cut or stopped, or that ended at its limit of tokens, by up to as many again. */
export function goOn(conversation: string, turn: Turn): void {
  if (runs.peek().has(conversation)) return;
  const { failure: _failure, finish: _finish, ...rest } = turn;
  const growing: Turn = { ...rest, state: "streaming", tab: tabId, ...(turn.content ? { patched: true } : {}) };
  setLive(growing);
  update(conversation, (before) => withTurns(before, [growing]));
  void run(conversation, [growing], askedOf(turn, 1));
}

/** Follows answers of one request again, whose stream the server has kept. */
export function resume(conversation: string, turns: Turn[]): void {
  const [first] = turns;
  if (!first || runs.peek().has(conversation)) return;
  const growing = turns.map(({ failure: _, ...rest }): Turn => ({ ...rest, state: "streaming", tab: tabId }));
  for (const turn of growing) setLive(turn);
  update(conversation, (before) => withTurns(before, growing));
  void run(conversation, growing, askedOf(first, turns.length), true);
}

/** Makes a new answer that begins as `turn` does and has another token at a place, and continues it. */
export function goOnFrom(conversation: string, turn: Turn, place: number, token: Token): void {
  if (runs.peek().has(conversation)) return;
  const tokens = [...(turn.tokens ?? []).slice(0, place), token];
  const branch: Turn = {
    id: newId(),
    parent: turn.parent,
    role: "assistant",
    content: tokens.map(({ text }) => text).join(""),
    created: Date.now(),
    state: "streaming",
    tab: tabId,
    patched: true,
    tokens,
  };
  const { model, seed, parameters } = turn;
  Object.assign(branch, { model, seed, parameters });
  setLive(branch);
  update(conversation, (before) => withTurns(before, [branch]));
  void run(conversation, [branch], askedOf(branch, 1));
}

async function run(conversation: string, turns: Turn[], asked: Asked, follows = false): Promise<void> {
  const abort = new AbortController();
  const growth = new Growth(turns);
  runs.value = new Map(runs.peek()).set(conversation, { turns: turns.map(({ id }) => id), abort });
  announcement.value = "The answer begins.";
  const paint = painter(() => {
    for (const turn of growth.turns) setLive({ ...turn });
    scheduleGrowing(conversation);
  });
  let state: TurnState = "done";
  let failure: Failure | undefined;
  try {
    await persist(conversation, growth, asked, abort.signal, paint.soon, follows);
  } catch (error) {
    if (abort.signal.aborted) state = "stopped";
    else {
      state = error instanceof ApiError && error.code === "stream_cut" ? "cut" : "failed";
      // The user is told that the page was reloaded, not that a stream was looked for in vain.
      if (!(follows && state === "cut" && !growth.grown)) failure = failureOf(error);
    }
  }
  paint.cancel();
  const stream = growth.turns[0]?.stream;
  // The stream of an answer that was cut may be found again, and one that another device reads goes by itself.
  const isRead = keeper.peek() === "server" && state !== "stopped";
  if (stream && !isRead && (state === "stopped" || (state !== "cut" && growth.grown))) dropStream(stream.id);
  const ended = growth.turns.map((full): Turn => {
    const { tab: _, stream, ...turn } = full;
    const rest = state === "cut" && stream ? { ...turn, stream } : turn;
    return { ...rest, state, ...(failure ? { failure } : {}) };
  });
  const left = new Map(runs.peek());
  left.delete(conversation);
  runs.value = left;
  note(conversation, undefined);
  // The model may have come into memory, and another one left.
  if (models.peek().some((card) => card.status)) void refresh();
  endLive(conversation, ended);
  announcement.value =
    state === "done"
      ? "The answer is complete."
      : state === "stopped"
        ? "The answer was stopped."
        : "The answer failed.";
}

/** Asks until there is an answer. If the server is lost meanwhile, it waits for it and goes on where the text ended. */
async function persist(
  conversation: string,
  growth: Growth,
  asked: Asked,
  signal: AbortSignal,
  paint: () => void,
  follows: boolean,
): Promise<void> {
  let lost = follows;
  let problem = new ApiError("stream_cut", "the server no longer has the answer", 0);
  for (let fruitless = 0; fruitless < MAX_FRUITLESS; fruitless++) {
    try {
      if (lost && (await follow(conversation, growth, signal, paint))) return;
      // After a reload of the page, the user decides whether an answer goes on whose stream is gone. Another device may
      // have stopped it.
      const isOwn = !follows || (growth.grown && keeper.peek() !== "server");
      if (!lost || (canGoOn(growth) && isOwn)) {
        await once(conversation, growth, asked, signal, paint);
        return;
      }
      break;
    } catch (error) {
      if (signal.aborted || !(error instanceof ApiError)) throw error;
      if (growth.grown) fruitless = 0;
      const waits = [
        "unreachable",
        "stream_cut",
        "model_loading",
        "shard_away",
        "draining",
        "terminated",
        "shard_lost",
      ];
      if (!waits.includes(error.code)) throw error;
      lost = error.code === "unreachable" || error.code === "stream_cut";
      if (!lost && !canGoOn(growth)) throw error;
      problem = error;
      const loading = error.code === "model_loading";
      note(
        conversation,
        loading ? "The server is loading the model." : "The server is gone. The answer goes on as soon as it is back.",
      );
      if (error.status === 0) noteGone();
      else {
        connection.value = "loading";
        await new Promise((resolve) => setTimeout(resolve, 300));
        void refresh();
      }
      if (!(await untilUp(signal))) throw error;
      note(conversation, "The server is back.");
    }
  }
  throw problem;
}

/** Several answers, and those with calls of tools or only reasoning, can only begin again, which loses their text. */
function canGoOn(growth: Growth): boolean {
  if (!growth.turns.some(({ content, reasoning, toolCalls }) => content || reasoning || toolCalls)) return true;
  const [only] = growth.turns;
  return growth.turns.length === 1 && only !== undefined && only.content !== "" && !only.toolCalls;
}

async function once(
  conversation: string,
  growth: Growth,
  asked: Asked,
  signal: AbortSignal,
  paint: () => void,
): Promise<void> {
  const held = peek(conversation);
  const [first] = growth.turns;
  if (!held || !first) return;
  const partial = first.content !== "";
  const path = pathTo(held, first.parent);
  const messages = messagesOf(held.system, partial ? [...path, first] : path);
  const id = newId();
  growth.send(performance.now(), id);
  // A reload at any time from now on finds the conversation and its stream.
  for (const turn of growth.turns) setLive({ ...turn });
  void saveNow(conversation);
  await collect(conversation, growth, streamChat(bodyOf(asked, messages, partial), id, signal), paint);
}

/** Reads the kept stream again. Returns false if the server does not have it. */
async function follow(conversation: string, growth: Growth, signal: AbortSignal, paint: () => void): Promise<boolean> {
  const id = growth.turns[0]?.stream?.id;
  if (id === undefined) return false;
  const pieces = followChat(id, signal);
  try {
    const first = await pieces.next();
    growth.rewind();
    if (!first.done) take(conversation, growth, first.value);
    await collect(conversation, growth, pieces, paint);
    return true;
  } catch (error) {
    if (!(error instanceof ApiError) || error.status !== 404) throw error;
    for (const turn of growth.turns) delete turn.stream;
    return false;
  }
}

async function collect(
  conversation: string,
  growth: Growth,
  pieces: AsyncIterable<ChatEvent>,
  paint: () => void,
): Promise<void> {
  for await (const event of pieces) {
    take(conversation, growth, event);
    paint();
  }
}

function take(conversation: string, growth: Growth, event: ChatEvent): void {
  if ("note" in event) {
    if (!notes.peek().has(conversation)) void refresh();
    note(conversation, sentenceOf(event.note));
    return;
  }
  note(conversation, undefined);
  growth.add(event.chunk, performance.now());
}

/** Makes a sentence of what the server says while the model is loaded. */
function sentenceOf(text: string): string {
  const told = text.replace(/ is unloaded$/, " is about to be loaded");
  return `${told.charAt(0).toUpperCase()}${told.slice(1)}${told.endsWith(".") ? "" : "."}`;
}

function failureOf(error: unknown): Failure {
  if (!(error instanceof ApiError)) return { code: "internal", message: String(error), status: 0 };
  const { code, message, status, param, retryAfter } = error;
  return { code, message, status, ...(param ? { param } : {}), ...(retryAfter ? { retryAfter } : {}) };
}

/** Calls `paint` at most once for each frame, and a few times a second while the tab is hidden. */
function painter(paint: () => void): { soon: () => void; cancel: () => void } {
  let frame: number | undefined;
  let timer: ReturnType<typeof setTimeout> | undefined;
  const cancel = () => {
    if (frame !== undefined) cancelAnimationFrame(frame);
    clearTimeout(timer);
    frame = timer = undefined;
  };
  const now = () => {
    cancel();
    paint();
  };
  const soon = () => {
    if (timer !== undefined) return;
    frame = requestAnimationFrame(now);
    timer = setTimeout(now, 250);
  };
  return { soon, cancel };
}
