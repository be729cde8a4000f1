// The search for titles, with the best-known ones where nothing is searched.

import { ask, path } from "./api.js";
import { byId, element } from "./dom.js";
import { ratingControl } from "./rating.js";
import { count, nameOf } from "./format.js";

const SHOWN = 6;
const PAUSE = 150; // milliseconds after the last key

/** The search; `valueOf(item)` is what the visitor gave, `rate(entry, value)` is called with what the visitor gives. */
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
    const known = element("span", { class: "known" }, count(entry.ratings, this.scale.clicks ? "impression" : "rating"));
    const control = ratingControl(this.scale, entry, this.valueOf(entry.item), (value) => this.rate(entry, value));
    return element("li", {}, element("span", { class: "name" }, nameOf(entry), known), control);
  }
}

function describe(text, found) {
  if (!text) return "The best-known ones";
  if (!found) return `Nothing is called “${text}”. A part of the title is enough.`;
  return found > SHOWN ? `The ${SHOWN} best-known of many` : `${count(found, "title")} found`;
}
