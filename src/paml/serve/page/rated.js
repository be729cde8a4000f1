// What the visitor has rated: the newest first, each can be changed or removed.

import { byId, element, symbol } from "./dom.js";
import { ratingControl } from "./rating.js";
import { count, nameOf } from "./format.js";

const SHOWN = 6;

/** The visitor's ratings; `rate(entry, value)` and `remove(entry)` are called when the visitor changes one. */
export class RatedList {
  constructor(scale, rate, remove) {
    this.scale = scale;
    this.change = { rate, remove };
    this.values = new Map();
    this.rows = new Map();
    this.all = false;
    byId("all-ratings").addEventListener("click", () => {
      this.all = !this.all;
      this.showSome();
    });
  }

  get size() {
    return this.values.size;
  }

  valueOf(item) {
    return this.values.get(item);
  }

  /** Begin with these ratings, the newest last. */
  replace(ratings) {
    this.values.clear();
    this.rows.clear();
    byId("ratings").replaceChildren();
    for (const rating of ratings) this.put(rating, rating.value);
    this.showSome();
  }

  put(entry, value) {
    this.values.set(entry.item, value);
    if (!this.rows.has(entry.item)) {
      this.rows.set(entry.item, this.newRow(entry, value));
      byId("ratings").prepend(this.rows.get(entry.item));
    }
    this.showSome();
  }

  remove(item) {
    const row = this.rows.get(item);
    const focused = row?.contains(document.activeElement);
    const next = row?.nextElementSibling ?? row?.previousElementSibling;
    this.values.delete(item);
    this.rows.delete(item);
    row?.remove();
    this.showSome();
    if (focused) (next?.querySelector("button") ?? byId("search")).focus();
  }

  newRow(entry, value) {
    const control = ratingControl(this.scale, entry, value, (chosen) => this.change.rate(entry, chosen));
    const name = `${this.scale.words.remove} ${nameOf(entry)}`;
    const attributes = { type: "button", class: "icon", "aria-label": name, title: "Remove" };
    const remove = element("button", { ...attributes, onclick: () => this.change.remove(entry) }, symbol("cross"));
    const title = element("span", { class: "name" }, nameOf(entry));
    const change = element("div", { class: "change" }, control, remove);
    return element("li", { "data-rated": entry.item }, title, change);
  }

  showSome() {
    [...byId("ratings").children].forEach((row, place) => (row.hidden = !this.all && place >= SHOWN));
    byId("own").hidden = this.size === 0;
    byId("own-title").textContent = `Your ${this.scale.words.noun}s`;
    byId("all-ratings").hidden = this.size <= SHOWN;
    const everything = `Show all ${count(this.size, this.scale.words.noun)}`;
    byId("all-ratings").textContent = this.all ? "Show only the newest" : everything;
  }
}
