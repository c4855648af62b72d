import { effect, signal } from "@preact/signals";

import { keep, recall } from "./storage";

export type Theme = "system" | "light" | "dark";

const KEY = "trunkline.theme";
const stored = recall("browser", KEY);

/** The chosen theme. `public/assets/theme.js` applies it before the first paint. */
export const theme = signal<Theme>(stored === "light" || stored === "dark" ? stored : "system");

effect(() => {
  const { dataset } = document.documentElement;
  if (theme.value === "system") {
    delete dataset.theme;
    keep("browser", KEY, undefined);
  } else {
    dataset.theme = theme.value;
    keep("browser", KEY, theme.value);
  }
});
