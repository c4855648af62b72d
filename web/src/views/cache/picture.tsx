import { useEffect, useId, useMemo, useRef, useState } from "preact/hooks";

import { onThemeChange } from "../colours";
import { describe } from "./describe";
import { type Icicle, nodeAt, numRows, ROOT, ROWS_ABOVE, sibling, type Window, windowOf } from "./icicle";
import { type Colouring, paint, palette } from "./paint";

interface Props {
  icicle: Icicle;
  /** The node that fills the width. */
  zoom: number;
  selected: number;
  colouring: Colouring;
  /** The tier below the device: its name, and the token of its colour. */
  store: { name: string; colour: string };
  onSelect: (place: number) => void;
  onZoom: (place: number) => void;
}

const ROW_HEIGHT = { most: 28, least: 11 };
const HEIGHT = { least: 140, most: 448 };
/** The width for which rows are counted before the picture has one. */
const USUAL_WIDTH = 1000;
const ZOOM_MS = 240;

interface View extends Window {
  rowHeight: number;
}

/** The tree on a canvas. Each frame draws only what is at least a pixel wide. */
export function Picture({ icicle, zoom, selected, colouring, store, onSelect, onZoom }: Props) {
  const canvas = useRef<HTMLCanvasElement>(null);
  const help = useId();
  const height = Math.min(Math.max(((icicle.deepest[ROOT] ?? 0) + 1) * ROW_HEIGHT.most, HEIGHT.least), HEIGHT.most);
  const target = useMemo((): View => {
    const window = windowOf(icicle, zoom);
    const rows = numRows(icicle, window, canvas.current?.clientWidth ?? USUAL_WIDTH);
    return { ...window, rowHeight: Math.min(Math.max(height / rows, ROW_HEIGHT.least), ROW_HEIGHT.most) };
  }, [icicle, zoom, height]);
  const shown = useRef<View>(target);
  const hovered = useRef(-1);
  const [pointed, setPointed] = useState(-1);
  const redraw = useRef<() => void>(() => {});

  useEffect(() => {
    const element = canvas.current;
    const context = element?.getContext("2d");
    if (!element || !context) return;
    let colours = palette(context, store.colour);
    let frame = 0;
    const draw = (): void => {
      const width = element.clientWidth;
      const scale = devicePixelRatio || 1;
      const [wide, high] = [Math.round(width * scale), Math.round(height * scale)];
      if (element.width !== wide || element.height !== high) [element.width, element.height] = [wide, high];
      context.setTransform(scale, 0, 0, scale, 0, 0);
      const view = shown.current;
      paint(context, {
        icicle,
        window: view,
        width,
        height,
        rowHeight: view.rowHeight,
        colouring,
        colours,
        selected,
        hovered: hovered.current,
      });
    };
    redraw.current = () => {
      // A frame of the zoom that is under way draws the rest, too.
      if (frame === 0) frame = requestAnimationFrame(animate);
    };
    const from = shown.current;
    const begin = performance.now();
    const isStill = matchMedia("(prefers-reduced-motion: reduce)").matches || sameView(from, target);
    const animate = (): void => {
      const part = isStill ? 1 : Math.min((performance.now() - begin) / ZOOM_MS, 1);
      shown.current = part === 1 ? target : mixed(from, target, 1 - (1 - part) ** 3);
      draw();
      frame = part < 1 ? requestAnimationFrame(animate) : 0;
    };
    animate();
    const observer = new ResizeObserver(() => redraw.current());
    observer.observe(element);
    const stop = onThemeChange(() => {
      colours = palette(context, store.colour);
      redraw.current();
    });
    return () => {
      cancelAnimationFrame(frame);
      observer.disconnect();
      stop();
    };
  }, [icicle, target, selected, colouring, height, store.colour]);

  const placeUnder = (event: MouseEvent): number | undefined => {
    const area = (event.currentTarget as HTMLElement).getBoundingClientRect();
    const view = shown.current;
    const token = view.left + ((event.clientX - area.left) / area.width) * view.width;
    return nodeAt(icicle, token, Math.floor((event.clientY - area.top) / view.rowHeight + view.row));
  };

  const point = (place: number): void => {
    hovered.current = place;
    setPointed(place);
    redraw.current();
  };

  /** Selects a node, and zooms out as far as it takes to see it. */
  const reach = (place: number): void => {
    let zoomed = zoom;
    const isWithin = (outer: number): boolean => {
      const [left, right] = [icicle.left[outer] ?? 0, (icicle.left[outer] ?? 0) + (icicle.width[outer] ?? 0)];
      return (icicle.left[place] ?? 0) >= left && (icicle.left[place] ?? 0) < right;
    };
    const depth = icicle.depth[place] ?? 0;
    while (zoomed > ROOT && (!isWithin(zoomed) || depth < (icicle.depth[zoomed] ?? 0) - ROWS_ABOVE))
      zoomed = icicle.parent[zoomed] as number;
    if (zoomed !== zoom) onZoom(zoomed);
    onSelect(place);
  };

  const onKeyDown = (event: KeyboardEvent): void => {
    const at = selected > ROOT ? selected : zoom;
    const moves: Record<string, () => void> = {
      ArrowRight: () => reach(sibling(icicle, at, 1)),
      ArrowLeft: () => reach(sibling(icicle, at, -1)),
      ArrowDown: () => (icicle.count[at] ?? 0) > 0 && reach(icicle.first[at] as number),
      ArrowUp: () => (icicle.parent[at] ?? ROOT) > ROOT && reach(icicle.parent[at] as number),
      Home: () => icicle.nodes.length > 0 && reach(icicle.first[ROOT] as number),
      Enter: () => onZoom(at),
      Escape: () => onZoom(Math.max(icicle.parent[zoom] ?? ROOT, ROOT)),
    };
    const move = moves[event.key];
    if (move === undefined || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    move();
  };

  const said = (place: number): string => {
    const node = icicle.nodes[place - 1];
    return node === undefined ? "" : describe(node, icicle.width[place] ?? 0, store.name);
  };
  return (
    <>
      <canvas
        ref={canvas}
        class="picture"
        style={{ height: `${height}px` }}
        tabIndex={0}
        role="application"
        aria-label="Tree of cached prefixes"
        aria-describedby={help}
        onClick={(event) => {
          const place = placeUnder(event);
          if (place === undefined) return;
          if (place > ROOT) onSelect(place);
          // A click on the node that fills the width, or on the path to it, leads back.
          onZoom(place === zoom && place > ROOT ? (icicle.parent[place] as number) : place);
        }}
        onMouseMove={(event) => {
          const place = placeUnder(event) ?? -1;
          if (place !== hovered.current) point(place);
        }}
        onMouseLeave={() => point(-1)}
        onKeyDown={onKeyDown}
      />
      <p id={help} class="unseen">
        Each rectangle is a run of tokens, with its continuations below it. The arrow keys walk the tree, Enter zooms
        in, and Escape zooms out. The table has the same as text.
      </p>
      <p class="unseen" aria-live="polite">
        {said(selected)}
      </p>
      <p class="pointed facts" aria-hidden="true">
        {said(pointed) || "Point at a node to read it, click to zoom."}
      </p>
    </>
  );
}

function sameView(a: View, b: View): boolean {
  return a.left === b.left && a.width === b.width && a.row === b.row && a.rowHeight === b.rowHeight;
}

/** Returns a view between two. The width changes by a factor, so that near and far zoom as quickly. */
function mixed(from: View, to: View, part: number): View {
  const width = from.width * (to.width / from.width) ** part;
  // The share of the way that the width has gone, so that edges move in straight lines.
  const gone = Math.abs(to.width - from.width) < 1e-9 ? part : (width - from.width) / (to.width - from.width);
  const line = (a: number, b: number, share: number): number => a + (b - a) * share;
  return {
    width,
    left: line(from.left, to.left, gone),
    row: line(from.row, to.row, part),
    rowHeight: line(from.rowHeight, to.rowHeight, part),
  };
}
