import { signal } from "@preact/signals";

export const VIEWS = ["chat", "server", "cache"] as const;
export type View = (typeof VIEWS)[number];

function current(): { view: View; rest: string } {
  const [name, ...rest] = location.hash.replace(/^#\/?/, "").split("/");
  const view = VIEWS.find((each) => each === name) ?? "chat";
  return { view, rest: rest.join("/") };
}

/** The view that the address names, and what follows in it: `#/chat/ID` is `{ view: "chat", rest: "ID" }`. */
export const route = signal(current());

addEventListener("hashchange", () => {
  route.value = current();
});

export function go(view: View, rest = ""): void {
  const hash = `#/${view}${rest ? `/${rest}` : ""}`;
  if (location.hash !== hash) location.hash = hash;
}

/** Changes the address without an entry in the browser's history. */
export function replaceRoute(view: View, rest = ""): void {
  history.replaceState(null, "", `#/${view}${rest ? `/${rest}` : ""}`);
  route.value = current();
}
