// The form on the visitor, made from the model's own profile fields.

import { element } from "./dom.js";
import { label } from "./wording.js";

const MOST_FIELDS = 8; // more are there on request
const MOST_OPTIONS = 40; // more are typed, with suggestions
const MOST_SUGGESTED = 500;
const UNSAID = "not said";
const inOrder = new Intl.Collator("en", { numeric: true });

/** The form with one control per field; `changed(profile)` is called when something was said or taken back. */
export class ProfileForm {
  constructor(form, fields, changed) {
    Object.assign(this, { form, fields });
    form.addEventListener("submit", (event) => event.preventDefault());
    form.addEventListener("change", () => form.reportValidity() && changed(read(form, fields)));
  }

  show(profile) {
    const controls = this.fields.map((field) => control(field, profile[field.name]));
    const [first, more] = [controls.slice(0, MOST_FIELDS), controls.slice(MOST_FIELDS)];
    this.form.replaceChildren(...first);
    if (more.length) this.form.append(element("details", {}, element("summary", {}, `${more.length} more`), element("div", {}, ...more)));
  }
}

function control(field, value) {
  const id = `profile-${field.name}`;
  const values = field.values ?? [];
  const name = element("label", { for: id }, label(field.name));
  if (field.kind === "numeric") return element("div", {}, name, element("input", { id, type: "number", step: "any", value, placeholder: UNSAID }));
  if (field.kind === "multi") return element("div", {}, name, several(id, values, value));
  if (values.length > MOST_OPTIONS) return element("div", {}, name, ...typed(id, values, value));
  const options = values.toSorted(inOrder.compare).map((option) => element("option", { value: option, selected: String(option) === String(value) }, String(option)));
  return element("div", {}, name, element("select", { id }, element("option", { value: "" }, UNSAID), ...options));
}

function typed(id, values, value) {
  const options = values.slice(0, MOST_SUGGESTED).map((option) => element("option", { value: option }));
  const input = element("input", { id, list: `${id}-values`, value, placeholder: UNSAID, maxlength: 200 });
  return [input, element("datalist", { id: `${id}-values` }, ...options)];
}

function several(id, values, chosen) {
  if (!values.length) return element("input", { id, value: chosen?.join(", "), placeholder: `${UNSAID}; separate by commas` });
  const options = values.slice(0, MOST_SUGGESTED).map((option) => element("option", { value: option, selected: chosen?.includes(option) }, String(option)));
  return element("select", { id, multiple: true, size: Math.min(values.length, 4) }, ...options);
}

function read(form, fields) {
  const said = fields.map((field) => [field.name, valueOf(form.querySelector(`#${CSS.escape(`profile-${field.name}`)}`), field)]);
  return Object.fromEntries(said.filter(([, value]) => value !== null));
}

function valueOf(input, field) {
  if (input.multiple) return input.selectedOptions.length ? Array.from(input.selectedOptions, (option) => option.value) : null;
  if (input.value.trim() === "") return null;
  if (field.kind === "numeric") return input.valueAsNumber;
  return field.kind === "multi" ? input.value.split(",").map((part) => part.trim()) : input.value.trim();
}
