// @vitest-environment node
import type { Browser, Page } from "playwright-core";
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, it } from "vitest";

import { answered, CHROMIUM, close, lastAnswer, launch, open, send, stored, type Tab } from "./browser";
import { IS_BUILT, RealServer } from "./server";

const KEY = "sk-of-the-page-tests";

describe.skipIf(!CHROMIUM || !IS_BUILT)("the history that the server keeps", () => {
  let browser: Browser;
  let tabs: Tab[] = [];
  const server = new RealServer(KEY, true);

  beforeAll(async () => {
    [browser] = await Promise.all([launch(), server.start()]);
  }, 90_000);
  afterAll(async () => {
    await browser?.close();
    await server.stop();
  });
  beforeEach(() => {
    tabs = [];
  });
  afterEach(async () => {
    for (const tab of tabs) await close(tab);
  });

  /** Opens the page as on another device, and enters the key. */
  async function device(): Promise<Page> {
    const tab = await open(browser, server.address);
    tabs.push(tab);
    await enterKey(tab.page);
    return tab.page;
  }

  async function enterKey(page: Page): Promise<void> {
    await page.getByRole("dialog", { name: "API key" }).getByLabel("Key", { exact: true }).fill(KEY);
    await page.keyboard.press("Enter");
    await page.locator(".model-choice option", { hasText: "shallow" }).waitFor({ state: "attached" });
  }

  /** Sets how many tokens the next answers have. */
  async function setLength(page: Page, tokens: number): Promise<void> {
    await page.keyboard.press("Control+.");
    await page.getByText("Length", { exact: true }).click();
    await page.getByLabel("Max completion tokens", { exact: true }).fill(String(tokens));
    await page.getByLabel("Ignore eos").selectOption("yes");
    await page.getByRole("button", { name: "Close the settings" }).click();
  }

  function listed(page: Page, title: string) {
    return page.getByRole("link", { name: title });
  }

  it("is there on another device, which may rename and delete it", async () => {
    const first = await device();
    await setLength(first, 20);
    await send(first, "What is a lighthouse");
    const text = await answered(first);
    const second = await device();
    await listed(second, "What is a lighthouse").click();
    await expect.poll(() => answered(second)).toBe(text);
    // The browser itself keeps nothing.
    expect(await stored(second)).toBe("[]");
    await second.getByRole("button", { name: "Rename “What is a lighthouse”" }).click();
    await second.getByLabel("Title").fill("Lighthouses");
    await second.keyboard.press("Enter");
    await listed(second, "Lighthouses").waitFor();
    await first.evaluate(() => document.dispatchEvent(new Event("visibilitychange")));
    await listed(first, "Lighthouses").waitFor();
    await first.getByLabel("Search conversations").fill("LIGHTHOUSE what");
    await listed(first, "Lighthouses").waitFor();
    await first.getByLabel("Search conversations").fill("nothing like this");
    await first.getByText("No conversation contains these words.").waitFor();
    await second.getByRole("button", { name: "Delete “Lighthouses”" }).click();
    await second.getByRole("button", { name: "Delete", exact: true }).click();
    await expect.poll(() => listed(second, "Lighthouses").count()).toBe(0);
    const third = await device();
    await third.getByText("Conversations appear here. The server keeps them").waitFor();
  }, 60_000);

  it("goes on on another device in the middle of an answer whose tab is closed", async () => {
    const first = await device();
    await setLength(first, 250);
    await send(first, "Tell me a long story");
    await expect.poll(() => lastAnswer(first).locator(".markdown").innerText()).not.toBe("");
    await listed(first, "Tell me a long story").waitFor();
    const begun = await server.metric("trunkline_prompt_tokens_total");
    await close(tabs[0] as Tab);
    tabs = [];
    const second = await device();
    await listed(second, "Tell me a long story").click();
    await lastAnswer(second).locator(".stats", { hasText: "250 tokens" }).waitFor({ timeout: 30_000 });
    expect(await server.metric("trunkline_prompt_tokens_total")).toBe(begun);
  }, 60_000);

  it("takes over conversations that the browser kept before", async () => {
    const page = await device();
    // The page looks for them, and creates the database meanwhile.
    await expect.poll(() => page.evaluate(async () => (await indexedDB.databases()).length)).toBe(1);
    await page.evaluate(async () => {
      const opening = indexedDB.open("trunkline");
      await new Promise((resolve) => (opening.onsuccess = resolve));
      const times = { created: 1, updated: Date.now() };
      const turn = { id: "t", parent: null, role: "user", content: "From before", created: 1, state: "done" };
      const entry = { id: "old", title: "An old one", ...times };
      const saving = opening.result.transaction(["conversations", "entries"], "readwrite");
      saving.objectStore("conversations").put({ ...entry, named: true, system: "", turns: { t: turn }, chosen: {} });
      saving.objectStore("entries").put(entry);
      await new Promise((resolve) => (saving.oncomplete = resolve));
      opening.result.close();
    });
    await page.reload();
    await page.getByText("One conversation is in this browser only.").waitFor();
    await page.getByRole("button", { name: "Move it to the server" }).click();
    await listed(page, "An old one").click();
    await page.locator(".turn.user", { hasText: "From before" }).waitFor();
    expect(await page.getByText("in this browser only").count()).toBe(0);
    expect(await stored(page)).toBe("[]");
  });

  it("says when it cannot be saved, and saves it later", async () => {
    const page = await device();
    await setLength(page, 20);
    await page.route("**/v1/history/*", (route) =>
      route.fulfill({ status: 503, json: { error: { code: "history_failed", message: "the disk is full" } } }),
    );
    await send(page, "Remember me");
    await page.getByText("The history on the server does not work now: the disk is full.").waitFor();
    await page.getByRole("button", { name: "Delete “Remember me”" }).click();
    await page.getByRole("button", { name: "Delete", exact: true }).click();
    await listed(page, "Remember me").waitFor();
    await page.unroute("**/v1/history/*");
    await answered(page);
    await expect.poll(() => page.getByText("The history on the server does not work").count(), { timeout: 10_000 }).toBe(0);
    const other = await device();
    await listed(other, "Remember me").waitFor();
  }, 30_000);
});
