/** One event of a `text/event-stream`. A comment has only `comment`. */
export type SseEvent = { data: string; event: string; comment?: undefined } | { comment: string };

/**
 * Parses a stream of server-sent events, however it is cut.
 *
 * `push` takes text and returns the events that it completes. Lines end with LF, CR or CRLF, as the standard says.
 * Comments are events too, because the server tells with them how far a model is loaded.
 */
export class SseParser {
  #rest = "";
  #data: string[] = [];
  #event = "";
  #afterCr = false;
  #first = true;

  push(text: string): SseEvent[] {
    if (this.#first && text !== "") {
      this.#first = false;
      if (text.startsWith("\u{FEFF}")) text = text.slice(1);
    }
    // An LF that follows a CR of the previous piece belongs to the same line end.
    if (this.#afterCr && text !== "") {
      this.#afterCr = false;
      if (text.startsWith("\n")) text = text.slice(1);
    }
    const events: SseEvent[] = [];
    let begin = 0;
    for (const match of text.matchAll(/\r\n|\n|\r/g)) {
      const line = this.#rest + text.slice(begin, match.index);
      this.#rest = "";
      begin = match.index + match[0].length;
      this.#afterCr = match[0] === "\r" && begin === text.length;
      this.#line(line, events);
    }
    this.#rest += text.slice(begin);
    return events;
  }

  #line(line: string, events: SseEvent[]): void {
    if (line === "") {
      if (this.#data.length > 0) events.push({ data: this.#data.join("\n"), event: this.#event || "message" });
      this.#data = [];
      this.#event = "";
      return;
    }
    const colon = line.indexOf(":");
    if (colon === 0) {
      events.push({ comment: line.slice(1).trim() });
      return;
    }
    const field = colon < 0 ? line : line.slice(0, colon);
    let value = colon < 0 ? "" : line.slice(colon + 1);
    if (value.startsWith(" ")) value = value.slice(1);
    if (field === "data") this.#data.push(value);
    else if (field === "event") this.#event = value;
  }
}

/** Yields the events of a response's body until it ends. */
export async function* sseEvents(response: Response): AsyncGenerator<SseEvent> {
  if (!response.body) return;
  const parser = new SseParser();
  const decoder = new TextDecoder();
  const reader = response.body.getReader();
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      yield* parser.push(decoder.decode(value, { stream: true }));
    }
  } finally {
    await reader.cancel().catch(() => {});
  }
}
