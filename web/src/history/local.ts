/** Conversations in the database of the browser (IndexedDB). */

import { type Conversation, type Entry, mergedTurns } from "./tree";

const NAME = "trunkline";
const VERSION = 1;

let opened: Promise<IDBDatabase> | undefined;

function database(): Promise<IDBDatabase> {
  opened ??= new Promise((resolve, reject) => {
    const opening = indexedDB.open(NAME, VERSION);
    opening.onupgradeneeded = () => {
      opening.result.createObjectStore("conversations", { keyPath: "id" });
      opening.result.createObjectStore("entries", { keyPath: "id" });
    };
    opening.onsuccess = () => {
      // Another tab with a newer page may upgrade.
      opening.result.onversionchange = () => opening.result.close();
      resolve(opening.result);
    };
    opening.onerror = () => reject(opening.error);
  });
  opened.catch(() => {
    opened = undefined;
  });
  return opened;
}

function result<T>(pending: IDBRequest<T>): Promise<T> {
  return new Promise((resolve, reject) => {
    pending.onsuccess = () => resolve(pending.result);
    pending.onerror = () => reject(pending.error);
  });
}

function finished(transaction: IDBTransaction): Promise<void> {
  return new Promise((resolve, reject) => {
    transaction.oncomplete = () => resolve();
    transaction.onerror = transaction.onabort = () => reject(transaction.error);
  });
}

/** Lists all conversations, the one changed last first. */
async function list(): Promise<Entry[]> {
  const store = (await database()).transaction("entries").objectStore("entries");
  const entries = (await result(store.getAll())) as Entry[];
  return entries.sort((a, b) => b.updated - a.updated);
}

async function load(id: string): Promise<Conversation | undefined> {
  const store = (await database()).transaction("conversations").objectStore("conversations");
  return (await result(store.get(id))) as Conversation | undefined;
}

/**
 * Saves a conversation. Of its turns only those that `isOurs` names replace what is stored, so that turns of another
 * tab stay, except `dropped` ones.
 */
async function save(
  conversation: Conversation,
  dropped: ReadonlySet<string> = new Set(),
  isOurs: (id: string) => boolean = () => true,
): Promise<void> {
  const transaction = (await database()).transaction(["conversations", "entries"], "readwrite");
  const conversations = transaction.objectStore("conversations");
  const { id, title, updated, created } = conversation;
  const getting = conversations.get(id);
  getting.onsuccess = () => {
    const before = getting.result as Conversation | undefined;
    conversations.put({
      ...conversation,
      turns: mergedTurns(before?.turns ?? {}, conversation.turns, dropped, isOurs),
    });
    transaction.objectStore("entries").put({ id, title, updated, created } satisfies Entry);
  };
  await finished(transaction);
}

async function remove(id: string): Promise<void> {
  const transaction = (await database()).transaction(["conversations", "entries"], "readwrite");
  transaction.objectStore("conversations").delete(id);
  transaction.objectStore("entries").delete(id);
  await finished(transaction);
}

/** Returns the ids of conversations that contain all words of `query` in their title or in one of their turns. */
async function search(query: string): Promise<Set<string>> {
  const words = query.toLowerCase().split(/\s+/).filter(Boolean);
  const found = new Set<string>();
  const store = (await database()).transaction("conversations").objectStore("conversations");
  await new Promise<void>((resolve, reject) => {
    const walk = store.openCursor();
    walk.onerror = () => reject(walk.error);
    walk.onsuccess = () => {
      const cursor = walk.result;
      if (!cursor) return resolve();
      const conversation = cursor.value as Conversation;
      const texts = [conversation.title, ...Object.values(conversation.turns).map((turn) => turn.content)];
      if (texts.some((text) => contains(text, words))) found.add(conversation.id);
      cursor.continue();
    };
  });
  return found;
}

function contains(text: string, words: string[]): boolean {
  const lower = text.toLowerCase();
  return words.every((word) => lower.includes(word));
}

/** Returns all conversations, for the export. */
async function all(): Promise<Conversation[]> {
  const store = (await database()).transaction("conversations").objectStore("conversations");
  return (await result(store.getAll())) as Conversation[];
}

export const local = { list, load, save, remove, search, all };
