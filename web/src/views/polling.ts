import { useEffect, useRef, useState } from "preact/hooks";

import { ApiError, apiKey } from "../api/client";

export interface Polled<T> {
  value: T | undefined;
  /** The error of the last attempt, while `value` is older. */
  error: unknown;
  /** Asks again now. */
  again: () => void;
}

/**
 * Asks again and again, `ms` after each answer, while the page is visible. A change of `key` asks anew, and so does
 * another API key, without which a server that refused the last one is not asked again. A request that is under way
 * when the view closes is aborted.
 */
export function usePolling<T>(ask: (signal: AbortSignal) => Promise<T>, ms: number, key = ""): Polled<T> {
  const [state, setState] = useState<{ key: string; value?: T | undefined; error?: unknown }>({ key });
  const wake = useRef<() => void>(() => {});
  const latest = useRef(ask);
  latest.current = ask;
  useEffect(() => {
    let timer: ReturnType<typeof setTimeout> | undefined;
    let aborter: AbortController | undefined;
    let isClosed = false;
    let isRefused = false;
    const turn = async (): Promise<void> => {
      clearTimeout(timer);
      aborter?.abort();
      const own = new AbortController();
      aborter = own;
      try {
        const value = await latest.current(own.signal);
        if (!own.signal.aborted) setState({ key, value });
      } catch (error) {
        isRefused = isRefusal(error);
        if (!own.signal.aborted) setState((last) => ({ key, value: last.key === key ? last.value : undefined, error }));
      }
      if (!own.signal.aborted && !isClosed && !isRefused && !document.hidden) timer = setTimeout(turn, ms);
    };
    wake.current = () => void turn();
    const onVisibility = (): void => {
      if (document.hidden) clearTimeout(timer);
      else if (!isRefused) void turn();
    };
    document.addEventListener("visibilitychange", onVisibility);
    if (!document.hidden) void turn();
    return () => {
      isClosed = true;
      clearTimeout(timer);
      aborter?.abort();
      document.removeEventListener("visibilitychange", onVisibility);
    };
  }, [ms, key, apiKey.value]);
  const isCurrent = state.key === key;
  return {
    value: isCurrent ? state.value : undefined,
    error: isCurrent ? state.error : undefined,
    again: () => wake.current(),
  };
}

/** Returns true for the answer to a key that is missing or not valid. */
export function isRefusal(error: unknown): boolean {
  return error instanceof ApiError && error.status === 401;
}
