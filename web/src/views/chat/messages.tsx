import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";

import { connection } from "../../api/server";
import { pathOf, siblingsOf, type Turn } from "../../history/tree";
import { Icon } from "../../ui/icon";
import { conversation, missing } from "./conversations";
import { chosenModel, shortName } from "./model";
import { focusSoon } from "./panels";
import { draft } from "./draft";
import { notes, runs } from "./run";
import { AssistantTurn, ToolTurn, UserTurn } from "./turns";

/** How near to the end, in pixels, counts as being there. */
const NEAR = 48;

/** Keeps the end in sight while the content grows, until the user scrolls up. */
function useFollow(conversationId: string) {
  const box = useRef<HTMLDivElement>(null);
  const content = useRef<HTMLDivElement>(null);
  const following = useRef(true);
  const [away, setAway] = useState(false);
  useEffect(() => {
    const outer = box.current;
    const inner = content.current;
    if (!outer || !inner) return;
    let top = outer.scrollTop;
    const onScroll = () => {
      const distance = outer.scrollHeight - outer.clientHeight - outer.scrollTop;
      // Only a move upwards is the user's. A growing content moves the end away, too.
      if (outer.scrollTop < top - 2 && distance > NEAR) following.current = false;
      else if (distance <= NEAR) following.current = true;
      top = outer.scrollTop;
      setAway(!following.current && distance > NEAR);
    };
    const follow = new ResizeObserver(() => {
      if (following.current) outer.scrollTop = outer.scrollHeight;
      onScroll();
    });
    follow.observe(inner);
    follow.observe(outer);
    outer.addEventListener("scroll", onScroll, { passive: true });
    return () => {
      follow.disconnect();
      outer.removeEventListener("scroll", onScroll);
    };
  }, []);
  const toEnd = () => {
    following.current = true;
    setAway(false);
    if (box.current) box.current.scrollTop = box.current.scrollHeight;
  };
  useLayoutEffect(toEnd, [conversationId]);
  return { box, content, away, toEnd };
}

export function Messages() {
  const shown = conversation.value;
  const path = pathOf(shown);
  const running = runs.value.has(shown.id);
  const { box, content, away, toEnd } = useFollow(shown.id);
  const last = path.at(-1)?.id;
  // A new turn of the user is followed even if the user had scrolled up before.
  useLayoutEffect(() => {
    if (running) toEnd();
  }, [running, last]);
  return (
    <div class="messages-frame">
      {/* A scrolling region must be reachable by keyboard. */}
      <div class="messages" ref={box} tabIndex={0} role="region" aria-label="Conversation">
        <div class="messages-content" ref={content}>
          {path.length === 0 ? <Welcome /> : path.map((turn, index) => row(turn, index === path.length - 1))}
          <Note id={shown.id} />
        </div>
      </div>
      {away && (
        <button type="button" class="to-end" aria-label="Scroll to the end" title="Scroll to the end" onClick={toEnd}>
          <Icon name="down" />
        </button>
      )}
    </div>
  );
}

function row(turn: Turn, last: boolean) {
  const shown = conversation.value;
  const siblings = siblingsOf(shown, turn.id);
  if (turn.role === "user") return <UserTurn key={turn.id} turn={turn} siblings={siblings} />;
  if (turn.role === "tool") return <ToolTurn key={turn.id} turn={turn} />;
  return <AssistantTurn key={turn.group ?? turn.id} turn={turn} siblings={siblings} last={last} />;
}

function Note({ id }: { id: string }) {
  const note = notes.value.get(id);
  return (
    <p class={`run-note ${note ? "" : "hidden"}`} role="status">
      {note && <span class="busy" aria-hidden="true" />}
      {note}
    </p>
  );
}

const STARTERS = [
  "Explain how a KV cache speeds up a long conversation.",
  "Write a Rust function that merges two sorted lists.",
  "Plan a quiet weekend by the sea, as a table.",
];

function Welcome() {
  const model = chosenModel.value;
  const length = model?.max_model_len;
  return (
    <div class="welcome">
      <img src="./favicon.svg" alt="" width="44" height="44" />
      {missing.value ? (
        <p class="welcome-title">This conversation is not in this browser.</p>
      ) : (
        <p class="welcome-title">What is on your mind?</p>
      )}
      <p class="welcome-model">
        {model
          ? `${shortName(model.id)}${length ? `, up to ${length.toLocaleString("en")} tokens` : ""}`
          : connection.value === "gone"
            ? "The server cannot be reached."
            : "Waiting for the server…"}
      </p>
      <ul class="starters">
        {STARTERS.map((text) => (
          <li key={text}>
            <button
              type="button"
              onClick={() => {
                draft.value = { ...draft.value, text };
                focusSoon("composer");
              }}
            >
              {text}
            </button>
          </li>
        ))}
      </ul>
    </div>
  );
}
