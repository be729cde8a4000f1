// Requests to the service, and what went wrong with them, in words.

import { session } from "./storage.js";

const PATIENCE = 10; // seconds that a busy server may ask us to wait
const TRIES = 3;
const SILENCE =
  "The server does not answer. What you have rated so far is stored; check that the server is running, and try again.";
const REMEDIES = {
  429: (detail) => `That was too fast for this server (${detail}). Wait a moment and try again.`,
  503: (detail) => `The server cannot store or read ratings at the moment (${detail}). Try again soon.`,
};

/** Something the visitor should read; `status` 0 means that there was no answer, `value` is what was refused. */
export class Trouble extends Error {
  constructor(status, message, value) {
    super(message);
    this.status = status;
    this.value = value;
  }
}

/** Send a request. A busy server is asked again: all our requests may be repeated. */
export async function ask(method, path, body) {
  for (let tried = 1; ; tried += 1) {
    const answer = await sent(method, path, body);
    if (answer.ok) return answer.status === 204 ? null : whole(answer);
    const wait = Number(answer.headers.get("Retry-After") ?? NaN);
    if (![429, 503].includes(answer.status) || !(wait <= PATIENCE) || tried === TRIES) throw await troubleOf(answer);
    await new Promise((resolve) => setTimeout(resolve, 1000 * Math.max(wait, 0.2)));
  }
}

/** A path of the service, its parts encoded: ids may hold slashes, spaces and any script. */
export const path = (...parts) => `v1/${parts.map(encodeURIComponent).join("/")}`;

/** The answer's content; it may break off after its head has arrived. */
async function whole(answer) {
  try {
    return await answer.json();
  } catch {
    throw new Trouble(0, SILENCE);
  }
}

async function sent(method, address, body) {
  const headers = { Accept: "application/json" };
  if (session.get("key")) headers.Authorization = `Bearer ${session.get("key")}`;
  if (body !== undefined) headers["Content-Type"] = "application/json";
  try {
    return await fetch(address, { method, headers, body: JSON.stringify(body), cache: "no-store" });
  } catch {
    throw new Trouble(0, SILENCE);
  }
}

async function troubleOf(answer) {
  const problem = await answer.json().catch(() => ({}));
  const detail = problem.detail || problem.title || `The server answered ${answer.status} and gave no reason.`;
  const remedy = REMEDIES[answer.status] ?? ((text) => text.charAt(0).toUpperCase() + text.slice(1));
  return new Trouble(answer.status, remedy(detail), problem.value);
}
