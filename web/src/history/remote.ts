/** Conversations that the server keeps (`/v1/history`), for all tabs and devices with the same key. */

import { ApiError, getJson, isRecord, request } from "../api/client";
import { checkRooted } from "./files";
import type { Conversation, Entry, Turn } from "./tree";

type Card = { id: string; title: string; created_ms: number; updated_ms: number };
type List = { enabled: boolean; data: Card[]; has_more: boolean };
type Whole = Card & { details: Record<string, unknown>; turns: Record<string, unknown> };

/** The most characters of a title that the server takes. */
const MAX_TITLE = 200;
/** Turns leave in requests of about this many characters, so that none is too large for the server. */
const MAX_REQUEST = 1_000_000;
/** A browser sends so many bytes after its tab is closed. */
const MAX_FAREWELL = 60_000;

/** The times of the last changes of conversations that this tab has loaded or saved, by their ids. */
const seen = new Map<string, number>();

let listed: { tag: string; entries: Entry[] } | undefined;

/** Returns true if the server keeps conversations for the holder of the key. Throws an `ApiError`. */
export async function isEnabled(): Promise<boolean> {
  listed = undefined;
  seen.clear();
  try {
    const { enabled } = await getJson<List>("v1/history?limit=1", AbortSignal.timeout(8000));
    return enabled;
  } catch (error) {
    // A server that does not know the route.
    if (error instanceof ApiError && error.status === 404) return false;
    throw error;
  }
}

/** Returns true if another tab or device has changed a conversation that this tab has. */
export function hasChanged({ id, updated }: Entry): boolean {
  return seen.has(id) && seen.get(id) !== updated;
}

async function list(): Promise<Entry[]> {
  const entries: Entry[] = [];
  const headers = listed ? { "if-none-match": listed.tag } : undefined;
  let response = await request("v1/history", headers ? { headers } : {}, [304]);
  if (response.status === 304) return listed?.entries ?? [];
  const tag = response.headers.get("etag") ?? "";
  for (;;) {
    const { data, has_more: more } = (await response.json()) as List;
    entries.push(...data.map(entryOf));
    const last = data.at(-1);
    if (!more || !last) break;
    response = await request(`v1/history?after=${last.id}`);
  }
  listed = { tag, entries };
  return entries;
}

async function load(id: string): Promise<Conversation | undefined> {
  try {
    const whole = await getJson<Whole>(`v1/history/${id}`);
    seen.set(id, whole.updated_ms);
    return conversationOf(whole);
  } catch (error) {
    if (error instanceof ApiError && error.status === 404) return undefined;
    throw error;
  }
}

/** Saves what changed of a conversation, or all of it if the server does not have it. */
async function save(
  conversation: Conversation,
  dropped: ReadonlySet<string> = new Set(),
  isOurs: (id: string) => boolean = () => true,
): Promise<void> {
  const all = Object.values(conversation.turns);
  if (seen.has(conversation.id)) {
    const changed: [string, Turn | null][] = all.filter(({ id }) => isOurs(id)).map((turn) => [turn.id, turn]);
    for (const id of dropped) changed.push([id, null]);
    try {
      return await send("PATCH", conversation, changed);
    } catch (error) {
      // Somebody has deleted what is still in use here.
      if (!(error instanceof ApiError && error.code === "conversation_not_found")) throw error;
    }
  }
  await send(
    "PUT",
    conversation,
    all.map((turn) => [turn.id, turn]),
  );
}

async function send(method: "PUT" | "PATCH", conversation: Conversation, turns: [string, Turn | null][]) {
  const { id, title, named, system, chosen } = conversation;
  const details = JSON.stringify({ named, system, chosen });
  const head = `{"title":${JSON.stringify(title.slice(0, MAX_TITLE))},"details":${details},"turns":{`;
  let part: string[] = [];
  let length = 0;
  const flush = async () => {
    const body = `${head}${part.join(",")}}}`;
    const keepalive = document.hidden && body.length < MAX_FAREWELL;
    const response = await request(`v1/history/${id}`, { method, body, keepalive });
    seen.set(id, ((await response.json()) as Card).updated_ms);
    [part, length, method] = [[], 0, "PATCH"];
  };
  for (const [turnId, turn] of turns) {
    const text = `${JSON.stringify(turnId)}:${textOf(turn)}`;
    if (length > 0 && length + text.length > MAX_REQUEST) await flush();
    part.push(text);
    length += text.length;
  }
  await flush();
}

/** Returns a turn as JSON. The tokens of a very long answer, which only colour it, stay in the tab. */
function textOf(turn: Turn | null): string {
  const text = JSON.stringify(turn);
  if (!turn?.tokens || text.length < MAX_REQUEST) return text;
  const { tokens: _, ...rest } = turn;
  return JSON.stringify(rest);
}

async function remove(id: string): Promise<void> {
  seen.delete(id);
  try {
    await request(`v1/history/${id}`, { method: "DELETE" });
  } catch (error) {
    if (!(error instanceof ApiError && error.status === 404)) throw error;
  }
}

/** Returns the ids of conversations that contain all words of `query` in their title or in one of their turns. */
async function search(query: string): Promise<Set<string>> {
  const { data } = await getJson<List>(`v1/history?search=${encodeURIComponent(query.slice(0, 200))}`);
  return new Set(data.map(({ id }) => id));
}

/** Returns all conversations, for the export. */
async function all(): Promise<Conversation[]> {
  const conversations: Conversation[] = [];
  for (const { id } of await list()) {
    const found = await load(id);
    if (found) conversations.push(found);
  }
  return conversations;
}

function entryOf({ id, title, created_ms: created, updated_ms: updated }: Card): Entry {
  return { id, title, created, updated };
}

/** Other programs may write to the history, so only what has the form of a turn is taken. */
function conversationOf({ details, turns: all, ...card }: Whole): Conversation {
  const { named, system, chosen } = details;
  const turns = Object.fromEntries(Object.entries(all).filter((entry): entry is [string, Turn] => isTurn(entry)));
  for (const turn of Object.values(turns)) checkRooted(turn, turns);
  return {
    ...entryOf(card),
    named: named === true,
    system: typeof system === "string" ? system : "",
    turns,
    chosen: isRecord(chosen) ? (chosen as Record<string, string>) : {},
  };
}

function isTurn([id, turn]: [string, unknown]): boolean {
  return (
    isRecord(turn) &&
    turn.id === id &&
    (turn.parent === null || typeof turn.parent === "string") &&
    ["user", "assistant", "tool"].includes(turn.role as string) &&
    typeof turn.content === "string" &&
    typeof turn.state === "string"
  );
}

export const remote = { list, load, save, remove, search, all };
