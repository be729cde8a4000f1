// Numbers and names in words.

const whole = new Intl.NumberFormat("en");
const share = new Intl.NumberFormat("en", { style: "percent" });
const digits = new Intl.NumberFormat("en", { maximumSignificantDigits: 3 });

export const count = (number, noun) => `${whole.format(number)} ${noun}${number === 1 ? "" : "s"}`;
export const percent = (part) => share.format(part);
export const rounded = (number) => digits.format(number);
export const nameOf = (entry) => entry.title || entry.item;

/** How many decimals a number has. */
export const decimals = (number) => (String(number).split(".")[1] ?? "").length;

/** Writes numbers with at most so many decimals. */
export function withDecimals(most) {
  const format = new Intl.NumberFormat("en", { maximumFractionDigits: most });
  return (number) => format.format(number);
}

/** "a", "a and b", "a, b and c" */
export function listed(parts) {
  return parts.length < 2 ? parts.join("") : `${parts.slice(0, -1).join(", ")} and ${parts.at(-1)}`;
}

/** A field's name as a label: "marital_status" and "maritalStatus" become "Marital status". */
export function label(name) {
  const words = name.replace(/([a-z])([A-Z])/g, "$1 $2").replace(/[_.-]+/g, " ").trim().toLowerCase();
  return words.charAt(0).toUpperCase() + words.slice(1);
}
