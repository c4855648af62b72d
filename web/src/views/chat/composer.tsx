import { useEffect, useRef, useState } from "preact/hooks";

import { connection, refresh } from "../../api/server";
import { MAX_ATTACHMENT_BYTES, readAttachment } from "../../history/files";
import { pathOf } from "../../history/tree";
import { IconButton } from "../../ui/button";
import { Icon } from "../../ui/icon";
import { conversation } from "./conversations";
import { clearDraft, draft } from "./draft";
import { ContextGauge } from "./gauge";
import { settingsOpen } from "./panels";
import { runs, say, stop } from "./run";
import { settings } from "./settings";
import { sizeOf } from "./turns";

/** A longer text that is pasted becomes a file, because editors of this size are slow. */
const MAX_PASTED = 20_000;
const MAX_ATTACHMENTS = 20;

function send(): void {
  const { text, attachments } = draft.value;
  const { id } = conversation.value;
  if ((!text.trim() && attachments.length === 0) || runs.value.has(id)) return;
  const parent = pathOf(conversation.value).at(-1)?.id ?? null;
  say(id, [{ role: "user", content: text.trim(), ...(attachments.length > 0 ? { attachments } : {}) }], parent);
  clearDraft();
}

export function Composer() {
  const [problem, setProblem] = useState("");
  const [over, setOver] = useState(false);
  const area = useRef<HTMLTextAreaElement>(null);
  const picker = useRef<HTMLInputElement>(null);
  const { text, attachments } = draft.value;
  const { id } = conversation.value;
  const running = runs.value.has(id);
  // Where there is only a touch screen, the focus would open its keyboard.
  useEffect(() => {
    if (matchMedia("(hover: hover)").matches) area.current?.focus();
  }, [id]);
  useGrowth(area, text);

  const attach = async (files: Iterable<File>) => {
    setProblem("");
    for (const file of files) {
      try {
        if (draft.value.attachments.length >= MAX_ATTACHMENTS)
          throw new Error(`A turn has at most ${MAX_ATTACHMENTS} files.`);
        const read = await readAttachment(file);
        draft.value = { ...draft.value, attachments: [...draft.value.attachments, read] };
      } catch (error) {
        setProblem(error instanceof Error ? error.message : "The file cannot be read.");
      }
    }
  };

  const onPaste = (event: ClipboardEvent) => {
    const files = [...(event.clipboardData?.files ?? [])];
    const pasted = event.clipboardData?.getData("text/plain") ?? "";
    if (files.length > 0 && !pasted) {
      event.preventDefault();
      void attach(files);
    } else if (pasted.length > MAX_PASTED) {
      event.preventDefault();
      if (pasted.length > MAX_ATTACHMENT_BYTES)
        return setProblem("The pasted text is too large. Attach it as a file in parts.");
      const name = `pasted-${attachments.length + 1}.txt`;
      draft.value = { ...draft.value, attachments: [...draft.value.attachments, { name, text: pasted }] };
    }
  };

  return (
    <div class="composer-frame">
      <Banner />
      <form
        class={`composer ${over ? "over" : ""}`}
        aria-label="Write"
        onSubmit={(event) => {
          event.preventDefault();
          send();
        }}
        onDragOver={(event) => {
          event.preventDefault();
          setOver(true);
        }}
        onDragLeave={() => setOver(false)}
        onDrop={(event) => {
          event.preventDefault();
          setOver(false);
          void attach(event.dataTransfer?.files ?? []);
        }}
      >
        {attachments.length > 0 && (
          <ul class="attachments" aria-label="Files to send">
            {attachments.map((file, index) => (
              <li key={index} class="chip">
                <Icon name="file" size={15} />
                {file.name}
                <small>{sizeOf(file.text)}</small>
                <IconButton
                  icon="close"
                  size={14}
                  label={`Remove ${file.name}`}
                  onClick={() => {
                    draft.value = { ...draft.value, attachments: attachments.filter((_, at) => at !== index) };
                  }}
                />
              </li>
            ))}
          </ul>
        )}
        <textarea
          ref={area}
          id="composer"
          rows={1}
          aria-label="Message"
          placeholder="Write a message"
          value={text}
          onInput={(event) => (draft.value = { ...draft.value, text: event.currentTarget.value })}
          onPaste={onPaste}
          onKeyDown={(event) => {
            if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
              event.preventDefault();
              send();
            }
          }}
        />
        <div class="composer-row">
          <IconButton icon="clip" label="Attach text files" onClick={() => picker.current?.click()} />
          <input
            ref={picker}
            class="unseen"
            type="file"
            multiple
            tabIndex={-1}
            aria-label="Text files"
            onChange={(event) => {
              void attach([...(event.currentTarget.files ?? [])]);
              event.currentTarget.value = "";
            }}
          />
          <Asks />
          <span class="space" />
          <ContextGauge />
          {running ? (
            <button type="button" class="send" aria-label="Stop" title="Stop (Esc)" onClick={() => stop(id)}>
              <Icon name="stop" />
            </button>
          ) : (
            <button
              type="submit"
              class="send"
              aria-label="Send"
              title="Send (Enter)"
              disabled={!text.trim() && attachments.length === 0}
            >
              <Icon name="send" />
            </button>
          )}
        </div>
      </form>
      {problem && (
        <p class="composer-problem" role="alert">
          {problem}
        </p>
      )}
    </div>
  );
}

/** Makes the text field as high as its text, up to a limit in the style sheet. */
function useGrowth(area: { readonly current: HTMLTextAreaElement | null }, text: string): void {
  useEffect(() => {
    const element = area.current;
    if (!element || CSS.supports("field-sizing", "content")) return;
    element.style.height = "auto";
    element.style.height = `${element.scrollHeight}px`;
  }, [text]);
}

/** What the settings ask for that changes the answers visibly. */
function Asks() {
  const { answers, format, useTools, probabilities } = settings.value;
  const shown = [
    answers > 1 ? `${answers} answers` : "",
    { text: "", json: "JSON", schema: "JSON schema", regex: "Pattern" }[format.kind],
    useTools ? "Tools" : "",
    probabilities ? "Probabilities" : "",
  ].filter(Boolean);
  if (shown.length === 0) return null;
  return (
    <button type="button" class="asks" title="Change it in the settings" onClick={() => (settingsOpen.value = true)}>
      {shown.join(" · ")}
    </button>
  );
}

function Banner() {
  const state = connection.value;
  if (state === "up" || state === "unknown") return <div role="status" />;
  return (
    <div class="banner" role="status">
      <span class="busy" aria-hidden="true" />
      {state === "gone"
        ? "The server cannot be reached. The page tries again by itself."
        : "The server is loading the model."}
      {state === "gone" && (
        <button type="button" class="text-button" onClick={() => void refresh()}>
          Try now
        </button>
      )}
    </div>
  );
}
