import { keyRefused } from "../api/client";
import { Button } from "../ui/button";
import { KeyDialog } from "./chat/dialogs";
import { sentence } from "./failure";
import { isRefusal } from "./polling";

/** Asks for the API key after the server has refused the last one, or none. */
export function KeyQuestion() {
  return keyRefused.value ? <KeyDialog /> : null;
}

/** What went wrong with an answer that the page asks for again by itself. */
export function Problem({ error }: { error: unknown }) {
  const text = sentence(error, true);
  if (text === undefined) return null;
  return (
    <div class="problem" role="alert">
      {text}
      {isRefusal(error) && <Button onClick={() => (keyRefused.value = true)}>Enter a key</Button>}
    </div>
  );
}
