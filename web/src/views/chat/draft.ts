import { signal } from "@preact/signals";

import type { Attachment } from "../../history/tree";
import { keep, recall } from "../../storage";

export type Draft = { text: string; attachments: Attachment[] };

const KEY = "trunkline.draft";
const MAX_STORED = 200_000;

/** What the user is writing. The tab keeps it over a reload. */
export const draft = signal<Draft>({ text: recall("tab", KEY) ?? "", attachments: [] });

draft.subscribe(({ text }) => {
  keep("tab", KEY, text && text.length <= MAX_STORED ? text : undefined);
});

export function clearDraft(): void {
  draft.value = { text: "", attachments: [] };
}
