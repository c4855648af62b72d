import { useEffect, useRef, useState } from "preact/hooks";

import { ApiError, apiKey } from "../../api/client";
import { isRefusal } from "../polling";
import { loadTree, type Place, type Tree, watch } from "./load";

/** The time between two looks at the tree, at least, after a change. A look charges its tenant for each page. */
const QUICKEST_MS = 1000;
/** The part of that time for each page. */
const PAGE_PAUSE_MS = 500;
/** A look may take this part of the time. */
const SHARE = 0.1;
/** Ages, hits and holds change without an event. */
const SLOWEST_MS = 10_000;
/** The time after which a stream of events that ended is opened again. */
const RECONNECT_MS = 5000;

export interface Live {
  tree: Tree | undefined;
  error: unknown;
  /** Looks again now. */
  again: () => void;
}

/** Keeps the tree of a place while the page is visible: after events of the cache, and now and then. */
export function useLiveTree(place: Place): Live {
  const key = `${place.lane} ${place.model}`;
  const [state, setState] = useState<{ key: string; tree?: Tree; error?: unknown }>({ key });
  const again = useRef<() => void>(() => {});
  useEffect(() => {
    let aborter: AbortController | undefined;
    let timer: ReturnType<typeof setTimeout> | undefined;
    let pauseMs = QUICKEST_MS;
    let dueAt = 0;
    let looked = 0;
    /** The signal of the look that is under way. */
    let looking: AbortSignal | undefined;
    /** True if something changed after the last look began. */
    let isStale = false;

    const stop = (): void => {
      aborter?.abort();
      aborter = undefined;
      clearTimeout(timer);
      timer = undefined;
    };
    const schedule = (ms: number): void => {
      const at = performance.now() + ms;
      if (timer !== undefined && at >= dueAt) return;
      clearTimeout(timer);
      dueAt = at;
      timer = setTimeout(look, ms);
    };
    const look = async (): Promise<void> => {
      clearTimeout(timer);
      timer = undefined;
      const signal = aborter?.signal;
      if (signal === undefined) return;
      if (looking === signal) {
        isStale = true;
        return;
      }
      looking = signal;
      isStale = false;
      try {
        const tree = await loadTree(place, signal);
        pauseMs = Math.max(QUICKEST_MS, tree.tookMs / SHARE, tree.numPages * PAGE_PAUSE_MS);
        setState({ key, tree });
      } catch (error) {
        if (signal.aborted) return;
        const retryMs = error instanceof ApiError && error.retryAfter !== undefined ? error.retryAfter * 1000 : 0;
        pauseMs = Math.max(QUICKEST_MS * 3, retryMs);
        setState((last) => ({ ...(last.key === key && last.tree ? { tree: last.tree } : {}), key, error }));
        if (isRefusal(error)) stop();
        else schedule(pauseMs);
        return;
      } finally {
        if (looking === signal) looking = undefined;
      }
      looked = performance.now();
      schedule(isStale ? pauseMs : Math.max(SLOWEST_MS, pauseMs));
    };
    const changed = (): void => {
      if (!isStale && looking === undefined) schedule(Math.max(looked + pauseMs - performance.now(), 50));
      isStale = true;
    };
    const listen = async (signal: AbortSignal): Promise<void> => {
      while (!signal.aborted) {
        // Without events, such as when too many clients listen, the tree is still looked at now and then.
        await watch(place.model, changed, signal).catch(() => {});
        if (!signal.aborted) await new Promise((resolve) => setTimeout(resolve, RECONNECT_MS));
      }
    };
    const start = (): void => {
      stop();
      if (document.hidden) return;
      aborter = new AbortController();
      void look();
      void listen(aborter.signal);
    };
    again.current = () => void look();
    document.addEventListener("visibilitychange", start);
    start();
    return () => {
      stop();
      document.removeEventListener("visibilitychange", start);
    };
  }, [key, apiKey.value]);
  const isCurrent = state.key === key;
  return {
    tree: isCurrent ? state.tree : undefined,
    error: isCurrent ? state.error : undefined,
    again: () => again.current(),
  };
}
