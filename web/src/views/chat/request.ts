import type { ChatMessage, ChatRequest } from "../../api/types";
import { isRecord } from "../../api/client";
import type { Attachment, Parameters, Turn } from "../../history/tree";
import type { Settings } from "./settings";

/** Returns the longest fence that `text` needs, so that a file with code blocks in it stays one block. */
function fence(text: string): string {
  const longest = Math.max(2, ...Array.from(text.matchAll(/`{3,}/g), (match) => match[0].length));
  return "`".repeat(longest + 1);
}

export function withAttachments(content: string, attachments: Attachment[] | undefined): string {
  if (!attachments?.length) return content;
  const files = attachments.map(({ name, text }) => {
    const mark = fence(text);
    return `File \`${name}\`:\n\n${mark}\n${text.replace(/\n$/, "")}\n${mark}\n`;
  });
  return [...files, content].join("\n");
}

/** Turns the shown path into messages. Answers without any content, such as failed ones, are left out. */
export function messagesOf(system: string, path: Turn[]): ChatMessage[] {
  const messages: ChatMessage[] = [];
  if (system.trim()) messages.push({ role: "system", content: system });
  for (const turn of path) {
    if (turn.role === "user") {
      messages.push({ role: "user", content: withAttachments(turn.content, turn.attachments) });
    } else if (turn.role === "tool") {
      messages.push({ role: "tool", content: turn.content, tool_call_id: turn.toolCallId ?? "" });
    } else if (turn.content || turn.toolCalls?.length) {
      messages.push(assistantMessage(turn));
    }
  }
  return messages;
}

function assistantMessage(turn: Turn): ChatMessage {
  const message: ChatMessage = { role: "assistant", content: turn.content };
  if (turn.reasoning) message.reasoning_content = turn.reasoning;
  if (turn.toolCalls?.length) {
    message.tool_calls = turn.toolCalls.map(({ id, name, arguments: text }) => ({
      id,
      type: "function",
      function: { name, arguments: text },
    }));
    message.content = turn.content || null;
  }
  return message;
}

/** What a request asks for besides its messages. It is kept with the answer, so that it can be asked again. */
export type Asked = { model: string; seed: number; answers: number; parameters: Parameters };

/** Returns what the settings ask for, with a random seed unless one is set. */
export function askedBy(settings: Settings, model: string): Asked {
  const { seed, ...parameters } = settings.parameters;
  const extra: Parameters = { ...parameters };
  const { format } = settings;
  if (format.kind === "json") extra.response_format = { type: "json_object" };
  // What is not JSON is sent as it is, so that the server refuses it instead of answering without it.
  if (format.kind === "schema") {
    const schema = parsed(format.schema) ?? format.schema;
    extra.response_format = { type: "json_schema", json_schema: { name: "answer", schema } };
  }
  if (format.kind === "regex" && format.regex) extra.guided_regex = format.regex;
  if (settings.useTools) {
    const tools = parsed(settings.tools) ?? settings.tools;
    extra.tools = Array.isArray(tools) ? tools.map(asTool) : tools;
  }
  if (settings.probabilities) Object.assign(extra, { logprobs: true, top_logprobs: 5 });
  const drawn = crypto.getRandomValues(new Uint32Array(1))[0] ?? 0;
  return { model, seed: typeof seed === "number" ? seed : drawn, answers: settings.answers, parameters: extra };
}

/** Accepts a bare function, too, which is what many documents show. */
function asTool(tool: unknown): unknown {
  return isRecord(tool) && !("type" in tool && "function" in tool) ? { type: "function", function: tool } : tool;
}

function parsed(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    return undefined;
  }
}

/** Returns the body of a request for an answer. With `partial`, the last message is an answer that goes on. */
export function bodyOf(asked: Asked, messages: ChatMessage[], partial = false): ChatRequest {
  const model = asked.model ? { model: asked.model } : {};
  // Parameters may come from a file, so they replace nothing else.
  const body: ChatRequest = { ...asked.parameters, ...model, messages, seed: asked.seed };
  if (asked.answers > 1 && !partial) body.n = asked.answers;
  if (partial) body.continue_final_message = true;
  return body;
}
