import type { ComponentChildren } from "preact";

import { Icon, type IconName } from "./icon";
import "./button.css";

type IconButtonProps = {
  icon: IconName;
  /** What the button does, for screen readers and as its tooltip. */
  label: string;
  onClick: () => void;
  size?: number;
  disabled?: boolean;
  pressed?: boolean;
  expanded?: boolean;
  class?: string;
};

export function IconButton({ icon, label, onClick, size, disabled, pressed, expanded, class: extra }: IconButtonProps) {
  return (
    <button
      type="button"
      class={`icon-button ${extra ?? ""}`}
      aria-label={label}
      title={label}
      aria-pressed={pressed}
      aria-expanded={expanded}
      disabled={disabled}
      onClick={onClick}
    >
      <Icon name={icon} size={size ?? 18} />
    </button>
  );
}

type ButtonProps = {
  children: ComponentChildren;
  onClick?: (event: Event) => void;
  kind?: "plain" | "main" | "danger";
  submit?: boolean;
  disabled?: boolean;
};

export function Button({ children, onClick, kind = "plain", submit, disabled }: ButtonProps) {
  return (
    <button type={submit ? "submit" : "button"} class={`button ${kind}`} onClick={onClick} disabled={disabled}>
      {children}
    </button>
  );
}
