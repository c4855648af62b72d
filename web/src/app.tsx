import type { ComponentType } from "preact";
import { useEffect, useState } from "preact/hooks";

import { connection, refresh, untilUp } from "./api/server";
import { route, VIEWS, type View } from "./route";
import { theme, type Theme } from "./theme";
import { IconButton } from "./ui/button";
import { Icon, type IconName } from "./ui/icon";
import { ChatView } from "./views/chat";
import { conversation } from "./views/chat/conversations";

const LABELS: Record<View, { label: string; icon: IconName }> = {
  chat: { label: "Chat", icon: "chat" },
  server: { label: "Server", icon: "server" },
  cache: { label: "Cache", icon: "tree" },
};

const NEXT_THEME: Record<Theme, { next: Theme; icon: IconName }> = {
  system: { next: "light", icon: "system" },
  light: { next: "dark", icon: "sun" },
  dark: { next: "system", icon: "moon" },
};

/** Views that are fetched when they are first opened, each as a file of its own. */
const LAZY: Record<Exclude<View, "chat">, () => Promise<ComponentType>> = {
  server: () => import("./views/server").then((module) => module.ServerView),
  cache: () => import("./views/cache").then((module) => module.CacheView),
};

/** Returns the address of a view. That of the chat leads back to the conversation that was shown. */
function addressOf(view: View): string {
  const { id, turns } = conversation.value;
  return view === "chat" && Object.keys(turns).length > 0 ? `#/chat/${id}` : `#/${view}`;
}

export function App() {
  const { view } = route.value;
  const { next, icon } = NEXT_THEME[theme.value];
  return (
    <div class="app">
      <nav class="rail" aria-label="Views">
        <a class="brand" href="#/chat" aria-label="Trunkline">
          <img src="./favicon.svg" alt="" width="28" height="28" />
        </a>
        {VIEWS.map((each) => (
          <a key={each} class="rail-link" href={addressOf(each)} aria-current={each === view ? "page" : undefined}>
            <Icon name={LABELS[each].icon} size={20} />
            <span>{LABELS[each].label}</span>
          </a>
        ))}
        <span class="rail-space" />
        <IconButton
          icon={icon}
          label={`Theme: ${theme.value}. Switch to ${next}`}
          onClick={() => (theme.value = next)}
        />
      </nav>
      <div class="view">{view === "chat" ? <ChatView /> : <LazyView key={view} view={view} />}</div>
    </div>
  );
}

/** A file of a view could not be fetched. Browsers and Vite remember that, so only a reload fetches it again. */
let isBroken = false;

function LazyView({ view }: { view: Exclude<View, "chat"> }) {
  const [Component, setComponent] = useState<ComponentType>();
  const [failed, setFailed] = useState(isBroken);
  useEffect(() => {
    const leaving = new AbortController();
    const reloadOnceUp = async () => {
      if (await untilUp(leaving.signal)) location.reload();
    };
    if (isBroken) void reloadOnceUp();
    else
      LAZY[view]().then(
        (loaded) => setComponent(() => loaded),
        async () => {
          isBroken = true;
          setFailed(true);
          await refresh();
          // A server that answers lacks the file, so a reload would fail, too.
          if (connection.value !== "up") await reloadOnceUp();
        },
      );
    return () => leaving.abort();
  }, [view]);
  if (failed) return <p class="note">This view could not be fetched. It appears once the server is back.</p>;
  return Component ? <Component /> : <p class="note">Loading…</p>;
}
