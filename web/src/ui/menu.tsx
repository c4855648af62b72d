import { useEffect, useRef, useState } from "preact/hooks";

import { IconButton } from "./button";
import { Icon, type IconName } from "./icon";
import "./menu.css";

export type MenuItem = { label: string; icon?: IconName; onClick: () => void };

type Props = { label: string; icon: IconName; items: MenuItem[]; disabled?: boolean };

/** A button that opens a list of actions. Arrow keys move in it, and Escape closes it. */
export function Menu({ label, icon, items, disabled = false }: Props) {
  const [open, setOpen] = useState(false);
  const root = useRef<HTMLDivElement>(null);
  useEffect(() => {
    if (!open) return;
    root.current?.querySelector<HTMLElement>("[role=menuitem]")?.focus();
    const close = (event: PointerEvent) => {
      if (!root.current?.contains(event.target as Node)) setOpen(false);
    };
    addEventListener("pointerdown", close);
    return () => removeEventListener("pointerdown", close);
  }, [open]);
  const shut = () => {
    setOpen(false);
    root.current?.querySelector("button")?.focus();
  };
  const onKey = (event: KeyboardEvent) => {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (event.key === "Escape" && open) {
      event.preventDefault();
      shut();
    } else if (step && open) {
      event.preventDefault();
      const all = [...(root.current?.querySelectorAll<HTMLElement>("[role=menuitem]") ?? [])];
      const at = all.indexOf(document.activeElement as HTMLElement);
      all[(at + step + all.length) % all.length]?.focus();
    }
  };
  return (
    <div class="menu" ref={root} onKeyDown={onKey}>
      <IconButton icon={icon} label={label} disabled={disabled} expanded={open} onClick={() => setOpen(!open)} />
      {open && (
        <div class="menu-items" role="menu" aria-label={label}>
          {items.map((item) => (
            <button
              key={item.label}
              type="button"
              role="menuitem"
              onClick={() => {
                shut();
                item.onClick();
              }}
            >
              {item.icon && <Icon name={item.icon} size={16} />}
              {item.label}
            </button>
          ))}
        </div>
      )}
    </div>
  );
}
