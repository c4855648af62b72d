import { useRef, useState } from "preact/hooks";

import { apiKey, keyRefused, setApiKey } from "../../api/client";
import { CodeBlock } from "../../markdown/code";
import { pathOf, pathTo } from "../../history/tree";
import { Button } from "../../ui/button";
import { Dialog } from "../../ui/dialog";
import { conversation } from "./conversations";
import { draft } from "./draft";
import { chosenModel } from "./model";
import { closeDialog } from "./panels";
import { askedBy, bodyOf, messagesOf, withAttachments } from "./request";
import { retryWithKey } from "./run";
import { settings } from "./settings";
import { type Language, LANGUAGES, snippet } from "./snippets";

export function KeyDialog() {
  const input = useRef<HTMLInputElement>(null);
  const refused = keyRefused.value;
  const close = () => {
    keyRefused.value = false;
    closeDialog();
  };
  const use = (event?: Event) => {
    event?.preventDefault();
    setApiKey(input.current?.value.trim() ?? "");
    close();
    retryWithKey();
  };
  return (
    <Dialog
      title="API key"
      onClose={close}
      actions={
        <>
          {apiKey.value && (
            <Button
              onClick={() => {
                setApiKey("");
                close();
              }}
            >
              Forget the key
            </Button>
          )}
          <Button kind="main" onClick={use}>
            Use the key
          </Button>
        </>
      }
    >
      <p>
        {refused && apiKey.value !== "" ? (
          <>
            <strong>The server does not accept this key.</strong> Check it, and enter it again.
          </>
        ) : refused ? (
          "This server asks for an API key."
        ) : (
          "The page sends this key with its requests."
        )}{" "}
        It stays in this tab and is forgotten when you close it.
      </p>
      <form onSubmit={use}>
        <label class="stacked">
          Key
          <input
            ref={input}
            type="password"
            autocomplete="off"
            spellcheck={false}
            autofocus
            defaultValue={apiKey.value}
          />
        </label>
      </form>
    </Dialog>
  );
}

const SHORTCUTS: [keys: string[], does: string][] = [
  [["Enter"], "Send the message"],
  [["Shift", "Enter"], "Begin a new line"],
  [["Esc"], "Stop the answer, or close what is open"],
  [["Ctrl", "K"], "Search the conversations"],
  [["/"], "Search the conversations, too"],
  [["Ctrl", "Shift", "O"], "Begin a new chat"],
  [["Ctrl", "."], "Show or hide the settings"],
  [["?"], "Show this list"],
];

export function ShortcutsDialog() {
  return (
    <Dialog title="Keyboard shortcuts" onClose={closeDialog}>
      <dl class="shortcuts">
        {SHORTCUTS.map(([keys, does]) => (
          <div key={does}>
            <dt>
              {keys.map((key) => (
                <kbd key={key}>{key}</kbd>
              ))}
            </dt>
            <dd>{does}</dd>
          </div>
        ))}
      </dl>
    </Dialog>
  );
}

/** The request that the shown conversation makes next, or that made its last answer, as a program. */
export function CodeDialog() {
  const [language, setLanguage] = useState<Language>("curl");
  const shown = conversation.value;
  const path = pathOf(shown);
  const last = path.at(-1);
  const asked = askedBy(settings.value, chosenModel.value?.id ?? "");
  const written = last?.role === "assistant" ? pathTo(shown, last.parent) : path;
  const messages = messagesOf(shown.system, draft.value.text.trim() || !last ? path : written);
  const content = withAttachments(draft.value.text.trim() || (last ? "" : "Hello"), draft.value.attachments);
  if (content) messages.push({ role: "user", content });
  const seed = last?.role === "assistant" && !draft.value.text.trim() ? (last.seed ?? asked.seed) : asked.seed;
  const base = location.href.replace(/[#?].*$/, "").replace(/\/(index\.html)?$/, "");
  const text = snippet(language, base, bodyOf({ ...asked, seed }, messages), apiKey.value !== "");
  return (
    <Dialog title="This request as a program" onClose={closeDialog} wide>
      <div class="tabs" role="tablist" aria-label="Language">
        {LANGUAGES.map((each) => (
          <button
            key={each}
            type="button"
            role="tab"
            aria-selected={each === language}
            onClick={() => setLanguage(each)}
          >
            {each}
          </button>
        ))}
      </div>
      <div role="tabpanel" aria-label={language}>
        <CodeBlock code={text} language={{ curl: "bash", Python: "python", JavaScript: "javascript" }[language]} />
      </div>
    </Dialog>
  );
}
