import { useEffect, useId, useRef, useState } from "preact/hooks";

import { getJson } from "../../api/client";
import { onThemeChange, token } from "../colours";
import { counted, seconds } from "../format";
import { usePolling } from "../polling";
import { describe, joined, layOut, type Step, type StepAnswer, type Strip } from "./last-steps";

const ROWS_HEIGHT = 96;
const TALLEST_ROW = 16;
const GAP = 6;
const TIMES_HEIGHT = 34;
const COLUMN = 8;

const NONE: StepAnswer = { data: [], last: 0 };

/** The last steps, oldest left: which sequence each computed something for, and below that how long each took. */
export function LastSteps({ model, numLanes }: { model: string; numLanes: number }) {
  const canvas = useRef<HTMLCanvasElement>(null);
  const help = useId();
  const known = useRef({ model, answer: NONE });
  const polled = usePolling(
    async (signal) => {
      if (known.current.model !== model) known.current = { model, answer: NONE };
      const query = new URLSearchParams({ after: String(known.current.answer.last), ...(model && { model }) });
      const answer = await getJson<StepAnswer>(`v1/steps?${query}`, signal);
      known.current.answer = joined(known.current.answer, answer);
      return known.current.answer.data;
    },
    1000,
    model,
  );
  const [width, setWidth] = useState(0);
  const [pointed, setPointed] = useState<number>();
  const [held, setHeld] = useState<readonly Step[]>();
  const numColumns = Math.max(Math.floor(width / COLUMN), 1);
  // The picture holds still while somebody reads a step.
  const steps = (held ?? polled.value ?? []).slice(-numColumns);
  const latest = steps.at(-1);
  const step = pointed === undefined ? undefined : steps.find(({ number }) => number === pointed);

  const point = (idx: number | undefined): void => {
    const at = idx === undefined ? undefined : steps[Math.min(Math.max(idx, 0), steps.length - 1)];
    setHeld(at && steps);
    setPointed(at?.number);
  };

  useEffect(() => {
    const element = canvas.current;
    if (element === null) return;
    const measure = (): void => setWidth(element.clientWidth);
    measure();
    const observer = new ResizeObserver(measure);
    observer.observe(element);
    return () => observer.disconnect();
  }, []);

  useEffect(() => {
    const strip = layOut(steps);
    const draw = (): void => {
      if (canvas.current !== null) paint(canvas.current, steps, strip, numColumns, pointed);
    };
    draw();
    return onThemeChange(draw);
  });

  const onKeyDown = (event: KeyboardEvent): void => {
    const at = steps.findIndex(({ number }) => number === pointed);
    const last = steps.length - 1;
    const moves: Record<string, number | undefined> = {
      ArrowLeft: at < 0 ? last : at - 1,
      ArrowRight: at < 0 ? last : at + 1,
      Home: 0,
      End: last,
      Escape: undefined,
    };
    if (!(event.key in moves) || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    point(moves[event.key]);
  };

  const hasOthers = steps.some(({ others }) => others !== undefined);
  const summary =
    latest === undefined
      ? "No step yet."
      : `The last ${counted(steps.length, "step")}; the latest took ${seconds(latest.device_seconds)} ` +
        `for ${counted(latest.sequences.length, "sequence")}.`;
  return (
    <section class="panel" aria-labelledby="last-steps-title">
      <header class="panel-head">
        <h2 id="last-steps-title">Last steps</h2>
        <ul class="legend" aria-hidden="true">
          <li>
            <span class="swatch series-2" /> prompt
          </li>
          <li>
            <span class="swatch series-1" /> reply
          </li>
          <li>
            <span class="swatch series-3" /> accepted drafts
          </li>
          {hasOthers && (
            <li>
              <span class="swatch others" /> other tenants
            </li>
          )}
        </ul>
      </header>
      <canvas
        class="last-steps"
        ref={canvas}
        style={{ height: `${ROWS_HEIGHT + GAP + TIMES_HEIGHT}px` }}
        tabIndex={0}
        role="application"
        aria-label="Last steps"
        aria-describedby={help}
        onMouseMove={(event) => {
          const x = event.clientX - event.currentTarget.getBoundingClientRect().left;
          const idx = Math.floor(x / COLUMN) - (numColumns - steps.length);
          point(idx >= 0 && idx < steps.length ? idx : undefined);
        }}
        onMouseLeave={() => point(undefined)}
        onBlur={() => point(undefined)}
        onKeyDown={onKeyDown}
      />
      <p id={help} class="unseen">
        Each column is a step, with a row for each sequence, and its duration below. The left and right arrow keys walk
        the steps, and Escape returns to the latest ones.
      </p>
      <p class="said" aria-live={step === undefined ? "off" : "polite"}>
        {step === undefined ? summary : describe(step, numLanes)}
      </p>
    </section>
  );
}

function paint(
  canvas: HTMLCanvasElement,
  steps: readonly Step[],
  strip: Strip,
  numColumns: number,
  pointed: number | undefined,
): void {
  const { clientWidth: width, clientHeight: height } = canvas;
  const scale = devicePixelRatio || 1;
  canvas.width = Math.round(width * scale);
  canvas.height = Math.round(height * scale);
  const context = canvas.getContext("2d");
  if (context === null) return;
  context.scale(scale, scale);
  const [prompt, reply, draft] = [token("--series-2"), token("--series-1"), token("--series-3")];
  const [others, line, time] = [token("--border-strong"), token("--border"), token("--text-3")];
  const rowHeight = Math.min(ROWS_HEIGHT / Math.max(strip.rows, 1), TALLEST_ROW);
  const fill = (colour: string, x: number, y: number, high: number): void => {
    context.fillStyle = colour;
    context.fillRect(x, y, COLUMN - 1, high);
  };
  context.fillStyle = line;
  context.fillRect(0, height - 1, width, 1);
  steps.forEach((step, idx) => {
    const x = (numColumns - steps.length + idx) * COLUMN;
    if (step.number === pointed) {
      context.fillStyle = line;
      context.fillRect(x - 1, 0, COLUMN + 1, height);
    }
    for (const { row, prefill, decode, accepted, isOthers } of strip.columns[idx] ?? []) {
      const parts = isOthers
        ? [{ size: prefill + decode, colour: others }]
        : [
            { size: accepted, colour: draft },
            { size: decode, colour: reply },
            // A chunk of a prompt is long, so that it would hide what is beside it.
            { size: Math.min(prefill, Math.max(decode + accepted, 1)), colour: prompt },
          ];
      const total = parts.reduce((sum, { size }) => sum + size, 0);
      let y = row * rowHeight;
      for (const { size, colour } of parts) {
        const high = total === 0 ? 0 : (size / total) * Math.max(rowHeight - 1, 1);
        if (high > 0) fill(colour, x, y, high);
        y += high;
      }
    }
    const share = strip.longestSeconds > 0 ? step.device_seconds / strip.longestSeconds : 0;
    const high = Math.max(share * TIMES_HEIGHT, 1);
    fill(time, x, height - high, high);
  });
}
