// Records the first five minutes with a server as docs/first-minutes.webp: `make recording`.
// It starts the server, with the embedded model, and everything that the pictures show happens.
import { spawn } from "node:child_process";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { createServer as createSocket } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { chromium } from "playwright-core";
import { createServer } from "vite";

import { animation, differ } from "./webp.mjs";

const [WIDTH, HEIGHT, CAPTION_HEIGHT] = [960, 560, 44];
/** What a person needs to read a caption, and the most that a wait may take in the recording. */
const [READING_MS, LONGEST_WAIT_MS] = [2200, 600];
const path = (name) => fileURLToPath(new URL(`../../${name}`, import.meta.url));

const vite = await createServer({ server: { middlewareMode: true }, logLevel: "error" });
const { shardOf } = await vite.ssrLoadModule("/tests/page/shard.ts");
await vite.close();
const port = await new Promise((resolve) => {
  const probe = createSocket();
  probe.listen(0, "127.0.0.1", () => {
    const { port: free } = probe.address();
    probe.close(() => resolve(free));
  });
});
const address = `http://127.0.0.1:${port}`;

const browser = await chromium.launch({
  executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium",
  args: ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"],
});
const context = await browser.newContext({ viewport: { width: WIDTH, height: HEIGHT }, colorScheme: "dark" });
const [terminal, page] = [await context.newPage(), await context.newPage()];
const strip = await browser.newPage({ viewport: { width: WIDTH, height: CAPTION_HEIGHT } });
const studio = await browser.newPage();
await strip.setContent(
  `<body style="margin:0 16px;background:#0f766e;color:#fff;font:17px/${CAPTION_HEIGHT}px sans-serif">`,
);
await terminal.setContent(
  '<body style="background:#111;color:#ddd"><pre style="font:15px/1.6 monospace;white-space:pre-wrap;margin:24px">',
);
await studio.evaluate(`(${differ})(${WIDTH}, ${HEIGHT + CAPTION_HEIGHT})`);
await studio.evaluate(
  ([width, top, height]) => {
    const canvas = Object.assign(document.createElement("canvas"), { width, height: top + height });
    const read = async (png) => {
      const picture = Object.assign(new Image(), { src: `data:image/png;base64,${png}` });
      await picture.decode();
      return picture;
    };
    globalThis.frameOf = async (screen, caption) => {
      canvas.getContext("2d").drawImage(await read(screen), 0, 0);
      canvas.getContext("2d").drawImage(await read(caption), 0, top);
      return globalThis.differenceOf(canvas.toDataURL().split(",")[1]);
    };
  },
  [WIDTH, HEIGHT, CAPTION_HEIGHT],
);

const frames = [];
let shown = page;
let caption = "";
/** Adds what can be seen now. It stays for `duration`. */
async function look(duration) {
  const screen = (await shown.screenshot()).toString("base64");
  const frame = await studio.evaluate(([a, b]) => globalThis.frameOf(a, b), [screen, caption]);
  if (frame) frames.push({ ...frame, duration });
  else frames.at(-1).duration += duration;
}
async function say(text) {
  await strip.locator("body").evaluate((body, content) => (body.textContent = content), text);
  caption = (await strip.screenshot()).toString("base64");
  await look(READING_MS);
}
/** Looks again and again until `condition` holds. */
async function watch(condition) {
  for (let at = Date.now(), now = at; !(await condition()); at = now) {
    await look(120);
    now = Date.now();
    frames.at(-1).duration += Math.min(now - at, LONGEST_WAIT_MS) - 120;
  }
}
async function type(where, text) {
  for (let end = 4; end < text.length + 4; end += 4) {
    await where.fill(text.slice(0, end));
    await look(90);
  }
}
const turns = page.locator(".turn.assistant");
const hasEnded = async () => (await turns.last().getAttribute("aria-busy")) === "false";
const textOf = () => turns.last().locator("> .markdown").innerText();
const cached = () => turns.last().locator(".cached").innerText();
async function ask(text) {
  const before = await turns.count();
  await type(page.getByLabel("Message", { exact: true }), text);
  await page.keyboard.press("Enter");
  await watch(async () => (await turns.count()) > before);
}
async function setting(label, change) {
  await page.keyboard.press("Control+.");
  await change(page.getByLabel(label, { exact: true }));
  await page.getByRole("button", { name: "Close the settings" }).click();
  await page.mouse.move(0, 0);
}

// 1. The start.
shown = terminal;
const screen = terminal.locator("pre");
let lines = `$ trunkline serve --port ${port} --kv-disk-path kv\n`;
const paint = () => screen.evaluate((pre, text) => (pre.textContent = text), lines);
await paint();
await say("One command starts a server");
const folder = mkdtempSync(join(tmpdir(), "trunkline-recording-"));
const server = spawn(path(".venv/bin/trunkline"), ["serve", "--port", String(port), "--kv-disk-path", "kv"], {
  cwd: folder,
  stdio: ["ignore", "pipe", "ignore"],
});
server.stdout.on("data", (piece) => (lines += String(piece)));
process.on("exit", () => server.kill("SIGTERM"));
await watch(async () => {
  await paint();
  return lines.includes(" is ready at ");
});
await paint();
await look(READING_MS);

// 2. A chat.
await page.goto(address);
await page.keyboard.press("Control+.");
await page.getByLabel("Temperature", { exact: true }).fill("0");
await page.getByText("Length", { exact: true }).click();
await page.getByLabel("Max completion tokens", { exact: true }).fill("90");
await page.getByRole("button", { name: "Close the settings" }).click();
await page.mouse.move(0, 0);
shown = page;
await say("Its page: a chat, with what an answer has cost");
await ask("Why is the sky blue?");
await watch(hasEnded);
await look(READING_MS);
await ask("And in the evening?");
await watch(hasEnded);
await say(`The next turn reads its history from the cache: ${await cached()}`);

// 3. A branch.
await say("Edit an earlier turn: the conversation branches");
const question = page.locator(".turn.user").last();
await question.hover();
await question.getByRole("button", { name: "Edit in a new branch" }).click();
await type(page.getByLabel("Text of the turn"), "Explain it to a child.");
await page.keyboard.press("Enter");
await watch(async () => !(await hasEnded()));
await watch(hasEnded);
await say(`The branch finds the turns before it in the cache, too: ${await cached()}`);

// 4. The shard dies in the middle of a stream.
await setting("Max completion tokens", (field) => field.fill("160"));
await setting("Ignore eos", (field) => field.selectOption("yes"));
await page.getByRole("button", { name: "New chat" }).first().click();
await ask("Tell me a story of the sea.");
await watch(async () => (await textOf().catch(() => "")).length > 150);
const shard = shardOf(port);
process.kill(shard, "SIGKILL");
const killed = (await textOf()).length;
await say(`$ kill -9 ${shard}     (the process that computes, in the middle of a stream)`);
await watch(async () => (await textOf()).length > killed + 20);
await say("The launcher has started another one, and the stream goes on");
await watch(hasEnded);
await say("Is it the text that it would have been? The same seed asks again, without a kill");
await turns.last().getByRole("button", { name: /Same answer again/ }).click();
const same = page.getByText("The same text as before, to the letter.");
await watch(() => same.isVisible());
await same.scrollIntoViewIfNeeded();
await look(READING_MS);

// 5. The cache.
await setting("Ignore eos", (field) => field.selectOption({ index: 0 }));
await setting("Max completion tokens", (field) => field.fill("60"));
await page.getByText("Why is the sky blue?", { exact: true }).first().click();
await ask("And on Mars?");
await watch(hasEnded);
await say(`The first chat goes on. Its history survived on disk: ${await cached()}`);
// The other branch goes on, too, so that the picture shows both.
await page.locator(".turn.user").getByRole("button", { name: "Previous branch" }).last().click();
const before = await turns.count();
await page.getByLabel("Message", { exact: true }).fill("And at night?");
await page.keyboard.press("Enter");
await page.waitForFunction((count) => document.querySelectorAll(".turn.assistant").length > count, before);
await turns.last().and(page.locator("[aria-busy=false]")).waitFor();
await page.getByRole("link", { name: "Cache" }).click();
const picture = page.getByRole("application");
await picture.waitFor();
// The blocks of the last answer enter the tree a moment after its end, and colours fade.
await page.waitForTimeout(1_500);
await say("The KV cache as a picture: what two branches share is stored once");
const box = await picture.boundingBox();
await page.mouse.click(box.x + box.width / 4, box.y + 40);
for (let step = 0; step < 5; step++) await look(100);
await look(2 * READING_MS);

await browser.close();
const file = path("docs/first-minutes.webp");
const content = animation(WIDTH, HEIGHT + CAPTION_HEIGHT, frames);
writeFileSync(file, content);
const seconds = frames.reduce((sum, { duration }) => sum + duration, 0) / 1000;
const megabytes = (content.length / 1e6).toFixed(2);
console.log(`docs/first-minutes.webp: ${frames.length} frames, ${seconds.toFixed(0)} s, ${megabytes} MB`);
const ended = new Promise((resolve) => server.on("exit", resolve));
server.kill("SIGTERM");
await ended;
rmSync(folder, { recursive: true });
process.exit(0);
