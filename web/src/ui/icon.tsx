/** Line icons on a grid of 24, drawn for this page. */
const PATHS = {
  plus: "M12 5v14M5 12h14",
  menu: "M4 7h16M4 12h16M4 17h16",
  close: "M6 6l12 12M18 6L6 18",
  send: "M12 19V5M6 11l6-6 6 6",
  stop: "M7.5 7.5h9v9h-9z",
  copy: "M9 9h10v11H9zM5 15V4h10",
  check: "M5 12.5l4.5 4.5L19 7.5",
  edit: "M4 20h4L19 9l-4-4L4 16zM13.5 6.5l4 4",
  trash: "M5 7h14M10 7V4h4v3M7 7l1 13h8l1-13M10 11v5M14 11v5",
  refresh: "M19 8a8 8 0 1 0 1 5M19 3v5h-5",
  left: "M14.5 6l-6 6 6 6",
  right: "M9.5 6l6 6-6 6",
  down: "M6 9.5l6 6 6-6",
  search: "M11 4a7 7 0 1 0 0 14 7 7 0 0 0 0-14zM16 16l4.5 4.5",
  sliders: "M4 7h9M19 7h1M4 17h1M11 17h9M16 4v6M8 14v6",
  sun: "M12 8a4 4 0 1 0 0 8 4 4 0 0 0 0-8zM12 2.5v2M12 19.5v2M2.5 12h2M19.5 12h2M5.3 5.3l1.4 1.4M17.3 17.3l1.4 1.4M18.7 5.3l-1.4 1.4M6.7 17.3l-1.4 1.4",
  moon: "M19.5 14.5A8 8 0 0 1 9.5 4.5a8 8 0 1 0 10 10z",
  system: "M4 5h16v11H4zM9 20h6M12 16v4",
  chat: "M4 5h16v11H11l-4.5 4v-4H4z",
  server: "M4 5h16v6H4zM4 13h16v6H4zM7.5 8h.01M7.5 16h.01",
  tree: "M9 4h6v4H9zM4 16h6v4H4zM14 16h6v4h-6zM12 8v4M7 16v-4h10v4",
  clip: "M19 11.5l-7.5 7.5a4.5 4.5 0 0 1-6.4-6.4l8-8a3 3 0 0 1 4.3 4.3l-8 8a1.5 1.5 0 0 1-2.2-2.2l7-7",
  code: "M8.5 7l-5 5 5 5M15.5 7l5 5-5 5",
  key: "M8 11a4 4 0 1 0 0 8 4 4 0 0 0 0-8zM11 12l8.5-8.5M16 7l3 3",
  keyboard: "M3 7h18v11H3zM7 11h.01M11 11h.01M15 11h.01M17 14.5h.01M7 14.5h.01M10 14.5h4",
  import: "M12 4v11M7.5 11l4.5 4.5L16.5 11M5 20h14",
  export: "M12 15V4M7.5 8.5L12 4l4.5 4.5M5 20h14",
  more: "M5 12h.01M12 12h.01M19 12h.01",
  warning: "M12 4l9 16H3zM12 10v4M12 17h.01",
  file: "M6 3h8l4 4v14H6zM14 3v4h4",
  tool: "M14.5 5a4.5 4.5 0 0 0-4 6.5L4 18l2 2 6.5-6.5a4.5 4.5 0 0 0 6.3-5.3L16 11l-3-3 2.8-2.8a4.5 4.5 0 0 0-1.3-.2z",
  branch: "M7 4v16M7 12h6a4 4 0 0 0 4-4V4M14 7l3-3 3 3",
  again: "M5 9.5h14M5 14.5h14",
  percent: "M7.5 5.5a2 2 0 1 0 0 4 2 2 0 0 0 0-4zM16.5 14.5a2 2 0 1 0 0 4 2 2 0 0 0 0-4zM18 6L6 18",
  play: "M8 5l11 7-11 7z",
  info: "M12 3.5a8.5 8.5 0 1 0 0 17 8.5 8.5 0 0 0 0-17zM12 11v5M12 8h.01",
} as const;

export type IconName = keyof typeof PATHS;

export function Icon({ name, size = 18 }: { name: IconName; size?: number }) {
  return (
    <svg
      class="icon"
      viewBox="0 0 24 24"
      width={size}
      height={size}
      fill={name === "stop" ? "currentColor" : "none"}
      stroke="currentColor"
      stroke-width="1.75"
      stroke-linecap="round"
      stroke-linejoin="round"
      aria-hidden="true"
    >
      <path d={PATHS[name]} />
    </svg>
  );
}
