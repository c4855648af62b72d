import { readFileSync } from "node:fs";
import { createServer, type IncomingMessage, type Server, type ServerResponse } from "node:http";
import type { AddressInfo, Socket } from "node:net";
import { extname, join, normalize } from "node:path";

const DIST = new URL("../../dist/", import.meta.url).pathname;
const TYPES: Record<string, string> = {
  ".html": "text/html; charset=utf-8",
  ".js": "text/javascript",
  ".css": "text/css",
  ".svg": "image/svg+xml",
  ".txt": "text/plain",
};
/** The policy that the router sends with the page. */
export const POLICY = "default-src 'self'; img-src 'self' data: blob:; style-src 'self'; connect-src 'self'";

export type Body = { messages: { role: string; content: string }[] } & Record<string, unknown>;
/** Answers requests to the API. Returns false if the request is not its own. */
export type Api = (request: IncomingMessage, response: ServerResponse, body: string) => boolean | Promise<boolean>;

/** Serves the built page with the policy, and gives everything else to an API. */
export class Host {
  readonly #server: Server;
  readonly #sockets = new Set<Socket>();
  port = 0;
  api: Api;

  constructor(api: Api) {
    this.api = api;
    this.#server = createServer((request, response) => void this.#serve(request, response));
    this.#server.on("connection", (socket) => {
      this.#sockets.add(socket);
      socket.on("close", () => this.#sockets.delete(socket));
    });
  }

  get address(): string {
    return `http://127.0.0.1:${this.port}/`;
  }

  async start(): Promise<this> {
    await new Promise<void>((resolve) => this.#server.listen(this.port, "127.0.0.1", resolve));
    this.port = (this.#server.address() as AddressInfo).port;
    return this;
  }

  /** Ends at once, and breaks all connections, as a killed server does. `start` begins again at the same port. */
  async stop(): Promise<void> {
    const closed = new Promise<void>((resolve) => this.#server.close(() => resolve()));
    for (const socket of this.#sockets) socket.destroy();
    await closed;
  }

  async #serve(request: IncomingMessage, response: ServerResponse): Promise<void> {
    const path = normalize(new URL(request.url ?? "/", "http://host").pathname);
    let body = "";
    for await (const piece of request) body += String(piece);
    if (await this.api(request, response, body)) return;
    try {
      const content = readFileSync(join(DIST, path === "/" ? "index.html" : path));
      const type = TYPES[extname(path)] ?? "text/html; charset=utf-8";
      response.writeHead(200, { "content-type": type, "content-security-policy": POLICY }).end(content);
    } catch {
      response.writeHead(404).end();
    }
  }
}
