// @vitest-environment node
// The server's and the cache's view, with a real server that serves the page itself.
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import type { Browser, BrowserContextOptions, Page } from "playwright-core";
import { afterAll, beforeAll, describe, expect, it } from "vitest";

import type { KvNode } from "../../src/views/cache/icicle";
import { CHROMIUM, launch } from "./browser";
import { IS_BUILT, RealServer } from "./server";

const SERVER = new RealServer();
const AXE = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");
/** A prompt of several blocks. */
const LONG = "The sea is wide, and the ship is small. ".repeat(30);
const PICTURE = { name: "Tree of cached prefixes" };

const user = (content: string) => ({ role: "user", content });
const sum = (nodes: KvNode[], of: (node: KvNode) => number): number =>
  nodes.reduce((total, node) => total + of(node), 0);

async function chat(content: string, more: object = {}, signal?: AbortSignal): Promise<Response> {
  const body = JSON.stringify({ messages: [user(content)], temperature: 0, max_tokens: 8, ignore_eos: true, ...more });
  const headers = { "content-type": "application/json" };
  const response = await fetch(`${SERVER.address}/v1/chat/completions`, {
    method: "POST",
    headers,
    body,
    ...(signal && { signal }),
  });
  expect(response.status).toBe(200);
  return response;
}

async function get<T>(path: string): Promise<T> {
  return (await (await fetch(`${SERVER.address}${path}`)).json()) as T;
}

const tree = async (): Promise<KvNode[]> => (await get<{ data: KvNode[] }>("/v1/kv/tree?limit=1000")).data;

/** Waits until an element has a text. */
async function shows(page: Page, selector: string, text: RegExp | string): Promise<void> {
  const pattern = typeof text === "string" ? `^${text.replace(/[.*+?^${}()|[\]\\]/g, "\\$&")}$` : text.source;
  await page.waitForFunction(
    ([where, what]) => new RegExp(what as string).test(document.querySelector(where as string)?.textContent ?? ""),
    [selector, pattern],
  );
}

const tile = (name: string): string => `[data-tile=${name}] .value`;

async function violations(page: Page): Promise<string[]> {
  // Evaluated, because the page's policy lets no script in.
  await page.evaluate(AXE);
  type Found = { violations: { id: string; nodes: { html: string }[] }[] };
  const found = await page.evaluate(() => (window as unknown as { axe: { run(): Promise<Found> } }).axe.run());
  return found.violations.flatMap(({ id, nodes }) => nodes.map(({ html }) => `${id}: ${html.slice(0, 160)}`));
}

describe.skipIf(!CHROMIUM || !IS_BUILT)("the views", { timeout: 90_000 }, () => {
  let browser: Browser;

  beforeAll(async () => {
    [browser] = await Promise.all([launch(), SERVER.start()]);
  });
  afterAll(async () => {
    await browser?.close();
    await SERVER.stop();
  });

  /** Opens a view, and fails at the end if the page logged an error, such as a breach of its policy. */
  async function withView(
    view: string,
    use: (page: Page) => Promise<void>,
    options: BrowserContextOptions = {},
    expected = /ERR_INTERNET_DISCONNECTED/,
  ) {
    const context = await browser.newContext({
      viewport: { width: 1280, height: 900 },
      reducedMotion: "reduce",
      ...options,
    });
    context.setDefaultTimeout(20_000);
    const page = await context.newPage();
    await page.clock.install();
    const faults: string[] = [];
    page.on("pageerror", (error) => faults.push(error.message));
    page.on("console", (message) => {
      if (message.type() === "error" && !expected.test(message.text())) faults.push(message.text());
    });
    page.on("request", (request) => {
      if (!request.url().startsWith(`${SERVER.address}/`)) faults.push(request.url());
    });
    try {
      await page.goto(`${SERVER.address}/#/${view}`);
      await use(page);
      expect(faults).toEqual([]);
    } finally {
      await context.close();
    }
  }

  const ready = (page: Page) => page.getByText("Ready", { exact: true }).waitFor();

  it("show a request while it streams, and its speed", async () => {
    await withView("server", async (page) => {
      await ready(page);
      await shows(page, tile("requests"), "0 running");
      const aborter = new AbortController();
      const stream = await chat("Tell a story.", { stream: true, max_tokens: 4000 }, aborter.signal);
      await shows(page, tile("requests"), "1 running");
      await shows(page, tile("rate"), /^[1-9][\d.,]* tokens\/s$/);
      await shows(page, tile("ttft"), /^[\d.,]+ m?s$/);
      await shows(page, tile("itl"), /^[\d.,]+ m?s$/);
      await page.getByText(/^In the last second: \d+ steps? of .+ of replies;/).waitFor();
      aborter.abort();
      await stream.body?.cancel().catch(() => {});
      await shows(page, tile("requests"), "0 running");
    });
  });

  it("show the last steps and tell the figures of one to the keyboard", async () => {
    await chat(LONG);
    await withView("server", async (page) => {
      const strip = page.getByRole("application", { name: "Last steps" });
      const said = page.locator("section", { has: strip }).locator(".said");
      const tells = (pattern: RegExp) => said.filter({ hasText: pattern }).waitFor();
      await tells(/^The last \d+ steps; the latest took [\d.,]+ m?s for 1 sequence\.$/);
      await strip.press("ArrowLeft");
      await tells(/^Step \d+, [\d.,]+ m?s\. sequence [0-9a-f]{8}: 1 token of the reply/);
      const last = Number((await said.textContent())?.match(/\d+/)?.[0]);
      await strip.press("ArrowLeft");
      await tells(new RegExp(`^Step ${last - 1},`));
      await strip.press("Home");
      // The picture holds still while a step is read.
      const held = (await said.textContent()) ?? "";
      await chat("Hold still.", { max_tokens: 4 });
      await page.clock.runFor(3000);
      expect(await said.textContent()).toBe(held);
      await strip.press("Escape");
      await tells(/^The last/);
      const { data } = await get<{ data: { number: number }[] }>("/v1/steps?limit=1");
      const box = await strip.boundingBox();
      await strip.hover({ position: { x: (box?.width ?? 0) - 9, y: 10 } });
      await tells(new RegExp(`^Step ${data[0]?.number},`));
    });
  });

  it("list model, tiers, lanes and use", async () => {
    const { data } = await get<{ data: { id: string }[] }>("/v1/models");
    const { device } = await get<{ device: { blocks: number } }>("/v1/kv");
    await withView("server", async (page) => {
      await page
        .locator("section", { hasText: "Model" })
        .getByText(data[0]?.id ?? "", { exact: true })
        .waitFor();
      await page.getByText(`in ${device.blocks.toLocaleString("en-US")} blocks of`).waitFor();
      await page.getByRole("row", { name: /^0 Connected/ }).waitFor();
      await page.getByRole("heading", { name: "This hour" }).waitFor();
    });
  });

  it("tell in a sentence that the server is away, and find it again", async () => {
    await withView("server", async (page) => {
      await ready(page);
      await page.context().setOffline(true);
      await shows(page, "[role=alert]", "The server cannot be reached. The page tries again by itself.");
      await page.context().setOffline(false);
      await ready(page);
      await page.getByRole("alert").waitFor({ state: "detached" });
    });
  });

  it("ask a server that refused the key again only with another one", async () => {
    const isData = (url: string) => /^\/(metrics|v1|lora-adapters)/.test(new URL(url).pathname);
    const asks = async (page: Page) => {
      await page.route(
        (url) => isData(url.href),
        (route) =>
          route.request().headers().authorization === "Bearer sk-of-a-test"
            ? route.continue()
            : route.fulfill({ status: 401, json: { error: { message: "no valid key", code: "invalid_api_key" } } }),
      );
      await page.reload();
      await page.getByRole("dialog", { name: "API key" }).waitFor();
      await page.keyboard.press("Escape");
      await shows(page, "[role=alert]", /^This server asks for an API key, and yours is missing or not valid\./);
      await page.waitForLoadState("networkidle");
      let asked = 0;
      page.on("request", (request) => (asked += Number(isData(request.url()))));
      await page.clock.runFor(60_000);
      expect(asked).toBe(0);
      await page.getByRole("button", { name: "Enter a key" }).click();
      await page.getByLabel("Key", { exact: true }).fill("sk-of-a-test");
      await page.keyboard.press("Enter");
      await ready(page);
      expect(await page.getByRole("alert").count()).toBe(0);
    };
    await withView("server", asks, {}, /status of 401/);
  });

  it("ask nothing while the page is hidden", async () => {
    await withView("server", async (page) => {
      await ready(page);
      await page.evaluate(() => {
        Object.defineProperty(document, "hidden", { configurable: true, get: () => true });
        document.dispatchEvent(new Event("visibilitychange"));
      });
      // A request that is under way may still end, and none begins.
      await page.waitForLoadState("networkidle");
      let asked = 0;
      page.on("request", () => (asked += 1));
      await page.clock.runFor(60_000);
      expect(asked).toBe(0);
      const asksAgain = page.waitForRequest((request) => request.url().endsWith("/metrics"));
      await page.evaluate(() => {
        Reflect.deleteProperty(document, "hidden");
        document.dispatchEvent(new Event("visibilitychange"));
      });
      await asksAgain;
    });
  });

  it("show a conversation as it grows", async () => {
    await chat(`${LONG} One.`, { prompt_cache_key: "growing" });
    await withView("cache", async (page) => {
      await page.getByRole("application", PICTURE).waitFor();
      const before = (await page.locator(".page-head .facts").textContent()) ?? "";
      // Nothing is clicked: the events of the cache bring the new nodes.
      await chat(`${LONG} Two, which ends differently. ${LONG}`, { prompt_cache_key: "growing" });
      const nodes = await tree();
      const after = `${sum(nodes, ({ tokens }) => tokens).toLocaleString("en-US")} tokens in ${nodes.length} nodes`;
      expect(before.startsWith(after)).toBe(false);
      await shows(page, ".page-head .facts", new RegExp(`^${after}`));
    });
  });

  it("pin, unpin and forget a node, each after a question", async () => {
    await chat(`${LONG} Three.`);
    const pinned = async () => sum(await tree(), (node) => node.pinned);
    await withView("cache", async (page) => {
      await page.getByRole("radio", { name: "Table" }).check({ force: true });
      await page.getByRole("row").nth(1).getByRole("button").first().click();
      await page.getByRole("heading", { name: /^Tokens 0 to \d+$/ }).waitFor();
      const pin = page.getByRole("button", { name: "Pin…", exact: true });
      await pin.click();
      const question = page.getByRole("dialog", { name: "Pin this prompt?" });
      await question.getByRole("button", { name: "Cancel" }).click();
      expect(await pinned()).toBe(0);
      await pin.click();
      await question.getByLabel("For").selectOption("5 minutes");
      expect(await violations(page)).toEqual([]);
      await question.getByRole("button", { name: "Pin", exact: true }).click();
      await page
        .getByRole("status")
        .getByText(/^[\d,]+ tokens pinned for 5 min\.$/)
        .waitFor();
      await page
        .locator(".details")
        .getByText(/^for \d+ (min|s) more$/)
        .waitFor();
      expect(await pinned()).toBeGreaterThan(0);

      await page.getByRole("button", { name: "Unpin…" }).click();
      await page.getByRole("dialog", { name: "End the pins?" }).getByRole("button", { name: "Unpin" }).click();
      await page
        .getByRole("status")
        .getByText(/no longer pinned\.$/)
        .waitFor();
      await page.getByRole("button", { name: "Unpin…" }).waitFor({ state: "detached" });
      expect(await pinned()).toBe(0);

      const before = sum(await tree(), ({ tokens }) => tokens);
      await page.getByRole("button", { name: "Forget…" }).click();
      await page.getByRole("dialog", { name: "Forget this node?" }).getByRole("button", { name: "Forget" }).click();
      await page
        .getByRole("status")
        .getByText(/blocks? forgotten\.$/)
        .waitFor();
      await page.getByText(/^The chosen node has left the cache|^Nothing is cached yet/).waitFor();
      expect(sum(await tree(), ({ tokens }) => tokens)).toBeLessThan(before);
    });
  });

  it("come back by themselves, and whole, after the server was gone when they were opened", async () => {
    const context = await browser.newContext();
    const page = await context.newPage();
    await page.goto(SERVER.address);
    await page.getByLabel("Message", { exact: true }).waitFor();
    await context.setOffline(true);
    await page.getByRole("link", { name: "Server" }).click();
    await page.getByText("This view could not be fetched.").waitFor();
    await page.getByRole("link", { name: "Cache" }).click();
    await page.getByText("This view could not be fetched.").waitFor();
    await context.setOffline(false);
    await page.getByRole("heading", { name: "Cache", exact: true }).waitFor();
    // The two views share a file of styles.
    const styles = await page.evaluate(() => [...document.styleSheets].map(({ href }) => href?.split("/").at(-1)));
    expect(styles).toContain("panels.css");
    await context.close();
  });

  it("let the tree be walked with the keyboard alone, and say where it is", async () => {
    await chat(`${LONG} Four.`);
    await chat(`${LONG} Five. ${LONG}`);
    const said = "[aria-live=polite]";
    const levels = (page: Page, count: number) =>
      page.waitForFunction((wanted) => document.querySelectorAll("nav.path button").length === wanted, count);
    await withView("cache", async (page) => {
      const picture = page.getByRole("application", PICTURE);
      await picture.focus();
      await page.keyboard.press("ArrowDown");
      await shows(page, `.page ${said}`, /tokens from 0 on/);
      await page.keyboard.press("ArrowDown");
      await shows(page, `.page ${said}`, /tokens? from [1-9]/);
      await page.keyboard.press("Enter");
      await levels(page, 3);
      await page.keyboard.press("Escape");
      await levels(page, 2);
      await page.keyboard.press("Escape");
      await levels(page, 1);
      await page.keyboard.press("ArrowUp");
      await shows(page, `.page ${said}`, /tokens from 0 on/);
      // A click zooms, and a click on the node that fills the width leads back.
      await picture.click({ position: { x: 20, y: 40 } });
      await levels(page, 2);
      await picture.click({ position: { x: 20, y: 40 } });
      await levels(page, 1);
    });
  });

  for (const [colorScheme, width] of [
    ["light", 1280],
    ["dark", 390],
  ] as const) {
    it(`have no defect that axe-core finds, and fit: ${colorScheme}, ${width} pixels`, async () => {
      await chat(`${LONG} Six.`);
      const options = { colorScheme, viewport: { width, height: 844 } };
      const check = async (page: Page) => {
        expect(await violations(page)).toEqual([]);
        expect(
          await page.locator(".page-scroll").evaluate(({ scrollWidth, clientWidth }) => scrollWidth - clientWidth),
        ).toBe(0);
      };
      await withView(
        "server",
        async (page) => {
          await page.getByRole("heading", { name: "This hour" }).waitFor();
          await check(page);
        },
        options,
      );
      await withView(
        "cache",
        async (page) => {
          await page.getByRole("application", PICTURE).click({ position: { x: 20, y: 40 } });
          await page.getByRole("button", { name: "Forget…" }).waitFor();
          await check(page);
          await page.getByRole("radio", { name: "Table" }).check({ force: true });
          await check(page);
        },
        options,
      );
    });
  }
});
