// @vitest-environment node
import { type ChildProcess, spawn } from "node:child_process";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import type { Browser, Page } from "playwright-core";
import { afterAll, beforeAll, describe, expect, it } from "vitest";

import { CHROMIUM, launch } from "../page/browser";
import { freePort, IS_BUILT, RealServer, terminate, untilAnswers } from "../page/server";

/** Its program. `make test-open-webui` installs and names it; other runs skip this file. */
const PROGRAM = process.env.TRUNKLINE_TEST_OPEN_WEBUI;
const KEY = "sk-of-open-webui";
/** Its first message comes with definitions of tools, of 6,100 tokens or so. */
const FIRST_PROMPT_TOKENS = 5000;
/** The second turn adds an answer and a message. */
const MOST_NEW_TOKENS = 200;

const SETTINGS = {
  WEBUI_AUTH: "False",
  WEBUI_SECRET_KEY: "a secret of the tests, of 32 bytes or more",
  ENABLE_OLLAMA_API: "false",
  OPENAI_API_KEY: KEY,
  DEFAULT_MODEL_PARAMS: '{"max_tokens": 24, "temperature": 0}',
  // Each of these is a request of its own, and the test counts tokens.
  ENABLE_TITLE_GENERATION: "false",
  ENABLE_TAGS_GENERATION: "false",
  ENABLE_FOLLOW_UP_GENERATION: "false",
  // Without these it fetches a model for its search in documents.
  OFFLINE_MODE: "true",
  RAG_EMBEDDING_ENGINE: "openai",
};

describe.skipIf(!PROGRAM)("Open WebUI", () => {
  let browser: Browser;
  let page: Page;
  let webui: ChildProcess | undefined;
  let turns = 0;
  const server = new RealServer(KEY);
  const folder = mkdtempSync(join(tmpdir(), "trunkline-open-webui-"));

  beforeAll(async () => {
    expect(CHROMIUM, "Chromium is missing; hint: install it, or set CHROMIUM=PATH").toBeTruthy();
    expect(IS_BUILT, "the server is missing; hint: make build").toBe(true);
    await server.start();
    const port = await freePort();
    const address = `http://127.0.0.1:${port}`;
    const given = { HOME: folder, DATA_DIR: folder, OPENAI_API_BASE_URL: `${server.address}/v1` };
    webui = spawn(PROGRAM ?? "", ["serve", "--host", "127.0.0.1", "--port", String(port)], {
      cwd: folder,
      env: { PATH: process.env.PATH, ...given, ...SETTINGS },
      stdio: ["ignore", "pipe", "pipe"],
    });
    // Its first start makes a database, which takes half a minute, and some minutes on a machine with other work.
    await untilAnswers(`${address}/health`, webui, 600_000);
    browser = await launch();
    page = await browser.newPage({ viewport: { width: 1280, height: 800 } });
    page.setDefaultTimeout(60_000);
    await page.goto(address);
    await page.getByRole("button", { name: "Okay, Let's Go!" }).click();
  }, 700_000);
  afterAll(async () => {
    await browser?.close();
    await terminate(webui);
    await server.stop();
    rmSync(folder, { recursive: true });
  });

  async function counted(): Promise<{ prompt: number; cached: number }> {
    return {
      prompt: await server.metric("trunkline_prompt_tokens_total"),
      cached: await server.metric("trunkline_prefix_hit_tokens_total"),
    };
  }

  /** Sends a message, waits for the end of its answer, and returns the prompt's tokens and those of them cached. */
  async function say(text: string): Promise<{ prompt: number; cached: number }> {
    const before = await counted();
    await page.locator("#chat-input").fill(text);
    await page.keyboard.press("Enter");
    turns += 1;
    // An answer that has ended gets buttons.
    const ended = page.locator("[id^=message-]", { has: page.getByRole("button", { name: "Regenerate" }) });
    await expect.poll(() => ended.count(), { timeout: 60_000 }).toBe(turns);
    expect(await ended.last().locator(".chat-assistant").innerText()).toMatch(/\w/);
    const after = await counted();
    return { prompt: after.prompt - before.prompt, cached: after.cached - before.cached };
  }

  it("lists the model and chats, and its second turn is a cache hit", async () => {
    await expect.poll(() => page.locator("main").innerText(), { timeout: 30_000 }).toContain("shallow");
    const first = await say("Hello, who are you?");
    const second = await say("And what is the sea?");
    console.log(`prompts of Open WebUI: ${JSON.stringify([first, second])}`);
    expect(first.prompt).toBeGreaterThan(FIRST_PROMPT_TOKENS);
    expect(first.cached).toBeLessThan(MOST_NEW_TOKENS);
    expect(second.prompt).toBeGreaterThan(first.prompt);
    expect(second.prompt - second.cached).toBeLessThan(MOST_NEW_TOKENS);
  }, 180_000);
});
