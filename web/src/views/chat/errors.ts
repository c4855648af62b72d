import type { Failure } from "../../history/tree";

/** What a user reads of an error: what happened, what to do, and the button that does it. */
export type Explained = {
  what: string;
  todo: string;
  action: "retry" | "continue" | "key" | "settings" | "shorten" | "none";
  /** The server's own words, if they add something. */
  detail?: string;
};

/** Explains an error. Its texts are whole sentences. */
export function explain({ code, message, status, param, retryAfter }: Failure): Explained {
  const detail = message;
  const wait = retryAfter ? ` The server suggests to wait ${retryAfter} s.` : "";
  switch (code) {
    case "unreachable":
      return {
        what: "The server cannot be reached.",
        todo: "Check that it runs and that this machine is connected, then try again.",
        action: "retry",
      };
    case "stream_cut":
      return {
        what: "The connection ended in the middle of the answer.",
        todo: "The text so far is kept, and you can let the model go on from there.",
        action: "continue",
      };
    case "invalid_api_key":
      return {
        what: "The server asks for an API key.",
        todo: "Enter one that it accepts, then try again.",
        action: "key",
      };
    case "admins_only":
      return { what: "This key may not do that.", todo: "Use the key of an administrator.", action: "key", detail };
    case "model_not_found":
    case "model_not_pulled":
      return { what: "The server has no such model.", todo: "Choose another one at the top.", action: "retry", detail };
    case "context_length_exceeded":
      return {
        what: "The conversation is too long for this model.",
        todo: "Shorten your message, begin a new chat, or ask for fewer tokens in the settings.",
        action: "shorten",
        detail,
      };
    case "too_many_requests":
    case "rate_limit_exceeded":
    case "queue_full":
    case "too_many_bodies":
    case "deadline_unreachable":
      return { what: "The server is busy.", todo: `Try again in a moment.${wait}`, action: "retry", detail };
    case "body_too_large":
      return {
        what: "The conversation is larger than the server accepts.",
        todo: "Shorten your message, or begin a new chat.",
        action: "shorten",
        detail,
      };
    case "model_loading":
    case "shard_away":
    case "draining":
    case "terminated":
      return { what: "The server is not ready.", todo: "Try again in a moment.", action: "retry", detail };
    case "model_failed":
    case "model_too_large":
      return {
        what: "The server cannot load this model.",
        todo: "Choose another one at the top.",
        action: "retry",
        detail,
      };
    case "invalid_schema":
    case "unsupported_keyword":
    case "schema_too_large":
    case "schema_too_complex":
    case "grammar_failed":
    case "grammar_unavailable":
      return {
        what: "The server cannot use this format.",
        todo: "Change it in the settings.",
        action: "settings",
        detail,
      };
    case "chat_template_missing":
      return {
        what: "This model is not made for chats.",
        todo: "Choose another one at the top.",
        action: "none",
        detail,
      };
    case "chat_template_refused":
    case "chat_template_failed":
      return {
        what: "The model's template refuses this conversation.",
        todo: "Often it wants turns of the user and the model in alternation, or no system prompt.",
        action: "retry",
        detail,
      };
    case "origin_not_allowed":
      return {
        what: "The server refuses requests from this address.",
        todo: "Open the page under the server's own address, or name this one in `--cors-allow-origin`.",
        action: "none",
      };
    case "crashed_shard":
    case "poison_request":
      return {
        what: "The server crashed twice while it computed this answer.",
        todo: "Change the prompt or the parameters, and report it with the server's log.",
        action: "none",
        detail,
      };
  }
  if (param)
    return { what: "The server refuses a setting.", todo: "Change it in the settings.", action: "settings", detail };
  if (status >= 500)
    return { what: "The server failed.", todo: "Try again; its log says more.", action: "retry", detail };
  return { what: "The server refuses the request.", todo: "", action: "retry", detail };
}
