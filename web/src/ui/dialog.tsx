import type { ComponentChildren } from "preact";
import { useEffect, useId, useRef } from "preact/hooks";

import { IconButton } from "./button";
import "./dialog.css";

type Props = {
  title: string;
  onClose: () => void;
  children: ComponentChildren;
  /** Buttons at the end, the main one last. */
  actions?: ComponentChildren;
  wide?: boolean;
};

/** A modal dialog. The browser keeps the focus in it, and Escape or a click beside it closes it. */
export function Dialog({ title, onClose, children, actions, wide }: Props) {
  const dialog = useRef<HTMLDialogElement>(null);
  const heading = useId();
  useEffect(() => {
    const opener = document.activeElement;
    dialog.current?.showModal();
    return () => {
      if (opener instanceof HTMLElement) opener.focus();
    };
  }, []);
  return (
    <dialog
      ref={dialog}
      class={`dialog ${wide ? "wide" : ""}`}
      aria-labelledby={heading}
      onCancel={(event) => {
        event.preventDefault();
        onClose();
      }}
      onClick={(event) => {
        if (event.target === dialog.current) onClose();
      }}
    >
      <div class="dialog-inner">
        <header>
          <h2 id={heading}>{title}</h2>
          <IconButton icon="close" label="Close" onClick={onClose} />
        </header>
        <div class="dialog-body">{children}</div>
        {actions && <footer>{actions}</footer>}
      </div>
    </dialog>
  );
}
