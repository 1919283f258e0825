// The live page: asks the daemon for its state every two seconds and writes it into the page, in place.

import { setAttribute, setText, show } from "./dom.js";
import { age, count, known, many, span } from "./format.js";
import { GpuList } from "./gpus.js";
import { TargetList } from "./list.js";
import { inTrouble, outdated, stateWord } from "./target.js";

const POLL = 2000; // ms between two questions
const PATIENCE = 5000; // ms until a question counts as failed
const SLOWEST = 30000; // ms between two questions to a daemon that does not answer
const LEAN_FROM = 12; // with more targets, ask only for the history of the open ones

const at = (id) => document.getElementById(id);
const targets = new TargetList(at("targets-body"), { announce, opened: () => poll() });
const gpus = new GpuList(at("gpus-body"), at("gpus-note"));

let timer = 0;
let request = null; // the AbortController of the question in flight
let failures = 0;
let nextTry = 0; // when a lost daemon is asked again, by this browser's clock
let lastGood = null; // when the last answer came, by this browser's clock
let size = 0; // number of targets in the last answer

function announce(text) {
  setText(at("announce"), text);
}

function schedule(delay) {
  clearTimeout(timer);
  if (!document.hidden) timer = setTimeout(poll, delay);
}

function address() {
  if (size <= LEAN_FROM) return "api/v1/state";
  const open = targets.openNames().map(encodeURIComponent);
  return `api/v1/state?history=${open.join("&history=")}`;
}

async function ask(signal) {
  const answer = await fetch(address(), { cache: "no-store", headers: { Accept: "application/json" }, signal });
  if (!answer.ok) throw new Error(`it answered with HTTP status ${answer.status}`);
  const state = await answer.json().catch(() => null);
  if (!state || !Array.isArray(state.targets)) throw new Error("its answer could not be understood");
  return state;
}

async function poll() {
  clearTimeout(timer);
  request?.abort();
  const mine = new AbortController();
  request = mine;
  const patience = setTimeout(() => mine.abort("late"), PATIENCE);
  try {
    const state = await ask(mine.signal);
    if (request !== mine) return;
    failures = 0;
    lastGood = Date.now();
    render(state);
  } catch (error) {
    if (request !== mine) return; // replaced by a newer question, or the tab was hidden
    failures += 1;
    lost(mine.signal.aborted ? "it gave no answer within 5 s" : reason(error));
  } finally {
    clearTimeout(patience);
    if (request === mine) {
      request = null;
      const delay = failures ? Math.min(POLL * 2 ** (failures - 1), SLOWEST) : POLL;
      nextTry = Date.now() + delay;
      schedule(delay);
      tick();
    }
  }
}

function reason(error) {
  return error instanceof TypeError ? "it cannot be reached" : error.message;
}

function render(state) {
  const now = known(state.time) ? state.time : Date.now() / 1000;
  const list = state.targets.filter((target) => target && typeof target === "object");
  size = list.length;
  document.body.classList.remove("is-lost");
  show(at("lost"), false);
  setText(at("lost-what"), "");
  const simulated = list.filter((target) => target.simulated).length;
  show(at("simulated"), simulated > 0 || state.gpus?.simulated === true);
  setText(at("simulated"), simulation(simulated, list.length, state.gpus?.simulated === true));
  setText(at("window"), known(state.window_seconds)
    ? `rates and percentiles over ${span(state.window_seconds)}, lines over 10 min` : "lines over 10 min");
  setText(at("version"), String(state.version ?? ""));
  targets.update(list, { now, windowSeconds: state.window_seconds });
  gpus.update(state.gpus, now);
  setText(document.querySelector("title"), title(list));
}

function simulation(n, all, gpu) {
  const what = [];
  if (n) what.push(n === all ? (n === 1 ? "this target" : "all targets") : `${count(n)} of ${many(all, "target")}`);
  if (gpu) what.push("the GPUs");
  return `Simulated: ${what.join(" and ")} ${n > 1 || gpu ? "are" : "is"} not real. The numbers come from llmobs’ own simulator.`;
}

/** The state in the tab's title, so that a background tab still tells. */
function title(list) {
  if (list.length === 1) return `${outdated(list[0]) ? "Last known: " : ""}${stateWord(list[0].state)} · ${list[0].name} · llmobs`;
  const bad = list.filter(inTrouble);
  return list.length ? `${bad.length ? `${count(bad.length)} of ${count(list.length)} in trouble` : "all well"} · llmobs` : "llmobs";
}

function lost(why) {
  document.body.classList.add("is-lost");
  show(at("lost"), true);
  setText(at("lost-what"), `Connection to llmobs lost: ${why}.`);
  setText(document.querySelector("title"), "Connection lost · llmobs");
}

/** Once a second: how old what is shown is. */
function tick() {
  const old = lastGood === null ? null : Math.max(0, (Date.now() - lastGood) / 1000);
  setAttribute(at("connection"), "data-live", failures === 0 && old !== null ? "" : null);
  if (failures) {
    const shown = old === null ? "Nothing was received yet." : `What is shown is ${age(old)} old.`;
    const again = request ? "Trying …" : `Next try in ${age(Math.max(0, nextTry - Date.now()) / 1000)}.`;
    setText(at("lost-when"), `${shown} ${again}`);
    setText(at("connection-text"), "not connected");
  } else if (old !== null) {
    setText(at("connection-text"), old < 4 ? "live" : `updated ${age(old)} ago`);
  }
}

document.addEventListener("visibilitychange", () => {
  if (document.hidden) {
    // A tab nobody sees asks nothing.
    clearTimeout(timer);
    const running = request;
    request = null;
    running?.abort();
  } else {
    poll();
  }
});
at("lost-retry").addEventListener("click", () => poll());
setInterval(() => !document.hidden && tick(), 1000);
poll();
