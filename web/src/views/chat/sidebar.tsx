import { signal } from "@preact/signals";
import { useEffect, useRef, useState } from "preact/hooks";

import { download, fromJson, toJson } from "../../history/files";
import { all, keeper, leftInBrowser, moveToServer, search } from "../../history/store";
import type { Entry } from "../../history/tree";
import { go, replaceRoute } from "../../route";
import { Button, IconButton } from "../../ui/button";
import { Dialog } from "../../ui/dialog";
import { Icon } from "../../ui/icon";
import { adopt, conversation, entries, refreshEntries, removeConversation, rename, storeFailed } from "./conversations";
import { closeListOnPhone, newChat, openDialog } from "./panels";
import { runs, stop } from "./run";

const query = signal("");
/** The conversations that contain the words of the search, or undefined while nothing is searched. */
const found = signal<Set<string> | undefined>(undefined);

const SEARCH_MS = 150;

function useSearch(): void {
  const asked = query.value;
  useEffect(() => {
    if (!asked.trim()) {
      found.value = undefined;
      return;
    }
    let stale = false;
    const timer = setTimeout(() => {
      search(asked).then(
        (ids) => {
          if (!stale) found.value = ids;
        },
        () => {},
      );
    }, SEARCH_MS);
    return () => {
      stale = true;
      clearTimeout(timer);
    };
  }, [asked]);
}

const DAY_MS = 86_400_000;

/** Returns the heading under which a conversation is listed. */
function age(updated: number, now: number): string {
  const midnight = new Date(now).setHours(0, 0, 0, 0);
  if (updated >= midnight) return "Today";
  if (updated >= midnight - DAY_MS) return "Yesterday";
  if (updated >= midnight - 7 * DAY_MS) return "Last seven days";
  return "Older";
}

export function Sidebar() {
  useSearch();
  const [problem, setProblem] = useState("");
  const shown = found.value ? entries.value.filter(({ id }) => found.value?.has(id)) : entries.value;
  const groups = Map.groupBy(shown, ({ updated }) => age(updated, Date.now()));
  return (
    <aside class="side" aria-label="Conversations">
      <div class="side-top">
        <button type="button" class="new-chat" onClick={newChat}>
          <Icon name="plus" />
          New chat
        </button>
        <label class="search">
          <Icon name="search" size={16} />
          <span class="unseen">Search conversations</span>
          <input
            id="search"
            type="search"
            placeholder="Search"
            autocomplete="off"
            value={query.value}
            onInput={(event) => (query.value = event.currentTarget.value)}
          />
          <kbd aria-hidden="true">Ctrl K</kbd>
        </label>
      </div>
      <nav class="side-list" aria-label="List of conversations">
        {[...groups].map(([title, list]) => (
          <section key={title} aria-label={title}>
            <h2>{title}</h2>
            <ul>
              {list.map((entry) => (
                <EntryRow key={entry.id} entry={entry} />
              ))}
            </ul>
          </section>
        ))}
        {shown.length === 0 && (
          <p class="side-empty">
            {found.value ? "No conversation contains these words." : EMPTY_LISTS[keeper.value]}
          </p>
        )}
      </nav>
      {storeFailed.value && (
        <p class="side-problem" role="alert">
          {storeFailed.value}
        </p>
      )}
      {leftInBrowser.value.length > 0 && <MoveButton onProblem={setProblem} />}
      {problem && (
        <p class="side-problem" role="alert">
          {problem}
        </p>
      )}
      <div class="side-bottom">
        <ImportButton onProblem={setProblem} />
        <IconButton icon="export" label="Export all conversations" onClick={() => void exportAll().catch((error: unknown) => setProblem(messageOf(error)))} />
        <span class="space" />
        <IconButton icon="key" label="API key" onClick={() => openDialog("key")} />
        <IconButton icon="keyboard" label="Keyboard shortcuts" onClick={() => openDialog("shortcuts")} />
      </div>
    </aside>
  );
}

const EMPTY_LISTS = {
  unknown: "",
  browser: "Conversations appear here. This browser keeps them.",
  server: "Conversations appear here. The server keeps them, for your other devices, too.",
};

function MoveButton({ onProblem }: { onProblem: (text: string) => void }) {
  const [moving, setMoving] = useState(false);
  const { length } = leftInBrowser.value;
  const move = async () => {
    setMoving(true);
    await moveToServer().catch((error: unknown) => onProblem(messageOf(error)));
    await refreshEntries();
    setMoving(false);
  };
  return (
    <p class="side-empty">
      {length === 1 ? "One conversation is" : `${length} conversations are`} in this browser only.{" "}
      <button type="button" class="text-button" disabled={moving} onClick={() => void move()}>
        {length === 1 ? "Move it to the server" : "Move them to the server"}
      </button>
    </p>
  );
}

function messageOf(error: unknown): string {
  return error instanceof Error ? error.message : String(error);
}

async function exportAll(): Promise<void> {
  download("trunkline-conversations.json", toJson(await all()), "application/json");
}

function ImportButton({ onProblem }: { onProblem: (text: string) => void }) {
  const input = useRef<HTMLInputElement>(null);
  const read = async (file: File) => {
    try {
      const id = await adopt(fromJson(await file.text()));
      onProblem("");
      if (id) go("chat", id);
    } catch (error) {
      onProblem(messageOf(error));
    }
  };
  return (
    <>
      <IconButton icon="import" label="Import conversations" onClick={() => input.current?.click()} />
      <input
        ref={input}
        class="unseen"
        type="file"
        accept=".json,application/json"
        aria-label="File with conversations"
        tabIndex={-1}
        onChange={(event) => {
          const file = event.currentTarget.files?.[0];
          if (file) void read(file);
          event.currentTarget.value = "";
        }}
      />
    </>
  );
}

function EntryRow({ entry: { id, title } }: { entry: Entry }) {
  const [renaming, setRenaming] = useState(false);
  const [deleting, setDeleting] = useState(false);
  const shown = title || "New chat";
  const here = conversation.value.id === id;
  if (renaming) return <RenameRow id={id} title={title} onEnd={() => setRenaming(false)} />;
  return (
    <li class={`entry ${here ? "here" : ""}`}>
      <a href={`#/chat/${id}`} aria-current={here ? "page" : undefined} title={shown} onClick={closeListOnPhone}>
        {runs.value.has(id) && <span class="busy" role="img" aria-label="is being answered" />}
        <span>{shown}</span>
      </a>
      <span class="entry-actions">
        <IconButton icon="edit" size={15} label={`Rename “${shown}”`} onClick={() => setRenaming(true)} />
        <IconButton icon="trash" size={15} label={`Delete “${shown}”`} onClick={() => setDeleting(true)} />
      </span>
      {deleting && (
        <Dialog
          title="Delete this conversation?"
          onClose={() => setDeleting(false)}
          actions={
            <>
              <Button onClick={() => setDeleting(false)}>Keep it</Button>
              <Button
                kind="danger"
                onClick={() => {
                  stop(id);
                  void removeConversation(id);
                  if (here) replaceRoute("chat");
                }}
              >
                Delete
              </Button>
            </>
          }
        >
          <p>“{shown}” is removed from this browser with all its branches. It cannot be brought back.</p>
        </Dialog>
      )}
    </li>
  );
}

function RenameRow({ id, title, onEnd }: { id: string; title: string; onEnd: () => void }) {
  const input = useRef<HTMLInputElement>(null);
  useEffect(() => input.current?.select(), []);
  const end = (keep: boolean) => {
    if (keep && input.current) void rename(id, input.current.value);
    onEnd();
  };
  return (
    <li class="entry">
      <input
        ref={input}
        class="rename"
        aria-label="Title"
        defaultValue={title}
        maxLength={200}
        onBlur={() => end(true)}
        onKeyDown={(event) => {
          if (event.key === "Enter") end(true);
          if (event.key === "Escape") {
            event.preventDefault();
            if (input.current) input.current.value = title;
            end(false);
          }
        }}
      />
    </li>
  );
}
