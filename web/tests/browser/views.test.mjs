// The server's and the cache's view in Chromium, against the server at TRUNKLINE_URL, which needs no key and is idle.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { after, before, test } from "node:test";
import { chromium } from "playwright-core";

const URL = process.env.TRUNKLINE_URL;
const AXE = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");
const FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"];
const PHONE = { width: 390, height: 844 };

let browser;

before(async () => {
  browser = await chromium.launch({ executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium", args: FLAGS });
});

after(() => browser?.close());

/** Opens a view, and fails at the end if the page logged an error, such as a breach of its content security policy. */
async function withPage(view, options, use, expected = [/ERR_INTERNET_DISCONNECTED/]) {
  const context = await browser.newContext({ viewport: { width: 1280, height: 900 }, reducedMotion: "reduce", ...options });
  context.setDefaultTimeout(15_000);
  const page = await context.newPage();
  await page.clock.install();
  const errors = [];
  page.on("pageerror", (error) => errors.push(error.message));
  page.on("console", (message) => message.type() === "error" && !expected.some((each) => each.test(message.text())) && errors.push(message.text()));
  page.on("request", (request) => !request.url().startsWith(URL) && !request.url().startsWith("data:") && errors.push(request.url()));
  try {
    await page.goto(`${URL}/#/${view}`);
    await use(page);
    assert.deepEqual(errors, []);
  } finally {
    await context.close();
  }
}

async function chat(messages, more = {}, signal) {
  const body = { messages, temperature: 0, max_tokens: 8, ignore_eos: true, ...more };
  const headers = { "content-type": "application/json" };
  const response = await fetch(`${URL}/v1/chat/completions`, { method: "POST", headers, body: JSON.stringify(body), signal });
  assert.equal(response.status, 200);
  return response;
}

const user = (content) => ({ role: "user", content });
/** A prompt of several blocks. */
const LONG = "The sea is wide, and the ship is small. ".repeat(30);

async function tree() {
  return (await (await fetch(`${URL}/v1/kv/tree?limit=1000`)).json()).data;
}

const num = (nodes, field) => nodes.reduce((sum, node) => sum + node[field], 0);

async function violations(page) {
  // Evaluated, because the page's policy lets no script in.
  await page.evaluate(AXE);
  const found = await page.evaluate(async () => (await globalThis.axe.run()).violations);
  return found.map(({ id, nodes }) => [id, ...nodes.map(({ html }) => html.slice(0, 160))]);
}

async function isWiderThanWindow(page) {
  return page.locator(".page-scroll").evaluate(({ scrollWidth, clientWidth }) => scrollWidth > clientWidth);
}

test("the server's view shows a request while it streams, and its speed", async () => {
  await withPage("server", {}, async (page) => {
    const requests = page.locator("[data-tile=requests] .value");
    await page.getByText("Ready", { exact: true }).waitFor();
    await page.waitForFunction(() => document.querySelector("[data-tile=requests] .value")?.textContent === "0 running");
    const aborter = new AbortController();
    const stream = await chat([user("Tell a story.")], { stream: true, max_tokens: 4000 }, aborter.signal);
    await page.waitForFunction(() => document.querySelector("[data-tile=requests] .value")?.textContent === "1 running");
    await page.waitForFunction(() => Number.parseFloat(document.querySelector("[data-tile=rate] .value")?.textContent ?? "") > 0);
    for (const tile of ["ttft", "itl"]) {
      await page.waitForFunction((name) => /^[\d.,]+ m?s$/.test(document.querySelector(`[data-tile=${name}] .value`)?.textContent ?? ""), tile);
    }
    await page.getByText(/^In the last second: \d+ steps? of .+ of replies;/).waitFor();
    aborter.abort();
    await stream.body?.cancel().catch(() => {});
    await page.waitForFunction(() => document.querySelector("[data-tile=requests] .value")?.textContent === "0 running");
    assert.equal(await requests.textContent(), "0 running");
  });
});

test("the server's view lists model, tiers, lanes and use", async () => {
  await withPage("server", {}, async (page) => {
    const { data } = await (await fetch(`${URL}/v1/models`)).json();
    await page.locator("section", { hasText: "Model" }).getByText(data[0].id, { exact: true }).waitFor();
    const kv = await (await fetch(`${URL}/v1/kv`)).json();
    await page.getByText(`${kv.device.blocks.toLocaleString("en-US")} blocks`, { exact: false }).first().waitFor();
    await page.getByRole("row", { name: /^0 Connected/ }).waitFor();
    await page.getByRole("heading", { name: "This hour" }).waitFor();
  });
});

test("a server that is away is told in a sentence, and found again", async () => {
  await withPage("server", {}, async (page) => {
    await page.getByText("Ready", { exact: true }).waitFor();
    await page.context().setOffline(true);
    const alert = page.getByRole("alert");
    await alert.waitFor();
    assert.equal(await alert.textContent(), "The server cannot be reached. The page tries again by itself.");
    await page.context().setOffline(false);
    await page.getByText("Ready", { exact: true }).waitFor();
    await alert.waitFor({ state: "detached" });
  });
});

test("a server with keys is asked again only with another one", async () => {
  await withPage("server", {}, async (page) => {
    const isData = (url) => /^\/(metrics|v1|lora-adapters)/.test(new globalThis.URL(url).pathname);
    await page.route((url) => isData(url.href), (route) => {
      if (route.request().headers().authorization === "Bearer sk-of-a-test") return route.continue();
      return route.fulfill({ status: 401, json: { error: { message: "no valid key", code: "invalid_api_key" } } });
    });
    await page.reload();
    await page.getByRole("dialog", { name: "API key" }).waitFor();
    await page.keyboard.press("Escape");
    let asked = 0;
    page.on("request", (request) => isData(request.url()) && (asked += 1));
    const alert = page.getByRole("alert");
    assert.match(await alert.textContent(), /^This server asks for an API key, and yours is missing or not valid\./);
    await page.clock.runFor(60_000);
    assert.equal(asked, 0);
    await page.getByRole("button", { name: "Enter a key" }).click();
    await page.getByLabel("Key", { exact: true }).fill("sk-of-a-test");
    await page.keyboard.press("Enter");
    await page.getByText("Ready", { exact: true }).waitFor();
    assert.equal(await alert.count(), 0);
  }, [/status of 401/]);
});

test("a hidden page asks nothing", async () => {
  await withPage("server", {}, async (page) => {
    await page.getByText("Ready", { exact: true }).waitFor();
    await page.evaluate(() => {
      Object.defineProperty(document, "hidden", { configurable: true, get: () => true });
      document.dispatchEvent(new Event("visibilitychange"));
    });
    // A request that is under way may still end, and none begins.
    await page.waitForLoadState("networkidle");
    let asked = 0;
    page.on("request", () => (asked += 1));
    await page.clock.runFor(60_000);
    assert.equal(asked, 0);
    await page.evaluate(() => {
      delete document.hidden;
      document.dispatchEvent(new Event("visibilitychange"));
    });
    await page.waitForRequest((request) => request.url().endsWith("/metrics"));
  });
});

test("the cache's view shows a conversation as it grows", async () => {
  await withPage("cache", {}, async (page) => {
    await chat([user(`${LONG} One.`)], { prompt_cache_key: "growing" });
    await page.getByRole("application", { name: "Tree of cached prefixes" }).waitFor();
    const summary = page.locator(".page-head .facts");
    const before = await summary.textContent();
    // Nothing is clicked: the events of the cache bring the new nodes.
    await chat([user(`${LONG} Two, which ends differently. ${LONG}`)], { prompt_cache_key: "growing" });
    await page.waitForFunction((text) => document.querySelector(".page-head .facts")?.textContent !== text, before);
    const nodes = await tree();
    await page.waitForFunction(
      (text) => document.querySelector(".page-head .facts")?.textContent?.startsWith(text),
      `${num(nodes, "tokens").toLocaleString("en-US")} tokens in ${nodes.length} nodes`,
    );
  });
});

test("a node is pinned, unpinned and forgotten, each after a question", async () => {
  await chat([user(`${LONG} Three.`)]);
  await withPage("cache", {}, async (page) => {
    await page.getByRole("radio", { name: "Table" }).check({ force: true });
    await page.getByRole("row").nth(1).getByRole("button").first().click();
    await page.getByRole("heading", { name: /^Tokens 0 to \d+$/ }).waitFor();
    assert.equal(num(await tree(), "pinned"), 0);

    await page.getByRole("button", { name: "Pin…", exact: true }).click();
    await page.getByRole("dialog", { name: "Pin this prompt?" }).getByRole("button", { name: "Cancel" }).click();
    assert.equal(num(await tree(), "pinned"), 0);
    await page.getByRole("button", { name: "Pin…", exact: true }).click();
    const dialog = page.getByRole("dialog", { name: "Pin this prompt?" });
    await dialog.getByLabel("For").selectOption("5 minutes");
    assert.deepEqual(await violations(page), []);
    await dialog.getByRole("button", { name: "Pin", exact: true }).click();
    await page.getByRole("status").getByText(/^[\d,]+ tokens pinned for 5 min\.$/).waitFor();
    await page.locator(".details").getByText(/^for \d+ (min|s) more$/).waitFor();
    assert.ok(num(await tree(), "pinned") > 0);

    await page.getByRole("button", { name: "Unpin…" }).click();
    await page.getByRole("dialog", { name: "End the pins?" }).getByRole("button", { name: "Unpin" }).click();
    await page.getByRole("status").getByText(/no longer pinned\.$/).waitFor();
    await page.getByRole("button", { name: "Unpin…" }).waitFor({ state: "detached" });
    assert.equal(num(await tree(), "pinned"), 0);

    const before = num(await tree(), "tokens");
    await page.getByRole("button", { name: "Forget…" }).click();
    await page.getByRole("dialog", { name: "Forget this node?" }).getByRole("button", { name: "Forget" }).click();
    await page.getByRole("status").getByText(/blocks? forgotten\.$/).waitFor();
    await page.getByText(/^The chosen node has left the cache|^Nothing is cached yet/).waitFor();
    assert.ok(num(await tree(), "tokens") < before);
  });
});

test("the picture is walked with the keyboard alone, and says where it is", async () => {
  await chat([user(`${LONG} Four.`)]);
  await chat([user(`${LONG} Five. ${LONG}`)]);
  await withPage("cache", {}, async (page) => {
    const picture = page.getByRole("application", { name: "Tree of cached prefixes" });
    await picture.waitFor();
    await picture.focus();
    const said = page.locator("[aria-live=polite]");
    await page.keyboard.press("ArrowDown");
    await page.waitForFunction(() => document.querySelector("[aria-live=polite]")?.textContent?.includes("tokens from 0 on"));
    await page.keyboard.press("ArrowDown");
    await page.waitForFunction(() => /tokens? from [1-9]/.test(document.querySelector("[aria-live=polite]")?.textContent ?? ""));
    const first = await said.textContent();
    await page.keyboard.press("Enter");
    await page.getByRole("navigation", { name: "Path" }).getByRole("button").nth(2).waitFor();
    await page.keyboard.press("Escape");
    await page.keyboard.press("Escape");
    await page.waitForFunction(() => document.querySelectorAll("nav.path button").length === 1);
    assert.equal(await said.textContent(), first);
    await page.keyboard.press("ArrowUp");
    await page.waitForFunction(() => document.querySelector("[aria-live=polite]")?.textContent?.includes("tokens from 0 on"));
    // A click zooms, and a click on the node that fills the width leads back.
    const box = await picture.boundingBox();
    await page.mouse.click(box.x + 20, box.y + 36);
    await page.waitForFunction(() => document.querySelectorAll("nav.path button").length === 2);
    await page.mouse.click(box.x + 20, box.y + 36);
    await page.waitForFunction(() => document.querySelectorAll("nav.path button").length === 1);
  });
});

for (const colorScheme of ["light", "dark"]) {
  for (const viewport of [{ width: 1280, height: 900 }, PHONE]) {
    test(`neither view has a defect that axe-core finds: ${colorScheme}, ${viewport.width} pixels`, async () => {
      await chat([user(`${LONG} Six.`)]);
      for (const view of ["server", "cache"]) {
        await withPage(view, { colorScheme, viewport }, async (page) => {
          if (view === "server") {
            await page.getByRole("heading", { name: "This hour" }).waitFor();
          } else {
            const picture = page.getByRole("application", { name: "Tree of cached prefixes" });
            await picture.click({ position: { x: 20, y: 36 } });
            await page.getByRole("button", { name: "Pin…", exact: true }).waitFor();
          }
          assert.deepEqual(await violations(page), []);
          assert.equal(await isWiderThanWindow(page), false);
          if (view === "cache") {
            await page.getByRole("radio", { name: "Table" }).check({ force: true });
            assert.deepEqual(await violations(page), []);
          }
        });
      }
    });
  }
}
