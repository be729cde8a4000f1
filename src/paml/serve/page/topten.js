// The top ten: rows that stay the same elements when the order changes, so that people can watch them move.

import { byId, element, symbol } from "./dom.js";
import { ratingControl } from "./rating.js";
import { count, listed, nameOf } from "./format.js";

const DURATION = 550; // milliseconds
const REASONS = 3; // shown under a title
const WEAK = 0.2; // share of a title's strongest reason below which another is not its main one

/** The list; `rate(entry, value)` is called when one of its titles is rated. */
export class TopTen {
  constructor(list, scale, rate) {
    this.list = list;
    this.scale = scale;
    this.rate = rate;
    this.rows = new Map();
    this.order = null;
  }

  /** Show these items; returns a sentence on what changed, or "" if nothing was shown before. */
  update(items) {
    const before = this.order;
    const places = new Map([...this.rows].map(([item, row]) => [item, row.getBoundingClientRect().top]));
    const focused = this.list.contains(document.activeElement) ? document.activeElement : null;
    for (const [item, row] of this.rows) {
      if (!items.some((entry) => entry.item === item)) {
        row.remove();
        this.rows.delete(item);
      }
    }
    const telling = distinguishing(items);
    items.forEach((entry, place) => {
      if (!this.rows.has(entry.item)) this.rows.set(entry.item, this.newRow(entry));
      const row = this.rows.get(entry.item);
      this.fill(row, entry, place, before, telling[place]);
      if (this.list.children[place] !== row) this.list.insertBefore(row, this.list.children[place] ?? null);
    });
    this.order = items.map((entry) => entry.item);
    if (focused) (focused.isConnected ? focused : byId("top")).focus({ preventScroll: true });
    if (before) this.animate(places);
    return before ? changes(before, items) : "";
  }

  /** The next list is a first one. */
  reset() {
    this.order = null;
  }

  newRow(entry) {
    const control = ratingControl(this.scale, entry, undefined, (value) => this.rate(entry, value));
    const seen = element("div", { class: "seen" }, element("span", {}, invitation(this.scale)), control);
    const meter = element("span", { class: "meter", "aria-hidden": "true" }, element("i"));
    return element(
      "li",
      { "data-item": entry.item },
      element("span", { class: "place" }),
      element("h3", {}, nameOf(entry), " ", element("span", { class: "move" })),
      element("p", { class: "score" }, element("span", { class: "number" }), meter),
      element("details", {}, element("summary"), element("ul", { class: "reasons" }), seen),
    );
  }

  fill(row, entry, place, before, telling) {
    const { scale } = this;
    row.querySelector(".place").textContent = place + 1;
    const shown = entry.rating ?? null; // a model that only ranks predicts no rating
    row.querySelector(".score").hidden = shown === null;
    row.querySelector(".score .number").textContent = shown === null ? "" : scale.score(shown);
    row.querySelector(".meter i").style.setProperty("--height", Math.min(Math.max(scale.height(shown ?? 0), 0), 1));
    row.querySelector(".move").replaceChildren(...moveOf(entry.item, place, before));
    const found = entry.because ?? [];
    row.querySelector("summary").replaceChildren(...because(scale, found, telling));
    row.querySelector(".reasons").replaceChildren(...reasons(scale, found.slice(0, REASONS)));
  }

  animate(places) {
    if (!matchMedia("(prefers-reduced-motion: no-preference)").matches) return;
    const timing = { duration: DURATION, easing: "cubic-bezier(.2, .7, .2, 1)" };
    for (const [item, row] of this.rows) {
      const shift = places.has(item) ? places.get(item) - row.getBoundingClientRect().top : null;
      // A new row starts within the margin of the page: further out, a phone would scroll sideways.
      if (shift === null) row.animate({ opacity: [0, 1], transform: ["translateX(1rem)", "none"] }, timing);
      else if (shift) row.animate({ transform: [`translateY(${shift}px)`, "none"] }, timing);
    }
  }
}

function moveOf(item, place, before) {
  if (before === null) return [];
  const was = before.indexOf(item);
  if (was === place) return [];
  if (was < 0) return [element("b", { class: "new" }, "new")];
  const places = Math.abs(was - place);
  const [way, mark] = was > place ? ["up", "▲"] : ["down", "▼"];
  return [
    element("span", { class: way, "aria-hidden": "true" }, `${mark} ${places}`),
    element("span", { class: "unseen" }, `${way} ${count(places, "place")}`),
  ];
}

/**
 * For each title, the reason that speaks for it more than for the others of the list: one strong rating may stand
 * behind all of them, and would tell nothing under each. Weak reasons do not count; without any reason, undefined.
 */
function distinguishing(items) {
  const total = new Map();
  const lists = items.map((entry) => entry.because ?? []);
  for (const reason of lists.flat()) total.set(reason.item, (total.get(reason.item) ?? 0) + reason.effect);
  return lists.map((found) => {
    const strongest = Math.max(...found.map((reason) => reason.effect));
    const strong = found.filter((reason) => reason.effect > 0 && reason.effect >= WEAK * strongest);
    const excess = (reason) => reason.effect - total.get(reason.item) / items.length;
    return strong.toSorted((one, other) => excess(other) - excess(one))[0];
  });
}

function because(scale, found, main) {
  if (main) return ["Because of ", element("q", {}, nameOf(main)), " ", given(scale, main.value)];
  if (found.length) return ["Despite ", element("q", {}, nameOf(found[0])), " ", given(scale, found[0].value)];
  return [invitation(scale)];
}

const invitation = (scale) => scale.words.invite;

/** A visitor's rating: "5 ★" on the screen, "rated 5 of 5" for screen readers. */
export function given(scale, value) {
  if (!scale.stars) return element("span", { class: "given" }, scale.given(value));
  const shown = element("span", { "aria-hidden": "true" }, scale.short(value), symbol("star"));
  const said = element("span", { class: "unseen" }, `rated ${scale.value(value)}`);
  return element("span", { class: "given" }, shown, said);
}

function reasons(scale, found) {
  const largest = Math.max(...found.map((reason) => Math.abs(reason.effect)));
  return found.map((reason) => {
    const bar = element("span", { class: reason.effect < 0 ? "bar less" : "bar", "aria-hidden": "true" }, element("i"));
    bar.firstChild.style.setProperty("--height", largest > 0 ? Math.abs(reason.effect) / largest : 0);
    const name = element("span", { class: "name" }, nameOf(reason), " ", given(scale, reason.value));
    return element("li", {}, name, bar, element("span", { class: "effect" }, scale.effect(reason.effect)));
  });
}

function changes(before, items) {
  const was = items.map((entry) => before.indexOf(entry.item));
  const fresh = was.filter((place) => place < 0).length;
  const moved = was.filter((place, now) => place >= 0 && place !== now).length;
  const parts = [];
  if (items.length && before[0] !== items[0].item) parts.push(`${nameOf(items[0])} is now first`);
  if (fresh) parts.push(`${count(fresh, "title")} ${fresh === 1 ? "is" : "are"} new`);
  if (moved) parts.push(`${moved} changed places`);
  return parts.length ? `${listed(parts)}.` : "the order stays the same.";
}
