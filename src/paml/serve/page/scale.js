// What a rating is on this server: its possible values, and how values and scores are written.

import { percent, rounded } from "./format.js";

const MAX_STARS = 11;

/** The scale of a target as /v1/model describes it. */
export function scaleOf(target) {
  if (target.kind === "click") return CLICKS;
  const { low, high } = target;
  const step = target.step ?? (Number.isInteger(low) && Number.isInteger(high) ? 1 : null);
  const marks = step === null ? Infinity : Math.round((high - low) / step) + 1;
  return {
    clicks: false,
    low,
    high,
    step,
    values: marks <= MAX_STARS ? Array.from({ length: marks }, (_, k) => low + k * step) : null,
    value: (number) => `${rounded(number)} of ${rounded(high)}`,
    short: (number) => rounded(number),
    score: (number) => number.toFixed(high - low > 20 ? 0 : 1),
    effect: (number) => signed(number.toFixed(2)),
    height: (number) => (number - low) / (high - low),
    range: `ratings from ${rounded(low)} to ${rounded(high)}`,
  };
}

const CLICKS = {
  clicks: true,
  values: [1, 0],
  value: (number) => (number > 0 ? "a click" : "no click"),
  short: (number) => (number > 0 ? "a click" : "no click"),
  score: (number) => percent(number),
  effect: (number) => signed(`${(100 * number).toFixed(1)}%`),
  height: (number) => number,
  range: "clicks",
};

const signed = (text) => (text.startsWith("-") ? `−${text.slice(1)}` : `+${text}`);
