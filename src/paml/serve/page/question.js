// The next question: the title whose rating would say most about the visitor.

import { byId, element } from "./dom.js";
import { ratingControl } from "./rating.js";
import { nameOf } from "./format.js";

let asked = null;

/** Show a question, or nothing if there is none; a question already shown stays as it is. */
export function askQuestion(scale, question, rate, skip) {
  const card = byId("question");
  const focused = card.contains(document.activeElement);
  card.hidden = question === null;
  if (question === null || question.item === asked) return;
  asked = question.item;
  const { words } = scale;
  const title = byId("question-title");
  title.replaceChildren(`${words.ask} `, element("q", {}, nameOf(question)), "?");
  const control = ratingControl(scale, question, undefined, (value) => rate(question, value), { onLeave: false });
  const refuse = element("button", { type: "button", class: "quiet", onclick: () => skip(question) }, words.refuse);
  const hint = element("p", { class: "keys", "aria-hidden": "true" }, words.hint);
  card.querySelector(".answer").replaceChildren(control, refuse, hint);
  if (focused) title.focus({ preventScroll: true });
}

/** Show the next question again, even if it is the same. */
export function forgetQuestion() {
  asked = null;
}
