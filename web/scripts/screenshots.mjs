// Makes the pictures of the README: `TRUNKLINE_URL=http://127.0.0.1:3000 node scripts/screenshots.mjs`.
// The server has just been started, with the embedded model.
import { fileURLToPath } from "node:url";
import { chromium } from "playwright-core";

const address = process.env.TRUNKLINE_URL ?? "http://127.0.0.1:3000";
const docs = (name) => fileURLToPath(new URL(`../../docs/${name}`, import.meta.url));
const browser = await chromium.launch({
  executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium",
  args: ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"],
});
const context = await browser.newContext({ viewport: { width: 1180, height: 720 }, colorScheme: "dark" });
const page = await context.newPage();
await page.goto(address);
// The embedded model likes to talk.
await page.keyboard.press("Control+.");
await page.getByText("Length", { exact: true }).click();
await page.getByLabel("Max completion tokens", { exact: true }).fill("140");
await page.getByRole("button", { name: "Close the settings" }).click();

async function say(text) {
  await page.getByLabel("Message", { exact: true }).fill(text);
  await page.keyboard.press("Enter");
  await page.locator(".turn.assistant[aria-busy=true]").waitFor({ timeout: 10_000 }).catch(() => undefined);
  await page.locator(".turn.assistant").last().and(page.locator("[aria-busy=false]")).waitFor({ timeout: 120_000 });
}

const conversations = [
  ["Why is the sky blue?", "And why is it red in the evening?"],
  ["Why is the sky blue?", "Explain it to a child."],
  ["Name three rivers in Europe.", "Which of them is the longest?", "Is it older than the Alps?"],
  ["Write a Python function that adds two numbers.", "Explain it in one sentence."],
];
for (const turns of conversations) {
  await page.getByRole("button", { name: "New chat" }).first().click();
  for (const text of turns) await say(text);
}
await page.screenshot({ path: docs("page-chat.png") });
await page.emulateMedia({ colorScheme: "light" });
await page.goto(`${address}/#/cache`);
await page.locator("canvas").first().waitFor();
// The blocks of the last answer enter the tree a moment after its end, and colours fade.
await page.waitForTimeout(1_500);
await page.screenshot({ path: docs("page-cache.png"), clip: { x: 0, y: 0, width: 1180, height: 400 } });
await browser.close();
