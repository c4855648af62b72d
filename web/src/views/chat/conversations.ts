import { computed, effect, type Signal, signal } from "@preact/signals";

import { ApiError } from "../../api/client";
import { hasChanged } from "../../history/remote";
import * as store from "../../history/store";
import {
  type Conversation,
  type Entry,
  mergedTurns,
  newConversation,
  newId,
  titleFrom,
  type Turn,
  withTurns,
} from "../../history/tree";
import { replaceRoute, route } from "../../route";
import { keep, recall } from "../../storage";

const TAB_KEY = "trunkline.tab";
const SAVE_MS = 400;
/** The server keeps the stream of a growing answer itself, so that its text is saved only now and then. */
const SAVE_GROWING_MS = 5000;
const LOOK_MS = 15_000;
/** A tab that streams saves often. After this time without a change it counts as closed. */
const FORSAKEN_MS = 4000;

/** Survives a reload, so that an answer that the reload has cut is recognised at once. */
export const tabId = recall("tab", TAB_KEY) ?? newId();
keep("tab", TAB_KEY, tabId);

export const entries = signal<Entry[]>([]);
/** Why conversations are not saved, as a sentence; empty if they are. */
export const storeFailed = signal("");

/** Conversations in memory: the shown one, and those with an answer that is being written. */
const loaded = new Map<string, Signal<Conversation>>();
/** Turns that this tab streams. They change many times a second, so they are not part of the conversation meanwhile. */
const live = new Map<string, Signal<Turn>>();

const currentId = signal("");
/** The shown conversation, which is empty and unsaved at first. */
export const conversation = computed(() => loaded.get(currentId.value)?.value ?? EMPTY);
const EMPTY = newConversation();
/** True if the address names a conversation that does not exist. */
export const missing = signal(false);

type Message = { saved: string } | { removed: string };

const channel = "BroadcastChannel" in globalThis ? new BroadcastChannel("trunkline") : undefined;

/** Returns the turn as it is now, and renders the calling component again when it grows. */
export function current(turn: Turn): Turn {
  return live.get(turn.id)?.value ?? turn;
}

export function setLive(turn: Turn): void {
  const known = live.get(turn.id);
  if (known) known.value = turn;
  else live.set(turn.id, signal(turn));
}

export function endLive(conversationId: string, turns: Turn[]): void {
  for (const turn of turns) live.delete(turn.id);
  update(conversationId, (before) =>
    withTurns(
      before,
      turns.filter((turn) => before.turns[turn.id]),
    ),
  );
}

export function peek(id: string): Conversation | undefined {
  return loaded.get(id)?.peek();
}

/** Changes a conversation in memory and saves it a little later. */
export function update(id: string, change: (before: Conversation) => Conversation): void {
  const held = loaded.get(id);
  if (!held) return;
  const before = held.peek();
  const after = change(before);
  noteChanges(id, before, after);
  held.value = after;
  scheduleSave(id);
}

/** What this tab has changed since it last saved a conversation. */
type Unsaved = { changed: Set<string>; dropped: Set<string> };

const unsaved = new Map<string, Unsaved>();

function unsavedOf(id: string): Unsaved {
  const known = unsaved.get(id) ?? { changed: new Set(), dropped: new Set() };
  unsaved.set(id, known);
  return known;
}

function noteChanges(id: string, before: Conversation, after: Conversation): void {
  const { changed, dropped } = unsavedOf(id);
  for (const turn of Object.keys(before.turns)) if (!after.turns[turn]) dropped.add(turn);
  for (const [turn, content] of Object.entries(after.turns)) if (before.turns[turn] !== content) changed.add(turn);
}

const pending = new Map<string, ReturnType<typeof setTimeout>>();

export function scheduleSave(id: string, wait = SAVE_MS): void {
  if (pending.has(id)) return;
  pending.set(
    id,
    setTimeout(() => void saveNow(id), wait),
  );
}

/** Saves an answer that grows. */
export function scheduleGrowing(id: string): void {
  scheduleSave(id, store.keeper.peek() === "server" ? SAVE_GROWING_MS : SAVE_MS);
}

export async function saveNow(id: string): Promise<void> {
  clearTimeout(pending.get(id));
  pending.delete(id);
  const held = loaded.get(id)?.peek();
  if (!held || Object.keys(held.turns).length === 0) return;
  const turns = Object.fromEntries(
    Object.values(held.turns).map((turn) => [turn.id, live.get(turn.id)?.peek() ?? turn]),
  );
  // While an answer grows, the time of the last change tells other tabs that somebody writes it.
  const growing = Object.keys(turns).some((turn) => live.has(turn));
  const snapshot = { ...held, turns, updated: growing ? Date.now() : held.updated };
  const { changed, dropped } = unsavedOf(id);
  unsaved.delete(id);
  try {
    await store.save(snapshot, dropped, (turn) => live.has(turn) || changed.has(turn));
    storeFailed.value = "";
    channel?.postMessage({ saved: id } satisfies Message);
  } catch (error) {
    noteFailure(error);
    // The server may be back soon, or have room again.
    if (error instanceof ApiError && loaded.has(id)) scheduleSave(id, SAVE_GROWING_MS);
    for (const turn of changed) unsavedOf(id).changed.add(turn);
    for (const turn of dropped) unsavedOf(id).dropped.add(turn);
  }
  const { title, updated, created } = snapshot;
  const others = entries.peek().filter((entry) => entry.id !== id);
  entries.value = [{ id, title, updated, created }, ...others].sort((a, b) => b.updated - a.updated);
}

function noteFailure(error: unknown): void {
  storeFailed.value =
    error instanceof ApiError
      ? `The history on the server does not work now: ${error.message}.`
      : "This browser does not keep conversations, so they end with the tab.";
}

export async function refreshEntries(): Promise<void> {
  try {
    entries.value = await store.list();
    if ([...unsaved.values()].every(({ changed, dropped }) => changed.size + dropped.size === 0)) storeFailed.value = "";
  } catch (error) {
    // That the server is gone is said beside the chat.
    if (!(error instanceof ApiError && error.status === 0)) noteFailure(error);
  }
}

/** Takes over what other devices have changed. */
async function lookAtServer(): Promise<void> {
  if (document.hidden || store.keeper.peek() !== "server") return;
  await refreshEntries();
  const shown = entries.peek().find(({ id }) => id === currentId.peek());
  if (shown && hasChanged(shown) && !pending.has(shown.id)) await mergeFrom(shown.id);
}

/** Forgets the conversations of a key that is no longer used. */
function forgetAll(): void {
  for (const timer of pending.values()) clearTimeout(timer);
  pending.clear();
  unsaved.clear();
  loaded.clear();
  entries.value = [];
  startNew();
  if (route.peek().view === "chat") replaceRoute("chat");
}

/** Begins a conversation, which is saved with its first turn. */
export function startNew(): void {
  const fresh = newConversation();
  loaded.set(fresh.id, signal(fresh));
  currentId.value = fresh.id;
  missing.value = false;
}

async function open(id: string): Promise<void> {
  if (!loaded.has(id)) {
    const found = await store.load(id).catch(() => undefined);
    if (!found) {
      startNew();
      missing.value = true;
      return;
    }
    loaded.set(id, signal(mended(found)));
  }
  missing.value = false;
  currentId.value = id;
  forget();
}

/** Drops conversations from memory that are neither shown nor being written. */
function forget(): void {
  for (const [id, held] of loaded) {
    const busy = Object.keys(held.peek().turns).some((turn) => live.has(turn));
    if (id !== currentId.peek() && !busy && !pending.has(id)) loaded.delete(id);
  }
}

/** Marks answers as cut that no tab writes any more. */
function mended(found: Conversation): Conversation {
  const forsaken = Object.values(found.turns).filter(
    (turn) =>
      turn.state === "streaming" &&
      !live.has(turn.id) &&
      (turn.tab === tabId || Date.now() - found.updated > FORSAKEN_MS),
  );
  if (forsaken.length === 0) return found;
  return withTurns(
    found,
    forsaken.map((turn) => ({ ...turn, state: "cut" })),
    found.updated,
  );
}

/** Shows the first turn's words as the title until the user gives one. */
export function retitle(before: Conversation): Conversation {
  if (before.named || before.title) return before;
  const first = Object.values(before.turns).find((turn) => turn.role === "user");
  const title = titleFrom(first?.content || first?.attachments?.[0]?.name || "");
  return { ...before, title };
}

export async function rename(id: string, title: string): Promise<void> {
  const named = (before: Conversation): Conversation => ({
    ...before,
    title: title.trim(),
    named: title.trim() !== "",
  });
  if (loaded.has(id)) {
    update(id, named);
    await saveNow(id);
    return;
  }
  try {
    const found = await store.load(id);
    if (!found) return;
    await store.save(named(found));
    channel?.postMessage({ saved: id });
  } catch (error) {
    noteFailure(error);
  }
  await refreshEntries();
}

export async function removeConversation(id: string): Promise<void> {
  clearTimeout(pending.get(id));
  pending.delete(id);
  const held = loaded.get(id);
  loaded.delete(id);
  try {
    await store.remove(id);
  } catch (error) {
    if (held) {
      loaded.set(id, held);
      scheduleSave(id);
    }
    noteFailure(error);
    return;
  }
  channel?.postMessage({ removed: id });
  await refreshEntries();
  if (currentId.peek() === id) {
    startNew();
    replaceRoute("chat");
  }
}

/** Saves conversations that were read from a file, and returns the id of the last one. */
export async function adopt(conversations: Conversation[]): Promise<string | undefined> {
  for (const each of conversations) await store.save(each);
  await refreshEntries();
  const last = conversations.at(-1);
  if (last) channel?.postMessage({ saved: last.id });
  return last?.id;
}

/** Takes over what another tab has saved. */
async function mergeFrom(id: string): Promise<void> {
  await refreshEntries();
  if (!loaded.has(id)) return;
  const theirs = await store.load(id).catch(() => undefined);
  const held = loaded.get(id);
  if (!theirs || !held) return;
  const ours = held.peek();
  const { changed, dropped } = unsavedOf(id);
  const turns = mergedTurns(theirs.turns, ours.turns, dropped, (turn) => live.has(turn) || changed.has(turn));
  // Each tab keeps the path that it shows, and a change that it has not saved yet.
  const { title, named, system } = pending.has(id) ? ours : theirs;
  held.value = mended({ ...theirs, title, named, system, turns, chosen: { ...theirs.chosen, ...ours.chosen } });
}

let begun = false;

/** Lists the conversations and follows the address. */
export function watchConversations(): void {
  if (begun) return;
  begun = true;
  startNew();
  let before = store.keeper.peek();
  effect(() => {
    const keeper = store.keeper.value;
    if (before === "server" && keeper === "unknown") forgetAll();
    before = keeper;
    if (keeper !== "unknown") void refreshEntries().then(store.lookForLeft);
  });
  store.watchKeeper();
  setInterval(() => void lookAtServer(), LOOK_MS);
  effect(() => {
    const { view, rest } = route.value;
    if (view !== "chat") return;
    const now = currentId.peek();
    if (rest && rest !== now) void open(rest);
    else if (!rest && Object.keys(peek(now)?.turns ?? {}).length > 0) startNew();
  });
  channel?.addEventListener("message", ({ data }: MessageEvent<Message>) => {
    if ("saved" in data) void mergeFrom(data.saved);
    else void refreshEntries();
  });
  // An answer that another tab was writing may have been left behind.
  setInterval(() => {
    const held = loaded.get(currentId.peek());
    if (!held) return;
    const seen = mended(held.peek());
    if (seen !== held.peek()) held.value = seen;
  }, FORSAKEN_MS / 2);
  const flush = () => {
    for (const id of [...pending.keys()]) void saveNow(id);
  };
  addEventListener("pagehide", flush);
  document.addEventListener("visibilitychange", () => {
    if (document.hidden) flush();
    else void lookAtServer();
  });
}
