import { signal } from "@preact/signals";

import { replaceRoute } from "../../route";
import { keep, recall } from "../../storage";
import { startNew } from "./conversations";

export type DialogName = "shortcuts" | "key" | "code";

const LIST_KEY = "trunkline.list";
const phone = matchMedia("(max-width: 900px)");

/** What is open beside the conversation. On a narrow screen the list and the settings cover it. */
export const listOpen = signal(!phone.matches && recall("browser", LIST_KEY) !== "closed");
export const settingsOpen = signal(false);
export const dialog = signal<DialogName | undefined>(undefined);

phone.addEventListener("change", () => {
  listOpen.value = !phone.matches && recall("browser", LIST_KEY) !== "closed";
});

export function isNarrow(): boolean {
  return phone.matches;
}

export function openDialog(name: DialogName): void {
  dialog.value = name;
}

export function closeDialog(): void {
  dialog.value = undefined;
}

export function toggleList(): void {
  listOpen.value = !listOpen.value;
  if (!phone.matches) keep("browser", LIST_KEY, listOpen.value ? "open" : "closed");
}

export function toggleSettings(): void {
  settingsOpen.value = !settingsOpen.value;
}

export function closeListOnPhone(): void {
  if (phone.matches) listOpen.value = false;
}

export function newChat(): void {
  startNew();
  replaceRoute("chat");
  closeListOnPhone();
  focusSoon("composer");
}

export function focusSearch(): void {
  listOpen.value = true;
  focusSoon("search");
}

/** Focuses an element at once, or as soon as the next rendering shows it. */
export function focusSoon(id: string): void {
  const shown = document.getElementById(id);
  if (shown) shown.focus();
  else setTimeout(() => document.getElementById(id)?.focus());
}
