import { existsSync } from "node:fs";
import {
  type Browser,
  type BrowserContext,
  type BrowserContextOptions,
  chromium,
  type Locator,
  type Page,
} from "playwright-core";
import { expect } from "vitest";

const CANDIDATES = [
  process.env.CHROMIUM ?? "",
  "/usr/bin/chromium",
  "/usr/bin/chromium-browser",
  "/usr/bin/google-chrome",
];
export const CHROMIUM = CANDIDATES.find((path) => path !== "" && existsSync(path));

if (!CHROMIUM) console.log("skipped: the tests of the page in a browser; hint: install Chromium, or set CHROMIUM=PATH");

export async function launch(): Promise<Browser> {
  const args = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"];
  return chromium.launch({ executablePath: CHROMIUM ?? "", args });
}

/** Without motion, because endless animations take time of the processors. */
const DEFAULTS: BrowserContextOptions = { viewport: { width: 1280, height: 800 }, reducedMotion: "reduce" };

/** A tab, and everything in it that must not happen. */
export type Tab = { page: Page; context: BrowserContext; faults: string[] };

/** Opens the page in a browser profile of its own, or in that of `beside`. */
export async function open(
  browser: Browser,
  address: string,
  options: BrowserContextOptions = {},
  beside?: Tab,
): Promise<Tab> {
  const context = beside?.context ?? (await browser.newContext({ ...DEFAULTS, ...options }));
  context.setDefaultTimeout(10_000);
  const page = await context.newPage();
  const faults: string[] = [];
  const { origin } = new URL(address);
  page.on("pageerror", (error) => faults.push(`error: ${error.message}`));
  page.on("console", (message) => {
    if (/Content Security Policy|Refused to/.test(message.text())) faults.push(message.text());
  });
  page.on("request", (request) => {
    if (!request.url().startsWith(origin) && !/^(blob|data):/.test(request.url()))
      faults.push(`asked for ${request.url()}`);
  });
  await page.goto(address);
  await page.getByLabel("Message", { exact: true }).waitFor();
  return { page, context, faults };
}

/** Ends a tab and fails if anything happened that must not. */
export async function close(tab: Tab): Promise<void> {
  await tab.context.close();
  expect(tab.faults).toEqual([]);
}

export async function send(page: Page, text: string): Promise<void> {
  await page.getByLabel("Message", { exact: true }).fill(text);
  await page.keyboard.press("Enter");
}

export function lastAnswer(page: Page): Locator {
  return page.locator(".turn.assistant").last();
}

/** Waits until the last answer has ended, and returns its text. */
export async function answered(page: Page): Promise<string> {
  await page.locator(".turn.assistant").last().and(page.locator("[aria-busy=false]")).waitFor();
  return lastAnswer(page).locator("> .markdown").innerText();
}

/** Returns all conversations that the browser stores, as JSON. */
export function stored(page: Page): Promise<string> {
  return page.evaluate(async () => {
    const opening = indexedDB.open("trunkline");
    await new Promise((resolve) => (opening.onsuccess = resolve));
    const all = opening.result.transaction("conversations").objectStore("conversations").getAll();
    await new Promise((resolve) => (all.onsuccess = resolve));
    opening.result.close();
    return JSON.stringify(all.result);
  });
}

/** A promise and the function that resolves it. */
export function gate(): { wait: Promise<void>; open: () => void } {
  let open = () => {};
  const wait = new Promise<void>((resolve) => {
    open = resolve;
  });
  return { wait, open };
}

/** Fails if the page can be scrolled sideways. */
export async function expectNoSidewaysScroll(page: Page, state: string): Promise<void> {
  const [content, width] = await page.evaluate(() => {
    const boxes = [
      document.documentElement,
      document.querySelector(".messages"),
      document.querySelector(".settings-body"),
    ];
    const wide = boxes.filter((box): box is Element => box !== null && box.scrollWidth > box.clientWidth + 1);
    return [wide.map((box) => `${box.className}: ${box.scrollWidth}`).join(", "), innerWidth];
  });
  expect(content, `${state} at ${width} pixels`).toBe("");
}
