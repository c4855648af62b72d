import { effect, signal } from "@preact/signals";

export type Theme = "system" | "light" | "dark";

const KEY = "trunkline.theme";
const stored = localStorage.getItem(KEY);

/** The chosen theme. `public/assets/theme.js` applies it before the first paint. */
export const theme = signal<Theme>(stored === "light" || stored === "dark" ? stored : "system");

effect(() => {
  const { dataset } = document.documentElement;
  if (theme.value === "system") {
    delete dataset.theme;
    localStorage.removeItem(KEY);
  } else {
    dataset.theme = theme.value;
    localStorage.setItem(KEY, theme.value);
  }
});
