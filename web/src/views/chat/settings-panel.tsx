import type { ComponentChildren } from "preact";
import { useEffect, useId, useRef, useState } from "preact/hooks";

import { Button, IconButton } from "../../ui/button";
import { patternProblem, schemaProblem, serverProblem, toolsProblem } from "./checks";
import { conversation, update } from "./conversations";
import { chosenModel } from "./model";
import { settingsOpen } from "./panels";
import { fetchParameters, groups, type Parameter, problemWith, rangeOf, USUAL } from "./parameters";
import { change, type Format, setParameter, settings } from "./settings";

export function SettingsPanel() {
  return (
    <aside class="settings" aria-label="Settings">
      <header>
        <h2>Settings</h2>
        <IconButton icon="close" label="Close the settings" onClick={() => (settingsOpen.value = false)} />
      </header>
      <div class="settings-body">
        <SystemPrompt />
        <Section title="Answers" open>
          <AnswerSettings />
        </Section>
        <Parameters />
        <Section title="Format">
          <FormatSettings />
        </Section>
        <Section title="Tools">
          <ToolSettings />
        </Section>
      </div>
    </aside>
  );
}

/** The sections that the user opened or closed, so that the panel looks the same when it is shown again. */
const toggled = new Map<string, boolean>();

function Section({ title, open = false, children }: { title: string; open?: boolean; children: ComponentChildren }) {
  return (
    <details
      class="section"
      open={toggled.get(title) ?? open}
      onToggle={(event) => toggled.set(title, event.currentTarget.open)}
    >
      <summary>{title}</summary>
      <div class="section-body">{children}</div>
    </details>
  );
}

function SystemPrompt() {
  const { id, system } = conversation.value;
  return (
    <Section title="System prompt" open>
      <textarea
        rows={4}
        aria-label="System prompt"
        placeholder="Instructions that precede this conversation"
        value={system}
        onInput={(event) => {
          const text = event.currentTarget.value;
          update(id, (before) => ({ ...before, system: text }));
        }}
      />
    </Section>
  );
}

const MOST_ANSWERS = 8;

function AnswerSettings() {
  const { answers, probabilities } = settings.value;
  return (
    <>
      <div class="field">
        <label class="field-head">
          <span>Answers side by side</span>
          <input
            class="number"
            type="number"
            min={1}
            max={MOST_ANSWERS}
            value={answers}
            onInput={(event) => {
              const value = event.currentTarget.valueAsNumber;
              if (value >= 1 && value <= MOST_ANSWERS) change({ answers: Math.floor(value) });
            }}
          />
        </label>
      </div>
      <label class="check">
        <input
          type="checkbox"
          checked={probabilities}
          onChange={(event) => change({ probabilities: event.currentTarget.checked })}
        />
        Ask for the probabilities of tokens
      </label>
    </>
  );
}

function Parameters() {
  const [failed, setFailed] = useState(false);
  const load = () => {
    setFailed(false);
    fetchParameters().catch(() => setFailed(true));
  };
  useEffect(() => {
    if (!groups.value) load();
  }, []);
  const set = Object.keys(settings.value.parameters).length;
  if (failed) {
    return (
      <p class="settings-note">
        The server did not describe its parameters. <Button onClick={load}>Try again</Button>
      </p>
    );
  }
  if (!groups.value) return <p class="settings-note">Reading the server's parameters…</p>;
  return (
    <>
      {groups.value.map(({ title, parameters }, index) => (
        <Section key={title} title={title} open={index === 0}>
          {parameters.map((parameter) => (
            <ParameterField key={parameter.name} parameter={parameter} />
          ))}
        </Section>
      ))}
      {set > 0 && (
        <div class="settings-reset">
          <Button onClick={() => change({ parameters: {} })}>Use the model's defaults</Button>
        </div>
      )}
    </>
  );
}

function labelOf(name: string): string {
  const words = name.replaceAll("_", " ");
  return words.charAt(0).toUpperCase() + words.slice(1);
}

function ParameterField({ parameter }: { parameter: Parameter }) {
  const { name, kind, help } = parameter;
  const id = useId();
  const value = settings.value.parameters[name];
  const problem = problemWith(parameter, value);
  const range = rangeOf(parameter);
  return (
    <div class={`field ${value === undefined ? "" : "set"}`}>
      <div class="field-head">
        <label for={id}>{labelOf(name)}</label>
        {value !== undefined && (
          <button type="button" class="text-button" onClick={() => setParameter(name, undefined)}>
            default
          </button>
        )}
        {kind === "boolean" ? (
          <select
            id={id}
            class="number"
            value={value === undefined ? "" : String(value)}
            aria-describedby={`${id}-help`}
            onChange={(event) => setParameter(name, { true: true, false: false }[event.currentTarget.value])}
          >
            <option value="">default</option>
            <option value="true">yes</option>
            <option value="false">no</option>
          </select>
        ) : kind === "number" || kind === "integer" ? (
          <input
            id={id}
            class="number"
            type="number"
            step={kind === "integer" ? 1 : "any"}
            min={parameter.minimum}
            max={parameter.maximum}
            placeholder="default"
            value={typeof value === "number" ? value : ""}
            aria-invalid={problem !== undefined}
            aria-describedby={`${id}-help`}
            onInput={(event) => {
              const typed = event.currentTarget.valueAsNumber;
              setParameter(name, Number.isNaN(typed) ? undefined : typed);
            }}
          />
        ) : null}
      </div>
      {(kind === "text" || kind === "texts") && <TextField id={id} parameter={parameter} value={value} />}
      <Slider parameter={parameter} value={value} />
      {problem && (
        <p class="field-problem" role="alert">
          {problem}
        </p>
      )}
      <p class="field-help" id={`${id}-help`}>
        {help.split(/`([^`]*)`/).map((part, index) => (index % 2 ? <code key={index}>{part}</code> : part))}
        {range && <span class="range"> ({range})</span>}
      </p>
    </div>
  );
}

/** A text, or several, one in each line. */
function TextField({ id, parameter: { name, kind }, value }: { id: string; parameter: Parameter; value: unknown }) {
  const set = (text: string) => {
    const lines = text.split("\n");
    setParameter(name, kind === "texts" ? (text === "" ? undefined : lines) : text);
  };
  if (kind === "text") {
    return (
      <input
        id={id}
        type="text"
        value={typeof value === "string" ? value : ""}
        aria-describedby={`${id}-help`}
        onInput={(event) => set(event.currentTarget.value)}
      />
    );
  }
  return (
    <textarea
      id={id}
      rows={2}
      placeholder="One in each line"
      value={Array.isArray(value) ? value.join("\n") : ""}
      aria-describedby={`${id}-help`}
      onInput={(event) => set(event.currentTarget.value)}
    />
  );
}

function Slider({ parameter, value }: { parameter: Parameter; value: unknown }) {
  const { name, kind, minimum, maximum, exclusiveMinimum, default: neutral } = parameter;
  const [least, most] = USUAL[name] ?? [exclusiveMinimum ?? minimum, maximum];
  // A range without an end, or a very long one, is typed.
  if (least === undefined || most === undefined || most - least > 20) return null;
  return (
    <input
      type="range"
      aria-label={`${labelOf(name)}, slider`}
      min={least}
      max={most}
      step={kind === "integer" ? 1 : 0.01}
      value={typeof value === "number" ? value : (neutral ?? Math.max(least, 0))}
      onInput={(event) => {
        const chosen = event.currentTarget.valueAsNumber;
        setParameter(name, exclusiveMinimum !== undefined && chosen <= exclusiveMinimum ? 0.01 : chosen);
      }}
    />
  );
}

const CHECK_MS = 600;

/** Asks the server about the format a moment after the last change, if the browser finds nothing wrong with it. */
function useServerCheck(local: string | undefined, wanted: boolean): { asking: boolean; problem: string | undefined } {
  const [state, setState] = useState<{ asking: boolean; problem: string | undefined }>({
    asking: false,
    problem: undefined,
  });
  const { format, tools, useTools } = settings.value;
  const model = chosenModel.value?.id ?? "";
  useEffect(() => {
    setState({ asking: false, problem: undefined });
    if (local !== undefined || !wanted) return;
    const abort = new AbortController();
    const timer = setTimeout(() => {
      setState({ asking: true, problem: undefined });
      serverProblem(settings.peek(), model, abort.signal).then(
        (problem) => setState({ asking: false, problem }),
        () => {},
      );
    }, CHECK_MS);
    return () => {
      clearTimeout(timer);
      abort.abort();
    };
  }, [local, wanted, model, format.kind, format.schema, format.regex, tools, useTools]);
  return state;
}

function Verdict({
  local,
  check,
}: {
  local: string | undefined;
  check: { asking: boolean; problem: string | undefined };
}) {
  const problem = local ?? check.problem;
  const line = useRef<HTMLParagraphElement>(null);
  // A problem with what is typed must be seen, though the field above may fill the panel.
  useEffect(() => {
    const place = line.current;
    if (problem && place?.parentElement?.contains(document.activeElement)) place.scrollIntoView({ block: "nearest" });
  }, [problem]);
  return (
    <p ref={line} class={problem ? "field-problem" : "field-ok"} role="status">
      {problem ?? (check.asking ? "The server checks it…" : "Valid.")}
    </p>
  );
}

const KINDS: [Format["kind"], string][] = [
  ["text", "Free text"],
  ["json", "JSON"],
  ["schema", "JSON schema"],
  ["regex", "Regular expression"],
];

function FormatSettings() {
  const { format } = settings.value;
  const set = (part: Partial<Format>) => change({ format: { ...format, ...part } });
  const local =
    format.kind === "schema"
      ? schemaProblem(format.schema)
      : format.kind === "regex"
        ? patternProblem(format.regex)
        : undefined;
  const check = useServerCheck(local, format.kind === "schema" || format.kind === "regex");
  return (
    <fieldset class="choices">
      <legend class="unseen">Format of the answer</legend>
      {KINDS.map(([kind, title]) => (
        <label class="check" key={kind}>
          <input type="radio" name="format" checked={format.kind === kind} onChange={() => set({ kind })} />
          {title}
        </label>
      ))}
      {format.kind === "schema" && (
        <textarea
          class="mono"
          rows={8}
          spellcheck={false}
          aria-label="JSON schema"
          aria-invalid={local !== undefined}
          placeholder={
            '{\n  "type": "object",\n  "properties": {\n    "city": {"type": "string"}\n  },\n  "required": ["city"]\n}'
          }
          value={format.schema}
          onInput={(event) => set({ schema: event.currentTarget.value })}
        />
      )}
      {format.kind === "regex" && (
        <input
          class="mono"
          type="text"
          spellcheck={false}
          aria-label="Regular expression"
          aria-invalid={local !== undefined}
          placeholder="(yes|no), because .{1,200}"
          value={format.regex}
          onInput={(event) => set({ regex: event.currentTarget.value })}
        />
      )}
      {(format.kind === "schema" || format.kind === "regex") && <Verdict local={local} check={check} />}
    </fieldset>
  );
}

const EXAMPLE = `[
  {
    "name": "weather",
    "description": "Tells the weather of a city.",
    "parameters": {
      "type": "object",
      "properties": {"city": {"type": "string"}},
      "required": ["city"]
    }
  }
]`;

function ToolSettings() {
  const { tools, useTools } = settings.value;
  const local = useTools ? toolsProblem(tools) : undefined;
  const check = useServerCheck(local, useTools);
  return (
    <>
      <label class="check">
        <input
          type="checkbox"
          checked={useTools}
          onChange={(event) => change({ useTools: event.currentTarget.checked })}
        />
        Offer tools to the model
      </label>
      {useTools && (
        <>
          <textarea
            class="mono"
            rows={10}
            spellcheck={false}
            aria-label="Tools as JSON"
            aria-invalid={local !== undefined}
            placeholder={EXAMPLE}
            value={tools}
            onInput={(event) => change({ tools: event.currentTarget.value })}
          />
          <Verdict local={local} check={check} />
          {!tools.trim() && <Button onClick={() => change({ tools: EXAMPLE })}>Insert an example</Button>}
        </>
      )}
      <p class="field-help">The page shows the calls, and you answer in place of the tools.</p>
    </>
  );
}
