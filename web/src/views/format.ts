// Numbers as people read them. The page speaks English, so the forms do not depend on the browser's language.

const INTEGER = new Intl.NumberFormat("en-US", { maximumFractionDigits: 0 });

/** Returns a count, such as `12,345`. */
export function count(value: number): string {
  return INTEGER.format(value);
}

/** Returns a count with its noun: `1 node`, `2 nodes`. */
export function counted(value: number, noun: string): string {
  return `${count(value)} ${noun}${value === 1 ? "" : "s"}`;
}

/** Returns a rate with about three digits: `0.42`, `12.5`, `1,234`. */
export function rate(value: number): string {
  if (value === 0) return "0";
  return value < 1 ? value.toFixed(2) : value < 100 ? value.toFixed(1) : INTEGER.format(value);
}

/** Returns a fraction in percent. */
export function percent(fraction: number): string {
  return `${INTEGER.format(fraction * 100)} %`;
}

/** Returns bytes with a binary unit, as the flags have them. */
export function bytes(value: number): string {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let idx = 0;
  while (value >= 1024 && idx < units.length - 1) {
    value /= 1024;
    idx += 1;
  }
  return `${idx === 0 || value >= 100 ? INTEGER.format(value) : value.toFixed(1)} ${units[idx]}`;
}

/** Returns a short time with about three digits: `4.2 ms`, `310 ms`, `1.25 s`. */
export function seconds(value: number): string {
  const ms = value * 1000;
  if (ms < 100) return `${ms.toFixed(1)} ms`;
  return ms < 1000 ? `${INTEGER.format(ms)} ms` : value < 100 ? `${value.toFixed(2)} s` : `${INTEGER.format(value)} s`;
}

/** Returns a longer time in its largest unit: `12 s`, `5 min`, `3 h`, `2 days`. */
export function duration(ms: number): string {
  const [seconds, minutes, hours] = [1000, 60_000, 3_600_000].map((unit) => Math.round(ms / unit)) as [
    number,
    number,
    number,
  ];
  if (seconds < 60) return `${seconds} s`;
  if (minutes < 60) return `${minutes} min`;
  return hours < 48 ? `${hours} h` : `${Math.round(hours / 24)} days`;
}
