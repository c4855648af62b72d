import { describe, expect, it } from "vitest";

import {
  type Conversation,
  mergedTurns,
  newConversation,
  pathOf,
  pathTo,
  siblingsOf,
  titleFrom,
  type Turn,
  withChosen,
  withoutTurn,
  withTurns,
} from "../../src/history/tree";

let clock = 0;

function turn(id: string, parent: string | null, more: Partial<Turn> = {}): Turn {
  clock += 1;
  return { id, parent, role: "user", content: id, created: clock, state: "done", ...more };
}

function build(...turns: Turn[]): Conversation {
  return turns.reduce((conversation, each) => withTurns(conversation, [each]), newConversation(0));
}

const ids = (turns: Turn[]) => turns.map((each) => each.id).join(" ");

describe("a conversation", () => {
  it("shows the newest branch, and another that is chosen together with what is below it", () => {
    const tree = build(turn("a", null), turn("b", "a"), turn("c", "b"), turn("b2", "a"), turn("c2", "b2"));
    expect(ids(pathOf(tree))).toBe("a b2 c2");
    const back = withChosen(tree, "b");
    expect(ids(pathOf(back))).toBe("a b c");
    expect(ids(pathOf(withChosen(back, "b2")))).toBe("a b2 c2");
    expect(ids(siblingsOf(tree, "c2"))).toBe("c2");
    expect(ids(siblingsOf(tree, "b"))).toBe("b b2");
  });

  it("branches at the first turn, too", () => {
    const tree = build(turn("a", null), turn("b", "a"), turn("a2", null));
    expect(ids(pathOf(tree))).toBe("a2");
    expect(ids(pathOf(withChosen(tree, "b")))).toBe("a b");
  });

  it("shows the first of several answers that are added together, in the order of their choices", () => {
    const tree = build(turn("a", null));
    const created = 100;
    const answers = [0, 1, 2].map((choice) => turn(`z${2 - choice}`, "a", { group: "g", choice, created }));
    const grown = withTurns(tree, answers);
    expect(ids(siblingsOf(grown, "z2"))).toBe("z2 z1 z0");
    expect(ids(pathOf(grown))).toBe("a z2");
  });

  it("keeps the choice when a turn changes", () => {
    const tree = withChosen(build(turn("a", null), turn("b", "a"), turn("b2", "a")), "b");
    const changed = withTurns(tree, [{ ...(tree.turns.b2 as Turn), content: "more" }]);
    expect(ids(pathOf(changed))).toBe("a b");
    expect(changed.turns.b2?.content).toBe("more");
  });

  it("loses a turn with all below it, and shows a sibling instead", () => {
    const tree = build(turn("a", null), turn("b", "a"), turn("c", "b"), turn("b2", "a"), turn("c2", "b2"));
    const less = withoutTurn(tree, "b2");
    expect(Object.keys(less.turns).sort().join(" ")).toBe("a b c");
    expect(ids(pathOf(less))).toBe("a b c");
    expect(Object.values(less.chosen).every((id) => less.turns[id])).toBe(true);
    expect(ids(pathTo(tree, "c2"))).toBe("a b2 c2");
    expect(pathTo(tree, null)).toEqual([]);
  });
});

describe("turns of two tabs", () => {
  const merged = (theirs: Turn[], ours: Turn[], changed: string[], dropped: string[] = []) => {
    const byId = (turns: Turn[]) => Object.fromEntries(turns.map((each) => [each.id, each]));
    return Object.values(mergedTurns(byId(theirs), byId(ours), new Set(dropped), (id) => changed.includes(id)))
      .map(({ id, content }) => `${id}:${content}`)
      .sort()
      .join(" ");
  };

  it("are joined, and each tab's own changes count", () => {
    const old = turn("a", null, { content: "old" });
    const fresh = turn("a", null, { content: "new" });
    expect(merged([old, turn("b", "a")], [fresh, turn("c", "a")], ["a", "c"])).toBe("a:new b:b c:c");
    expect(merged([fresh], [old], [])).toBe("a:new");
    expect(merged([fresh], [old, turn("b", "a")], [])).toBe("a:new");
    expect(merged([old, turn("b", "a")], [old], [], ["b"])).toBe("a:old");
  });
});

describe("a title", () => {
  it("is the first line, cut between words", () => {
    expect(titleFrom("  Hello\nthere")).toBe("Hello");
    expect(titleFrom("word ".repeat(30))).toMatch(/^(word ){5,11}word…$/);
    expect(titleFrom("x".repeat(100)).length).toBeLessThanOrEqual(61);
  });
});
