import { useEffect, useRef } from "preact/hooks";

import { onThemeChange, token } from "../colours";
import { count, counted, percent, seconds } from "../format";
import type { Between } from "./look";

const HEIGHT = 72;

/**
 * The last minutes of steps: a column a second, as high as the part of the second for which the device worked, divided
 * by the tokens that it computed for prompts and for replies.
 */
export function StepStrip({
  seconds: columns,
  spanMs,
}: {
  seconds: readonly { at: number; value: Between }[];
  spanMs: number;
}) {
  const canvas = useRef<HTMLCanvasElement>(null);
  const numColumns = spanMs / 1000;
  const shown = columns.slice(-numColumns);
  const last = shown.at(-1)?.value;

  useEffect(() => {
    const draw = (): void => {
      if (canvas.current !== null)
        drawColumns(
          canvas.current,
          shown.map(({ value }) => value),
          numColumns,
        );
    };
    draw();
    const observer = new ResizeObserver(draw);
    if (canvas.current !== null) observer.observe(canvas.current);
    const stop = onThemeChange(draw);
    return () => {
      observer.disconnect();
      stop();
    };
  });

  const said =
    last === undefined || last.steps === 0
      ? "No step in the last second."
      : `In the last second: ${counted(Math.round(last.steps), "step")} of ${seconds(last.stepSeconds ?? 0)}, ` +
        `${count(last.promptRate * last.seconds)} tokens of prompts and ` +
        `${count(last.outputRate * last.seconds)} of replies; the device worked ${percent(last.busy)} of the time.`;
  return (
    <section class="panel" aria-labelledby="steps-title">
      <header class="panel-head">
        <h2 id="steps-title">Steps</h2>
        <ul class="legend" aria-hidden="true">
          <li>
            <span class="swatch series-2" /> prompts
          </li>
          <li>
            <span class="swatch series-1" /> replies
          </li>
        </ul>
      </header>
      <canvas class="strip" ref={canvas} aria-hidden="true" />
      <p class="said">{said}</p>
    </section>
  );
}

function drawColumns(canvas: HTMLCanvasElement, columns: readonly Between[], numColumns: number): void {
  const { clientWidth: width } = canvas;
  const scale = devicePixelRatio || 1;
  canvas.width = Math.round(width * scale);
  canvas.height = Math.round(HEIGHT * scale);
  const context = canvas.getContext("2d");
  if (context === null) return;
  context.scale(scale, scale);
  const [prompts, replies, line] = [token("--series-2"), token("--series-1"), token("--border")];
  context.fillStyle = line;
  context.fillRect(0, HEIGHT - 1, width, 1);
  const step = width / numColumns;
  columns.forEach((column, idx) => {
    const height = Math.min(column.busy, 1) * (HEIGHT - 2);
    if (height < 0.5) return;
    const x = width - (columns.length - idx) * step;
    const tokens = column.promptRate + column.outputRate;
    const ofReplies = tokens === 0 ? 0 : (column.outputRate / tokens) * height;
    const bar = Math.max(step - 1, 0.5);
    context.fillStyle = replies;
    context.fillRect(x, HEIGHT - 1 - ofReplies, bar, ofReplies);
    context.fillStyle = prompts;
    context.fillRect(x, HEIGHT - 1 - height, bar, height - ofReplies);
  });
}
