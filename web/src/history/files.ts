import { isRecord } from "../api/client";
import {
  type Attachment,
  type Conversation,
  newId,
  pathOf,
  type Role,
  titleFrom,
  type Turn,
  type TurnState,
} from "./tree";

const FORMAT = "trunkline-conversations";
const VERSION = 1;

/** Returns conversations as the text of a JSON file that `fromJson` reads. */
export function toJson(conversations: Conversation[]): string {
  return `${JSON.stringify({ format: FORMAT, version: VERSION, conversations }, null, 1)}\n`;
}

const ROLES: Role[] = ["user", "assistant", "tool"];
const STATES: TurnState[] = ["done", "cut", "stopped", "failed"];

/**
 * Reads conversations from a file that `toJson` wrote, or from a list of messages in OpenAI's form.
 *
 * They get new ids, so that none that exists is replaced. Unknown members are dropped. Throws an `Error` with a sentence
 * for the user.
 */
export function fromJson(text: string, now = Date.now()): Conversation[] {
  let file: unknown;
  try {
    file = JSON.parse(text);
  } catch {
    throw new Error("The file is not JSON.");
  }
  if (isRecord(file) && file.format === FORMAT && Array.isArray(file.conversations)) {
    if (file.version !== VERSION) throw new Error("The file was written by another version of this page.");
    return file.conversations.map((each) => conversationOf(each, now));
  }
  const messages = Array.isArray(file) ? file : isRecord(file) ? file.messages : undefined;
  if (Array.isArray(messages) && messages.some((each) => isRecord(each) && typeof each.content === "string")) {
    return [fromMessages(messages, now)];
  }
  throw new Error("The file has no conversations in a form that this page knows.");
}

function textOf(value: unknown): string {
  return typeof value === "string" ? value : "";
}

function timeOf(value: unknown, now: number): number {
  return typeof value === "number" && Number.isFinite(value) ? value : now;
}

function conversationOf(value: unknown, now: number): Conversation {
  if (!isRecord(value) || !isRecord(value.turns)) throw new Error("A conversation in the file is damaged.");
  const ids = new Map<string, string>(Object.keys(value.turns).map((id) => [id, newId()]));
  const turns: Record<string, Turn> = {};
  for (const [id, each] of Object.entries(value.turns)) {
    const turn = turnOf(each, ids.get(id) ?? newId(), ids, now);
    turns[turn.id] = turn;
  }
  for (const turn of Object.values(turns)) checkRooted(turn, turns);
  const chosen: Record<string, string> = {};
  for (const [parent, child] of Object.entries(isRecord(value.chosen) ? value.chosen : {})) {
    const newParent = parent === "" ? "" : ids.get(parent);
    const newChild = ids.get(textOf(child));
    if (newParent !== undefined && newChild) chosen[newParent] = newChild;
  }
  return {
    id: newId(),
    title: textOf(value.title),
    named: value.named === true,
    created: timeOf(value.created, now),
    updated: timeOf(value.updated, now),
    system: textOf(value.system),
    turns,
    chosen,
  };
}

/** Throws an `Error` if the parents of a turn form a circle, which would never end. */
export function checkRooted(turn: Turn, turns: Record<string, Turn>): void {
  const seen = new Set<string>();
  for (let next: Turn | undefined = turn; next; next = turns[next.parent ?? ""]) {
    if (seen.has(next.id)) throw new Error("A conversation in the file is damaged: its turns form a circle.");
    seen.add(next.id);
  }
}

function turnOf(value: unknown, id: string, ids: Map<string, string>, now: number): Turn {
  const role = isRecord(value) ? ROLES.find((each) => each === value.role) : undefined;
  if (!isRecord(value) || !role) throw new Error("A turn in the file is damaged.");
  const turn: Turn = {
    id,
    role,
    parent: ids.get(textOf(value.parent)) ?? null,
    content: textOf(value.content),
    created: timeOf(value.created, now),
    state: STATES.find((each) => each === value.state) ?? "cut",
  };
  if (textOf(value.reasoning)) turn.reasoning = textOf(value.reasoning);
  if (textOf(value.model)) turn.model = textOf(value.model);
  if (typeof value.seed === "number") turn.seed = value.seed;
  if (isRecord(value.parameters)) turn.parameters = value.parameters;
  if (textOf(value.toolCallId)) turn.toolCallId = textOf(value.toolCallId);
  const attachments = listOf(value.attachments).map((each): Attachment => ({
    name: textOf(each.name),
    text: textOf(each.text),
  }));
  if (attachments.length > 0) turn.attachments = attachments;
  const calls = listOf(value.toolCalls);
  if (calls.length > 0) {
    turn.toolCalls = calls.map((each) => ({
      id: textOf(each.id),
      name: textOf(each.name),
      arguments: textOf(each.arguments),
    }));
  }
  return turn;
}

function listOf(value: unknown): Record<string, unknown>[] {
  return Array.isArray(value) ? value.filter(isRecord) : [];
}

function fromMessages(messages: unknown[], now: number): Conversation {
  const conversation: Conversation = {
    id: newId(),
    title: "",
    named: false,
    created: now,
    updated: now,
    system: "",
    turns: {},
    chosen: {},
  };
  let parent: string | null = null;
  for (const each of listOf(messages)) {
    const content = textOf(each.content);
    if (each.role === "system" || each.role === "developer") {
      conversation.system = [conversation.system, content].filter(Boolean).join("\n\n");
      continue;
    }
    const role: Role = ROLES.find((known) => known === each.role) ?? "user";
    const turn: Turn = { id: newId(), parent, role, content, created: now, state: "done" };
    if (role === "tool") turn.toolCallId = textOf(each.tool_call_id);
    conversation.turns[turn.id] = turn;
    parent = turn.id;
    if (role === "user" && !conversation.title) conversation.title = titleFrom(content);
  }
  return conversation;
}

const NAMES: Record<Role, string> = { user: "You", assistant: "Model", tool: "Tool" };

/** Returns the shown path of a conversation as Markdown. */
export function toMarkdown(conversation: Conversation): string {
  const parts = [`# ${conversation.title || "Conversation"}`];
  if (conversation.system.trim()) parts.push(`## System prompt\n\n${conversation.system.trim()}`);
  for (const turn of pathOf(conversation)) {
    const heading = turn.role === "assistant" && turn.model ? `${NAMES.assistant} (${turn.model})` : NAMES[turn.role];
    const files = (turn.attachments ?? []).map(({ name }) => `Attached: \`${name}\``);
    const calls = (turn.toolCalls ?? []).map(({ name, arguments: text }) => `Calls \`${name}\` with \`${text}\``);
    parts.push([`## ${heading}`, ...files, turn.content.trim(), ...calls].filter(Boolean).join("\n\n"));
  }
  return `${parts.join("\n\n")}\n`;
}

/** Lets the browser save a text as a file. */
export function download(name: string, text: string, type: string): void {
  const address = URL.createObjectURL(new Blob([text], { type }));
  const link = document.createElement("a");
  link.href = address;
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(address), 10_000);
}

/** Returns a title as the name of a file. */
export function fileName(title: string, extension: string): string {
  const name = title
    .replace(/[^\p{L}\p{N}]+/gu, "-")
    .replace(/^-+|-+$/g, "")
    .slice(0, 60);
  return `${name || "conversation"}.${extension}`;
}

export const MAX_ATTACHMENT_BYTES = 4_000_000;

/** Reads a text file. Throws an `Error` with a sentence if it is too large or not text. */
export async function readAttachment(file: File): Promise<Attachment> {
  if (file.size > MAX_ATTACHMENT_BYTES)
    throw new Error(`“${file.name}” is larger than ${MAX_ATTACHMENT_BYTES / 1e6} MB.`);
  try {
    const text = new TextDecoder("utf-8", { fatal: true }).decode(await file.arrayBuffer());
    if (!text.includes("\0")) return { name: file.name, text };
  } catch {
    // Reported below, like a file with zero bytes.
  }
  throw new Error(`“${file.name}” is not a text file. This server reads only text.`);
}
