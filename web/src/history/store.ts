/** Where conversations are kept: by the server if it has a history for the key (`--history-path`), else by the browser. */

import { effect, signal } from "@preact/signals";

import { apiKey, ApiError } from "../api/client";
import { connection, untilUp } from "../api/server";
import { local } from "./local";
import { isEnabled, remote } from "./remote";
import type { Entry } from "./tree";

type Store = typeof local;

/** Who keeps conversations. It is unknown until the server has told. */
export const keeper = signal<"unknown" | "browser" | "server">("unknown");

let asked = 0;

/** Asks the server whether it keeps conversations, and again for each key. */
export function watchKeeper(): void {
  effect(() => {
    void apiKey.value;
    void ask(++asked);
  });
}

async function ask(number: number): Promise<void> {
  keeper.value = "unknown";
  for (;;) {
    try {
      const enabled = await isEnabled();
      if (number === asked) keeper.value = enabled ? "server" : "browser";
      return;
    } catch (error) {
      // With another key it asks again.
      if (number !== asked || (error instanceof ApiError && error.status === 401)) return;
      if (connection.peek() === "up") await new Promise((resolve) => setTimeout(resolve, 2000));
      else await untilUp(new AbortController().signal);
    }
  }
}

/** Resolves once it is known who keeps conversations. */
function store(): Promise<Store> {
  return new Promise((resolve) => {
    let stop: (() => void) | undefined;
    let known = false;
    stop = effect(() => {
      if (keeper.value === "unknown") return;
      known = true;
      stop?.();
      resolve(keeper.value === "server" ? remote : local);
    });
    if (known) stop();
  });
}

export const list: Store["list"] = async () => (await store()).list();
export const load: Store["load"] = async (...args) => (await store()).load(...args);
export const save: Store["save"] = async (...args) => (await store()).save(...args);
export const remove: Store["remove"] = async (...args) => (await store()).remove(...args);
export const search: Store["search"] = async (...args) => (await store()).search(...args);
export const all: Store["all"] = async () => (await store()).all();

/** Conversations of the browser from the time before the server kept any. */
export const leftInBrowser = signal<Entry[]>([]);

export async function lookForLeft(): Promise<void> {
  leftInBrowser.value = keeper.peek() === "server" ? await local.list().catch(() => []) : [];
}

/** Moves the conversations of the browser to the server. Those that it does not take stay. Throws an `ApiError`. */
export async function moveToServer(): Promise<void> {
  for (const { id } of leftInBrowser.peek()) {
    const found = await local.load(id);
    if (found) await remote.save(found);
    await local.remove(id);
    leftInBrowser.value = leftInBrowser.peek().filter((entry) => entry.id !== id);
  }
}
