// The two questions that must be answered before anything else happens.

import { byId } from "./dom.js";
import { session } from "./storage.js";
import { count } from "./format.js";

/** Ask for the server's key and keep it for this tab; say so if the last key was refused. */
export async function askForKey(refused) {
  session.remove("key");
  byId("key-text").textContent = refused
    ? "That key was not accepted. Check that it is complete."
    : "It is kept until you close this tab.";
  byId("secret").value = "";
  await answered(byId("key"));
  const secret = byId("secret").value.trim();
  byId("secret").value = "";
  if (secret) session.set("key", secret);
}

/** Whether the visitor really wants to be forgotten. */
export async function confirmFarewell(ratings) {
  const what = ratings ? `${count(ratings, "rating")} and your profile` : "Your profile";
  byId("farewell-text").textContent = `${what} will be deleted on this server and cannot be restored.`;
  return (await answered(byId("farewell"))) === "forget";
}

function answered(dialog) {
  dialog.returnValue = "";
  dialog.showModal();
  return new Promise((resolve) => dialog.addEventListener("close", () => resolve(dialog.returnValue), { once: true }));
}
