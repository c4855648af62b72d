import { signal } from "@preact/signals";

import { keep, recall } from "../storage";

const KEY = "trunkline.key";

/** The API key that the user entered. The tab keeps it in sessionStorage, so it is gone when the tab is closed. */
export const apiKey = signal(recall("tab", KEY) ?? "");

/** True once the server has answered 401 to the present key, or to none. */
export const keyRefused = signal(false);

export function setApiKey(key: string): void {
  apiKey.value = key;
  keyRefused.value = false;
  keep("tab", KEY, key || undefined);
}

/** An answer of the server that is an error, or the lack of an answer, which has the code `unreachable`. */
export class ApiError extends Error {
  constructor(
    readonly code: string,
    message: string,
    /** The HTTP status, or 0 if there was no answer. */
    readonly status: number,
    /** The field that caused the error. */
    readonly param?: string,
    /** Seconds to wait before another try, from `Retry-After`. */
    readonly retryAfter?: number,
  ) {
    super(message);
  }
}

/** Turns the body of an error in any of the server's forms into an `ApiError`. */
export function errorFromBody(body: unknown, status: number, retryAfter?: number): ApiError {
  const outer = isRecord(body) ? body : {};
  const inner = isRecord(outer.error) ? outer.error : outer;
  const text = (value: unknown): string | undefined => (typeof value === "string" ? value : undefined);
  const message = text(inner.message) ?? text(outer.error) ?? `the server answered with status ${status}`;
  return new ApiError(text(inner.code) ?? `status_${status}`, message, status, text(inner.param), retryAfter);
}

export function isRecord(value: unknown): value is Record<string, unknown> {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

/**
 * Calls the server with the key and returns its response if it is a success or has one of the `other` statuses.
 *
 * `path` has no leading slash, so that the page works below the prefix of a proxy. Throws an `ApiError`, or the
 * `AbortError` of `init.signal`.
 */
export async function request(path: string, init: RequestInit = {}, other: number[] = []): Promise<Response> {
  const headers = new Headers(init.headers);
  if (apiKey.value) headers.set("authorization", `Bearer ${apiKey.value}`);
  if (init.body !== undefined && init.body !== null) headers.set("content-type", "application/json");
  let response: Response;
  try {
    response = await fetch(path, { ...init, headers, credentials: "same-origin", cache: "no-store" });
  } catch (error) {
    if (error instanceof DOMException && error.name === "AbortError") throw error;
    throw new ApiError("unreachable", "the server cannot be reached", 0);
  }
  if (response.ok || other.includes(response.status)) return response;
  if (response.status === 401) keyRefused.value = true;
  const retryAfter = Number(response.headers.get("retry-after") ?? Number.NaN);
  const body: unknown = await response.json().catch(() => undefined);
  throw errorFromBody(body, response.status, Number.isFinite(retryAfter) ? retryAfter : undefined);
}

/** Fetches JSON. The caller vouches for its type. */
export async function getJson<T>(path: string, signal?: AbortSignal): Promise<T> {
  const response = await request(path, signal ? { signal } : {});
  return (await response.json()) as T;
}
