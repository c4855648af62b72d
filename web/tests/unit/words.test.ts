import { expect, test } from "vitest";

import { ApiError } from "../../src/api/client";
import { asSentence, sentence } from "../../src/views/failure";
import { bytes, count, counted, duration, percent, rate, seconds } from "../../src/views/format";

test("numbers have units and few digits, also at the bounds of a unit", () => {
  expect([count(0), count(1234567), counted(1, "node"), counted(2, "node")]).toEqual([
    "0",
    "1,234,567",
    "1 node",
    "2 nodes",
  ]);
  expect([rate(0), rate(0.421), rate(12.34), rate(1234.5)]).toEqual(["0", "0.42", "12.3", "1,235"]);
  expect([percent(0.004), percent(0.5), percent(1)]).toEqual(["0 %", "50 %", "100 %"]);
  expect([bytes(0), bytes(1023), bytes(1024), bytes(760_320), bytes(5 * 2 ** 30)]).toEqual([
    "0 B",
    "1,023 B",
    "1.0 KiB",
    "743 KiB",
    "5.0 GiB",
  ]);
  expect([seconds(0.0042), seconds(0.31), seconds(1.254), seconds(171.2)]).toEqual([
    "4.2 ms",
    "310 ms",
    "1.25 s",
    "171 s",
  ]);
  expect([duration(400), duration(59_600), duration(3_599_000), duration(7_200_000), duration(200_000_000)]).toEqual([
    "0 s",
    "1 min",
    "1 h",
    "2 h",
    "2 days",
  ]);
});

test("errors of the server become sentences with their hints", () => {
  expect(asSentence("`ttl_s` is 0; hint: give 1 to 86400")).toBe("`ttl_s` is 0. Give 1 to 86400.");
  expect(sentence(new ApiError("pin_refused", "there is no room", 409))).toBe("There is no room.");
  expect(sentence(new ApiError("unreachable", "", 0), true)).toBe(
    "The server cannot be reached. The page tries again by itself.",
  );
  expect(sentence(new DOMException("", "AbortError"))).toBeUndefined();
  expect(sentence(new SyntaxError("JSON"))).toContain("could not be read");
});
