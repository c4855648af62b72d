// Measures the first paint of the built page: `node scripts/paint.mjs [OTHER]`. With another built folder, the two take
// turns, so that both see the same machine, and the ratio is told.
import { readFileSync } from "node:fs";
import { createServer } from "node:http";
import { extname, join, normalize } from "node:path";
import { chromium } from "playwright-core";

const TURNS = 25;
const TYPES = { ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml", ".html": "text/html" };
const own = new URL("../dist/", import.meta.url).pathname;
const folders = [own, ...process.argv.slice(2)];

async function serve(folder) {
  const server = createServer((request, response) => {
    const path = normalize(new URL(request.url, "http://host").pathname);
    if (path.startsWith("/v1/"))
      return response.writeHead(200, { "content-type": "application/json" }).end('{"data":[]}');
    try {
      const file = path === "/" ? "index.html" : path;
      const content = readFileSync(join(folder, file));
      response.writeHead(200, { "content-type": TYPES[extname(file)] ?? "text/plain" }).end(content);
    } catch {
      response.writeHead(404).end();
    }
  });
  await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
  return server;
}

const servers = await Promise.all(folders.map(serve));
const browser = await chromium.launch({
  executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium",
  args: ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"],
});
const times = folders.map(() => ({ paint: [], usable: [] }));
for (let turn = -1; turn < TURNS; turn++) {
  for (const [idx, server] of servers.entries()) {
    const context = await browser.newContext({ viewport: { width: 1280, height: 900 } });
    const page = await context.newPage();
    await page.addInitScript(() => {
      new MutationObserver((_, observer) => {
        if (!document.querySelector("textarea")) return;
        observer.disconnect();
        globalThis.usableAt = performance.now();
      }).observe(document, { childList: true, subtree: true });
    });
    await page.goto(`http://127.0.0.1:${server.address().port}/`);
    await page.locator("textarea").first().waitFor();
    await page.waitForFunction(() => performance.getEntriesByName("first-contentful-paint").length > 0);
    const [paint, usable] = await page.evaluate(() => [
      performance.getEntriesByName("first-contentful-paint")[0].startTime,
      globalThis.usableAt,
    ]);
    await context.close();
    // The first turn warms the machine's caches.
    if (turn < 0) continue;
    times[idx].paint.push(paint);
    times[idx].usable.push(usable);
  }
}
await browser.close();
servers.forEach((server) => server.close());
const middle = (values) => values.toSorted((a, b) => a - b)[values.length >> 1];
for (const [idx, { paint, usable }] of times.entries())
  console.log(
    `${folders[idx]}: first paint ${middle(paint).toFixed(0)} ms, ` +
      `a message can be typed after ${middle(usable).toFixed(0)} ms`,
  );
if (folders.length > 1) {
  const ratio = (name) => middle(times[0][name].map((value, idx) => value / times[1][name][idx])).toFixed(2);
  console.log(`ratios to the other: ${ratio("paint")} and ${ratio("usable")}`);
}
