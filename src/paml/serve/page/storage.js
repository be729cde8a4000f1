// What this browser keeps: the visitor's id and skipped questions for good, a server's key until the tab is closed.

const MAX_SKIPPED = 100; // they are sent in a URL, which must not grow without limit
const MAX_LENGTH = 6000; // of all of them, encoded: many proxies take no more than 8,000 characters

/** A browser's storage under our own prefix; where it is blocked, memory that lasts as long as the page. */
function storageOf(kind) {
  const memory = new Map();
  const real = () => {
    try {
      return window[kind];
    } catch {
      return null;
    }
  };
  const attempt = (act, otherwise) => {
    try {
      return real() === null ? otherwise() : act(real());
    } catch {
      return otherwise();
    }
  };
  return {
    get: (name) => attempt((kept) => kept.getItem(`paml-${name}`), () => null) ?? memory.get(name) ?? null,
    set: (name, value) => attempt((kept) => kept.setItem(`paml-${name}`, value), () => memory.set(name, value)),
    remove: (name) => {
      memory.delete(name);
      attempt((kept) => kept.removeItem(`paml-${name}`), () => undefined);
    },
  };
}

const local = storageOf("localStorage");
export const session = storageOf("sessionStorage");

/** Whether this browser is here for the first time. */
export const isNew = () => local.get("visitor") === null;

/** The visitor's random id, made at the first visit. */
export function visitor() {
  if (isNew()) local.set("visitor", randomId());
  return local.get("visitor");
}

/** Items that the visitor has not seen. */
export const skipped = () => JSON.parse(local.get("skipped") ?? "[]");

export function skip(item) {
  const kept = [...skipped().filter((other) => other !== item), item].slice(-MAX_SKIPPED);
  while (kept.length > 1 && encodeURIComponent(kept.join("")).length > MAX_LENGTH) kept.shift();
  keepSkipped(kept);
}

const keepSkipped = (items) => local.set("skipped", JSON.stringify(items));

export const forgetSkipped = () => local.remove("skipped");

/** Forget one, named as the service names it, which shortens what is long; whether it was there. */
export function forgetSkippedOne(named) {
  const [start, more] = String(named).split("... ("); // 60 characters, and how many there are
  const isMeant = (item) => item === named || (more && item.startsWith(start));
  const kept = skipped().filter((item) => !isMeant(item));
  const found = kept.length < skipped().length;
  keepSkipped(kept);
  return found;
}

export function forgetVisitor() {
  local.remove("visitor");
  forgetSkipped();
}

function randomId() {
  if (crypto.randomUUID) return crypto.randomUUID(); // browsers offer it on loopback and over https only
  return Array.from(crypto.getRandomValues(new Uint8Array(16)), (byte) => byte.toString(16).padStart(2, "0")).join("");
}
