import { useEffect, useRef } from "preact/hooks";
import uPlot from "uplot";
import "uplot/dist/uPlot.min.css";

import { onThemeChange, token } from "../colours";

export interface Series {
  /** The design token of its colour. */
  colour: string;
  /** A value for each moment; undefined where there is none. */
  values: readonly (number | undefined)[];
}

interface Props {
  /** Milliseconds, ascending. */
  times: readonly number[];
  series: readonly Series[];
  /** The first moment of the picture, so that it does not stretch what little there is. */
  from: number;
  /** Called with the place of the moment under the pointer, or undefined when the pointer leaves. */
  onPoint?: (idx: number | undefined) => void;
}

const HEIGHT = 56;

/** Lines over the last minutes, without axes. What they show is written beside them, so screen readers skip it. */
export function Spark({ times, series, from, onPoint }: Props) {
  const box = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot | null>(null);
  const point = useRef(onPoint);
  point.current = onPoint;
  const colours = series.map(({ colour }) => colour).join(" ");

  useEffect(() => {
    const element = box.current;
    if (element === null) return;
    const created = new uPlot(
      {
        width: element.clientWidth,
        height: HEIGHT,
        padding: [4, 0, 2, 0],
        axes: [{ show: false }, { show: false }],
        legend: { show: false },
        cursor: { y: false, drag: { x: false, y: false }, points: { size: 6 } },
        scales: {
          x: { time: false, range: (_, min, max) => [min, max] },
          y: { range: (_, __, max) => [0, Math.max(max * 1.1, 1e-6)] },
        },
        series: [
          {},
          ...colours.split(" ").map((colour, idx) => ({
            stroke: () => token(colour),
            ...(idx === 0 ? { fill: () => `color-mix(in srgb, ${token(colour)} 14%, transparent)` } : {}),
            width: 1.5,
            points: { show: false },
            spanGaps: false,
          })),
        ],
        hooks: {
          setCursor: [(self) => point.current?.(self.cursor.idx ?? undefined)],
        },
      },
      [[]],
      element,
    );
    plot.current = created;
    const observer = new ResizeObserver(() => created.setSize({ width: element.clientWidth, height: HEIGHT }));
    observer.observe(element);
    const stop = onThemeChange(() => created.redraw());
    return () => {
      stop();
      observer.disconnect();
      created.destroy();
      plot.current = null;
    };
  }, [colours]);

  useEffect(() => {
    const last = times.at(-1) ?? from;
    plot.current?.setData([[...times], ...series.map(({ values }) => values.map((value) => value ?? null))], false);
    plot.current?.setScale("x", { min: Math.min(from, last - 1), max: last });
  }, [times, series, from]);

  return <div class="spark" ref={box} aria-hidden="true" />;
}
