// The GPUs: memory as a bar, utilisation, power, temperature, and what the driver complained about.

import { h, Keyed, setAttribute, setChildren, setText, setTexts, show } from "./dom.js";
import { Tile, words } from "./engine.js";
import { age, bytes, celsius, count, known, many, percent, watts } from "./format.js";
import { Spark } from "./spark.js";

const UNAVAILABLE = {
  no_library: "the NVIDIA management library (NVML) is not installed here",
  no_driver: "no NVIDIA driver is loaded",
  version_mismatch: "the NVIDIA driver and its library have different versions; the machine needs a reboot",
  no_permission: "reading the GPUs is not permitted here",
  no_devices: "the driver sees no GPU",
  hung: "the driver does not answer",
  disabled: "reading GPUs is switched off in the configuration",
};
const DOWN = {
  lost: "It fell off the bus. The machine needs a reset.",
  reset_required: "It must be reset before it works again.",
  hung: "The driver call for it hangs.",
};
const STALE_AFTER = 30; // seconds; GPUs are read every five
const PARTS = [
  ["used", "used, without KV"], ["kv", "KV budget"], ["free", "free"], ["reserve", "reserve"], ["driver", "driver"],
];

/** Split a device's memory into what the bar shows; a part is null when it is not known. */
function split(gpu) {
  const used = gpu.memory_used_bytes;
  const free = gpu.memory_free_bytes;
  const kv = known(gpu.kv_budget_bytes) && known(used) ? Math.min(gpu.kv_budget_bytes, used) : null;
  const reserve = known(gpu.reserve_bytes) && known(free) ? Math.min(gpu.reserve_bytes, free) : null;
  return {
    used: known(used) ? used - (kv ?? 0) : null,
    kv,
    free: known(free) ? free - (reserve ?? 0) : null,
    reserve,
    driver: known(gpu.memory_reserved_bytes) ? gpu.memory_reserved_bytes : null,
  };
}

class Memory {
  constructor() {
    this.value = h("b");
    this.parts = PARTS.map(([name]) => h("span", { class: `part ${name}` }));
    this.bar = h("div", { class: "bar", role: "img" }, ...this.parts);
    this.amounts = PARTS.map(() => h("b"));
    this.labels = PARTS.map(([, label]) => h("span", { text: `${label} ` }));
    this.entries = PARTS.map(([name], i) => h("li", {},
      h("span", { class: `swatch ${name}`, "aria-hidden": "true" }), this.labels[i], this.amounts[i]));
    this.warning = h("p", { class: "warning" });
    this.spark = new Spark("Memory used", { format: bytes });
    this.root = h("div", { class: "memory" }, h("h4", {}, "Memory ", this.value), this.bar,
      h("ul", { class: "legend" }, ...this.entries), this.warning, this.spark.root);
  }

  update(gpu, now) {
    const parts = split(gpu);
    const total = gpu.memory_total_bytes;
    setText(this.value, known(gpu.memory_used_bytes) && known(total)
      ? `${bytes(gpu.memory_used_bytes)} of ${bytes(total)} used (${percent(gpu.memory_used_bytes / total)})`
      : `${bytes(gpu.memory_used_bytes)} of ${bytes(total)} used`);
    const spoken = [];
    PARTS.forEach(([name, usual], i) => {
      const size = parts[name];
      const label = name === "used" && parts.kv === null ? "used" : usual; // nothing was taken off it
      setText(this.labels[i], `${label} `);
      this.parts[i].style.flexGrow = String(size > 0 && total > 0 ? size / total : 0);
      show(this.parts[i], size > 0);
      // The legend of the reserve says how large it should be, the bar how much of it is left.
      setText(this.amounts[i], bytes(name === "reserve" ? gpu.reserve_bytes : size));
      show(this.entries[i], name !== "driver" || known(size));
      if (known(size)) spoken.push(`${label} ${bytes(size)}`);
    });
    setAttribute(this.bar, "data-empty", spoken.length ? null : "");
    setAttribute(this.bar, "aria-label", spoken.length ? `Memory of ${bytes(total)}: ${spoken.join(", ")}` : "Memory: not known");
    const warnings = [];
    const short = known(gpu.reserve_bytes) && known(gpu.memory_free_bytes) ? gpu.reserve_bytes - gpu.memory_free_bytes : 0;
    if (short > 0) warnings.push(`${bytes(short)} of the fragmentation reserve is in use.`);
    if (gpu.unaccounted_bytes > 0) warnings.push(`${bytes(gpu.unaccounted_bytes)} belongs to no visible process.`);
    setText(this.warning, warnings.join(" "));
    show(this.warning, warnings.length > 0);
    this.spark.update(gpu.history, "memory_used_bytes", now);
  }
}

class Gpu {
  constructor() {
    this.name = h("span");
    this.badge = h("span", { class: "badge" });
    this.down = h("p", { class: "down" });
    this.memory = new Memory();
    this.tiles = {
      utilization: new Tile({ label: "Utilisation", spark: "utilization", format: percent, ratio: true }),
      power: new Tile({ label: "Power", spark: "power_watts", format: watts }),
      temperature: new Tile({ label: "Temperature", spark: "temperature_celsius", format: celsius }),
    };
    this.throttle = h("dd");
    this.xid = h("dd");
    this.uuid = h("dd", { class: "uuid" });
    this.live = h("div", {}, this.memory.root,
      h("dl", { class: "tiles" }, ...Object.values(this.tiles).map((tile) => tile.root)));
    this.root = h(
      "li", { class: "gpu" }, h("h3", {}, this.name, " ", this.badge), this.down, this.live,
      h("dl", { class: "facts" },
        h("div", {}, h("dt", { text: "Throttled by" }), this.throttle),
        h("div", {}, h("dt", { text: "Xid errors" }), this.xid),
        h("div", {}, h("dt", { text: "UUID" }), this.uuid)),
    );
  }

  update(gpu, now) {
    const { tiles } = this;
    setText(this.name, `GPU ${gpu.index ?? "–"}${gpu.name ? ` · ${gpu.name}` : ""}`);
    const badge = { true: "runs a watched vLLM", false: "no watched vLLM" }[String(gpu.watched)] ?? "";
    setText(this.badge, badge);
    show(this.badge, badge !== "");
    const up = gpu.up !== false;
    setAttribute(this.root, "data-down", up ? null : "");
    setText(this.down, up ? "" : `Not up: ${words(gpu.reason ?? "reason not known")}. ${Object.hasOwn(DOWN, String(gpu.reason)) ? DOWN[gpu.reason] : ""}`);
    show(this.down, !up);
    show(this.live, up);
    this.memory.update(gpu, now);
    tiles.utilization.update(percent(gpu.utilization),
      known(gpu.sm_active) ? `SMs active ${percent(gpu.sm_active)}` : "", gpu.history, now);
    tiles.power.update(watts(gpu.power_watts),
      known(gpu.power_limit_watts) ? `of ${watts(gpu.power_limit_watts)}` : "", gpu.history, now);
    tiles.temperature.update(celsius(gpu.temperature_celsius), "", gpu.history, now);
    const throttle = up && Array.isArray(gpu.throttle) ? gpu.throttle : null; // a lost GPU cannot say
    setText(this.throttle, throttle ? throttle.map(words).join(", ") || "nothing" : "–");
    setAttribute(this.throttle, "data-bad", throttle?.length ? "" : null);
    const xids = gpu.xid ? Object.entries(gpu.xid).filter(([, n]) => n > 0) : null;
    setText(this.xid, xids ? xids.map(([code, n]) => xid(code, n, gpu.xid_last_seen?.[code], now)).join(", ") || "none seen" : "–");
    setAttribute(this.xid, "data-bad", xids?.length ? "" : null);
    setText(this.uuid, String(gpu.uuid ?? "–"));
  }
}

function xid(code, times, seen, now) {
  return `${code} × ${count(times)}${known(seen) ? ` (${age(now - seen)} ago)` : ""}`;
}

export class GpuList {
  constructor(parent, note) {
    this.note = note;
    this.parts = new Keyed(() => new Gpu());
    this.empty = h("p", { class: "empty" });
    this.items = h("ul", { class: "gpus", role: "list" });
    parent.append(this.empty, this.items);
  }

  update(gpus, now) {
    const devices = Array.isArray(gpus?.devices) ? gpus.devices : [];
    const down = devices.filter((gpu) => gpu.up === false).length;
    const notes = [];
    if (gpus?.simulated) notes.push("simulated");
    if (devices.length > 1) notes.push(many(devices.length, "GPU") + (down ? `, ${count(down)} not up` : ", all up"));
    const old = known(gpus?.age_seconds) && gpus.age_seconds > STALE_AFTER;
    if (old) notes.push(`stale: last read ${age(gpus.age_seconds)} ago`);
    setText(this.note, notes.join(" · "));
    setAttribute(this.note, "data-bad", old ? "" : null);
    setAttribute(this.items, "data-old", old ? "" : null);
    setText(this.empty, devices.length ? "" : whyNone(gpus));
    show(this.empty, devices.length === 0);
    const parts = this.parts.take(devices.map((gpu, i) => String(gpu.uuid ?? i)));
    devices.forEach((gpu, i) => {
      try {
        parts[i].update(gpu, now);
      } catch (error) {
        console.error("llmobs: cannot show a GPU", error);
      }
    });
    setChildren(this.items, parts.map((part) => part.root));
  }
}

function whyNone(gpus) {
  if (!gpus) return "GPUs were not read yet.";
  if (!gpus.reason) return gpus.available ? "The driver reported no GPU." : `No GPU numbers: ${gpus.detail || "not read yet"}.`;
  const why = Object.hasOwn(UNAVAILABLE, gpus.reason) ? UNAVAILABLE[gpus.reason] : words(gpus.reason);
  return `No GPU numbers: ${why}.${gpus.detail ? ` (${gpus.detail})` : ""}`;
}
