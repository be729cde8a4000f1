// The visitor's learning rate among those of all users: a drawing, and the same in words and as a table.

import { drawn, element } from "./dom.js";
import { count, percent, rounded } from "./format.js";

const HEIGHT = 172;
const MIDDLE = 80; // major users stand above this line, minor users hang below it
const ROOM = 58; // for the bars of one group
const SIDE = 4;
const MEANINGS = {
  "prior variance": "It says how far your taste is expected to lie from the usual one, before you rate anything. ",
  "learning rate": "It is the size of the step that the model takes towards your ratings. ",
};
const GROUPS = { major: "common profiles (major)", minor: "unusual profiles (minor)" };

/** Whether there is something to draw: with some methods, all rates are the same, or nearly so. */
const differs = ({ equal, major, minor }) => !equal && major.some((number, k) => number + minor[k] > 0);

/** A paragraph about the visitor's rate; `name` is what this method calls it. */
export function rateProfileText(profile, name) {
  const rate = element("strong", {}, rounded(profile.rate));
  const users = count(sum(profile.major) + sum(profile.minor), "user");
  const same = `: practically the same for everyone (${users}), so there is nothing to compare.`;
  if (!differs(profile)) return [rate, same];
  const meaning = `${MEANINGS[name] ?? ""}The higher it is, the more each of your answers counts. `;
  return [rate, `, ${placeAmong(profile.percentile, users)}. `, meaning, company(profile)];
}

/** "higher than that of 61% of 4,832 users"; at the ends, no share is rounded to nobody or everybody. */
function placeAmong(percentile, users) {
  if (percentile < 1) return `lower than that of nearly all of ${users}`;
  if (percentile > 99) return `higher than that of nearly all of ${users}`;
  return `higher than that of ${percent(percentile / 100)} of ${users}`;
}

function company({ group, similar }) {
  const alike = (similar?.major ?? 0) + (similar?.minor ?? 0);
  const kind = group ? `Your profile is ${group === "major" ? "a common" : "an unusual"} one. ` : "";
  if (!alike) return kind;
  const near = `${similar.major} common, ${similar.minor} unusual`;
  return `${kind}The profiles of the ${alike} known users most like you: ${near}.`;
}

/** The drawing for a given width in pixels, with a table behind it. */
export function rateProfileFigure(profile, width, name) {
  if (!differs(profile)) return [];
  return [drawing(profile, width, name), element("details", {}, element("summary", {}, "As a table"), table(profile))];
}

function drawing(profile, width, name) {
  const { edges, rate } = profile;
  const low = Math.min(edges[0], rate);
  const high = Math.max(edges.at(-1), rate);
  const x = (value) => SIDE + ((value - low) / (high - low)) * (width - 2 * SIDE);
  const written = told(low, high);
  const label = `Histogram of each user's ${name} from ${written(low)} to ${written(high)}; yours is ${written(rate)}.`;
  const size = { viewBox: `0 0 ${width} ${HEIGHT}`, width, height: HEIGHT };
  const svg = drawn("svg", { role: "img", "aria-label": label, ...size });
  const shares = Object.fromEntries(Object.keys(GROUPS).map((name) => [name, sharesOf(profile[name])]));
  const most = Math.max(...shares.major, ...shares.minor);
  for (const name of Object.keys(GROUPS)) svg.append(bars(name, shares[name], edges, x, most));
  svg.append(drawn("line", { class: "axis", x1: SIDE, x2: width - SIDE, y1: MIDDLE, y2: MIDDLE }));
  svg.append(...marker(x(rate), width), ...ticks(low, high, x, width));
  return svg;
}

function bars(name, shares, edges, x, most) {
  const group = drawn("g", { class: name });
  shares.forEach((share, k) => {
    const height = (ROOM * share) / most;
    const width = Math.max(x(edges[k + 1]) - x(edges[k]) - 1.5, 0.5);
    const y = name === "major" ? MIDDLE - height : MIDDLE;
    if (height) group.append(drawn("rect", { x: x(edges[k]) + 0.75, y, width, height, rx: Math.min(1.5, width / 2) }));
  });
  return group;
}

function marker(at, width) {
  const anchor = at < 40 ? "start" : at > width - 40 ? "end" : "middle";
  return [
    drawn("line", { class: "own", x1: at, x2: at, y1: 16, y2: MIDDLE + ROOM }),
    drawn("circle", { class: "own", cx: at, cy: MIDDLE, r: 4.5 }),
    drawn("text", { class: "own", x: at, y: 11, "text-anchor": anchor }, "you"),
  ];
}

/** How numbers of a range are written so that neighbouring ones differ: 0.0991 and 0.0995, not 0.099 and 0.1. */
function told(low, high) {
  const digits = 2 + Math.max(0, Math.ceil(Math.log10(Math.max(Math.abs(low), Math.abs(high)) / (high - low))));
  const format = new Intl.NumberFormat("en", { maximumSignificantDigits: Math.min(digits, 12) });
  return (value) => format.format(value);
}

function ticks(low, high, x, width) {
  const written = told(low, high);
  const places = width < 400 ? [0, 0.5, 1] : [0, 0.25, 0.5, 0.75, 1];
  return places.map((part) => {
    const anchor = part === 0 ? "start" : part === 1 ? "end" : "middle";
    const value = low + part * (high - low);
    return drawn("text", { x: x(value), y: HEIGHT - 8, "text-anchor": anchor }, written(value));
  });
}

/** What the two colours mean, and for how many users. */
export function legend(profile) {
  const parts = Object.entries(GROUPS).map(([name, words]) => {
    const colour = element("i", { "aria-hidden": "true" });
    return element("span", { class: name }, colour, `${words}, ${count(sum(profile[name]), "user")}`);
  });
  return element("figcaption", {}, ...parts, element("span", { class: "soft" }, "shares within each group"));
}

function table({ edges, major, minor }) {
  const head = element("tr", {}, ...["rate", "major", "minor"].map((name) => element("th", { scope: "col" }, name)));
  const rows = major.map((number, k) => {
    const range = element("th", { scope: "row" }, `${rounded(edges[k])} to ${rounded(edges[k + 1])}`);
    return element("tr", {}, range, ...[number, minor[k]].map((users) => element("td", {}, String(users))));
  });
  const caption = element("caption", { class: "unseen" }, "Users per learning rate");
  return element("table", {}, caption, element("thead", {}, head), element("tbody", {}, ...rows));
}

const sum = (numbers) => numbers.reduce((total, number) => total + number, 0);
const sharesOf = (numbers) => numbers.map((number) => number / Math.max(sum(numbers), 1));
