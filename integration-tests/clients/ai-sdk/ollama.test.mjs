// Ollama's own package.
import assert from "node:assert/strict";
import { test } from "node:test";

import { Ollama } from "ollama";

import { chatted } from "./plain.mjs";

const { TRUNKLINE_URL, TRUNKLINE_KEY, TRUNKLINE_WRONG_KEY, TRUNKLINE_MODEL } = process.env;
const messages = [{ role: "user", content: "Write a short poem about the sea." }];
const asking = { model: TRUNKLINE_MODEL, messages, options: { temperature: 0, num_predict: 12 } };

function client(key = TRUNKLINE_KEY) {
  return new Ollama({ host: TRUNKLINE_URL, headers: { authorization: `Bearer ${key}` } });
}

test("Ollama's package streams the text of the whole answer", async () => {
  const whole = await client().chat(asking);
  assert.equal(whole.message.content, await chatted(messages, 12));
  assert.deepEqual([whole.done_reason, whole.eval_count], ["length", 12]);
  let text = "";
  let last;
  for await (const part of await client().chat({ ...asking, stream: true })) {
    text += part.message.content;
    last = part;
  }
  assert.equal(text, whole.message.content);
  assert.deepEqual([last.done, last.eval_count], [true, 12]);
});

test("Ollama's package lists models and reports errors", async () => {
  const { models } = await client().list();
  assert.deepEqual(
    models.map(({ name }) => name),
    [`${TRUNKLINE_MODEL}:latest`],
  );
  await assert.rejects(client(TRUNKLINE_WRONG_KEY).list(), { name: "ResponseError", status_code: 401 });
  const tight = client().chat({ ...asking, options: { num_ctx: 8 }, stream: true });
  await assert.rejects(tight, { name: "ResponseError", message: /raise `options\.num_ctx`/ });
});
