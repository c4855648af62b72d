import { ApiError, isRecord, request } from "../../api/client";
import { askedBy } from "./request";
import type { Settings } from "./settings";

/** Returns the place of an error of `JSON.parse` in its text, as words. */
function jsonProblem(text: string, error: unknown): string {
  const message = error instanceof Error ? error.message : "";
  const at = /position (\d+)/.exec(message)?.[1];
  if (at === undefined) return "This is not JSON yet: it ends too early.";
  const before = text.slice(0, Number(at)).split("\n");
  return `This is not JSON: look at line ${before.length}, column ${(before.at(-1)?.length ?? 0) + 1}.`;
}

function read(text: string): { value: unknown } | { problem: string } {
  try {
    return { value: JSON.parse(text) };
  } catch (error) {
    return { problem: jsonProblem(text, error) };
  }
}

const TYPES = ["null", "boolean", "object", "array", "number", "string", "integer"];

/** Returns what is wrong with a JSON schema, as a sentence, or undefined. The server checks the rest. */
export function schemaProblem(text: string): string | undefined {
  if (!text.trim()) return "Enter a JSON schema.";
  const result = read(text);
  if ("problem" in result) return result.problem;
  return typeProblem(result.value, "The schema");
}

function typeProblem(schema: unknown, where: string): string | undefined {
  if (typeof schema === "boolean") return undefined;
  if (!isRecord(schema)) return `${where} must be an object.`;
  const wrong = [schema.type ?? []].flat().find((type) => !TYPES.includes(type as string));
  if (wrong !== undefined) return `${where} has the type \`${String(wrong)}\`, which JSON schemas do not know.`;
  if (schema.properties !== undefined && !isRecord(schema.properties))
    return `${where} needs an object as its \`properties\`.`;
  for (const [name, inner] of Object.entries(isRecord(schema.properties) ? schema.properties : {})) {
    const problem = typeProblem(inner, `\`${name}\``);
    if (problem) return problem;
  }
  return schema.items === undefined ? undefined : typeProblem(schema.items, `${where}'s \`items\``);
}

/** Returns what is wrong with the list of tools, as a sentence, or undefined. */
export function toolsProblem(text: string): string | undefined {
  if (!text.trim()) return "Enter a list of tools as JSON.";
  const result = read(text);
  if ("problem" in result) return result.problem;
  if (!Array.isArray(result.value)) return "The tools must be a list: begin with `[`.";
  const names = new Set<string>();
  for (const [index, tool] of result.value.entries()) {
    const described: unknown = isRecord(tool) && isRecord(tool.function) ? tool.function : tool;
    const name = isRecord(described) ? described.name : undefined;
    if (typeof name !== "string") return `Tool ${index + 1} has no \`name\`.`;
    if (!/^[\w.-]{1,128}$/.test(name))
      return `The name \`${name}\` may have only letters, digits, \`_\`, \`-\` and \`.\`.`;
    if (names.has(name)) return `Two tools have the name \`${name}\`.`;
    names.add(name);
    const parameters = isRecord(described) ? described.parameters : undefined;
    const problem = parameters === undefined ? undefined : typeProblem(parameters, `The parameters of \`${name}\``);
    if (problem) return problem;
  }
  return undefined;
}

/** Returns what is wrong with a pattern, as far as the browser can tell. Its dialect is near to the server's. */
export function patternProblem(text: string): string | undefined {
  if (!text) return "Enter a regular expression.";
  try {
    new RegExp(text, "u");
    return undefined;
  } catch (error) {
    const reason = error instanceof Error ? error.message.split(": ").at(-1) : "";
    return `This is no regular expression yet${reason ? `: ${reason.charAt(0).toLowerCase()}${reason.slice(1)}` : ""}.`;
  }
}

/** Lets the server compile the format of `settings` and generate one token under it. Returns its objection, if any. */
export async function serverProblem(
  settings: Settings,
  model: string,
  signal: AbortSignal,
): Promise<string | undefined> {
  const { response_format, guided_regex, tools } = askedBy(settings, model).parameters;
  const body = {
    ...(model ? { model } : {}),
    ...(response_format ? { response_format } : {}),
    ...(guided_regex ? { guided_regex } : {}),
    ...(tools ? { tools } : {}),
    messages: [{ role: "user", content: "Hi" }],
    max_completion_tokens: 1,
  };
  try {
    await request("v1/chat/completions", { method: "POST", body: JSON.stringify(body), signal });
    return undefined;
  } catch (error) {
    // Only a refusal of the request itself says something about the format.
    return error instanceof ApiError && [400, 422].includes(error.status) ? error.message : undefined;
  }
}
