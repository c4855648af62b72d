// Needs TRUNKLINE_URL, TRUNKLINE_KEY, TRUNKLINE_WRONG_KEY and TRUNKLINE_MODEL.
import assert from "node:assert/strict";
import { test } from "node:test";

import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { APICallError, Output, generateText, stepCountIs, streamText, tool } from "ai";
import { z } from "zod";

import { chatted, plain } from "./plain.mjs";

const { TRUNKLINE_URL, TRUNKLINE_KEY, TRUNKLINE_WRONG_KEY, TRUNKLINE_MODEL } = process.env;
const prompt = "Write a short poem about the sea.";

function provider(apiKey = TRUNKLINE_KEY, supportsStructuredOutputs = false) {
  return createOpenAICompatible({
    name: "trunkline",
    baseURL: `${TRUNKLINE_URL}/v1`,
    apiKey,
    includeUsage: true,
    supportsStructuredOutputs,
  });
}

function asking(changes = {}) {
  const model = provider()(TRUNKLINE_MODEL);
  return { model, prompt, maxOutputTokens: 12, temperature: 0, maxRetries: 0, ...changes };
}

async function streamed(options) {
  const errors = [];
  const result = streamText({ ...options, onError: ({ error }) => errors.push(error) });
  let text = "";
  for await (const part of result.textStream) {
    text += part;
  }
  return { text, errors, result };
}

test("streams the text of the whole answer", async () => {
  const whole = await generateText(asking());
  assert.equal(whole.text, await chatted([{ role: "user", content: prompt }], 12));
  assert.equal(whole.finishReason, "length");
  assert.equal(whole.usage.outputTokens, 12);
  const { text, errors, result } = await streamed(asking());
  assert.deepEqual(errors, []);
  assert.equal(text, whole.text);
  assert.equal(await result.finishReason, "length");
  assert.equal((await result.usage).outputTokens, 12);
});

test("completes", async () => {
  const model = provider().completionModel(TRUNKLINE_MODEL);
  const whole = await generateText(asking({ model, prompt: "The sea is" }));
  // The SDK writes the parts of a conversation into the prompt.
  const written = { prompt: "user:\nThe sea is\n\nassistant:\n", stop: ["\nuser:"], max_tokens: 12 };
  assert.equal(whole.text, await plain("completions", written));
  const { text, errors } = await streamed(asking({ model, prompt: "The sea is" }));
  assert.deepEqual(errors, []);
  assert.equal(text, whole.text);
});

test("accepts tools", async () => {
  const getWeather = tool({
    description: "The weather in a city",
    inputSchema: z.object({ city: z.string() }),
    execute: async ({ city }) => `rain in ${city}`,
  });
  const options = asking({
    prompt: "What is the weather in Paris?",
    tools: { get_weather: getWeather },
    stopWhen: stepCountIs(2),
    maxOutputTokens: 32,
  });
  const whole = await generateText(options);
  const { text, errors } = await streamed(options);
  assert.deepEqual(errors, []);
  assert.equal(text, whole.steps.map((step) => step.text).join(""));
  for (const step of whole.steps) {
    assert.ok(step.text || step.toolCalls.length > 0);
    assert.ok(step.toolCalls.every((call) => call.toolName === "get_weather"));
  }
});

test("a required call validates", async () => {
  const inputSchema = z.object({ city: z.string() });
  const options = asking({
    prompt: "What is the weather in Paris?",
    tools: { get_weather: tool({ description: "The weather in a city", inputSchema }) },
    toolChoice: "required",
    maxOutputTokens: 64,
  });
  const whole = await generateText(options);
  assert.equal(whole.finishReason, "tool-calls");
  const { errors, result } = await streamed(options);
  assert.deepEqual(errors, []);
  for (const calls of [whole.toolCalls, await result.toolCalls]) {
    assert.ok(calls.length > 0);
    assert.ok(calls.every((call) => call.toolName === "get_weather" && inputSchema.parse(call.input)));
  }
});

test("structures output", async () => {
  const schema = z.object({ name: z.string(), continent: z.enum(["Africa", "America", "Asia", "Europe", "Oceania"]) });
  const model = provider(TRUNKLINE_KEY, true)(TRUNKLINE_MODEL);
  const whole = await generateText(
    asking({ model, prompt: "Tell of Paris.", maxOutputTokens: 256, output: Output.object({ schema }) }),
  );
  assert.ok(schema.parse(whole.output));
});

async function refused(options) {
  const whole = await generateText(options).catch((error) => error);
  const { errors } = await streamed(options);
  for (const error of [whole, errors[0]]) {
    assert.ok(APICallError.isInstance(error), `${error}`);
    assert.equal(error.isRetryable, false);
    assert.ok(error.message);
  }
  assert.equal(whole.statusCode, errors[0].statusCode);
  return whole;
}

test("errors have the classes of the SDK and the messages of the server", async () => {
  assert.equal((await refused(asking({ model: provider(TRUNKLINE_WRONG_KEY)(TRUNKLINE_MODEL) }))).statusCode, 401);
  assert.equal((await refused(asking({ model: provider()("nobody/none") }))).statusCode, 404);
  const absurd = await refused(asking({ temperature: 1e9 }));
  assert.equal(absurd.statusCode, 400);
  assert.match(absurd.message, /temperature/);
  const long = await refused(asking({ prompt: "sea and sand ".repeat(4000) }));
  assert.equal(long.data.error.code, "context_length_exceeded");
});
