// Errors as sentences that say what to do.

import { ApiError } from "../api/client";

/** Returns what went wrong, as sentences, and undefined for a request that the page itself has ended. */
export function sentence(error: unknown, retries = false): string | undefined {
  if (error instanceof DOMException && error.name === "AbortError") return undefined;
  if (!(error instanceof ApiError))
    return "The answer of the server could not be read. Reload the page, which may be older than the server.";
  const again = retries ? " The page tries again by itself." : "";
  switch (error.status) {
    case 0:
      return `The server cannot be reached.${again || " Check that it runs, and try again."}`;
    case 401:
      return "This server asks for an API key, and yours is missing or not valid.";
    case 403:
      return `${asSentence(error.message)} Use a key with the right to do it.`;
    case 429:
      return `The server answers too many of your requests at the moment.${again || " Try again in a moment."}`;
    default:
      return `${asSentence(error.message)}${again}`;
  }
}

/** Makes a sentence of an error of the server: lower case, without a period, with a hint behind a semicolon. */
export function asSentence(message: string): string {
  const [problem = "", ...hints] = message.split(/; hint: /);
  return [problem, ...hints]
    .map((part) => `${part.charAt(0).toUpperCase()}${part.slice(1)}${/[.!?]$/.test(part) ? "" : "."}`)
    .join(" ");
}
