import { Component, type ComponentChild, type ComponentType, h } from "preact";

/** Returns a component that is rendered again only if `equal` says that its properties differ. */
export function memo<P extends object>(
  render: (props: P) => ComponentChild,
  equal: (before: P, after: P) => boolean,
): ComponentType<P> {
  return class extends Component<P> {
    override shouldComponentUpdate(next: P): boolean {
      return !equal(this.props as P, next);
    }

    override render(): ComponentChild {
      return h(render as ComponentType<P>, this.props as P);
    }
  };
}
