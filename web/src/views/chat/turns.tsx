import { signal } from "@preact/signals";
import { useEffect, useRef, useState } from "preact/hooks";

import { Markdown } from "../../markdown/markdown";
import { copyText } from "../../markdown/code";
import { type Attachment, newId, siblingsOf, type Turn, withChosen, withoutTurn } from "../../history/tree";
import { Button, IconButton } from "../../ui/button";
import { Icon } from "../../ui/icon";
import { conversation, current, update } from "./conversations";
import { FailureCard } from "./failure";
import { answer, askedOf, goOn, retry, runs, say } from "./run";
import { StatsLine } from "./stats";
import { Tokens } from "./tokens";
import { ToolCalls } from "./tools";

function busy(): boolean {
  return runs.value.has(conversation.value.id);
}

/** The number of a turn among its siblings, with buttons to walk to them. */
function Branches({ turn, siblings }: { turn: Turn; siblings: Turn[] }) {
  // Answers side by side count as one.
  const groups = siblings.filter(
    (each, index) => !each.group || siblings.findIndex(({ group }) => group === each.group) === index,
  );
  const at = groups.findIndex((each) => each.id === turn.id || (each.group !== undefined && each.group === turn.group));
  if (groups.length < 2) return null;
  const walk = (step: number) => {
    const next = groups[at + step];
    if (next) update(conversation.value.id, (before) => withChosen(before, next.id));
  };
  return (
    <span class="branches" role="group" aria-label="Branches">
      <IconButton icon="left" size={16} label="Previous branch" disabled={at === 0} onClick={() => walk(-1)} />
      <span aria-label={`Branch ${at + 1} of ${groups.length}`}>
        {at + 1}/{groups.length}
      </span>
      <IconButton
        icon="right"
        size={16}
        label="Next branch"
        disabled={at === groups.length - 1}
        onClick={() => walk(1)}
      />
    </span>
  );
}

function CopyAction({ text }: { text: string }) {
  const [copied, setCopied] = useState(false);
  const copy = async () => {
    if (!(await copyText(text))) return;
    setCopied(true);
    setTimeout(() => setCopied(false), 1500);
  };
  return (
    <IconButton
      icon={copied ? "check" : "copy"}
      size={16}
      label={copied ? "Copied" : "Copy"}
      onClick={() => void copy()}
    />
  );
}

function DeleteAction({ turn }: { turn: Turn }) {
  return (
    <IconButton
      icon="trash"
      size={16}
      label="Delete this turn and what follows it"
      disabled={busy()}
      onClick={() => update(conversation.value.id, (before) => withoutTurn(before, turn.id))}
    />
  );
}

/** The turn that is edited because its answer says that it is too long. */
const shortened = signal<string | undefined>(undefined);

export function UserTurn({ turn, siblings }: { turn: Turn; siblings: Turn[] }) {
  const [editing, setEditing] = useState(false);
  const end = () => {
    setEditing(false);
    if (shortened.peek() === turn.id) shortened.value = undefined;
  };
  if (editing || shortened.value === turn.id) return <EditTurn turn={turn} onEnd={end} />;
  return (
    <article class="turn user" aria-label="You">
      <Attachments list={turn.attachments} />
      {turn.content && <Bubble text={turn.content} />}
      <div class="turn-actions">
        <CopyAction text={turn.content} />
        <IconButton
          icon="edit"
          size={16}
          label="Edit in a new branch"
          disabled={busy()}
          onClick={() => setEditing(true)}
        />
        <DeleteAction turn={turn} />
        <Branches turn={turn} siblings={siblings} />
      </div>
    </article>
  );
}

/** A longer text is folded, so that the answer stays in sight. */
const MAX_UNFOLDED = 4000;

function Bubble({ text }: { text: string }) {
  const [open, setOpen] = useState(false);
  if (text.length <= MAX_UNFOLDED) return <div class="bubble">{text}</div>;
  return (
    <div class="bubble">
      {open ? text : `${text.slice(0, MAX_UNFOLDED / 4)}…`}
      <button type="button" class="text-button" aria-expanded={open} onClick={() => setOpen(!open)}>
        {open ? "Show less" : `Show all ${sizeOf(text)}`}
      </button>
    </div>
  );
}

function Attachments({ list }: { list: Attachment[] | undefined }) {
  if (!list?.length) return null;
  return (
    <ul class="attachments" aria-label="Attached files">
      {list.map(({ name, text }, index) => (
        <li key={index}>
          <details>
            <summary>
              <Icon name="file" size={15} />
              {name}
              <small>{sizeOf(text)}</small>
            </summary>
            <pre tabIndex={0}>{text.length > 20_000 ? `${text.slice(0, 20_000)}\n…` : text}</pre>
          </details>
        </li>
      ))}
    </ul>
  );
}

export function sizeOf(text: string): string {
  return text.length < 1000
    ? `${text.length} characters`
    : `${Math.round(text.length / 1000).toLocaleString("en")} k characters`;
}

/** An editor in the place of a turn. A user's turn is answered again; an answer is only replaced. */
function EditTurn({ turn, onEnd }: { turn: Turn; onEnd: () => void }) {
  const area = useRef<HTMLTextAreaElement>(null);
  useEffect(() => {
    const element = area.current;
    element?.focus();
    element?.setSelectionRange(element.value.length, element.value.length);
  }, []);
  const send = () => {
    const content = area.current?.value ?? "";
    if (!content.trim() && !turn.attachments?.length) return;
    onEnd();
    const { attachments, role, parent } = turn;
    const { id } = conversation.value;
    if (role === "user") say(id, [{ role, content, ...(attachments ? { attachments } : {}) }], parent);
    else rewrite(id, turn, content);
  };
  return (
    <article class="turn editing" aria-label="Edit">
      <textarea
        ref={area}
        aria-label="Text of the turn"
        defaultValue={turn.content}
        onKeyDown={(event) => {
          if (
            event.key === "Enter" &&
            !event.shiftKey &&
            !event.isComposing &&
            (turn.role === "user" || event.ctrlKey)
          ) {
            event.preventDefault();
            send();
          } else if (event.key === "Escape") {
            event.preventDefault();
            onEnd();
          }
        }}
      />
      <div class="edit-actions">
        <p>
          {turn.role === "user"
            ? "The turn as it was stays in its own branch."
            : "The answer as it was stays in its own branch."}
        </p>
        <Button onClick={onEnd}>Cancel</Button>
        <Button kind="main" onClick={send}>
          {turn.role === "user" ? "Send" : "Keep"}
        </Button>
      </div>
    </article>
  );
}

function rewrite(id: string, turn: Turn, content: string): void {
  const { stats: _stats, tokens: _tokens, group: _group, choice: _choice, failure: _failure, ...rest } = turn;
  const written: Turn = { ...rest, id: newId(), content, created: Date.now(), state: "done", patched: true };
  update(id, (before) => {
    const turns = { ...before.turns, [written.id]: written };
    return { ...withChosen({ ...before, turns }, written.id), updated: Date.now() };
  });
}

type AssistantProps = { turn: Turn; siblings: Turn[]; last: boolean };

export function AssistantTurn({ turn, siblings, last }: AssistantProps) {
  const group = turn.group ? siblings.filter((each) => each.group === turn.group) : [turn];
  if (group.length < 2) return <Answer turn={turn} siblings={siblings} last={last} />;
  return (
    <div class="side-by-side" role="group" aria-label={`${group.length} answers side by side`}>
      {group.map((each) => (
        <Answer
          key={each.id}
          turn={each}
          siblings={siblings}
          last={last && each.id === turn.id}
          chosen={each.id === turn.id}
        />
      ))}
    </div>
  );
}

type AnswerProps = AssistantProps & { chosen?: boolean };

function Answer({ turn: settled, siblings, last, chosen }: AnswerProps) {
  const turn = current(settled);
  const [editing, setEditing] = useState(false);
  const [byToken, setByToken] = useState(false);
  const streaming = turn.state === "streaming";
  const { id } = conversation.value;
  const siblingsInGroup = turn.group ? siblings.filter((each) => each.group === turn.group).length : 1;
  if (editing) return <EditTurn turn={turn} onEnd={() => setEditing(false)} />;
  const beside = chosen !== undefined;
  const asked = conversation.value.turns[turn.parent ?? ""];
  return (
    <article class={`turn assistant ${chosen === false ? "other" : ""}`} aria-label="Model" aria-busy={streaming}>
      {beside && (
        <button
          type="button"
          class="choose"
          aria-pressed={chosen}
          onClick={() => update(id, (before) => withChosen(before, turn.id))}
        >
          {chosen ? <Icon name="check" size={15} /> : null}
          Answer {(turn.choice ?? 0) + 1}
          <span>{chosen ? "goes on" : "choose"}</span>
        </button>
      )}
      <Reasoning turn={turn} />
      {byToken && turn.tokens && !streaming ? (
        <Tokens conversation={id} turn={turn} />
      ) : (
        <Markdown text={turn.content} growing={streaming} />
      )}
      {streaming && !turn.content && !turn.reasoning && <Waiting />}
      <ToolCalls turn={turn} last={last && !streaming} />
      {turn.finish === "length" && !streaming && (
        <p class="cut-note">
          The answer ended at its limit of tokens.
          <button type="button" class="text-button" disabled={busy()} onClick={() => goOn(id, turn)}>
            Go on
          </button>
        </p>
      )}
      {(turn.state === "cut" || turn.state === "stopped") && !turn.failure && (
        <p class="cut-note">
          {turn.state === "cut"
            ? "The answer was cut when the page was closed or reloaded."
            : "You stopped the answer."}
          <button
            type="button"
            class="text-button"
            disabled={busy()}
            onClick={() => (turn.content ? goOn : retry)(id, turn)}
          >
            {turn.content ? "Go on" : "Try again"}
          </button>
        </p>
      )}
      {turn.failure && (
        <FailureCard
          failure={turn.failure}
          onRetry={() => retry(id, turn)}
          onContinue={turn.content ? () => goOn(id, turn) : undefined}
          onShorten={asked?.role === "user" ? () => (shortened.value = asked.id) : undefined}
          long={typeof asked?.parent === "string"}
        />
      )}
      <div class={`turn-actions ${streaming ? "quiet" : ""}`}>
        {turn.content && <CopyAction text={turn.content} />}
        <IconButton
          icon="refresh"
          size={16}
          label="Answer again"
          disabled={busy() || !turn.parent}
          onClick={() => turn.parent && answer(id, turn.parent)}
        />
        {turn.seed !== undefined && turn.state !== "failed" && !turn.patched && (
          <IconButton
            icon="again"
            size={16}
            label={`Same answer again (seed ${turn.seed})`}
            disabled={busy() || !turn.parent}
            onClick={() => turn.parent && answer(id, turn.parent, askedOf(turn, siblingsInGroup), turn.id)}
          />
        )}
        {turn.content && (
          <IconButton
            icon="edit"
            size={16}
            label="Edit in a new branch"
            disabled={busy()}
            onClick={() => setEditing(true)}
          />
        )}
        {turn.tokens && (
          <IconButton
            icon="percent"
            size={16}
            label="Show the probabilities of tokens"
            pressed={byToken}
            onClick={() => setByToken(!byToken)}
          />
        )}
        <DeleteAction turn={turn} />
        {!beside || chosen ? <Branches turn={turn} siblings={siblings} /> : null}
        <StatsLine turn={turn} />
      </div>
      <SameBits turn={turn} />
    </article>
  );
}

function Waiting() {
  return (
    <p class="waiting" aria-label="The model reads the conversation">
      <span />
      <span />
      <span />
    </p>
  );
}

function Reasoning({ turn }: { turn: Turn }) {
  if (!turn.reasoning) return null;
  const thinking = turn.state === "streaming" && !turn.content;
  return (
    <details class="reasoning">
      <summary>
        {thinking && <span class="busy" aria-hidden="true" />}
        {thinking ? "Thinking…" : "Thoughts"}
        <small>{sizeOf(turn.reasoning)}</small>
      </summary>
      <Markdown text={turn.reasoning} growing={thinking} />
    </details>
  );
}

/** Says whether an answer that was asked for again has the same text. */
function SameBits({ turn }: { turn: Turn }) {
  const before = turn.repeats ? conversation.value.turns[turn.repeats] : undefined;
  if (!before || turn.state !== "done") return null;
  const original = turn.group
    ? (siblingsOf(conversation.value, before.id).find(
        (each) => each.group === before.group && each.choice === turn.choice,
      ) ?? before)
    : before;
  const same = original.content === turn.content && original.reasoning === turn.reasoning;
  return (
    <p class={`same ${same ? "" : "differs"}`}>
      <Icon name={same ? "check" : "info"} size={14} />
      {same ? "The same text as before, to the letter." : "The text differs from before."}
    </p>
  );
}

export function ToolTurn({ turn }: { turn: Turn }) {
  return (
    <article class="turn tool" aria-label="Result of a tool">
      <details>
        <summary>
          <Icon name="tool" size={15} />
          Result of the tool
        </summary>
        <pre tabIndex={0}>{turn.content}</pre>
      </details>
    </article>
  );
}
