// Runs before the first paint, so that a chosen theme does not flash. `src/theme.ts` writes the choice.
try {
  const theme = localStorage.getItem("trunkline.theme");
  if (theme === "dark" || theme === "light") document.documentElement.dataset.theme = theme;
} catch {
  // This browser keeps nothing, so there is no choice.
}
