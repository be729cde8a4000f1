// The form about the visitor, made from the model's profile fields.

import { element } from "./dom.js";
import { label } from "./format.js";

const MAX_FIELDS = 8; // more are shown on request
const MAX_OPTIONS = 40; // more are typed, with suggestions
const MAX_SUGGESTED = 500;
const UNSET = "not given";
const inOrder = new Intl.Collator("en", { numeric: true });

/** The form with one control per field; `changed(profile)` is called when something was entered or removed. */
export class ProfileForm {
  constructor(form, fields, changed) {
    Object.assign(this, { form, fields });
    form.addEventListener("submit", (event) => event.preventDefault());
    form.addEventListener("change", () => form.reportValidity() && changed(read(form, fields)));
  }

  /** Say which of the fields have values that the model does not know. */
  mark(unknown) {
    for (const field of this.fields) {
      const input = this.form.elements[`profile-${field.name}`];
      const note = input.parentElement.querySelector(".unknown");
      const known = !unknown.includes(field.name);
      note.hidden = known;
      note.textContent = known ? "" : `The model does not know ${said(input)}: it counts as not given.`;
      if (known) input.removeAttribute("aria-describedby");
      else input.setAttribute("aria-describedby", note.id);
    }
  }

  show(profile) {
    const controls = this.fields.map((field) => control(field, profile[field.name]));
    const [first, more] = [controls.slice(0, MAX_FIELDS), controls.slice(MAX_FIELDS)];
    this.form.replaceChildren(...first);
    if (!more.length) return;
    const summary = element("summary", {}, `${more.length} more`);
    this.form.append(element("details", {}, summary, element("div", {}, ...more)));
  }
}

function control(field, value) {
  const id = `profile-${field.name}`;
  const values = field.values ?? [];
  const name = element("label", { for: id }, label(field.name));
  const note = element("p", { class: "unknown", id: `${id}-note`, role: "status", hidden: true });
  return element("div", {}, name, ...parts(field.kind, id, values, value), note);
}

const said = (input) => (input.multiple ? "one of these" : `“${input.value.trim()}”`);

function parts(kind, id, values, value) {
  if (kind === "numeric") return [element("input", { id, type: "number", step: "any", value, placeholder: UNSET })];
  if (kind === "multi") return [several(id, values, value)];
  if (values.length > MAX_OPTIONS) return typed(id, values, value);
  const unset = element("option", { value: "" }, UNSET);
  return [element("select", { id }, unset, ...options(values.toSorted(inOrder.compare), [value]))];
}

function options(values, chosen) {
  const given = chosen.filter((value) => value !== undefined && value !== null);
  const marked = given.map(String); // another client may have stored a number
  return values.map((value) => element("option", { value, selected: marked.includes(value) }, value));
}

function typed(id, values, value) {
  const input = element("input", { id, list: `${id}-values`, value, placeholder: UNSET, maxlength: 200 });
  return [input, element("datalist", { id: `${id}-values` }, ...options(values.slice(0, MAX_SUGGESTED), []))];
}

/** The values of a field that may have several; another client may have stored one text, or null. */
function several(id, values, given) {
  const chosen = [given ?? []].flat();
  const hint = `${UNSET}; separate by commas`;
  if (!values.length) return element("input", { id, value: chosen.join(", "), placeholder: hint });
  const shown = options(values.slice(0, MAX_SUGGESTED), chosen);
  return element("select", { id, multiple: true, size: Math.min(values.length, 4) }, ...shown);
}

function read(form, fields) {
  const said = fields.map((field) => [field.name, valueOf(form.elements[`profile-${field.name}`], field)]);
  return Object.fromEntries(said.filter(([, value]) => value !== null));
}

function valueOf(input, field) {
  if (input.multiple) {
    const chosen = Array.from(input.selectedOptions, (option) => option.value);
    return chosen.length ? chosen : null;
  }
  if (input.value.trim() === "") return null;
  if (field.kind === "numeric") return input.valueAsNumber;
  return field.kind === "multi" ? input.value.split(",").map((part) => part.trim()) : input.value.trim();
}
