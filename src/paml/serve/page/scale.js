// What a rating is on this server: its possible values, and how values and scores are written.

import { decimals, percent, withDecimals } from "./format.js";

const MAX_STARS = 11;
const MAX_DECIMALS = 10;

/** The scale of a target as /v1/model describes it. */
export function scaleOf(target) {
  if (target.kind === "click") return CLICKS;
  if (target.kind === "choice") return CHOICES;
  const { low, high } = target;
  const step = target.step ?? (Number.isInteger(low) && Number.isInteger(high) ? 1 : null);
  const marks = step === null ? Infinity : Math.round((high - low) / step) + 1;
  const level = (k) => Number((low + k * step).toFixed(MAX_DECIMALS)); // without the noise of 0.1 + 0.2
  const places = step === null ? MAX_DECIMALS : Math.max(decimals(low), decimals(step));
  const written = withDecimals(Math.min(places, MAX_DECIMALS));
  return {
    stars: true,
    words: marks <= MAX_STARS ? RATED : NUMBERED,
    low,
    high,
    step,
    values: marks <= MAX_STARS ? Array.from({ length: marks }, (_, k) => level(k)) : null,
    value: (number) => `${written(number)} of ${written(high)}`,
    short: written,
    score: (number) => number.toFixed(high - low > 20 ? 0 : high - low > 2 ? 1 : 2),
    effect: (number) => signed(number.toFixed(2)),
    height: (number) => (number - low) / (high - low),
    range: `ratings from ${written(low)} to ${written(high)}`,
  };
}

/** What the page says about a rating, a click or a choice; `rows` is what an item has in training. */
const RATED = {
  title: "Rate three, and the answer changes.",
  noun: "rating",
  rows: "rating",
  act: "Rate",
  remove: "Remove the rating of",
  invite: "Seen it?",
  ask: "Have you seen",
  refuse: "Not seen",
  hint: "Arrow keys choose, Enter or Space sends; or type the number.",
};
const NUMBERED = { ...RATED, hint: "Type the number, or choose it by arrow keys; Enter sends." };
const CLICKED = {
  title: "Answer three, and the list changes.",
  noun: "answer",
  rows: "impression",
  act: "Click on",
  remove: "Remove the answer for",
  invite: "Would you click on it?",
  ask: "Would you click on",
  refuse: "Another",
  hint: "Arrow keys choose, Enter or Space sends.",
};
const CHOSEN = {
  title: "Name three that you chose, and the list changes.",
  noun: "choice",
  rows: "choice",
  act: "Chosen:",
  remove: "Remove the choice of",
  invite: "Chosen it before?",
  ask: "Have you chosen",
  refuse: "Not chosen",
  hint: "Enter or Space sends.",
};

const CLICKS = {
  stars: false,
  words: CLICKED,
  values: [1, 0],
  face: (number) => (number > 0 ? "I would" : "I would not"),
  given: (number) => (number > 0 ? "clicked" : "not clicked"),
  value: (number) => (number > 0 ? "a click" : "no click"),
  short: (number) => (number > 0 ? "a click" : "no click"),
  score: (number) => percent(number),
  effect: (number) => signed(`${(100 * number).toFixed(1)}%`),
  height: (number) => number,
  range: "clicks",
};

/** A choice has no opposite: the only value is 1; stronger ones come from programs. */
const CHOICES = {
  stars: false,
  words: CHOSEN,
  values: [1],
  face: () => "Chosen",
  given: () => "chosen",
  value: () => "chosen",
  short: () => "chosen",
  score: (number) => percent(number),
  effect: (number) => signed(number.toFixed(2)),
  height: (number) => number,
  range: "choices",
};

const signed = (text) => (text.startsWith("-") ? `−${text.slice(1)}` : `+${text}`);
