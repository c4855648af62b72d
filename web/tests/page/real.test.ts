// @vitest-environment node
import type { Browser } from "playwright-core";
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, it } from "vitest";

import { answered, CHROMIUM, close, lastAnswer, launch, open, send, type Tab } from "./browser";
import { IS_BUILT, RealServer } from "./server";

const KEY = "sk-of-the-page-tests";

describe.skipIf(!CHROMIUM || !IS_BUILT)("the chat with a server", () => {
  let browser: Browser;
  let tab: Tab;
  const server = new RealServer(KEY);

  beforeAll(async () => {
    [browser] = await Promise.all([launch(), server.start()]);
  }, 90_000);
  afterAll(async () => {
    await browser?.close();
    await server.stop();
  });
  beforeEach(async () => {
    tab = await open(browser, server.address);
    const dialog = tab.page.getByRole("dialog", { name: "API key" });
    await dialog.getByLabel("Key", { exact: true }).fill(KEY);
    await tab.page.keyboard.press("Enter");
    await tab.page.locator(".model-choice option", { hasText: "shallow" }).waitFor({ state: "attached" });
  });
  afterEach(() => close(tab));

  async function limit(tokens: number): Promise<void> {
    const { page } = tab;
    await page.keyboard.press("Control+.");
    await page.getByText("Length", { exact: true }).click();
    await page.getByLabel("Max completion tokens", { exact: true }).fill(String(tokens));
    await page.getByRole("button", { name: "Close the settings" }).click();
  }

  it("gives the same answer again with the same seed, and reads the history from the cache", async () => {
    const { page } = tab;
    await limit(24);
    await send(page, `Tell me about the sea. ${"It is wide and deep. ".repeat(20)}`);
    const first = await answered(page);
    expect(first.length).toBeGreaterThan(0);
    await lastAnswer(page).getByRole("button", { name: /Same answer again/ }).click();
    await page.getByText("The same text as before, to the letter.").waitFor();
    await send(page, "Go on");
    await answered(page);
    const cached = await lastAnswer(page).locator(".cached").innerText();
    expect(Number.parseInt(cached, 10)).toBeGreaterThan(40);
  });

  it("ends the request in the server when the user stops", async () => {
    const { page } = tab;
    await page.keyboard.press("Control+.");
    await page.getByText("Length", { exact: true }).click();
    await page.getByLabel("Ignore eos").selectOption("yes");
    await page.getByRole("button", { name: "Close the settings" }).click();
    await send(page, "Count to a thousand");
    await expect.poll(() => lastAnswer(page).locator(".markdown").innerText()).not.toBe("");
    expect(await server.metric("trunkline_running_sequences")).toBe(1);
    await page.keyboard.press("Escape");
    await page.getByText("You stopped the answer.").waitFor();
    await expect.poll(() => server.metric("trunkline_running_sequences")).toBe(0);
  });

  it("follows an answer again after a reload, which the server went on with meanwhile", async () => {
    const { page } = tab;
    await page.keyboard.press("Control+.");
    await page.getByText("Length", { exact: true }).click();
    await page.getByLabel("Max completion tokens", { exact: true }).fill("300");
    await page.getByLabel("Ignore eos").selectOption("yes");
    await page.getByRole("button", { name: "Close the settings" }).click();
    await send(page, "Tell me a long story");
    const markdown = lastAnswer(page).locator(".markdown");
    await expect.poll(() => markdown.innerText()).not.toBe("");
    const begun = await server.metric("trunkline_prompt_tokens_total");
    await page.reload();
    await answered(page);
    expect(await server.metric("trunkline_prompt_tokens_total")).toBe(begun);
    expect(await page.getByText("The answer was cut").count()).toBe(0);
    await lastAnswer(page).getByRole("button", { name: /Same answer again/ }).click();
    await page.getByText("The same text as before, to the letter.").waitFor();
    await expect.poll(() => server.metric("trunkline_running_sequences")).toBe(0);
  }, 60_000);

  it("shows the same text although the shard is killed while it writes", async () => {
    const { page } = tab;
    await limit(150);
    await page.keyboard.press("Control+.");
    await page.getByLabel("Ignore eos").selectOption("yes");
    await page.getByRole("button", { name: "Close the settings" }).click();
    await send(page, "Write a long story");
    await expect.poll(() => lastAnswer(page).locator(".markdown").innerText()).not.toBe("");
    const { shardOf } = await import("./shard");
    process.kill(shardOf(server.port), "SIGKILL");
    await answered(page);
    expect(await lastAnswer(page).locator(".stats").innerText()).toContain("150 tokens");
    await lastAnswer(page).getByRole("button", { name: /Same answer again/ }).click();
    await page.getByText("The same text as before, to the letter.").waitFor();
  });

  it("writes several answers under a schema", async () => {
    const { page } = tab;
    await limit(40);
    await page.keyboard.press("Control+.");
    await page.getByLabel("Answers side by side").fill("2");
    await page.getByText("Format", { exact: true }).click();
    await page.getByLabel("Regular expression").first().check();
    const pattern = page.getByRole("textbox", { name: "Regular expression" });
    // The browser knows look-aheads, and the server does not.
    await pattern.fill("(?=a)b");
    await expect.poll(() => page.locator(".choices [role=status]").innerText()).toContain("guided_regex");
    await pattern.fill("(yes|no)");
    await page.getByText("Valid.").waitFor();
    await page.getByRole("button", { name: "Close the settings" }).click();
    await send(page, "Is water wet?");
    await expect.poll(() => page.locator(".side-by-side .turn[aria-busy=false]").count()).toBe(2);
    for (const text of await page.locator(".side-by-side .markdown").allInnerTexts()) expect(text).toMatch(/^(yes|no)$/);
  });
});
