// The last steps of a model, as `/v1/steps` tells them, and where the strip draws them.

import { counted, seconds } from "../format";

export interface StepSequence {
  sequence: string;
  request_id?: string;
  prefill_tokens: number;
  decode_tokens: number;
  draft_tokens: number;
  accepted_draft_tokens: number;
}

export interface Step {
  number: number;
  lane: number;
  end_time: number;
  device_seconds: number;
  sequences: StepSequence[];
  others?: { prefill_tokens: number; decode_tokens: number };
}

export interface StepAnswer {
  data: Step[];
  last: number;
}

/** The most steps that are kept: more than the widest strip shows. */
const MAX_STEPS = 512;
/** The most rows of a strip. Sequences that find none free share the last one. */
export const MAX_ROWS = 24;
/** The most sequences of a step that are described one by one. */
const MAX_DESCRIBED = 6;

/** Returns the known steps with those of an answer to a question for newer ones. A restarted server counts anew. */
export function joined(known: StepAnswer, answer: StepAnswer): StepAnswer {
  if (answer.last < known.last) return answer;
  const newer = answer.data.filter(({ number }) => number > known.last);
  return newer.length === 0 ? known : { data: [...known.data, ...newer].slice(-MAX_STEPS), last: answer.last };
}

/** What a step computed in a row of the strip. */
export interface Cell {
  row: number;
  prefill: number;
  decode: number;
  accepted: number;
  isOthers: boolean;
}

export interface Strip {
  /** The cells of each step. */
  columns: Cell[][];
  rows: number;
  longestSeconds: number;
}

/**
 * Gives each sequence a row from its first to its last step. Rows are used again, the topmost free one first. The other
 * tenants' share has a row of its own below them.
 */
export function layOut(steps: readonly Step[]): Strip {
  const lastOf = new Map<string, number>();
  steps.forEach(({ sequences }, idx) => sequences.forEach(({ sequence }) => lastOf.set(sequence, idx)));
  const rowOf = new Map<string, number>();
  const busyUntil: number[] = [];
  const columns = steps.map(({ sequences }, idx) =>
    sequences.map((sequence): Cell => {
      let row = rowOf.get(sequence.sequence);
      if (row === undefined) {
        const free = busyUntil.findIndex((until) => until < idx);
        row = free >= 0 ? free : Math.min(busyUntil.length, MAX_ROWS - 1);
        busyUntil[row] = Math.max(busyUntil[row] ?? 0, lastOf.get(sequence.sequence) ?? idx);
        rowOf.set(sequence.sequence, row);
      }
      return {
        row,
        prefill: sequence.prefill_tokens,
        decode: sequence.decode_tokens,
        accepted: sequence.accepted_draft_tokens,
        isOthers: false,
      };
    }),
  );
  const hasOthers = steps.some(({ others }) => others !== undefined);
  steps.forEach(({ others }, idx) => {
    if (others === undefined) return;
    const { prefill_tokens: prefill, decode_tokens: decode } = others;
    columns[idx]?.push({ row: busyUntil.length, prefill, decode, accepted: 0, isOthers: true });
  });
  return {
    columns,
    rows: busyUntil.length + Number(hasOthers),
    longestSeconds: Math.max(0, ...steps.map(({ device_seconds }) => device_seconds)),
  };
}

function workOf({ prefill_tokens, decode_tokens, draft_tokens, accepted_draft_tokens }: StepSequence): string {
  const parts = [];
  if (prefill_tokens > 0) parts.push(`${counted(prefill_tokens, "token")} of the prompt`);
  if (decode_tokens > 0) parts.push("1 token of the reply");
  if (draft_tokens > 0) parts.push(`${accepted_draft_tokens} of ${counted(draft_tokens, "draft")} accepted`);
  return parts.join(", ") || "nothing";
}

/** Returns the figures of a step as a sentence. */
export function describe(step: Step, numLanes: number): string {
  const { sequences, others } = step;
  const parts = sequences
    .slice(0, MAX_DESCRIBED)
    .map((sequence) => `${sequence.request_id ?? `sequence ${sequence.sequence}`}: ${workOf(sequence)}`);
  if (sequences.length > MAX_DESCRIBED) parts.push(`${sequences.length - MAX_DESCRIBED} more sequences`);
  if (others !== undefined) {
    const tokens = others.prefill_tokens + others.decode_tokens;
    parts.push(`other tenants: about ${counted(tokens, "token")}`);
  }
  const lane = numLanes > 1 ? ` on lane ${step.lane}` : "";
  return `Step ${step.number}${lane}, ${seconds(step.device_seconds)}. ${parts.join("; ")}.`;
}
