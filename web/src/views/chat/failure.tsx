import type { Failure } from "../../history/tree";
import { Button } from "../../ui/button";
import { Icon } from "../../ui/icon";
import { explain } from "./errors";
import { newChat, openDialog, settingsOpen } from "./panels";

type Props = {
  failure: Failure;
  onRetry: () => void;
  onContinue: (() => void) | undefined;
  onShorten: (() => void) | undefined;
  /** True if turns before the message make the conversation longer. */
  long: boolean;
};

/** What went wrong with an answer, what to do, and the button that does it. */
export function FailureCard({ failure, onRetry, onContinue, onShorten, long }: Props) {
  const { what, todo, action, detail } = explain(failure);
  return (
    <div class="failure" role="alert">
      <Icon name="warning" size={18} />
      <div>
        <p>
          <strong>{what}</strong> {todo}
        </p>
        {detail && <p class="failure-detail">{detail}</p>}
        <div class="failure-actions">
          {action === "key" && (
            <Button kind="main" onClick={() => openDialog("key")}>
              Enter a key
            </Button>
          )}
          {action === "settings" && (
            <Button kind="main" onClick={() => (settingsOpen.value = true)}>
              Open the settings
            </Button>
          )}
          {action === "shorten" && long && (
            <Button kind="main" onClick={newChat}>
              New chat
            </Button>
          )}
          {action === "shorten" && onShorten && (
            <Button kind={long ? "plain" : "main"} onClick={onShorten}>
              Shorten the message
            </Button>
          )}
          {onContinue && action !== "none" && (
            <Button kind={action === "continue" ? "main" : "plain"} onClick={onContinue}>
              Go on
            </Button>
          )}
          {action !== "none" && <Button onClick={onRetry}>Try again</Button>}
        </div>
      </div>
    </div>
  );
}
