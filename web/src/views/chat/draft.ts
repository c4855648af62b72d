import { signal } from "@preact/signals";

import type { Attachment } from "../../history/tree";

export type Draft = { text: string; attachments: Attachment[] };

/** What the user is writing. The tab keeps it over a reload. */
export const draft = signal<Draft>(stored());

const KEY = "trunkline.draft";
const MAX_STORED = 200_000;

function stored(): Draft {
  return { text: sessionStorage.getItem("trunkline.draft") ?? "", attachments: [] };
}

draft.subscribe(({ text }) => {
  if (text && text.length <= MAX_STORED) sessionStorage.setItem(KEY, text);
  else sessionStorage.removeItem(KEY);
});

export function clearDraft(): void {
  draft.value = { text: "", attachments: [] };
}
