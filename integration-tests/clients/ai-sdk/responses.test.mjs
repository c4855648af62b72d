// The SDK's OpenAI provider, which uses the Responses API by default. Needs the same variables as chat.test.mjs.
import assert from "node:assert/strict";
import { test } from "node:test";

import { createOpenAI } from "@ai-sdk/openai";
import { generateText, stepCountIs, streamText, tool } from "ai";
import { z } from "zod";

import { chatted } from "./plain.mjs";

const { TRUNKLINE_URL, TRUNKLINE_KEY, TRUNKLINE_MODEL } = process.env;
const openai = createOpenAI({ baseURL: `${TRUNKLINE_URL}/v1`, apiKey: TRUNKLINE_KEY });
const model = openai(TRUNKLINE_MODEL);
const first = { role: "user", content: "Write a short poem about the sea." };

function asking(changes = {}) {
  return { model, messages: [first], maxOutputTokens: 12, temperature: 0, maxRetries: 0, ...changes };
}

test("continues a conversation by reference to its items", async () => {
  const whole = await generateText(asking());
  assert.equal(whole.text, await chatted([first], 12));
  const messages = [first, ...whole.response.messages, { role: "user", content: "Another one." }];
  const second = await generateText(asking({ messages }));
  const said = [first, { role: "assistant", content: whole.text }, { role: "user", content: "Another one." }];
  assert.equal(second.text, await chatted(said, 12));
  const inWords = await generateText(asking({ messages: said, providerOptions: { openai: { store: false } } }));
  assert.equal(second.text, inWords.text);
  const errors = [];
  const streamed = streamText(asking({ messages, onError: ({ error }) => errors.push(error) }));
  assert.equal(await streamed.text, second.text);
  assert.deepEqual(errors, []);
});

test("calls a tool and continues with its result", async () => {
  const cities = [];
  const getWeather = tool({
    description: "The weather in a city",
    inputSchema: z.object({ city: z.string().max(40) }),
    execute: async ({ city }) => {
      cities.push(city);
      return `rain in ${city}`;
    },
  });
  const whole = await generateText(
    asking({
      messages: [{ role: "user", content: "What is the weather in Paris?" }],
      tools: { get_weather: getWeather },
      toolChoice: "required",
      stopWhen: stepCountIs(2),
      maxOutputTokens: 256,
      providerOptions: { openai: { parallelToolCalls: false } },
    }),
  );
  assert.equal(whole.steps.length, 2);
  assert.ok(cities.length >= 1);
});
