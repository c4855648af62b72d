// Returns the server's greedy answer without the SDK, with which the tests compare the SDK's answers.
import assert from "node:assert/strict";

const { TRUNKLINE_URL, TRUNKLINE_KEY } = process.env;

export async function plain(path, body) {
  const headers = { authorization: `Bearer ${TRUNKLINE_KEY}`, "content-type": "application/json" };
  const response = await fetch(`${TRUNKLINE_URL}/v1/${path}`, {
    method: "POST",
    headers,
    body: JSON.stringify({ temperature: 0, ...body }),
  });
  assert.equal(response.status, 200);
  const [choice] = (await response.json()).choices;
  return choice.message?.content ?? choice.text;
}

export function chatted(messages, tokens) {
  return plain("chat/completions", { messages, max_tokens: tokens });
}
