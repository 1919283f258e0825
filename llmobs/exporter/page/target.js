// One target: a head with its state in one word, a row of key figures while it is folded, and all of it when open.

import { h, Keyed, setAttribute, setChildren, setText, setTexts, show, svg } from "./dom.js";
import { Engine, setValue, words } from "./engine.js";
import { age, count, DASH, known, many, most, percent, seconds, span, sum, tokensPerSecond } from "./format.js";

/** States, worst first: what each means to an operator, and its picture (so that colour never stands alone). */
const STATES = {
  dead: { icon: "M6 6l12 12M18 6L6 18", says: "The server answers, but its engine is gone. It must be restarted." },
  stalled: { icon: "M8.5 5v14M15.5 5v14", says: "Work is there, but no token comes out, although health says OK." },
  livelock: {
    icon: "M4 12a8 8 0 0 1 14-5.3L20 9M20 4v5h-5M20 12a8 8 0 0 1-14 5.3L4 15M4 20v-5h5",
    says: "Requests are scheduled and preempted again and again without a token.",
  },
  unreachable: { icon: "M3 12h5M16 12h5M9.5 17l5-10", says: "It cannot be read now, so its numbers are not known." },
  starting: { icon: "M7 3h10M7 21h10M8 3c0 6 8 6 8 9s-8 3-8 9M16 3c0 6-8 6-8 9s8 3 8 9",
    says: "It has not answered yet; it is still within its start-up time." },
  sleeping: { icon: "M20 14.5A8.5 8.5 0 1 1 9.5 4a7 7 0 0 0 10.5 10.5z", says: "Put to sleep: no requests are served." },
  ready: { icon: "M5 12.5l5 5L19.5 7", says: "" },
};
const CERTAIN = new Set(["unreachable", "dead", "starting"]); // states that stay true without a good read
const ORDER = Object.keys(STATES);

/** Place in the order "worst first"; a state this page does not know comes before all. */
export const severity = (state) => ORDER.indexOf(state);

/** The word is from a read that is too old to say how the target is now. */
export const outdated = (target) => Boolean(target.stale) && !CERTAIN.has(target.state);

/** The same order for a whole target; one whose state is outdated stands among the unreachable ones. */
export const urgency = (target) =>
  outdated(target) ? Math.min(severity(target.state), severity("unreachable")) : severity(target.state);
export const inTrouble = (target) => urgency(target) < severity("starting");

/** How a state looks: its name for the style sheet, its picture, its meaning. Own properties only: a server may send
 * any word, also "constructor". */
export function look(state) {
  if (Object.hasOwn(STATES, String(state))) return { kind: state, ...STATES[state] };
  return { kind: "unknown", icon: "M12 6v8M12 18v.1", says: "This page does not know this state; reload it." };
}

export const stateWord = (state) => {
  const word = words(state ?? "unknown");
  return word.charAt(0).toUpperCase() + word.slice(1);
};

export function stateIcon() {
  const path = svg("path");
  return { root: svg("svg", { class: "icon", viewBox: "0 0 24 24", "aria-hidden": "true" }, path), path };
}

/** What a folded target shows. Several engines: sums where a sum has meaning, else the range or the worst. */
export const CELLS = [
  ["Running", (engines) => count(sum(engines.map((e) => e.running)))],
  ["Waiting", (engines) => count(sum(engines.map((e) => e.waiting)))],
  ["KV used", (engines) => percent(most(engines.map((e) => e.kv_cache_usage_ratio)))],
  ["Hit rate", (engines) => range(engines.map((e) => e.cache_hit_rate), percent)],
  ["TTFT p95", (engines) => seconds(most(engines.map((e) => e.ttft_seconds?.p95)))],
  ["ITL p95", (engines) => seconds(most(engines.map((e) => e.inter_token_seconds?.p95)))],
  ["Decode", (engines) => tokensPerSecond(sum(engines.map((e) => e.decode_tokens_per_second)))],
  ["Failed", (engines) => count(sum(engines.map((e) => failures(e))))],
];

function range(values, format) {
  const there = values.filter(known);
  const ends = there.length ? [format(Math.min(...there)), format(Math.max(...there))] : [DASH, DASH];
  return ends[0] === ends[1] ? ends[0] : ends.join(" to ");
}

function failures(engine) {
  return sum(Object.values(engine.failed ?? {}).filter(known));
}

let ids = 0;

export class Target {
  /** `toggled(target)` is called after the reader opened or folded it. */
  constructor(toggled) {
    const id = `target-${(ids += 1)}`;
    this.open = false;
    this.icon = stateIcon();
    this.word = h("span", { class: "word" });
    this.name = h("span", { class: "name" });
    this.since = h("span", { class: "since" });
    this.badges = h("ul", { class: "badges" });
    this.cells = CELLS.map(() => h("dd"));
    this.row = h("dl", { class: "cells" }, ...CELLS.map(([label], i) =>
      h("div", {}, h("dt", { text: label }), this.cells[i])));
    this.toggle = h(
      "button", { type: "button", class: "toggle", "aria-expanded": "false", "aria-controls": id },
      h("span", { class: "state" }, this.icon.root, h("span", { class: "was", text: "last known: " }), this.word),
      h("span", { class: "hidden", text: ", " }), this.name,
    );
    this.toggle.addEventListener("click", () => {
      this.setOpen(!this.open);
      toggled(this);
    });
    this.says = h("p", { class: "says" });
    this.problems = h("ul", { class: "problems" });
    this.facts = h("ul", { class: "about" });
    this.empty = h("p", { class: "empty" });
    this.engines = h("div", { class: "engines" });
    this.body = h("div", { class: "body", id }, this.says, this.problems, this.facts, this.empty, this.engines);
    this.body.hidden = true;
    this.root = h("li", { class: "target" },
      h("div", { class: "head" }, h("h3", {}, this.toggle), this.since, this.badges, this.row), this.body);
    this.parts = new Keyed(() => new Engine());
  }

  setOpen(open) {
    this.open = open;
    setAttribute(this.toggle, "aria-expanded", String(open));
    setAttribute(this.root, "data-open", open ? "" : null);
    show(this.body, open);
    show(this.row, !open);
    if (!this.target) return;
    if (open) this.updateBody();
    else this.updateRow();
  }

  update(target, context) {
    Object.assign(this, { target, context });
    const state = String(target.state ?? "unknown");
    const { kind, icon } = look(state);
    setAttribute(this.root, "data-state", kind);
    setAttribute(this.root, "data-old", outdated(target) ? "" : null);
    setAttribute(this.icon.path, "d", icon);
    setText(this.word, stateWord(state));
    setText(this.name, String(target.name ?? DASH));
    setText(this.since, known(target.state_age_seconds) ? `for ${age(target.state_age_seconds)}` : "");
    const badges = [];
    if (target.simulated) badges.push("simulated");
    if (outdated(target)) badges.push("stale"); // of an unreachable one the state says it already
    if (target.partial) badges.push("partial");
    if (this.outOfMemory()) badges.push("out of memory");
    setTexts(this.badges, badges, "li", "badge");
    for (const badge of this.badges.children) setAttribute(badge, "data-kind", badge.textContent);
    show(this.badges, badges.length > 0);
    if (this.open) this.updateBody();
    else this.updateRow();
  }

  updateRow() {
    const engines = this.list();
    setAttribute(this.row, "data-empty", engines.length ? null : "");
    CELLS.forEach(([, value], i) => setValue(this.cells[i], value(engines)));
  }

  updateBody() {
    const { target, context } = this;
    const engines = this.list();
    const { says } = look(target.state);
    setText(this.says, says);
    show(this.says, says !== "");
    setTexts(this.problems, this.listProblems());
    show(this.problems, this.problems.children.length > 0);
    setTexts(this.facts, this.listFacts());
    setText(this.empty, engines.length ? "" : this.whyEmpty());
    show(this.empty, engines.length === 0);
    const keys = engines.map((engine, i) => JSON.stringify([engine.model_name, engine.engine, keyless(engine) && i]));
    const parts = this.parts.take(keys);
    engines.forEach((engine, i) => parts[i].update(engine, context));
    setChildren(this.engines, parts.map((part) => part.root));
  }

  list() {
    return Array.isArray(this.target.engines) ? this.target.engines : [];
  }

  outOfMemory() {
    return Object.values(this.target.oom ?? {}).some((n) => n > 0);
  }

  listProblems() {
    const { target } = this;
    const lines = [];
    if (target.error) {
      lines.push(`Last read failed (${words(target.error.reason ?? "error")}): ${target.error.message ?? ""}`);
    }
    if (target.stale && target.state !== "starting") {
      lines.push(known(target.age_seconds)
        ? `Stale: the last good read was ${age(target.age_seconds)} ago, one is due every ${span(target.interval_seconds)}.`
        : "Stale: there was no good read yet.");
    }
    if (target.partial) {
      lines.push("Partial: only one of several API server processes was read, so counts cover a part of the server.");
    }
    if (this.outOfMemory()) {
      lines.push(`Out of memory: ${Object.entries(target.oom).map(([kind, n]) =>
        `${count(n)} × ${kind === "cuda" ? "GPU (CUDA)" : kind}`).join(", ")}.`);
    }
    return lines;
  }

  listFacts() {
    const { target } = this;
    const facts = [String(target.url ?? "")];
    if (target.version) facts.push(`vLLM ${target.version}`);
    if (target.source) {
      facts.push(`read from /${target.source}` + (target.dialect ? ` (${target.dialect})` : "") +
        (known(target.interval_seconds) ? ` every ${span(target.interval_seconds)}` : ""));
    }
    if (!target.stale && known(target.age_seconds)) {
      facts.push(target.age_seconds < 1 ? "read just now" : `read ${age(target.age_seconds)} ago`);
    }
    if (known(target.restarts)) facts.push(target.restarts ? `restarted ${many(target.restarts, "time")}` : "no restarts");
    if (target.oom && !this.outOfMemory()) facts.push("no out-of-memory");
    for (const [name, value] of Object.entries(target.labels ?? {})) facts.push(`${name}=${value}`);
    return facts.filter(Boolean);
  }

  whyEmpty() {
    if (this.target.state === "starting") return "No numbers yet.";
    if (this.target.state === "ready") return "It answers, but reported no engine yet.";
    return "No numbers: they are not known while it cannot be read.";
  }
}

/** Two engines without a name must not share one component. */
function keyless(engine) {
  return engine.engine === undefined || engine.engine === null;
}
