import { computed } from "@preact/signals";
import { useEffect } from "preact/hooks";

import { keyRefused } from "../../api/client";
import { watchServer } from "../../api/server";
import { replaceRoute, route } from "../../route";
import { Composer } from "./composer";
import { conversation, watchConversations } from "./conversations";
import { CodeDialog, KeyDialog, ShortcutsDialog } from "./dialogs";
import { Header } from "./header";
import { Messages } from "./messages";
import { closeListOnPhone, dialog, focusSearch, focusSoon, isNarrow, listOpen, newChat, openDialog } from "./panels";
import { settingsOpen, toggleSettings } from "./panels";
import { watchLeft } from "./resume";
import { announcement, runs, stop } from "./run";
import { SettingsPanel } from "./settings-panel";
import { Sidebar } from "./sidebar";
import "./chat.css";

const running = computed(() => runs.value.has(conversation.value.id));

function onKey(event: KeyboardEvent): void {
  if (document.querySelector("dialog[open]")) return;
  const target = event.target instanceof HTMLElement ? event.target : undefined;
  const typing = target?.matches("input, textarea, select, [contenteditable]") ?? false;
  const command = event.ctrlKey || event.metaKey;
  if (event.key === "Escape") escape(event, typing);
  else if (command && event.key.toLowerCase() === "k") act(event, focusSearch);
  else if (command && event.key === ".") act(event, toggleSettings);
  else if (command && event.shiftKey && event.key.toLowerCase() === "o") act(event, newChat);
  else if (!typing && !command && event.key === "/") act(event, focusSearch);
  else if (!typing && !command && event.key === "?") act(event, () => openDialog("shortcuts"));
}

function act(event: Event, action: () => void): void {
  event.preventDefault();
  action();
}

function escape(event: KeyboardEvent, typing: boolean): void {
  if (event.defaultPrevented) return;
  if (running.value) act(event, () => stop(conversation.value.id));
  else if (settingsOpen.value) act(event, () => (settingsOpen.value = false));
  else if (listOpen.value && isNarrow()) act(event, closeListOnPhone);
  else if (!typing) act(event, () => focusSoon("composer"));
}

let watching = false;

export function ChatView() {
  useEffect(() => {
    if (!watching) {
      watching = true;
      watchServer();
      watchConversations();
      watchLeft();
    }
    addEventListener("keydown", onKey);
    return () => removeEventListener("keydown", onKey);
  }, []);
  const { id, title } = conversation.value;
  useEffect(() => {
    document.title = title ? `${title} · Trunkline` : "Trunkline";
  }, [title]);
  // A new conversation gets an address with its first turn.
  const begun = Object.keys(conversation.value.turns).length > 0;
  useEffect(() => {
    if (begun && route.value.view === "chat" && route.value.rest !== id) replaceRoute("chat", id);
  }, [begun, id]);
  return (
    <div class={`chat ${listOpen.value ? "with-list" : ""} ${settingsOpen.value ? "with-settings" : ""}`}>
      {listOpen.value && <Sidebar />}
      <main class="chat-main">
        <Header />
        <Messages />
        <Composer />
      </main>
      {settingsOpen.value && <SettingsPanel />}
      {(listOpen.value || settingsOpen.value) && (
        <div
          class="chat-scrim"
          onClick={() => {
            listOpen.value = settingsOpen.value = false;
          }}
        />
      )}
      {dialog.value === "shortcuts" && <ShortcutsDialog />}
      {dialog.value === "code" && <CodeDialog />}
      {(dialog.value === "key" || keyRefused.value) && <KeyDialog />}
      <div class="unseen" role="status" aria-live="polite">
        {announcement.value}
      </div>
    </div>
  );
}
