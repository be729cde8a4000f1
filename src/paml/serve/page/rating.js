// The control that takes a rating: stars, two choices for clicks, or a number where the scale has too many values.

import { element, symbol } from "./dom.js";
import { nameOf } from "./format.js";

let controls = 0; // radio inputs are grouped by name

/**
 * A control for one item; `send(value)` is called when a value is chosen. A click, a digit and Enter choose at once;
 * arrow keys pass over unintended values, so they wait for Enter or, if `onLeave`, until the focus leaves.
 */
export function ratingControl(scale, entry, current, send, { onLeave = true } = {}) {
  if (scale.values === null) return numberControl(scale, entry, current, send);
  const name = `rating-${(controls += 1)}`;
  const legend = element("legend", { class: "unseen" }, `${scale.clicks ? "Click on" : "Rate"} ${nameOf(entry)}`);
  const kind = scale.clicks ? "choice" : "stars";
  const about = { "data-item": entry.item, "data-marks": scale.values.length, "aria-describedby": "keys" };
  const control = element("fieldset", { class: kind, ...about }, legend);
  for (const value of scale.values) {
    const input = element("input", { type: "radio", name, value });
    const face = scale.clicks ? choice(value) : star(scale, value);
    control.append(element("label", { title: scale.value(value) }, input, ...face));
  }
  show(control, current);
  listen(control, scale, send, onLeave);
  return control;
}

function listen(control, scale, send, onLeave) {
  let byArrow = false;
  let waiting = null;
  const commit = (value) => {
    waiting = null;
    show(control, value);
    send(value);
  };
  control.addEventListener("pointerdown", () => (byArrow = false));
  control.addEventListener("keydown", (event) => {
    byArrow = event.key.startsWith("Arrow");
    if (event.ctrlKey || event.altKey || event.metaKey) return;
    if (waiting !== null && (event.key === "Enter" || event.key === " ")) commit(waiting);
    else if (!scale.clicks && scale.values.map(String).includes(event.key)) commit(Number(event.key));
    else return;
    event.preventDefault();
  });
  control.addEventListener("change", (event) => {
    const value = Number(event.target.value);
    if (!byArrow) return commit(value);
    waiting = value;
    show(control, value);
  });
  control.addEventListener("focusout", (event) => {
    if (onLeave && waiting !== null && !control.contains(event.relatedTarget)) commit(waiting);
  });
}

/** Fill the stars up to a value: the marks after the checked one stay empty. */
export function show(control, value) {
  for (const input of control.querySelectorAll("input")) {
    const number = Number(input.value);
    if (input.type === "number") input.value = value ?? "";
    else {
      input.checked = number === value;
      input.parentElement.classList.toggle("full", number <= value);
    }
  }
}

const star = (scale, value) => [symbol("star"), element("span", { class: "unseen" }, scale.value(value))];
const choice = (value) => [element("span", {}, value > 0 ? "I would" : "I would not")];

function numberControl(scale, entry, current, send) {
  const { low, high } = scale;
  const range = { type: "number", min: low, max: high, step: scale.step ?? "any", placeholder: `${low} to ${high}` };
  const name = `Rate ${nameOf(entry)}, ${low} to ${high}`;
  const input = element("input", { ...range, value: current, "aria-label": name });
  input.addEventListener("change", () => {
    if (input.value !== "" && input.reportValidity()) send(input.valueAsNumber);
  });
  return element("div", { class: "number", "data-item": entry.item }, input);
}
