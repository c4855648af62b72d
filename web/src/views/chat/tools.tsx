import { useRef } from "preact/hooks";

import type { ToolCall, Turn } from "../../history/tree";
import { Button } from "../../ui/button";
import { Icon } from "../../ui/icon";
import { conversation } from "./conversations";
import { runs, say } from "./run";

/** The tools that an answer calls. If it is the last turn, the user answers in their place. */
export function ToolCalls({ turn, last }: { turn: Turn; last: boolean }) {
  const form = useRef<HTMLFormElement>(null);
  const calls = turn.toolCalls ?? [];
  if (calls.length === 0) return null;
  const send = (event: Event) => {
    event.preventDefault();
    const results = new FormData(form.current ?? undefined);
    const turns = calls.map((call, index) => ({
      role: "tool" as const,
      content: String(results.get(`result-${index}`) ?? ""),
      toolCallId: call.id,
    }));
    say(conversation.value.id, turns, turn.id);
  };
  return (
    <form class="tool-calls" ref={form} onSubmit={send} aria-label="Calls of tools">
      {calls.map((call, index) => (
        <div class="tool-call" key={call.id || index}>
          <p>
            <Icon name="tool" size={15} /> The model calls <code>{call.name}</code>
          </p>
          <pre tabIndex={0}>{pretty(call)}</pre>
          {last && (
            <label>
              Result
              <textarea name={`result-${index}`} rows={2} placeholder="What the tool answers, as text or JSON" />
            </label>
          )}
        </div>
      ))}
      {last && (
        <Button kind="main" submit disabled={runs.value.has(conversation.value.id)}>
          Send {calls.length === 1 ? "the result" : "the results"}
        </Button>
      )}
    </form>
  );
}

function pretty(call: ToolCall): string {
  try {
    return JSON.stringify(JSON.parse(call.arguments), null, 2);
  } catch {
    return call.arguments;
  }
}
