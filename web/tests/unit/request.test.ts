import { describe, expect, it } from "vitest";

import { newConversation, type Stats, type Turn } from "../../src/history/tree";
import { fromJson, toJson, toMarkdown } from "../../src/history/files";
import { patternProblem, schemaProblem, toolsProblem } from "../../src/views/chat/checks";
import { Growth, tokensPerSecond } from "../../src/views/chat/growth";
import { parametersOf, problemWith, rangeOf } from "../../src/views/chat/parameters";
import { askedBy, bodyOf, messagesOf, withAttachments } from "../../src/views/chat/request";
import type { Settings } from "../../src/views/chat/settings";
import { LANGUAGES, snippet } from "../../src/views/chat/snippets";
import { cachedParts } from "../../src/views/chat/tiers";

function turn(role: Turn["role"], content: string, more: Partial<Turn> = {}): Turn {
  return { id: content, parent: null, role, content, created: 0, state: "done", ...more };
}

const SETTINGS: Settings = {
  model: "",
  parameters: {},
  answers: 1,
  format: { kind: "text", schema: "", regex: "" },
  tools: "",
  useTools: false,
  probabilities: false,
};

describe("a request", () => {
  it("has the system prompt, files, reasoning and tools, but no empty answers", () => {
    const calls = [{ id: "c", name: "f", arguments: "{}" }];
    const path = [
      turn("user", "look", { attachments: [{ name: "a.md", text: "```\nx\n```\n" }] }),
      turn("assistant", "", { state: "failed" }),
      turn("assistant", "", { reasoning: "hm", toolCalls: calls }),
      turn("tool", "7", { toolCallId: "c" }),
      turn("assistant", "seven"),
    ];
    expect(messagesOf(" be brief ", path)).toEqual([
      { role: "system", content: " be brief " },
      { role: "user", content: "File `a.md`:\n\n````\n```\nx\n```\n````\n\nlook" },
      {
        role: "assistant",
        content: null,
        reasoning_content: "hm",
        tool_calls: [{ id: "c", type: "function", function: { name: "f", arguments: "{}" } }],
      },
      { role: "tool", content: "7", tool_call_id: "c" },
      { role: "assistant", content: "seven" },
    ]);
    expect(messagesOf("  ", [])).toEqual([]);
    expect(withAttachments("x", [])).toBe("x");
  });

  it("asks for what the settings say, and for a seed that can be repeated", () => {
    const asked = askedBy(
      {
        ...SETTINGS,
        answers: 3,
        parameters: { temperature: 0.2 },
        format: { kind: "schema", schema: '{"type":"object"}', regex: "unused" },
        useTools: true,
        tools: '[{"name":"f"}]',
        probabilities: true,
      },
      "m",
    );
    expect(Number.isInteger(asked.seed)).toBe(true);
    expect(bodyOf(asked, [])).toEqual({
      messages: [],
      model: "m",
      seed: asked.seed,
      n: 3,
      temperature: 0.2,
      response_format: { type: "json_schema", json_schema: { name: "answer", schema: { type: "object" } } },
      tools: [{ type: "function", function: { name: "f" } }],
      logprobs: true,
      top_logprobs: 5,
    });
    expect(bodyOf(asked, [], true)).toMatchObject({ continue_final_message: true });
    expect(bodyOf(asked, [], true).n).toBeUndefined();
    expect(askedBy({ ...SETTINGS, parameters: { seed: 7 } }, "").seed).toBe(7);
    expect(askedBy({ ...SETTINGS, format: { kind: "schema", schema: "{", regex: "" } }, "").parameters).toMatchObject({
      response_format: { json_schema: { schema: "{" } },
    });
    expect(askedBy({ ...SETTINGS, useTools: true, tools: "[" }, "").parameters).toEqual({ tools: "[" });
    expect(askedBy({ ...SETTINGS, format: { kind: "regex", schema: "", regex: "a+" } }, "").parameters).toEqual({
      guided_regex: "a+",
    });
  });

  it("is shown as programs that carry no key and keep every character", () => {
    const body = {
      messages: [{ role: "user" as const, content: 'it\'s "x"\n\\ é' }],
      min_p: 0.1,
      stop: ["a"],
      logprobs: true,
    };
    const [curl, python, javascript] = LANGUAGES.map((language) => snippet(language, "http://h", body, true));
    const quoted = /-d '([^]*)'\n$/.exec(curl ?? "")?.[1]?.replaceAll("'\\''", "'");
    expect(JSON.parse(quoted ?? "")).toEqual({ ...body, stream: true });
    expect(curl).toContain("$TRUNKLINE_API_KEY");
    expect(python).toContain('"content": "it\'s \\"x\\"\\n\\\\ é"');
    expect(python).toMatch(/extra_body=\{\s+"min_p": 0\.1,/);
    expect(python).toContain("logprobs=True");
    expect(javascript).toContain("process.env.TRUNKLINE_API_KEY");
    expect(() => new Function(`return async () => {${javascript}}`)).not.toThrow();
    expect(snippet("curl", "http://h", body, false)).not.toContain("KEY");
  });
});

describe("an answer", () => {
  it("grows by choices, joins the pieces of calls, and measures its speed", () => {
    const growth = new Growth([turn("assistant", "", { id: "a" }), turn("assistant", "", { id: "b" })]);
    growth.send(1000, "s");
    growth.add({ choices: [{ index: 0, delta: {} }] }, 1100);
    expect(growth.grown).toBe(false);
    growth.add({ choices: [{ index: 1, delta: { content: "x" } }] }, 1500);
    growth.add({ choices: [{ index: 0, delta: { reasoning_content: "r" } }] }, 1600);
    growth.add(
      {
        choices: [
          { index: 0, delta: { tool_calls: [{ index: 0, id: "c", function: { name: "f", arguments: "{" } }] } },
        ],
      },
      1700,
    );
    growth.add({ choices: [{ index: 0, delta: { tool_calls: [{ index: 0, function: { arguments: "}" } }] } }] }, 2500);
    growth.add({ choices: [{ index: 7, delta: { content: "nobody's" } }] }, 2600);
    growth.add({ choices: [{ index: 0, delta: {}, finish_reason: "tool_calls" }] }, 2700);
    growth.add(
      { choices: [], usage: { prompt_tokens: 10, completion_tokens: 22, prompt_tokens_details: { cached_tokens: 8 } } },
      2800,
    );
    const [first, second] = growth.turns;
    expect(first).toMatchObject({
      reasoning: "r",
      finish: "tool_calls",
      toolCalls: [{ id: "c", name: "f", arguments: "{}" }],
    });
    expect(second?.content).toBe("x");
    expect(first?.stats).toEqual({ promptTokens: 10, cachedTokens: 8, outputTokens: 11, firstMs: 500, restMs: 1000 });
    expect(
      tokensPerSecond(first?.stats ?? { promptTokens: 0, cachedTokens: 0, outputTokens: 0, firstMs: 0, restMs: 0 }),
    ).toBe(10);
  });

  it("tells which tier had the cached tokens, the device unless it is told", () => {
    const statsOf = (details: object) => {
      const growth = new Growth([turn("assistant", "", { id: "a" })]);
      const usage = { prompt_tokens: 100, completion_tokens: 1, prompt_tokens_details: details };
      growth.add({ choices: [], usage }, 0);
      return growth.turns[0]?.stats as Stats;
    };
    const tiersOf = (details: object) => cachedParts(statsOf(details)).map(({ tier, tokens }) => [tier, tokens]);
    expect(tiersOf({ cached_tokens: 40 })).toEqual([["device", 40]]);
    expect(tiersOf({ cached_tokens: 0 })).toEqual([]);
    const details = { device: 8, host: 0, disk: 24, object: 8 };
    expect(tiersOf({ cached_tokens: 40, cached_tokens_details: details })).toEqual([
      ["device", 8],
      ["disk", 24],
      ["object", 8],
    ]);
  });

  it("takes back what a kept stream says again", () => {
    const before = { text: "A", logprob: 0, top: [] };
    const growth = new Growth([turn("assistant", "A", { id: "a", tokens: [before] })]);
    growth.send(0, "s");
    const logprobs = { content: [{ token: "B", logprob: -1, bytes: [66] }] };
    const more = { choices: [{ index: 0, delta: { content: "B" }, logprobs }] };
    growth.add(more, 10);
    growth.rewind();
    expect(growth.turns[0]).toMatchObject({ content: "A", tokens: [before], stream: { id: "s", text: 1, tokens: 1 } });
    growth.add(more, 20);
    const usage = { prompt_tokens: 1, completion_tokens: 9 };
    growth.add({ choices: [{ index: 0, delta: {}, finish_reason: "stop" }], usage }, 21);
    const stats = { firstMs: 0, restMs: 0, outputTokens: 9 };
    expect(growth.turns[0]).toMatchObject({ content: "AB", finish: "stop", stats });
    expect(growth.turns[0]?.tokens?.map(({ text }) => text)).toEqual(["A", "B"]);
  });

  it("adds up what it took when it went on", () => {
    const growth = new Growth([turn("assistant", "", { id: "a" })]);
    for (const sent of [0, 5000]) {
      growth.send(sent, `s${sent}`);
      growth.add({ choices: [{ index: 0, delta: { content: "x" } }] }, sent + 100);
      growth.add({ choices: [{ index: 0, delta: { content: "y" } }] }, sent + 300);
      growth.add({ choices: [], usage: { prompt_tokens: 10, completion_tokens: 2 } }, sent + 400);
    }
    expect(growth.turns[0]).toMatchObject({ content: "xyxy", stats: { outputTokens: 4, firstMs: 100, restMs: 400 } });
  });
});

describe("parameters", () => {
  const document = {
    components: {
      schemas: {
        ChatCompletionRequest: {
          properties: {
            temperature: { type: ["number", "null"], description: "Two\nlines.", minimum: 0, maximum: 100, default: 1 },
            top_k: { type: ["integer", "null"], minimum: -1 },
            timeout: { type: ["number", "null"], exclusiveMinimum: 0 },
            stop: { oneOf: [{ type: "null" }, { $ref: "#/x", description: "Ends it." }] },
            ignore_eos: { type: ["boolean", "null"] },
            unheard_of: { type: "number" },
            new_filter: {
              type: ["number", "null"], minimum: 0, maximum: 1, default: 0.5, "x-default-set-by": "server",
            },
          },
        },
      },
    },
  };

  it("come from the server's document, in the order of the panel", () => {
    const all = parametersOf(document).flatMap(({ parameters }) => parameters);
    expect(all.map(({ name, kind }) => `${name} ${kind}`)).toEqual([
      "temperature number",
      "top_k integer",
      "stop texts",
      "ignore_eos boolean",
      "timeout number",
      "new_filter number",
    ]);
    expect(all[0]).toMatchObject({ help: "Two lines.", minimum: 0, maximum: 100, default: 1 });
    expect(all[2]?.help).toBe("Ends it.");
    expect(all.map(rangeOf)).toEqual(["0 to 100", "from -1", "", "", "above 0", "0 to 1"]);
    expect(parametersOf({ components: 7 })).toEqual([]);
  });

  it("have problems outside their ranges", () => {
    const [temperature, topK, , , timeout] = parametersOf(document).flatMap(({ parameters }) => parameters);
    if (!temperature || !topK || !timeout) throw new Error("missing");
    expect([undefined, 0, 100].map((value) => problemWith(temperature, value))).toEqual([
      undefined,
      undefined,
      undefined,
    ]);
    expect(problemWith(temperature, 100.1)).toBe("The largest value is 100.");
    expect(problemWith(temperature, Number.NaN)).toBe("This is not a number.");
    expect(problemWith(topK, 1.5)).toBe("This must be a whole number.");
    expect(problemWith(topK, -2)).toBe("The least value is -1.");
    expect(problemWith(timeout, 0)).toBe("The value must be above 0.");
  });
});

describe("checks while typing", () => {
  it("say where a schema is wrong", () => {
    expect(schemaProblem('{"type": "object", "properties": {"a": {"items": {"type": "string"}}}}')).toBeUndefined();
    expect(schemaProblem("true")).toBeUndefined();
    expect(schemaProblem("")).toBe("Enter a JSON schema.");
    expect(schemaProblem("{")).toMatch(/^This is not JSON/);
    expect(schemaProblem("[]")).toBe("The schema must be an object.");
    expect(schemaProblem('{"properties": {"a": {"type": "text"}}}')).toBe(
      "`a` has the type `text`, which JSON schemas do not know.",
    );
    expect(schemaProblem('{"items": 1}')).toBe("The schema's `items` must be an object.");
  });

  it("say what is wrong with tools and patterns", () => {
    expect(toolsProblem('[{"name": "a"}, {"type": "function", "function": {"name": "b"}}]')).toBeUndefined();
    expect(toolsProblem("{}")).toBe("The tools must be a list: begin with `[`.");
    expect(toolsProblem('[{"name": "a b"}]')).toMatch(/^The name `a b` may have only/);
    expect(toolsProblem('[{"name": "a"}, {"name": "a"}]')).toBe("Two tools have the name `a`.");
    expect(toolsProblem("[{}]")).toBe("Tool 1 has no `name`.");
    expect(patternProblem("a+")).toBeUndefined();
    expect(patternProblem("(")).toMatch(/^This is no regular expression yet: /);
  });
});

describe("files", () => {
  const conversation = {
    ...newConversation(5),
    title: "T",
    system: "S",
    turns: {
      a: turn("user", "question", { id: "a", attachments: [{ name: "n", text: "t" }] }),
      b: turn("assistant", "answer", { id: "b", parent: "a", model: "m", seed: 3, state: "streaming" }),
      c: turn("assistant", "other", { id: "c", parent: "a", created: 1 }),
    },
    chosen: { "": "a", a: "b" },
  };

  it("bring a conversation back with all branches, under new ids", () => {
    const [read] = fromJson(toJson([conversation]));
    expect(read).toMatchObject({ title: "T", system: "S", created: 5 });
    const turns = Object.values(read?.turns ?? {});
    expect(turns.map(({ content, state, model }) => [content, state, model])).toEqual([
      ["question", "done", undefined],
      ["answer", "cut", "m"],
      ["other", "done", undefined],
    ]);
    expect(turns.some(({ id }) => ["a", "b", "c"].includes(id))).toBe(false);
    expect(read?.chosen[turns[0]?.id ?? ""]).toBe(turns[1]?.id);
    expect(turns[1]?.parent).toBe(turns[0]?.id);
  });

  it("bring in messages in the form of the API", () => {
    const [read] = fromJson(
      '{"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}, {"role": "assistant", "content": "a"}]}',
    );
    expect(read?.system).toBe("s");
    expect(Object.values(read?.turns ?? {}).map(({ role, content }) => [role, content])).toEqual([
      ["user", "u"],
      ["assistant", "a"],
    ]);
  });

  it("say what is wrong with them", () => {
    expect(() => fromJson("x")).toThrow("The file is not JSON.");
    expect(() => fromJson("{}")).toThrow("in a form that this page knows");
    const circle = {
      ...conversation,
      turns: { a: turn("user", "x", { id: "a", parent: "b" }), b: turn("user", "y", { id: "b", parent: "a" }) },
    };
    expect(() => fromJson(toJson([circle]))).toThrow("form a circle");
    expect(() => fromJson('{"format": "trunkline-conversations", "version": 1, "conversations": [7]}')).toThrow(
      "damaged",
    );
  });

  it("show the path as Markdown", () => {
    expect(toMarkdown(conversation)).toBe(
      "# T\n\n## System prompt\n\nS\n\n## You\n\nAttached: `n`\n\nquestion\n\n## Model (m)\n\nanswer\n",
    );
  });
});
