import { readdirSync, readFileSync } from "node:fs";

/** The processes of this machine: id, parent and command line. */
function processes(): { id: number; parent: number; command: string }[] {
  return readdirSync("/proc")
    .filter((name) => /^\d+$/.test(name))
    .flatMap((name) => {
      try {
        const command = readFileSync(`/proc/${name}/cmdline`, "utf8").replaceAll("\0", " ");
        const parent = Number(readFileSync(`/proc/${name}/stat`, "utf8").split(") ").at(-1)?.split(" ")[1]);
        return [{ id: Number(name), parent, command }];
      } catch {
        // It has ended meanwhile.
        return [];
      }
    });
}

/** Returns the process id of the shard below the server that listens on `port`. */
export function shardOf(port: number): number {
  const all = processes();
  const launchers = all.filter(({ command }) => command.includes(" serve ") && command.includes(`--port ${port} `));
  const inside = new Set(launchers.map(({ id }) => id));
  for (let before = 0; before !== inside.size; ) {
    before = inside.size;
    for (const { id, parent } of all) if (inside.has(parent)) inside.add(id);
  }
  const shard = all.find(({ id, command }) => inside.has(id) && command.includes("trunkline_server serve"));
  if (!shard) throw new Error(`no shard of the server on port ${port}`);
  return shard.id;
}
