import { describe, expect, it } from "vitest";

import { sseEvents, SseParser, type SseEvent } from "../../src/api/sse";

const STREAM =
  ": model m is loading\n\n" +
  'data: {"a":"é🦀"}\r\n\r\n' +
  "event: named\rdata: one\rdata: two\r\r" +
  "data\ndata:\n\n" +
  "id: 7\nretry: 3\n\n" +
  "data:no space\n\n" +
  "data: [DONE]\n\n";

const EVENTS: SseEvent[] = [
  { comment: "model m is loading" },
  { data: '{"a":"é🦀"}', event: "message" },
  { data: "one\ntwo", event: "named" },
  { data: "\n", event: "message" },
  { data: "no space", event: "message" },
  { data: "[DONE]", event: "message" },
];

function parse(pieces: string[]): SseEvent[] {
  const parser = new SseParser();
  return pieces.flatMap((piece) => parser.push(piece));
}

describe("SseParser", () => {
  it("reads every kind of line end, comments and data of several lines", () => {
    expect(parse([STREAM])).toEqual(EVENTS);
  });

  it("reads the same events at every cut into three pieces", () => {
    const wanted = JSON.stringify(EVENTS);
    for (let first = 0; first <= STREAM.length; first++) {
      for (let second = first; second <= STREAM.length; second++) {
        const pieces = [STREAM.slice(0, first), STREAM.slice(first, second), STREAM.slice(second)];
        if (JSON.stringify(parse(pieces)) !== wanted)
          expect(parse(pieces), `cut at ${first} and ${second}`).toEqual(EVENTS);
      }
    }
  });

  it("reads the same events character by character", () => {
    expect(parse([...STREAM])).toEqual(EVENTS);
  });

  it("leaves out a byte order mark and an event that the stream's end cuts", () => {
    expect(parse(["\u{FEFF}data: 1\n\ndata: 2\n"])).toEqual([{ data: "1", event: "message" }]);
  });
});

describe("sseEvents", () => {
  it("joins characters that are cut between bytes", async () => {
    const bytes = new TextEncoder().encode(STREAM);
    for (let cut = 0; cut <= bytes.length; cut++) {
      const body = new ReadableStream<Uint8Array>({
        start(controller) {
          controller.enqueue(bytes.slice(0, cut));
          controller.enqueue(bytes.slice(cut));
          controller.close();
        },
      });
      const events: SseEvent[] = [];
      for await (const event of sseEvents(new Response(body))) events.push(event);
      expect(events).toEqual(EVENTS);
    }
  });
});
