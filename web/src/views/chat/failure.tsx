import type { Failure } from "../../history/tree";
import { Button } from "../../ui/button";
import { Icon } from "../../ui/icon";
import { explain } from "./errors";
import { openDialog, settingsOpen } from "./panels";

type Props = { failure: Failure; onRetry: () => void; onContinue: (() => void) | undefined };

/** What went wrong with an answer, what to do, and the button that does it. */
export function FailureCard({ failure, onRetry, onContinue }: Props) {
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
