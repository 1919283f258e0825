// The numbers of one engine: tiles with a sparkline each, and the split of request time as a bar.

import { h, setAttribute, setChildren, setText, setTexts, show } from "./dom.js";
import { count, DASH, known, percent, perSecond, seconds, span, sum, tokensPerSecond } from "./format.js";
import { Spark } from "./spark.js";

const PHASES = ["queue", "prefill", "decode"];
const REASONS = ["oom", "timeout", "abort", "error", "engine_dead", "rejected", "invalid", "context_length"];
const SERIOUS = new Set(["oom", "engine_dead"]); // always in red; the others only while they occur

export const words = (name) => String(name).replaceAll("_", " ");

/** A labelled number with an optional note, second number and sparkline. */
export class Tile {
  constructor({ label, spark, sparkLabel, format, ratio, pair = false, className = "" }) {
    this.value = h("span", { class: "value" });
    this.note = h("span", { class: "note" });
    this.figures = h("p", { class: "figures" }, this.value, this.note);
    this.spark = spark ? new Spark(sparkLabel ?? label, { format, ratio }) : null;
    this.series = spark;
    this.extra = h("div", { class: "extra" });
    this.root = h(
      "div", { class: `tile ${pair ? "pair " : ""}${className}`.trim() },
      h("dt", { text: label }),
      h("dd", {}, this.figures, this.extra, ...(this.spark ? [this.spark.root] : [])),
    );
  }

  update(value, note, history, now) {
    setValue(this.value, value);
    setText(this.note, note);
    this.spark?.update(history, this.series, now);
  }
}

/** Write "38 ms" with the unit set smaller; anything else as it is. */
export function setValue(node, text) {
  const unit = /^([\d.,<]+)(\u00a0\S+)$/.exec(text);
  const [number, rest] = unit ? [unit[1], unit[2]] : [text, ""];
  if (!node.firstElementChild) node.append(h("span"), h("small"));
  setText(node.firstElementChild, number);
  setText(node.lastElementChild, rest);
  setAttribute(node, "data-unknown", text === DASH ? "" : null);
}

/** p50 and p95 side by side, in one tile. */
class LatencyTile extends Tile {
  constructor(options) {
    super({ ...options, format: seconds });
    this.median = h("span", { class: "value" });
    this.tail = h("span", { class: "value" });
    setChildren(this.figures, [
      h("span", { class: "quantile" }, h("span", { class: "q", text: "p50 " }), this.median),
      h("span", { class: "quantile" }, h("span", { class: "q", text: "p95 " }), this.tail),
    ]);
  }

  update(latency, history, now) {
    setValue(this.median, seconds(latency?.p50));
    setValue(this.tail, seconds(latency?.p95));
    this.spark.update(history, this.series, now);
  }
}

/** Failures: the total, then every reason that occurred, then what is known to be 0, then what is not known. */
class FailureTile extends Tile {
  constructor() {
    super({
      label: "Failed requests", spark: "failed_per_second", sparkLabel: "Failed requests per second",
      format: perSecond, className: "failures",
    });
    this.list = h("ul", { class: "chips", "aria-label": "Failed requests by reason" });
    this.zero = h("p", { class: "quiet" });
    this.extra.append(this.list, this.zero);
  }

  update(failed, history, now) {
    const counts = failed && typeof failed === "object" ? failed : {};
    const told = Object.keys(counts).filter((reason) => known(counts[reason]));
    const bad = told.filter((reason) => counts[reason] > 0).sort((a, b) => counts[b] - counts[a]);
    const names = (reasons) => reasons.map(words).join(", ");
    const unknown = REASONS.filter((reason) => !told.includes(reason));
    const failing = history?.series?.[this.series]?.at?.(-1) > 0; // a rate over the window, so not of an instant
    super.update(count(sum(told.map((r) => counts[r]))),
      told.length ? (failing ? "in total, some of them recent" : "in total") : "", history, now);
    setAttribute(this.root, "data-bad", failing ? "" : null);
    setTexts(this.list, bad.map((reason) => `${words(reason)} ${count(counts[reason])}`), "li", "chip");
    bad.forEach((reason, i) => setAttribute(this.list.children[i], "data-bad", SERIOUS.has(reason) ? "" : null));
    show(this.list, bad.length > 0);
    const none = told.filter((reason) => !bad.includes(reason));
    setText(this.zero, [
      none.length ? `0 by ${names(none)}.` : "",
      unknown.length ? `Not known: ${names(unknown)}.` : "",
    ].filter(Boolean).join(" "));
  }
}

/** Where the time of requests went, as one bar with a legend. */
class PhaseBar {
  constructor() {
    this.parts = PHASES.map((phase) => h("span", { class: `part ${phase}` }));
    this.bar = h("div", { class: "bar", role: "img" }, ...this.parts);
    this.shares = PHASES.map(() => h("b"));
    this.note = h("span", { class: "quiet" });
    this.root = h(
      "div", { class: "phases" },
      h("h5", { text: "Where request time goes " }, this.note),
      this.bar,
      h("ul", { class: "legend" }, ...PHASES.map((phase, i) =>
        h("li", {}, h("span", { class: `swatch ${phase}`, "aria-hidden": "true" }), `${phase} `, this.shares[i]))),
    );
  }

  update(ratio, windowSeconds) {
    const shares = PHASES.map((phase) => (known(ratio?.[phase]) ? ratio[phase] : null));
    const any = shares.some((share) => share > 0);
    shares.forEach((share, i) => {
      this.parts[i].style.flexGrow = String(share ?? 0);
      show(this.parts[i], share > 0);
      setText(this.shares[i], percent(share));
    });
    setAttribute(this.bar, "data-empty", any ? null : "");
    setAttribute(this.bar, "aria-label", any
      ? `Request time: ${PHASES.map((phase, i) => `${phase} ${percent(shares[i])}`).join(", ")}`
      : "Request time by phase: not known");
    const when = known(windowSeconds) ? `in the last ${span(windowSeconds)}` : "in the window";
    setText(this.note, any ? when : `not known: no request was timed ${when}, or the source does not tell`);
  }
}

/** Everything about one engine. */
export class Engine {
  constructor() {
    const ratio = { format: percent, ratio: true };
    this.tiles = {
      running: new Tile({ label: "Running", sparkLabel: "Running requests", spark: "running" }),
      waiting: new Tile({ label: "Waiting", sparkLabel: "Waiting requests", spark: "waiting" }),
      kv: new Tile({ label: "KV cache used", spark: "kv_cache_usage_ratio", ...ratio }),
      hits: new Tile({ label: "Prefix cache hit rate", spark: "cache_hit_rate", ...ratio }),
      ttft: new LatencyTile({
        label: "Time to first token", sparkLabel: "Time to first token, p95", spark: "ttft_p95", pair: true,
      }),
      itl: new LatencyTile({
        label: "Inter-token latency", sparkLabel: "Inter-token latency, p95", spark: "inter_token_p95", pair: true,
      }),
      decode: new Tile({ label: "Decode", sparkLabel: "Decode tokens per second",
        spark: "decode_tokens_per_second", format: tokensPerSecond }),
      prefill: new Tile({ label: "Prefill", sparkLabel: "Prefill tokens per second",
        spark: "prefill_tokens_per_second", format: tokensPerSecond }),
    };
    this.failures = new FailureTile();
    this.phases = new PhaseBar();
    this.title = h("h4");
    this.more = Object.fromEntries(["End to end p50", "End to end p95", "Preemptions", "Draft tokens accepted",
    ].map((label) => [label, h("dd")]));
    const facts = h("dl", { class: "facts" }, ...Object.entries(this.more).map(([label, node]) =>
      h("div", {}, h("dt", { text: label }), node)));
    this.root = h(
      "section", { class: "engine" }, this.title, this.phases.root,
      h("dl", { class: "tiles" }, ...Object.values(this.tiles).map((tile) => tile.root), this.failures.root),
      facts,
    );
  }

  update(engine, { now, windowSeconds }) {
    const { tiles, more } = this;
    const past = engine.history;
    setText(this.title, `${engine.model_name ?? "model not known"} · engine ${engine.engine ?? DASH}` +
      (engine.stalled ? " · stalled" : ""));
    setAttribute(this.title, "data-bad", engine.stalled ? "" : null);
    const some = (value, text) => (known(value) ? text : "");
    tiles.running.update(count(engine.running), some(engine.max_running, `of at most ${count(engine.max_running)}`),
      past, now);
    tiles.waiting.update(count(engine.waiting), some(engine.waiting_peak, `peak ${count(engine.waiting_peak)}`),
      past, now);
    tiles.kv.update(percent(engine.kv_cache_usage_ratio),
      some(engine.kv_cache_capacity_tokens, `of ${count(engine.kv_cache_capacity_tokens)} tokens`), past, now);
    tiles.hits.update(percent(engine.cache_hit_rate), some(engine.cache_hit_rate, "of prompt tokens"), past, now);
    tiles.ttft.update(engine.ttft_seconds, past, now);
    tiles.itl.update(engine.inter_token_seconds, past, now);
    tiles.decode.update(tokensPerSecond(engine.decode_tokens_per_second), "", past, now);
    tiles.prefill.update(tokensPerSecond(engine.prefill_tokens_per_second), "", past, now);
    this.failures.update(engine.failed, past, now);
    this.phases.update(engine.phase_ratio, windowSeconds);
    setText(more["End to end p50"], seconds(engine.e2e_seconds?.p50));
    setText(more["End to end p95"], seconds(engine.e2e_seconds?.p95));
    setText(more.Preemptions, perSecond(engine.preemptions_per_second));
    setText(more["Draft tokens accepted"], percent(engine.spec_acceptance_rate));
  }
}
