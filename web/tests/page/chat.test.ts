// @vitest-environment node
import type { Browser } from "playwright-core";
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, it } from "vitest";

import { answered, CHROMIUM, close, gate, lastAnswer, launch, open, send, stored, type Tab } from "./browser";
import { Fake, say, type Step } from "./fake";
import { Host } from "./host";

describe.skipIf(!CHROMIUM)("the chat", () => {
  let browser: Browser;
  let host: Host;
  let fake: Fake;
  let tab: Tab;

  beforeAll(async () => {
    browser = await launch();
  });
  afterAll(() => browser?.close());
  beforeEach(async () => {
    fake = new Fake();
    host = await new Host(fake.api).start();
    tab = await open(browser, host.address);
  });
  afterEach(async () => {
    await close(tab);
    await host.stop();
  });

  it("shows an answer while it is written, and its speed and cached share at the end", async () => {
    const { page } = tab;
    const half = gate();
    const cached_tokens_details = { device: 8, host: 0, disk: 24, object: 0 };
    fake.usage.prompt_tokens_details = { cached_tokens: 32, cached_tokens_details };
    fake.script = function* () {
      yield* say("# Plan\n\nFirst **this");
      yield { until: half.wait };
      yield* say("**, then `that`.");
    };
    await send(page, "Make a plan");
    await lastAnswer(page).getByText("First").waitFor();
    expect(await lastAnswer(page).getAttribute("aria-busy")).toBe("true");
    half.open();
    expect(await answered(page)).toBe("Plan\n\nFirst this, then that.");
    expect(await lastAnswer(page).locator(".stats").innerText()).toMatch(/8 tokens\s+80 % cached\s+60 % disk/);
    await page.getByRole("img", { name: "cache: 8 from device memory, 24 from the disk" }).waitFor();
    await expect.poll(() => page.getByRole("status").allInnerTexts()).toContain("The answer is complete.");
    await expect.poll(() => page.title()).toBe("Make a plan · Trunkline");
    expect(fake.asked[0]).toMatchObject({
      model: "acme/quiet-7b",
      stream: true,
      stream_options: { include_usage: true },
    });
  });

  it("stops at Escape, and goes on from the partial answer", async () => {
    const { page } = tab;
    fake.script = function* (): Generator<Step> {
      yield* say("One, two,");
      yield { until: new Promise(() => {}) };
    };
    await send(page, "Count");
    await lastAnswer(page).getByText("One, two,").waitFor();
    await page.keyboard.press("Escape");
    await page.getByText("You stopped the answer.").waitFor();
    fake.script = () => say(" three.");
    await page.getByRole("button", { name: "Go on" }).click();
    expect(await answered(page)).toBe("One, two, three.");
    expect(fake.asked[1]).toMatchObject({ continue_final_message: true });
    expect(fake.asked[1]?.messages.at(-1)).toEqual({ role: "assistant", content: "One, two," });
  });

  it("branches where a turn is edited or answered again, and repeats an answer with its seed", async () => {
    const { page } = tab;
    let count = 0;
    fake.script = () => say(`Answer ${++count}`);
    await send(page, "First question");
    await answered(page);
    await lastAnswer(page).getByRole("button", { name: "Answer again", exact: true }).click();
    await page.getByText("Answer 2").waitFor();
    await answered(page);
    await expect.poll(() => lastAnswer(page).locator(".branches").innerText()).toBe("2/2");
    expect(fake.asked[1]?.seed).not.toBe(fake.asked[0]?.seed);
    await page.getByRole("button", { name: "Previous branch" }).click();
    await page.getByText("Answer 1").waitFor();

    fake.script = () => say("Answer 1");
    await lastAnswer(page)
      .getByRole("button", { name: /Same answer again/ })
      .click();
    await page.getByText("The same text as before, to the letter.").waitFor();
    expect(fake.asked[2]?.seed).toBe(fake.asked[0]?.seed);

    await page.locator(".turn.user").hover();
    await page.locator(".turn.user").getByRole("button", { name: "Edit in a new branch" }).click();
    await page.getByLabel("Text of the turn").fill("Second question");
    await page.keyboard.press("Enter");
    await expect.poll(() => page.locator(".turn.user .branches").innerText()).toBe("2/2");
    await answered(page);
    expect(fake.asked[3]?.messages).toEqual([{ role: "user", content: "Second question" }]);
    await page.locator(".turn.user").getByRole("button", { name: "Previous branch" }).click();
    await page.getByText("First question").last().waitFor();
  });

  it("keeps conversations over a reload, and offers to go on with an answer that the reload cut", async () => {
    const { page } = tab;
    fake.script = function* (): Generator<Step> {
      yield* say("It was a dark");
      yield { until: new Promise(() => {}) };
    };
    await send(page, "Tell a story");
    await lastAnswer(page).getByText("It was a dark").waitFor();
    await expect.poll(() => stored(page)).toContain("It was a dark");
    await page.reload();
    await page.getByText("The answer was cut when the page was closed or reloaded.").waitFor();
    fake.script = () => say(" night.");
    await page.getByRole("button", { name: "Go on" }).click();
    expect(await answered(page)).toBe("It was a dark night.");
  });

  it("asks for a key, and keeps it in the tab only", async () => {
    const { page } = tab;
    fake.key = "sk-secret";
    await send(page, "Hi");
    const dialog = page.getByRole("dialog", { name: "API key" });
    await dialog.getByText("This server asks for an API key.").waitFor();
    await dialog.getByLabel("Key", { exact: true }).fill("wrong");
    await page.keyboard.press("Enter");
    await dialog.getByText("The server does not accept this key.").waitFor();
    await dialog.getByLabel("Key", { exact: true }).fill("sk-secret");
    await dialog.getByRole("button", { name: "Use the key" }).click();
    await expect.poll(() => lastAnswer(page).locator(".markdown").innerText()).toBe("Hello.");
    const kept = async () =>
      (await stored(page)) +
      (await page.evaluate(() => JSON.stringify([{ ...localStorage }, location.href, document.cookie])));
    await expect.poll(kept).toContain("Hello.");
    expect(await kept()).not.toContain("sk-secret");
  });

  it("mends itself when the server is gone in the middle of an answer", async () => {
    const { page } = tab;
    fake.script = function* (): Generator<Step> {
      yield* say("The first half,");
      yield { until: new Promise(() => {}) };
    };
    await send(page, "Speak");
    await lastAnswer(page).getByText("The first half,").waitFor();
    await host.stop();
    await page.getByText("The server is gone. The answer goes on as soon as it is back.").waitFor();
    await page.getByText("The server cannot be reached.").waitFor();
    fake.script = () => say(" the second half.");
    await host.start();
    expect(await answered(page)).toBe("The first half, the second half.");
    expect(fake.asked.at(-1)).toMatchObject({ continue_final_message: true });
    await expect.poll(() => page.locator(".banner").count()).toBe(0);
  });

  it("explains refusals in sentences, and tries again", async () => {
    const { page } = tab;
    const refusals: [number, object, string][] = [
      [
        429,
        { code: "queue_full", message: "full" },
        "The server is busy. Try again in a moment. The server suggests to wait 7 s.",
      ],
      [
        404,
        { code: "model_not_found", message: "no `x`" },
        "The server has no such model. Choose another one at the top.",
      ],
      [400, { code: "context_length_exceeded", message: "`x` is 9" }, "The conversation is too long for this model."],
      [
        400,
        { code: "invalid_value", param: "top_p", message: "is 2" },
        "The server refuses a setting. Change it in the settings.",
      ],
      [500, { code: "internal_error", message: "a defect" }, "The server failed. Try again; its log says more."],
    ];
    const alert = page.getByRole("alert");
    const again = () => alert.getByRole("button", { name: "Try again" }).click();
    for (const [index, [status, error, sentence]] of refusals.entries()) {
      fake.script = () => ({ status, error, headers: { "retry-after": "7" } });
      if (index === 0) await send(page, "Hi");
      else await again();
      await expect.poll(() => alert.allInnerTexts().then((texts) => texts.join())).toContain(sentence);
    }
    fake.script = () => say("Good.");
    await again();
    await expect.poll(() => lastAnswer(page).locator(".markdown").innerText()).toBe("Good.");
    // Failures leave no branches behind.
    expect(await page.locator(".branches").count()).toBe(0);
  });

  it("offers what makes a conversation shorter that is too long", async () => {
    const { page } = tab;
    const tooLong = () => ({ status: 400, error: { code: "context_length_exceeded", message: "`x` is 9" } });
    const main = page.getByRole("alert").locator("button").first();
    fake.script = tooLong;
    await send(page, "A very long text");
    await expect.poll(() => main.innerText()).toBe("Shorten the message");
    await main.click();
    fake.script = () => say("Good.");
    await page.getByRole("textbox", { name: "Text of the turn" }).fill("A short text");
    await page.keyboard.press("Enter");
    expect(await answered(page)).toBe("Good.");
    expect(fake.asked.at(-1)).toMatchObject({ messages: [{ content: "A short text" }] });
    fake.script = tooLong;
    await send(page, "More");
    await expect.poll(() => main.innerText()).toBe("New chat");
    await main.click();
    await expect.poll(() => page.getByText("A short text").count()).toBe(0);
  });

  it("shows how far a model is loaded", async () => {
    const { page } = tab;
    const loaded = gate();
    fake.script = function* () {
      yield { line: ": model quiet-7b is loading, 40 %\n\n" };
      yield { until: loaded.wait };
      yield* say("Ready.");
    };
    await send(page, "Hi");
    await page.getByText("Model quiet-7b is loading, 40 %.").waitFor();
    loaded.open();
    expect(await answered(page)).toBe("Ready.");
    await expect.poll(() => page.getByText("is loading").isVisible()).toBe(false);
  });

  it("shows an error that comes inside the stream beside the text before it", async () => {
    const { page } = tab;
    fake.script = function* () {
      yield* say("So far");
      yield { line: 'data: {"error":{"code":"sequence_failed","message":"not finite"}}\n\n' };
      yield { until: new Promise(() => {}) };
    };
    await send(page, "Hi");
    await page.getByRole("alert").getByText("not finite").waitFor();
    expect(await answered(page)).toBe("So far");
  });

  it("shows several answers side by side, and goes on from the chosen one", async () => {
    const { page } = tab;
    await page.keyboard.press("Control+.");
    await page.getByLabel("Answers side by side").fill("3");
    await page.getByRole("button", { name: "Close the settings" }).click();
    fake.script = function* () {
      for (const index of [2, 0, 1]) yield { delta: { content: `Answer of ${index}` }, index };
    };
    await send(page, "Which?");
    await expect.poll(() => page.locator(".side-by-side .turn").allInnerTexts()).toHaveLength(3);
    await answered(page);
    expect(fake.asked[0]?.n).toBe(3);
    await page.getByRole("button", { name: /^Answer 2/ }).click();
    fake.script = () => say("More.");
    await send(page, "And then?");
    await page.getByText("More.").first().waitFor();
    await expect.poll(() => fake.asked[1]?.messages.at(1)).toEqual({ role: "assistant", content: "Answer of 1" });
  });

  it("lets the user answer in place of a tool", async () => {
    const { page } = tab;
    await page.keyboard.press("Control+.");
    await page.getByText("Tools", { exact: true }).click();
    await page.getByLabel("Offer tools to the model").check();
    await page.getByRole("button", { name: "Insert an example" }).click();
    fake.script = function* () {
      const call = { index: 0, id: "call_1", type: "function", function: { name: "weather", arguments: '{"city":' } };
      yield { delta: { tool_calls: [call] } };
      yield { delta: { tool_calls: [{ index: 0, function: { arguments: ' "Riga"}' } }] } };
    };
    await send(page, "How is the weather?");
    await page.getByText('"city": "Riga"').waitFor();
    fake.script = () => say("It rains.");
    await page.getByLabel("Result", { exact: true }).fill("rain");
    await page.getByRole("button", { name: "Send the result" }).click();
    await expect.poll(() => lastAnswer(page).locator(".markdown").innerText()).toBe("It rains.");
    // The settings may have asked the server to check the tools meanwhile.
    const asked = fake.asked.findLast(({ messages }) => messages[0]?.content === "How is the weather?");
    expect(asked?.tools).toMatchObject([{ type: "function", function: { name: "weather" } }]);
    expect(asked?.messages.slice(1)).toEqual([
      {
        role: "assistant",
        content: null,
        tool_calls: [{ id: "call_1", type: "function", function: { name: "weather", arguments: '{"city": "Riga"}' } }],
      },
      { role: "tool", content: "rain", tool_call_id: "call_1" },
    ]);
  });

  it("takes ranges and help of parameters from the server, and checks a schema while it is typed", async () => {
    const { page } = tab;
    const properties = {
      temperature: { type: ["number", "null"], description: "The sampling\ntemperature.", minimum: 0, maximum: 100 },
      top_p: { type: ["number", "null"], description: "The top share.", minimum: 0, maximum: 1 },
    };
    fake.openapi = { components: { schemas: { ChatCompletionRequest: { properties } } } };
    await page.setViewportSize({ width: 1280, height: 720 });
    await page.keyboard.press("Control+.");
    await page.getByText("The sampling temperature. (0 to 100)").waitFor();
    await page.getByLabel("Top p", { exact: true }).fill("1.5");
    await page.getByText("The largest value is 1.").waitFor();
    await page.getByLabel("Top p", { exact: true }).fill("0.5");
    await page.getByText("Format", { exact: true }).click();
    await page.getByLabel("JSON schema").first().check();
    const schema = page.getByRole("textbox", { name: "JSON schema" });
    await schema.fill('{"type": "objekt}');
    // Only the first line of the field is in sight when what is typed there becomes wrong.
    await schema.evaluate((field: HTMLTextAreaElement) => {
      field.setSelectionRange(16, 16);
      const panel = field.closest(".settings-body");
      if (panel) panel.scrollTop -= panel.getBoundingClientRect().bottom - field.getBoundingClientRect().top - 40;
    });
    await page.keyboard.type('"');
    const problem = page.getByText("has the type `objekt`");
    await problem.waitFor();
    const isSeen = () => problem.evaluate((line) => line.getBoundingClientRect().bottom <= innerHeight);
    await expect.poll(isSeen, { message: "the problem is in sight" }).toBe(true);
    fake.script = () => ({
      status: 400,
      error: { code: "invalid_schema", message: "the server's objection", param: "response_format" },
    });
    await page.getByRole("textbox", { name: "JSON schema" }).fill('{"type": "object"}');
    await page.getByText("the server's objection").waitFor();
    fake.script = () => say("{}");
    await page.getByRole("textbox", { name: "JSON schema" }).fill('{"type": "array"}');
    await page.getByText("Valid.").waitFor();
    await page.keyboard.press("Escape");
    await send(page, "Hi");
    await answered(page);
    expect(fake.asked.findLast(({ stream }) => stream)).toMatchObject({
      top_p: 0.5,
      response_format: { json_schema: { schema: { type: "array" } } },
    });
  });

  it("colours tokens by probability, and goes on from another one", async () => {
    const { page } = tab;
    await page.keyboard.press("Control+.");
    await page.getByLabel("Ask for the probabilities of tokens").check();
    const token = (text: string, logprob: number) => ({ token: text, logprob, bytes: [] });
    const top = [token(" cat", -0.5), token(" dog", -1)];
    fake.script = function* () {
      yield { delta: { content: "A" }, logprobs: { content: [{ ...token("A", 0), top_logprobs: [token("A", 0)] }] } };
      yield { delta: { content: " cat" }, logprobs: { content: [{ ...token(" cat", -0.5), top_logprobs: top }] } };
      yield { delta: { content: " sat." }, logprobs: { content: [{ ...token(" sat.", -3), top_logprobs: [] }] } };
    };
    await send(page, "Write");
    await answered(page);
    await page.getByRole("button", { name: "Show the probabilities of tokens" }).click();
    await page.getByRole("button", { name: "cat, 61 %" }).hover();
    await page.getByText("Token 2").waitFor();
    fake.script = () => say(" ran.");
    await page.getByRole("button", { name: /dog/ }).click();
    await expect.poll(() => lastAnswer(page).locator(".markdown").innerText()).toBe("A dog ran.");
    expect(fake.asked[1]?.messages.at(-1)?.content).toBe("A dog");
    await expect.poll(() => lastAnswer(page).locator(".branches").innerText()).toBe("2/2");
  });

  it("finds, renames and deletes conversations", async () => {
    const { page } = tab;
    for (const [question, reply] of [
      ["About whales", "They sing."],
      ["About trees", "They stand."],
    ] as const) {
      fake.script = () => say(reply);
      await send(page, question);
      await answered(page);
      await page.keyboard.press("Control+Shift+O");
    }
    const titles = () => page.locator(".entry a").allInnerTexts();
    await expect.poll(titles).toEqual(["About trees", "About whales"]);
    await page.keyboard.press("Control+k");
    await page.keyboard.type("SING");
    await expect.poll(titles).toEqual(["About whales"]);
    await page.getByLabel("Search conversations").fill("");
    await page.locator(".entry").first().hover();
    await page.getByRole("button", { name: "Rename “About trees”" }).click();
    await page.getByLabel("Title").fill("Forests");
    await page.keyboard.press("Enter");
    await expect.poll(titles).toEqual(["Forests", "About whales"]);
    await page.locator(".entry").nth(1).hover();
    await page.getByRole("button", { name: "Delete “About whales”" }).click();
    await page.getByRole("button", { name: "Delete", exact: true }).click();
    await expect.poll(titles).toEqual(["Forests"]);
    await page.reload();
    await expect.poll(titles).toEqual(["Forests"]);
  });

  it("shows in one tab what another one writes", async () => {
    const { page } = tab;
    const end = gate();
    fake.script = function* () {
      yield* say("Written here");
      yield { until: end.wait };
      yield* say(" and there.");
    };
    await send(page, "Write");
    await lastAnswer(page).getByText("Written here").waitFor();
    await page.waitForURL(/#\/chat\/.+/);
    const other = await open(browser, page.url(), {}, tab);
    await lastAnswer(other.page).getByText("Written here").waitFor();
    end.open();
    await lastAnswer(other.page).getByText("Written here and there.").waitFor();
    expect(await answered(other.page)).toBe("Written here and there.");
    fake.script = () => say("The last word.");
    await send(other.page, "Continue");
    await lastAnswer(page).getByText("The last word.").waitFor();
    await page.locator(".turn.user").last().hover();
    await page
      .locator(".turn.user")
      .last()
      .getByRole("button", { name: /^Delete this turn/ })
      .click();
    await expect.poll(() => other.page.locator(".turn").count()).toBe(2);
  });

  it("goes on writing while another view is shown, and leads back", async () => {
    const { page } = tab;
    const end = gate();
    fake.script = function* () {
      yield* say("A slow");
      yield { until: end.wait };
      yield* say(" answer.");
    };
    await send(page, "Write");
    await lastAnswer(page).getByText("A slow").waitFor();
    await page.getByRole("link", { name: "Server" }).click();
    await page.locator(".chat").waitFor({ state: "detached" });
    end.open();
    await page.getByRole("link", { name: "Chat", exact: true }).click();
    expect(await answered(page)).toBe("A slow answer.");
  });

  it("makes a file of a very long paste, and stays quick", async () => {
    const { page } = tab;
    const begin = performance.now();
    await page.evaluate(() => {
      const data = new DataTransfer();
      data.setData("text/plain", "word ".repeat(100_000));
      const event = new ClipboardEvent("paste", { clipboardData: data, bubbles: true, cancelable: true });
      document.getElementById("composer")?.dispatchEvent(event);
    });
    await page.getByText("pasted-1.txt").waitFor();
    await send(page, "Sum this up");
    await answered(page);
    expect(performance.now() - begin).toBeLessThan(5000);
    expect(fake.asked[0]?.messages[0]?.content).toMatch(
      /^File `pasted-1.txt`:\n\n```\nword word [^]*```\n\nSum this up$/,
    );
  });

  it("follows the answer until the user scrolls up", async () => {
    const { page } = tab;
    const more = gate();
    const line = "A line of the answer.\n\n";
    fake.script = function* () {
      yield* say(line.repeat(60), 200);
      yield { until: more.wait };
      yield* say(line.repeat(60), 200);
    };
    const fromEnd = () =>
      page.locator(".messages").evaluate((box) => Math.round(box.scrollHeight - box.clientHeight - box.scrollTop));
    await send(page, "Write much");
    await expect.poll(() => page.locator(".markdown p").count()).toBe(60);
    await expect.poll(fromEnd).toBeLessThan(10);
    await page.locator(".messages").hover();
    await page.mouse.wheel(0, -400);
    await page.getByRole("button", { name: "Scroll to the end" }).waitFor();
    const top = await page.locator(".messages").evaluate((box) => box.scrollTop);
    more.open();
    await answered(page);
    expect(await page.locator(".messages").evaluate((box) => box.scrollTop)).toBe(top);
    await page.getByRole("button", { name: "Scroll to the end" }).click();
    await expect.poll(fromEnd).toBeLessThan(10);
  });
});
