// The search for titles; without a search text, the best-known ones.

import { ask, path } from "./api.js";
import { byId, element } from "./dom.js";
import { ratingControl } from "./rating.js";
import { count, nameOf } from "./format.js";

const SHOWN = 6;
const PAUSE = 150; // milliseconds after the last key

/** The search; `valueOf(item)` is the visitor's rating, `rate(entry, value)` is called with a new one. */
export class Finder {
  constructor(scale, valueOf, rate, attempt) {
    Object.assign(this, { scale, valueOf, rate });
    this.latest = 0;
    let timer = 0;
    byId("search").addEventListener("input", () => {
      clearTimeout(timer);
      timer = setTimeout(() => attempt(() => this.search()), PAUSE);
    });
    byId("search").form.addEventListener("submit", (event) => {
      event.preventDefault();
      attempt(() => this.search());
    });
  }

  async search() {
    const turn = (this.latest += 1);
    const text = byId("search").value.trim();
    const { items } = await ask("GET", `${path("items")}?q=${encodeURIComponent(text)}&limit=${SHOWN + 1}`);
    if (turn !== this.latest) return;
    byId("results").replaceChildren(...items.slice(0, SHOWN).map((entry) => this.row(entry)));
    byId("found").textContent = describe(text, items.length);
  }

  row(entry) {
    const noun = this.scale.words.rows;
    const known = element("span", { class: "known" }, count(entry.ratings, noun));
    const control = ratingControl(this.scale, entry, this.valueOf(entry.item), (value) => this.rate(entry, value));
    return element("li", {}, element("span", { class: "name" }, nameOf(entry), known), control);
  }
}

function describe(text, found) {
  if (!text) return "The best-known titles";
  if (!found) return `No title matches “${text}”. Part of a title is enough.`;
  return found > SHOWN ? `The ${SHOWN} best-known of many` : `${count(found, "title")} found`;
}
