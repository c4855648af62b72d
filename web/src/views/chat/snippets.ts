import type { ChatRequest } from "../../api/types";

export const LANGUAGES = ["curl", "Python", "JavaScript"] as const;
export type Language = (typeof LANGUAGES)[number];

/** Returns a program that sends `body`. It takes the key from the environment and never contains it. */
export function snippet(language: Language, base: string, body: ChatRequest, withKey: boolean): string {
  switch (language) {
    case "curl":
      return curl(base, body, withKey);
    case "Python":
      return python(base, body, withKey);
    case "JavaScript":
      return javascript(base, body, withKey);
  }
}

function curl(base: string, body: ChatRequest, withKey: boolean): string {
  const json = JSON.stringify({ ...body, stream: true }, null, 2).replaceAll("'", "'\\''");
  const key = withKey ? ` \\\n  -H "authorization: Bearer $TRUNKLINE_API_KEY"` : "";
  return `curl -N ${base}/v1/chat/completions \\\n  -H 'content-type: application/json'${key} \\\n  -d '${json}'\n`;
}

/** Arguments that OpenAI's package knows. It sends the others if they are in `extra_body`. */
const KNOWN = [
  ...["model", "messages", "temperature", "top_p", "n", "stop", "seed", "max_completion_tokens", "presence_penalty"],
  ...["frequency_penalty", "response_format", "tools", "tool_choice", "logprobs", "top_logprobs", "reasoning_effort"],
  ...["service_tier", "timeout"],
];

function python(base: string, body: ChatRequest, withKey: boolean): string {
  const entries = Object.entries(body);
  const known = entries.filter(([name]) => KNOWN.includes(name));
  const others = Object.fromEntries(entries.filter(([name]) => !KNOWN.includes(name)));
  const lines = known.map(([name, value]) => `    ${name}=${pythonLiteral(value, 1)},`);
  if (Object.keys(others).length > 0) lines.push(`    extra_body=${pythonLiteral(others, 1)},`);
  const key = withKey ? 'os.environ["TRUNKLINE_API_KEY"]' : '"none"';
  return [
    ...(withKey ? ["import os", ""] : []),
    "from openai import OpenAI",
    "",
    `client = OpenAI(base_url="${base}/v1", api_key=${key})`,
    "stream = client.chat.completions.create(",
    ...lines,
    "    stream=True,",
    ")",
    "for chunk in stream:",
    "    for choice in chunk.choices:",
    '        print(choice.delta.content or "", end="", flush=True)',
    "",
  ].join("\n");
}

function pythonLiteral(value: unknown, depth: number): string {
  const inner = "    ".repeat(depth + 1);
  const outer = "    ".repeat(depth);
  if (value === null || value === undefined) return "None";
  if (typeof value === "boolean") return value ? "True" : "False";
  // JSON's strings are strings of Python, too.
  if (typeof value !== "object") return JSON.stringify(value);
  const parts = Array.isArray(value)
    ? value.map((each) => pythonLiteral(each, depth + 1))
    : Object.entries(value).map(([name, each]) => `${JSON.stringify(name)}: ${pythonLiteral(each, depth + 1)}`);
  const [open, close] = Array.isArray(value) ? "[]" : "{}";
  if (parts.length === 0) return `${open}${close}`;
  return `${open}\n${parts.map((part) => `${inner}${part},\n`).join("")}${outer}${close}`;
}

function javascript(base: string, body: ChatRequest, withKey: boolean): string {
  const json = JSON.stringify({ ...body, stream: true }, null, 2).replaceAll("\n", "\n  ");
  const key = withKey ? ", authorization: `Bearer ${process.env.TRUNKLINE_API_KEY}`" : "";
  return `const response = await fetch("${base}/v1/chat/completions", {
  method: "POST",
  headers: { "content-type": "application/json"${key} },
  body: JSON.stringify(${json}),
});
let rest = "";
for await (const piece of response.body.pipeThrough(new TextDecoderStream())) {
  const lines = (rest + piece).split("\\n");
  rest = lines.pop();
  for (const line of lines) {
    if (!line.startsWith("data: ") || line === "data: [DONE]") continue;
    for (const { delta } of JSON.parse(line.slice(6)).choices) process.stdout.write(delta.content ?? "");
  }
}
`;
}
