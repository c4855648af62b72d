import type { ServerResponse } from "node:http";

import type { Usage } from "../../src/api/types";
import type { Api, Body } from "./host";

/** What a scripted answer does next: sends a piece of a chunk, sends a line as it is, or waits. */
export type Step = { delta: object; logprobs?: object; index?: number } | { line: string } | { until: Promise<void> };
export type Script = (
  body: Body,
) => Iterable<Step> | { status: number; error: object; headers?: Record<string, string> };

/** An API whose answers a test writes. */
export class Fake {
  /** Bodies of the chats so far. */
  readonly asked: Body[] = [];
  key: string | undefined;
  models: object[] = [{ id: "acme/quiet-7b", object: "model", max_model_len: 8192 }];
  openapi: unknown = { components: { schemas: { ChatCompletionRequest: { properties: {} } } } };
  usage: Usage = { prompt_tokens: 40, completion_tokens: 8, prompt_tokens_details: { cached_tokens: 32 } };
  script: Script = () => say("Hello.");

  readonly api: Api = async (request, response, body) => {
    const path = request.url ?? "/";
    if (path === "/readyz") return json(response, 200, "ready");
    if (!path.startsWith("/v1/") && path !== "/openapi.json") return false;
    if (this.key && request.headers.authorization !== `Bearer ${this.key}`) {
      return json(response, 401, { error: { message: "no valid API key", code: "invalid_api_key" } });
    }
    if (path === "/v1/models") return json(response, 200, { object: "list", data: this.models });
    if (path === "/openapi.json") return json(response, 200, this.openapi);
    if (path.startsWith("/v1/history")) return json(response, 200, { enabled: false, data: [], has_more: false });
    if (path !== "/v1/chat/completions")
      return json(response, 404, { error: { message: "no route", code: "route_not_found" } });
    const asked = JSON.parse(body) as Body;
    this.asked.push(asked);
    const answer = this.script(asked);
    if (!(Symbol.iterator in answer)) return json(response, answer.status, { error: answer.error }, answer.headers);
    await stream(response, answer, Number(asked.n ?? 1), this.usage);
    return true;
  };
}

function json(response: ServerResponse, status: number, body: unknown, headers: Record<string, string> = {}): true {
  response.writeHead(status, { "content-type": "application/json", ...headers }).end(JSON.stringify(body));
  return true;
}

async function stream(response: ServerResponse, steps: Iterable<Step>, choices: number, usage: object): Promise<void> {
  response.writeHead(200, { "content-type": "text/event-stream" });
  const send = (value: object) => response.write(`data: ${JSON.stringify(value)}\n\n`);
  for (const step of steps) {
    if (response.destroyed) return;
    if ("until" in step) await step.until;
    else if ("line" in step) response.write(step.line);
    else {
      const { delta, logprobs = null, index } = step;
      const indices = index === undefined ? Array.from({ length: choices }, (_, each) => each) : [index];
      send({ choices: indices.map((each) => ({ index: each, delta, logprobs, finish_reason: null })), usage: null });
    }
  }
  const ends = Array.from({ length: choices }, (_, index) => ({ index, delta: {}, finish_reason: "stop" }));
  send({ choices: ends, usage: null });
  send({ choices: [], usage });
  response.end("data: [DONE]\n\n");
}

/** An answer in pieces of a few characters. */
export function* say(text: string, length = 5): Generator<Step> {
  for (let at = 0; at < text.length; at += length) yield { delta: { content: text.slice(at, at + length) } };
}
