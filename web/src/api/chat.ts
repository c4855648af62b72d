import { ApiError, errorFromBody, isRecord, request } from "./client";
import { sseEvents } from "./sse";
import type { ChatRequest, Chunk } from "./types";

/** A piece of a streamed answer, or what the server says while it loads the model. */
export type ChatEvent = { chunk: Chunk } | { note: string };

/**
 * Sends a chat and yields its pieces. The server keeps the stream under `id`, and goes on with it when the page is
 * gone.
 *
 * Throws an `ApiError`: `stream_cut` if the connection ended before the answer did, which can be continued, or the
 * server's own. Throws an `AbortError` if `signal` aborts it.
 */
export async function* streamChat(body: ChatRequest, id: string, signal: AbortSignal): AsyncGenerator<ChatEvent> {
  const asked = { ...body, stream: true, stream_options: { include_usage: true } };
  const headers = { "trunkline-stream": id };
  const init = { method: "POST", headers, body: JSON.stringify(asked), signal };
  yield* pieces(await request("v1/chat/completions", init), signal);
}

/** Yields the pieces of a kept stream from its beginning. Throws like `streamChat`, and `stream_not_found`. */
export async function* followChat(id: string, signal: AbortSignal): AsyncGenerator<ChatEvent> {
  yield* pieces(await request(`v1/streams/${id}`, { signal }), signal);
}

/** Stops a kept stream and forgets it. A server that cannot be reached forgets it by itself. */
export function dropStream(id: string): void {
  request(`v1/streams/${id}`, { method: "DELETE", keepalive: true }).catch(() => undefined);
}

async function* pieces(response: Response, signal: AbortSignal): AsyncGenerator<ChatEvent> {
  const events = sseEvents(response);
  for (;;) {
    let next: Awaited<ReturnType<typeof events.next>>;
    try {
      next = await events.next();
    } catch (error) {
      if (signal.aborted) throw error;
      throw new ApiError("stream_cut", "the connection ended in the middle of the answer", 0);
    }
    if (next.done) throw new ApiError("stream_cut", "the connection ended in the middle of the answer", 0);
    const event = next.value;
    if (event.comment !== undefined) {
      if (event.comment) yield { note: event.comment };
      continue;
    }
    if (event.data === "[DONE]") return;
    yield { chunk: parseChunk(event.data) };
  }
}

function parseChunk(data: string): Chunk {
  let chunk: unknown;
  try {
    chunk = JSON.parse(data);
  } catch {
    throw new ApiError("invalid_answer", "the server sent an event that is not JSON", 200);
  }
  if (isRecord(chunk) && "error" in chunk) throw errorFromBody(chunk, 200);
  if (!isRecord(chunk) || !Array.isArray(chunk.choices)) {
    throw new ApiError("invalid_answer", "the server sent an event of an unknown form", 200);
  }
  return chunk as Chunk;
}
