import { defineConfig } from "vitest/config";

/** The server that `npm run dev` and `vite preview` forward requests to. */
const server = process.env.TRUNKLINE_URL ?? "http://127.0.0.1:3000";

/** Everything that is not a file of the page goes to the server, without the origin, which the server would refuse. */
const proxy = {
  "^/(v1|metrics|info|openapi.json|health|livez|readyz|adapters|lora-adapters|tokenize|detokenize|version)": {
    target: server,
    configure: (forwarder: {
      on(event: "proxyReq", listener: (request: { removeHeader(name: string): void }) => void): unknown;
    }) => {
      forwarder.on("proxyReq", (request) => request.removeHeader("origin"));
    },
  },
};

export default defineConfig({
  // Relative addresses work below any prefix of a reverse proxy.
  base: "./",
  build: {
    target: "es2022",
    modulePreload: { polyfill: false },
    // Names without a hash, because the files are checked in. The server answers `ETag`s.
    rolldownOptions: {
      input: { main: "index.html" },
      output: {
        entryFileNames: "assets/main.js",
        chunkFileNames: "assets/[name].js",
        assetFileNames: "assets/[name][extname]",
      },
    },
    assetsInlineLimit: 0,
    reportCompressedSize: false,
    license: { fileName: "assets/licenses.txt" },
  },
  server: { proxy },
  preview: { proxy },
  test: {
    environment: "happy-dom",
    include: ["tests/**/*.test.{ts,tsx}"],
    testTimeout: 30_000,
    hookTimeout: 30_000,
    expect: { poll: { timeout: 10_000 } },
  },
});
