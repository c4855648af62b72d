// Prints the size of each built file, as it is and compressed, and fails if the page is larger than its limit.
import { readFileSync, readdirSync } from "node:fs";
import { join } from "node:path";
import { gzipSync } from "node:zlib";

const LIMIT_KB = 150;
const dist = new URL("../dist/", import.meta.url).pathname;
const files = readdirSync(dist, { recursive: true, withFileTypes: true })
  .filter((entry) => entry.isFile())
  .map((entry) => join(entry.parentPath, entry.name));
let total = 0;
for (const file of files.sort()) {
  const content = readFileSync(file);
  const compressed = gzipSync(content, { level: 9 }).length;
  total += compressed;
  const kb = (bytes) => (bytes / 1000).toFixed(1).padStart(7);
  console.log(`${file.slice(dist.length).padEnd(24)} ${kb(content.length)} kB ${kb(compressed)} kB gzipped`);
}
console.log(`all: ${(total / 1000).toFixed(1)} kB gzipped of at most ${LIMIT_KB} kB`);
if (total > LIMIT_KB * 1000) process.exit(1);
