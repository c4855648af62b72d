/** Where a value is kept: in the browser, or in the tab until it is closed. */
type Place = "browser" | "tab";

/** Browsers that keep nothing throw when they are asked for a storage, so this asks each time. */
function storageOf(place: Place): Storage {
  return place === "browser" ? localStorage : sessionStorage;
}

/** Returns a kept text, or undefined if there is none or the browser keeps nothing. */
export function recall(place: Place, key: string): string | undefined {
  try {
    return storageOf(place).getItem(key) ?? undefined;
  } catch {
    return undefined;
  }
}

/** Keeps a text, or forgets it if `text` is undefined. A browser that keeps nothing forgets it with the page. */
export function keep(place: Place, key: string, text: string | undefined): void {
  try {
    if (text === undefined) storageOf(place).removeItem(key);
    else storageOf(place).setItem(key, text);
  } catch {
    // The page works without it until it is closed.
  }
}
