// All targets: how many are in which state, filter and sort when there are many, and the list itself.

import { h, Keyed, setAttribute, setChildren, setText, show } from "./dom.js";
import { count, many, most, sum } from "./format.js";
import { CELLS, look, severity, stateIcon, stateWord, Target, urgency } from "./target.js";

const OPEN_UP_TO = 3; // that many targets start open
const TOOLS_FROM = 6; // from so many on there is a filter
const ORDERS = {
  problems: ["Problems first", (a, b) => urgency(a) - urgency(b) || byName(a, b)],
  name: ["Name", (a, b) => byName(a, b)],
  waiting: ["Most waiting", (a, b) => top(b, "waiting") - top(a, "waiting") || byName(a, b)],
  kv: ["Fullest KV cache", (a, b) => top(b, "kv_cache_usage_ratio") - top(a, "kv_cache_usage_ratio") || byName(a, b)],
};
const collator = new Intl.Collator("en", { numeric: true });
const byName = (a, b) => collator.compare(String(a.name), String(b.name));
const engines = (target) => (Array.isArray(target.engines) ? target.engines : []);
const top = (target, field) =>
  (field === "waiting" ? sum(engines(target).map((e) => e.waiting)) : most(engines(target).map((e) => e[field]))) ?? -1;

export class TargetList {
  /** `announce(text)` speaks to screen readers; `opened()` is called when a target was opened. */
  constructor(parent, { announce, opened }) {
    Object.assign(this, { announce, opened, targets: [], context: {}, order: "problems", states: new Set() });
    this.parts = new Keyed(() => new Target((target) => target.open && opened()));
    this.seen = new Map(); // key → last state, to announce changes
    this.chips = new Keyed((state) => this.makeChip(state));
    this.summary = h("div", { class: "summary", role: "group", "aria-label": "Targets by state" });
    this.search = h("input", { type: "search", id: "filter", autocomplete: "off", spellcheck: "false",
      placeholder: "name, model, label or address" });
    this.select = h("select", { id: "order" }, ...Object.entries(ORDERS).map(([value, [label]]) =>
      h("option", { value, text: label })));
    this.shown = h("p", { class: "quiet", role: "status" });
    this.tools = h(
      "form", { class: "tools", role: "search" },
      h("div", {}, h("label", { for: "filter", text: "Filter" }), this.search),
      h("div", {}, h("label", { for: "order", text: "Order" }), this.select), this.shown,
    );
    this.columns = h("div", { class: "columns", "aria-hidden": "true" },
      h("span", { text: "State" }), h("span", { text: "Target" }), h("span"),
      ...CELLS.map(([label]) => h("span", { text: label })));
    this.empty = h("p", { class: "empty" });
    this.items = h("ul", { class: "targets", role: "list" });
    parent.append(this.summary, this.tools, this.empty, this.columns, this.items);
    this.tools.addEventListener("submit", (event) => event.preventDefault());
    this.search.addEventListener("input", () => this.arrange());
    this.select.addEventListener("change", () => {
      this.order = this.select.value;
      this.arrange();
    });
  }

  makeChip(state) {
    const icon = stateIcon();
    setAttribute(icon.path, "d", look(state).icon);
    const number = h("b");
    const button = h("button", { type: "button", class: "count", "aria-pressed": "false", "data-state": look(state).kind },
      icon.root, number, h("span", { text: ` ${stateWord(state).toLowerCase()}` }));
    button.addEventListener("click", () => {
      if (!this.states.delete(state)) this.states.add(state);
      this.arrange();
    });
    return { button, number };
  }

  update(targets, context) {
    Object.assign(this, { targets, context });
    const keys = targets.map((target, i) => key(target, targets, i));
    const fresh = keys.filter((k) => !this.parts.map.has(k));
    this.list = this.parts.take(keys);
    const changes = [];
    targets.forEach((target, i) => {
      const part = this.list[i];
      if (fresh.includes(keys[i]) && targets.length <= OPEN_UP_TO) part.setOpen(true);
      // One target that cannot be shown must not take the others along.
      try {
        part.update(target, context);
      } catch (error) {
        console.error("llmobs: cannot show a target", error);
      }
      const before = this.seen.get(keys[i]);
      if (before !== undefined && before !== target.state) changes.push(`${target.name} is now ${stateWord(target.state)}`);
      this.seen.set(keys[i], target.state);
    });
    if (changes.length) this.announce(changes.length > 5 ? `${count(changes.length)} targets changed state` : changes.join(". "));
    for (const old of this.seen.keys()) if (!keys.includes(old)) this.seen.delete(old);
    this.arrange();
  }

  /** Show what passes the filter, in the chosen order. Only what moved is touched. */
  arrange() {
    const counts = new Map();
    for (const { state } of this.targets) counts.set(state ?? "unknown", (counts.get(state ?? "unknown") ?? 0) + 1);
    for (const state of this.states) if (!counts.has(state)) this.states.delete(state);
    const present = [...counts.keys()].sort((a, b) => severity(a) - severity(b));
    this.chips.take(present).forEach(({ button, number }, i) => {
      setText(number, count(counts.get(present[i])));
      setAttribute(button, "aria-pressed", String(this.states.has(present[i])));
      setAttribute(button, "title", `Show only targets that are ${present[i]}`);
    });
    setChildren(this.summary, present.map((state) => this.chips.map.get(state).button));
    const many_ = this.targets.length >= TOOLS_FROM;
    show(this.summary, this.targets.length > 1);
    show(this.tools, many_);
    show(this.columns, this.targets.length > OPEN_UP_TO);

    const terms = many_ ? this.search.value.toLowerCase().split(/\s+/).filter(Boolean) : [];
    const rows = this.targets.map((target, i) => ({ target, part: this.list[i] }))
      .filter(({ target }) => (!this.states.size || this.states.has(target.state ?? "unknown")) && matches(target, terms));
    rows.sort((a, b) => ORDERS[this.order][1](a.target, b.target));
    setChildren(this.items, rows.map(({ part }) => part.root));
    setText(this.shown, rows.length === this.targets.length
      ? many(rows.length, "target") : `${count(rows.length)} of ${many(this.targets.length, "target")}`);
    const none = this.targets.length
      ? "No target passes the filter."
      : "No targets. Name a vLLM server with --target, in the configuration file, or by discovery.";
    setText(this.empty, rows.length ? "" : none);
    show(this.empty, rows.length === 0);
  }

  /** Names of the open targets: only their history is drawn. */
  openNames() {
    return [...(this.list ?? [])].filter((part) => part.open && part.root.isConnected).map((part) => part.target.name);
  }
}

function key(target, targets, i) {
  const name = `${target.name}\n${target.url}`;
  return targets.findIndex((other) => `${other.name}\n${other.url}` === name) === i ? name : `${name}\n${i}`;
}

function matches(target, terms) {
  if (!terms.length) return true;
  const text = [target.name, target.url, target.state, target.version,
    ...engines(target).map((engine) => engine.model_name),
    ...Object.entries(target.labels ?? {}).map((pair) => pair.join("="))].join("\n").toLowerCase();
  return terms.every((term) => text.includes(term));
}
