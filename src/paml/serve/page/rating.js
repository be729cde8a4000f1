// The control that takes a rating: stars, buttons for clicks and choices, or a number where there are too many values.

import { element, symbol } from "./dom.js";
import { nameOf } from "./format.js";

const SAME = 1e-3; // steps that a value may be off its mark: 0.1 + 0.2 is 0.3
let controls = 0; // radio inputs are grouped by name

/**
 * A control for one item; `send(value)` is called when a value is chosen. A click and a digit choose at once. With
 * the keyboard it is a group of radio buttons: arrow keys move, and Space on an empty group takes the first mark, but
 * nothing is sent before Enter or Space confirm it or, if `onLeave` and after an arrow key, the focus leaves. A scale
 * with too many values for marks has a number, which is sent in the same way.
 */
export function ratingControl(scale, entry, current, send, { onLeave = true } = {}) {
  if (scale.values === null) return numberControl(scale, entry, current, send, onLeave);
  const name = `rating-${(controls += 1)}`;
  const legend = element("legend", { class: "unseen" }, `${scale.words.act} ${nameOf(entry)}`);
  const kind = scale.stars ? "stars" : "choice";
  const marks = { "data-marks": scale.values.length, "data-step": scale.step ?? 1 };
  const about = { "data-item": entry.item, ...marks, "aria-describedby": "keys" };
  const control = element("fieldset", { class: kind, ...about }, legend);
  for (const value of scale.values) {
    const input = element("input", { type: "radio", name, value });
    const face = scale.stars ? star(scale, value) : [element("span", {}, scale.face(value))];
    control.append(element("label", { title: scale.value(value) }, input, ...face));
  }
  show(control, current);
  listen(control, scale, send, onLeave);
  return control;
}

function listen(control, scale, send, onLeave) {
  let key = ""; // with which a mark was reached; none with a pointer, or by an assistive technology
  let waiting = null;
  let meant = false; // whether leaving confirms it: after an arrow key, and not after a Space alone
  let before = ""; // what was shown before the keyboard was used
  const commit = (value) => {
    waiting = null;
    show(control, value);
    send(value);
  };
  control.addEventListener("pointerdown", () => (key = ""));
  control.addEventListener("keydown", (event) => {
    key = event.key.startsWith("Arrow") || event.key === " " ? event.key : "";
    if (event.ctrlKey || event.altKey || event.metaKey) return;
    if (waiting !== null && (event.key === "Enter" || event.key === " ")) commit(waiting);
    else if (scale.stars && scale.values.map(String).includes(event.key)) commit(Number(event.key));
    else if (scale.values.length === 1 && event.key === "Enter") commit(scale.values[0]);
    else return;
    event.preventDefault();
  });
  control.addEventListener("change", (event) => {
    const value = Number(event.target.value);
    if (!key) return commit(value);
    if (waiting === null) before = control.dataset.shown;
    waiting = value;
    meant = key !== " ";
    show(control, value);
  });
  control.addEventListener("focusout", (event) => {
    if (waiting === null || control.contains(event.relatedTarget)) return;
    if (onLeave && meant) commit(waiting);
    else {
      waiting = null;
      show(control, before === "" ? undefined : Number(before));
    }
  });
}

/** Fill the stars up to a value: the marks after the checked one stay empty. */
export function show(control, value) {
  control.dataset.shown = value ?? "";
  const near = SAME * Number(control.dataset.step);
  for (const input of control.querySelectorAll("input")) {
    const number = Number(input.value);
    if (input.type === "number") input.value = value ?? "";
    else {
      input.checked = Math.abs(number - value) < near;
      input.parentElement.classList.toggle("full", number < value + near);
    }
  }
}

const star = (scale, value) => [symbol("star"), element("span", { class: "unseen" }, scale.value(value))];

/** A number, sent by Enter or, if `onLeave`, when the focus leaves: arrow keys and the spinner only choose it. */
function numberControl(scale, entry, current, send, onLeave) {
  const [low, high] = [scale.low, scale.high].map(scale.short);
  const limits = { min: scale.low, max: scale.high, step: scale.step ?? "any", enterkeyhint: "send" };
  const name = `Rate ${nameOf(entry)}, ${low} to ${high}`;
  const about = { placeholder: `${low} to ${high}`, "aria-label": name, "aria-describedby": "number-keys" };
  const input = element("input", { type: "number", ...limits, ...about });
  const control = element("div", { class: "number", "data-item": entry.item }, input);
  const commit = () => {
    const isNew = input.value !== "" && input.valueAsNumber !== parseFloat(control.dataset.shown);
    if (!isNew || !input.reportValidity()) return;
    control.dataset.shown = input.value; // so that it is not sent again when the focus leaves
    send(input.valueAsNumber);
  };
  input.addEventListener("keydown", (event) => event.key === "Enter" && commit());
  input.addEventListener("blur", () => {
    if (onLeave) commit();
    else show(control, control.dataset.shown);
  });
  show(control, current);
  return control;
}
