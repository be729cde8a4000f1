// The page: what the visitor does becomes a request, what the service answers is shown.

import { ask, path, Trouble } from "./api.js";
import { byId } from "./dom.js";
import { askForKey, confirmFarewell } from "./dialogs.js";
import { ProfileForm } from "./profile.js";
import { askQuestion, forgetQuestion } from "./question.js";
import { show } from "./rating.js";
import { RatedList } from "./rated.js";
import { scaleOf } from "./scale.js";
import { Finder } from "./finder.js";
import { legend, rateProfileFigure, rateProfileText } from "./rate-profile.js";
import { forgetSkipped, forgetSkippedOne, forgetVisitor, isNew, session, skip, skipped, visitor } from "./storage.js";
import { TopTen } from "./topten.js";
import { count, listed, nameOf } from "./format.js";

const TOP = 10;
const REASONS = 5;
const NEWS_SECONDS = 8;
const TRIES = 5; // skipped titles that this server does not know, before all are forgotten

let scale, topTen, rated, finder, form; // of this server's model, made once by `begin`
let profile = {};
let unknown = []; // fields of it whose values the model does not know
let rates = null;
let rateName = "learning rate"; // what this server's method gives each user
let fading = 0; // the timer that hides the news again
let latest = 0; // answers to older requests are not shown
let line = Promise.resolve(); // changes are sent one after the other: the last one wins

const mine = (...parts) => path("users", visitor(), ...parts);

/** Do something; if it fails, say so and offer to try again. */
async function attempt(work) {
  try {
    const result = await work();
    byId("trouble").hidden = true;
    return result;
  } catch (error) {
    if (!(error instanceof Trouble)) throw error;
    if (error.status === 401) {
      await askForKey(session.get("key") !== null);
      if (session.get("key") !== null) return attempt(work);
    }
    say(error, work);
    return null;
  }
}

function say(error, work) {
  const trouble = byId("trouble");
  trouble.querySelector("p").textContent = error.message;
  trouble.querySelector("button").onclick = () => attempt(work);
  trouble.hidden = false;
  trouble.scrollIntoView({ block: "nearest" });
}

// one that fails stops none of the others
const inTurn = (work) => (line = line.catch(() => {}).then(() => attempt(work)));

async function begin() {
  const model = await ask("GET", path("model"));
  if (!scale) build(model);
  await loadVisitor();
  byId("main").removeAttribute("aria-busy");
  await Promise.all([refresh(), finder.search()]);
}

function build(model) {
  scale = scaleOf(model.target);
  topTen = new TopTen(byId("items"), scale, rate);
  rated = new RatedList(scale, rate, remove);
  finder = new Finder(scale, (item) => rated.valueOf(item), rate, attempt);
  form = new ProfileForm(byId("profile"), model.fields, (said) => inTurn(() => introduce(said)));
  rateName = model.rate;
  byId("about").hidden = model.fields.length === 0;
  byId("order").hidden = model.by[0] !== "preference" || !model.by.includes("rating");
  byId("model").textContent = `${count(model.items, "title")}, ${scale.range}; the model is “${model.method}”.`;
  document.querySelector("h1").textContent = scale.words.title;
}

/** Load what this visitor has rated before, or create the visitor. */
async function loadVisitor() {
  const introduction = () => ask("PUT", mine(), { profile: {} });
  const stored = isNew()
    ? await introduction()
    : await ask("GET", mine()).catch((error) => {
        if (error.status !== 404) throw error;
        return introduction();
      });
  profile = stored.profile;
  unknown = stored.unknown;
  form.show(profile);
  form.mark(unknown);
  rated.replace(stored.ratings);
}

/** Ask for everything that a change may have changed, and show it together. */
async function refresh(cause = "") {
  const turn = (latest += 1);
  const [recommended, question, place] = await Promise.all([
    ask("GET", `${mine("recommendations")}?n=${TOP}&why=${REASONS}`),
    nextQuestion(),
    ask("GET", mine("rate-profile")),
  ]);
  if (turn !== latest) return;
  const hold = holdStill();
  const changes = topTen.update(recommended.items);
  rates = place;
  showBasis();
  showRateProfile();
  showQuestion(question);
  if (changes) announce(cause ? `${cause}: ${changes}` : changes);
  hold();
}

/** What the visitor is using stays where it is, though the list above it may grow or shrink. */
function holdStill() {
  const used = document.activeElement?.closest(".side > section");
  const before = used?.getBoundingClientRect().top;
  return () => used && window.scrollBy({ top: used.getBoundingClientRect().top - before, behavior: "instant" });
}

/** The next question, or null when there is nothing left to ask. */
async function nextQuestion(tries = TRIES) {
  const skips = skipped().map((item) => `skip=${encodeURIComponent(item)}`).join("&");
  return ask("GET", `${mine("next-question")}${skips && `?${skips}`}`).catch((error) => {
    if (error.status === 404) return null;
    if (error.status !== 422 || !skips) throw error;
    // this server's titles have changed: it does not know one that was skipped, or hardly any
    if (tries === 0 || !forgetSkippedOne(error.value)) forgetSkipped();
    return nextQuestion(tries - 1);
  });
}

function showQuestion(question) {
  askQuestion(scale, question, rate, (entry) => {
    skip(entry.item);
    attempt(async () => showQuestion(await nextQuestion()));
  });
}

function showBasis() {
  const known = [];
  if (rated.size) known.push(count(rated.size, scale.words.noun));
  if (Object.keys(profile).some((name) => !unknown.includes(name))) known.push("your profile");
  byId("basis").textContent = known.length ? `from ${listed(known)}` : "nothing is known about you yet";
}

function showRateProfile() {
  byId("rate").hidden = false;
  byId("rate-title").textContent = `Your ${rateName}`;
  byId("rate-text").replaceChildren(...rateProfileText(rates, rateName));
  drawRateProfile();
}

function drawRateProfile() {
  const figure = document.querySelector("#rate figure");
  if (rates === null || figure.clientWidth === 0) return;
  const open = figure.querySelector("details")?.open ?? false;
  const parts = rateProfileFigure(rates, figure.clientWidth, rateName);
  figure.replaceChildren(...(parts.length ? [parts[0], legend(rates), parts[1]] : []));
  if (open) figure.querySelector("details").open = true;
}

function announce(news) {
  const text = news.charAt(0).toUpperCase() + news.slice(1);
  byId("news").textContent = text;
  byId("jump").textContent = `Your top ten: ${news}`;
  byId("jump").hidden = false; // the style shows it only while the list is out of sight
  clearTimeout(fading);
  fading = setTimeout(() => (byId("jump").hidden = true), NEWS_SECONDS * 1000);
}

function rate(entry, value) {
  inTurn(() => store(entry, value)).then(() => showEverywhere(entry.item));
}

async function store(entry, value) {
  await known("POST", mine("ratings"), { ratings: [{ item: entry.item, value }] });
  rated.put(entry, value);
  showEverywhere(entry.item);
  await refresh(`${nameOf(entry)}, ${scale.value(value)}`);
}

function remove(entry) {
  inTurn(async () => {
    await known("DELETE", mine("ratings", entry.item));
    rated.remove(entry.item);
    showEverywhere(entry.item);
    await refresh(`Without ${nameOf(entry)}`);
  });
}

async function introduce(said) {
  const stored = await ask("PUT", mine(), { profile: said });
  profile = said;
  unknown = stored.unknown;
  form.mark(unknown);
  await refresh("With your profile");
}

/** Send a change; if the server no longer knows this visitor, create the visitor again. */
async function known(method, address, body) {
  try {
    return await ask(method, address, body);
  } catch (error) {
    if (error.status !== 404) throw error;
    if (method === "DELETE") return null; // what does not exist need not be removed
    await ask("PUT", mine(), { profile });
    return ask(method, address, body);
  }
}

/** All controls of an item show its stored value, even if a change has failed. */
function showEverywhere(item) {
  const controls = document.querySelectorAll(`:is(fieldset, .number)[data-item="${CSS.escape(item)}"]`);
  for (const control of controls) show(control, rated.valueOf(item));
}

async function forget() {
  if (!(await confirmFarewell(rated.size))) return;
  inTurn(async () => {
    await known("DELETE", mine());
    forgetVisitor();
    topTen.reset();
    forgetQuestion();
    await loadVisitor();
    await Promise.all([refresh(), finder.search()]);
    byId("jump").hidden = true;
    byId("news").textContent = "Everything about you has been deleted. This is a fresh start.";
    byId("top").focus();
  });
}

byId("forget").addEventListener("click", forget);
new ResizeObserver(drawRateProfile).observe(document.querySelector("#rate figure"));
new IntersectionObserver(([seen]) => {
  byId("jump").classList.toggle("away", !seen.isIntersecting);
  if (seen.isIntersecting) byId("jump").hidden = true; // the news has been seen
}).observe(byId("items"));
attempt(begin);
