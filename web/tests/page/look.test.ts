// @vitest-environment node
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import type { Browser, Page } from "playwright-core";
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, it } from "vitest";

import { XSS } from "../unit/xss";
import { answered, CHROMIUM, close, expectNoSidewaysScroll, launch, open, send, type Tab } from "./browser";
import { Fake, say } from "./fake";
import { Host } from "./host";

const AXE = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");
const LONG =
  "A table:\n\n| one | two | three |\n|---|---|---|\n| averyveryverylongwordthatdoesnotfit | `code` | [link](https://a.example/x) |\n\n" +
  `\`\`\`rust\nfn main() { println!("${"long ".repeat(40)}"); } // a comment\n\`\`\`\n\n- [x] done\n- ${"x".repeat(300)}\n`;
const OPENAPI = {
  components: {
    schemas: {
      ChatCompletionRequest: {
        properties: {
          temperature: { type: ["number", "null"], description: "The `temperature`.", minimum: 0, maximum: 100 },
          stop: { description: "Texts that end the output." },
          skip_special_tokens: { type: ["boolean", "null"], description: "Hides control tokens." },
        },
      },
    },
  },
};

type Axe = { run(context: Document, options: object): Promise<{ violations: Violation[]; passes: unknown[] }> };
type Violation = { id: string; nodes: { html: string; any: { message: string }[] }[] };

/** Returns what axe objects to, with the places. The order of headings in a model's text is the model's. */
async function objections(page: Page): Promise<string[]> {
  await page.evaluate(AXE);
  const { violations, passes } = await page.evaluate(async () => {
    const { axe } = window as unknown as { axe: Axe };
    return axe.run(document, { rules: { "heading-order": { enabled: false } } });
  });
  expect(passes.length).toBeGreaterThan(10);
  return violations.flatMap(({ id, nodes }) =>
    nodes.map(({ html, any }) => `${id}: ${html.slice(0, 160)} ${any[0]?.message ?? ""}`),
  );
}

describe.skipIf(!CHROMIUM)("the page", () => {
  let browser: Browser;
  let host: Host;
  let fake: Fake;
  let tab: Tab | undefined;

  beforeAll(async () => {
    browser = await launch();
  });
  afterAll(() => browser?.close());
  beforeEach(async () => {
    fake = new Fake();
    fake.openapi = OPENAPI;
    host = await new Host(fake.api).start();
  });
  afterEach(async () => {
    if (tab) await close(tab);
    tab = undefined;
    await host.stop();
  });

  it("makes nothing of HTML, images and addresses that a model writes", async () => {
    tab = await open(browser, host.address);
    const { page } = tab;
    await page.evaluate(() => {
      const made: string[] = [];
      Object.assign(window, { made });
      new MutationObserver((records) => {
        for (const { addedNodes } of records) {
          for (const node of addedNodes) {
            if (!(node instanceof Element)) continue;
            for (const each of [node, ...node.querySelectorAll("*")]) {
              const bad = each.matches(
                "script, iframe, object, embed, style, link, meta, base, form:not(.composer), video, audio, img:not([src='./favicon.svg']), math, textarea:not(#composer)",
              );
              const handler = [...each.attributes].some(
                ({ name, value }) =>
                  name.startsWith("on") || name === "style" || (/javascript:/i.test(value) && name === "href"),
              );
              if (bad || handler) made.push(each.outerHTML.slice(0, 200));
            }
          }
        }
      }).observe(document.body, { childList: true, subtree: true });
    });
    for (let at = 0; at < XSS.length; at += 16) {
      fake.script = () => say(XSS.slice(at, at + 16).join("\n\n"), 7);
      await send(page, XSS[at] ?? "");
      await answered(page);
    }
    const [pwned, made] = await page.evaluate(
      () => [(window as { pwned?: unknown }).pwned, (window as { made?: string[] }).made] as const,
    );
    expect(pwned).toBeUndefined();
    expect(made).toEqual([]);
    const addresses = await page
      .locator(".markdown a")
      .evaluateAll((links) => links.map((link) => link.getAttribute("href")));
    expect(addresses.filter((address) => !/^(https?:\/\/|mailto:)/.test(address ?? ""))).toEqual([]);
  });

  it.each(["light", "dark"] as const)("has nothing that axe objects to in the %s theme", async (colorScheme) => {
    tab = await open(browser, host.address, { colorScheme });
    const { page } = tab;
    expect(await objections(page), "empty").toEqual([]);
    fake.script = function* () {
      yield { delta: { reasoning_content: "Thinking about it." } };
      yield* say(LONG, 50);
    };
    await send(page, "Show me");
    await answered(page);
    await page.locator(".c-comment").waitFor();
    fake.script = () => ({ status: 400, error: { code: "context_length_exceeded", message: "too long" } });
    await send(page, "More");
    await page.getByRole("alert").waitFor();
    await page.keyboard.press("Control+.");
    await page.getByText("Hides control tokens.").waitFor({ state: "attached" });
    await page.evaluate(() => {
      for (const details of document.querySelectorAll("details")) details.open = true;
    });
    await page.locator(".turn.user").last().hover();
    expect(await objections(page), "conversation and settings").toEqual([]);
    await page.keyboard.press("Escape");
    await page.getByRole("button", { name: "Keyboard shortcuts" }).click();
    expect(await objections(page), "shortcuts").toEqual([]);
    await page.keyboard.press("Escape");
    await page.getByRole("button", { name: "Show as curl, Python or JavaScript" }).click();
    expect(await objections(page), "program").toEqual([]);
  });

  it("draws the frame before its script is there", async () => {
    const still = await browser.newContext({ javaScriptEnabled: false });
    const page = await still.newPage();
    await page.goto(host.address);
    await page.getByRole("link", { name: "Server" }).waitFor({ timeout: 10_000 });
    await still.close();
    tab = await open(browser, host.address);
    // What the script draws is the same, so nothing moves.
    const [drawn, early] = await tab.page.evaluate(async () => {
      const text = await (await fetch("./")).text();
      const rails = [document, new DOMParser().parseFromString(text, "text/html")].map((of) => [
        ...of.querySelectorAll(".rail"),
      ]);
      return rails.map((found) => found.map(({ outerHTML }) => outerHTML.replace(/>\s+</g, "><")).join());
    });
    expect(early).toBe(drawn);
  });

  it("has no sideways scrolling at 390 pixels", async () => {
    tab = await open(browser, host.address, { viewport: { width: 390, height: 780 }, hasTouch: true, isMobile: true });
    const { page } = tab;
    await expectNoSidewaysScroll(page, "empty");
    fake.script = () => say(LONG, 50);
    await send(page, "x".repeat(200));
    await answered(page);
    await expectNoSidewaysScroll(page, "conversation");
    await page.getByRole("button", { name: "Settings" }).click();
    await page.getByLabel("Answers side by side").fill("3");
    await expectNoSidewaysScroll(page, "settings");
    await page.getByRole("button", { name: "Close the settings" }).click();
    await send(page, "Again");
    await expect.poll(() => page.locator(".side-by-side .turn[aria-busy=false]").count()).toBe(3);
    await expectNoSidewaysScroll(page, "side by side");
    await page.getByRole("button", { name: "Show the list of conversations" }).click();
    await page.getByRole("link", { name: /xxx/ }).waitFor();
    await expectNoSidewaysScroll(page, "list");
  });

  it("can be used by keyboard alone", async () => {
    tab = await open(browser, host.address);
    const { page } = tab;
    const focused = () =>
      page.evaluate(
        () => document.activeElement?.getAttribute("aria-label") ?? document.activeElement?.textContent ?? "",
      );
    const tabTo = async (name: RegExp, key = "Tab") => {
      for (let presses = 0; presses < 60; presses++) {
        await page.keyboard.press(key);
        if (name.test(await focused())) return;
      }
      throw new Error(`no way to ${name}`);
    };
    await expect.poll(focused).toBe("Message");
    await page.keyboard.type("one");
    await page.keyboard.press("Shift+Enter");
    await page.keyboard.type("two");
    await page.keyboard.press("Enter");
    await answered(page);
    expect(fake.asked[0]?.messages).toEqual([{ role: "user", content: "one\ntwo" }]);
    await tabTo(/^Answer again$/, "Shift+Tab");
    await page.keyboard.press("Enter");
    await expect.poll(() => page.locator(".branches").innerText()).toBe("2/2");
    await answered(page);
    await tabTo(/^Edit in a new branch$/, "Shift+Tab");
    await page.keyboard.press("Enter");
    const edited = page.locator(".turn textarea");
    await expect.poll(() => edited.evaluate((field) => field === document.activeElement)).toBe(true);
    await page.keyboard.press("Escape");
    await expect.poll(() => edited.count()).toBe(0);
    await page.keyboard.press("Control+k");
    await expect.poll(() => page.evaluate(() => document.activeElement?.id)).toBe("search");
    await page.keyboard.type("two");
    await tabTo(/^one/);
    await page.keyboard.press("Enter");
    await page.keyboard.press("Control+.");
    await tabTo(/^Close the settings$/);
    await page.keyboard.press("Enter");
    await page.locator("body").press("?");
    await page.getByRole("dialog", { name: "Keyboard shortcuts" }).waitFor();
    await page.keyboard.press("Escape");
    await expect.poll(() => page.getByRole("dialog").count()).toBe(0);
  });
});
