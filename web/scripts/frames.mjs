// Measures the frames of the cache's view with a made tree of 100,000 nodes: `node scripts/frames.mjs [NUMBER]`.
// The address of a running server is in TRUNKLINE_URL; its tree is not asked for.
import { chromium } from "playwright-core";
import { createServer } from "vite";

const server = await createServer({ server: { middlewareMode: true }, logLevel: "error" });
const { madeTree } = await server.ssrLoadModule("/tests/made.ts");
const { layOut, visit, windowOf, ROOT } = await server.ssrLoadModule("/src/views/cache/icicle.ts");
const nodes = madeTree(Number(process.argv[2] ?? 100_000), 9);
await server.close();

const times = Array.from({ length: 7 }, () => {
  const begin = performance.now();
  layOut(nodes);
  return performance.now() - begin;
});
const icicle = layOut(nodes);
let boxes = 0;
const begin = performance.now();
for (let turn = 0; turn < 100; turn++)
  visit(icicle, windowOf(icicle, ROOT), { width: 1132, rows: 20 }, () => (boxes += 1));
const visitMs = (performance.now() - begin) / 100;
const middle = (values) => values.toSorted((a, b) => a - b)[values.length >> 1].toFixed(2);
console.log(
  `layout of ${nodes.length} nodes: ${middle(times)} ms; ` +
    `a visit of the whole tree: ${visitMs.toFixed(2)} ms, ${boxes / 100} boxes`,
);

const browser = await chromium.launch({
  executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium",
  args: ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"],
});
const page = await browser.newPage({ viewport: { width: 1280, height: 900 } });
await page.addInitScript(() => {
  globalThis.frames = [];
  const request = globalThis.requestAnimationFrame.bind(globalThis);
  globalThis.requestAnimationFrame = (callback) =>
    request((at) => {
      const from = performance.now();
      callback(at);
      globalThis.frames.push({ at, ms: performance.now() - from });
    });
});
await page.route(/\/v1\/kv\/tree\?/, (route) => {
  const after = Number(new URL(route.request().url()).searchParams.get("after") ?? 0);
  const next = after + 1000 < nodes.length ? after + 1000 : null;
  return route.fulfill({ json: { object: "list", data: nodes.slice(after, after + 1000), next } });
});
await page.route(/\/v1\/kv\/events/, (route) => route.fulfill({ contentType: "text/event-stream", body: ":\n\n" }));
await page.goto(`${process.env.TRUNKLINE_URL}/#/cache`);
const picture = page.getByRole("application");
await picture.waitFor({ timeout: 120_000 });
const box = await picture.boundingBox();
await page.evaluate(() => globalThis.frames.splice(0));
for (let turn = 0; turn < 10; turn++) {
  // Zooms in twice and out again; each takes 15 frames or so.
  for (const row of [1, 2, 1, 0]) {
    await page.mouse.click(box.x + box.width * (0.1 + 0.08 * turn), box.y + 26 * row + 8);
    await page.waitForTimeout(300);
  }
}
const frames = await page.evaluate(() => globalThis.frames);
const gaps = frames
  .slice(1)
  .map(({ at }, idx) => at - frames[idx].at)
  .filter((gap) => gap < 100);
const inOrder = frames.map(({ ms }) => ms).toSorted((a, b) => a - b);
const share = (values, part) => values[Math.floor(values.length * part)]?.toFixed(2);
console.log(
  `${frames.length} frames: work of a frame ${share(inOrder, 0.5)} ms (half), ` +
    `${share(inOrder, 0.95)} ms (95 %), ${share(inOrder, 1 - 1e-9)} ms (all); ` +
    `between frames ${share(
      gaps.toSorted((a, b) => a - b),
      0.5,
    )} ms (half)`,
);
await page.screenshot({ path: process.env.SCREENSHOT ?? "/dev/null", type: "png" });
await browser.close();
