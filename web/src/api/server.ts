import { effect, signal } from "@preact/signals";

import { ApiError, apiKey, getJson } from "./client";
import type { ModelCard } from "./types";

/**
 * `up`: the server answers. `gone`: it does not, and the page keeps trying. `loading`: it answers, but its model is
 * not ready yet.
 */
export type Connection = "unknown" | "up" | "loading" | "gone";

export const connection = signal<Connection>("unknown");
export const models = signal<ModelCard[]>([]);

const RETRY_MS = [500, 1000, 2000, 3000, 5000];
const POLL_MS = 15_000;

let attempt = 0;
let timer: ReturnType<typeof setTimeout> | undefined;
let asking = false;

/** Asks for the models now, and again later: soon if the server is gone or a model is being loaded. */
export async function refresh(): Promise<void> {
  if (asking) return;
  asking = true;
  clearTimeout(timer);
  let wait: number | undefined = POLL_MS;
  try {
    const { data } = await getJson<{ data: ModelCard[] }>("v1/models", AbortSignal.timeout(8000));
    models.value = data;
    const ready = await fetch("readyz", { cache: "no-store" }).then(
      (response) => response.ok,
      () => false,
    );
    const onDemand = data.some((card) => card.status);
    connection.value = ready || onDemand ? "up" : "loading";
    attempt = 0;
    const changing = data.some((card) => ["loading", "queued", "unloading"].includes(card.status?.value ?? ""));
    if (connection.value === "loading" || changing) wait = 1000;
  } catch (error) {
    if (error instanceof ApiError && error.status === 401) {
      connection.value = "up";
      // Only another key changes this, and that asks again.
      wait = undefined;
    } else if (error instanceof ApiError && error.status === 503) {
      connection.value = "loading";
      wait = 1000;
    } else {
      connection.value = "gone";
      wait = RETRY_MS[Math.min(attempt, RETRY_MS.length - 1)] ?? POLL_MS;
      attempt += 1;
    }
  } finally {
    asking = false;
    if (wait !== undefined) timer = setTimeout(() => void refresh(), wait);
  }
}

/** Tells that a request found no server, so that the page begins to look for it. */
export function noteGone(): void {
  if (connection.value === "gone") return;
  connection.value = "gone";
  attempt = 0;
  void refresh();
}

/** Resolves once the server answers again, or with `false` when `signal` aborts. */
export function untilUp(abort: AbortSignal): Promise<boolean> {
  return new Promise((resolve) => {
    let stop: (() => void) | undefined;
    let settled = false;
    const settle = (up: boolean) => {
      if (settled) return;
      settled = true;
      stop?.();
      resolve(up);
    };
    abort.addEventListener("abort", () => settle(false), { once: true });
    stop = effect(() => {
      if (connection.value === "up") settle(true);
    });
    if (settled) stop();
  });
}

/** Begins to watch the server. A new key asks again at once, and so does a tab that becomes visible. */
export function watchServer(): void {
  effect(() => {
    void apiKey.value;
    void refresh();
  });
  addEventListener("online", () => void refresh());
  document.addEventListener("visibilitychange", () => {
    if (!document.hidden && connection.value !== "up") void refresh();
  });
}
