// Numbers as people read them. What is not known is a dash, never 0.

export const DASH = "–";
const NBSP = "\u00a0";

export const known = (value) => typeof value === "number" && Number.isFinite(value);
const or = (format) => (value, ...rest) => (known(value) ? format(value, ...rest) : DASH);
const formats = [0, 1, 2].map((digits) =>
  new Intl.NumberFormat("en", { minimumFractionDigits: digits, maximumFractionDigits: digits }));
const fixed = (value, digits) => formats[digits].format(value);

/** Three significant digits, without an exponent. */
function short(value) {
  const size = Math.abs(value);
  if (size >= 99.95) return fixed(value, 0);
  if (size >= 9.995) return fixed(value, 1);
  return fixed(value, 2);
}

/** 7 · 1,234 · 12.3k · 4.56M */
export const count = or((value) => {
  const size = Math.abs(value);
  if (size >= 999.5e6) return `${short(value / 1e9)}G`;
  if (size >= 999.5e3) return `${short(value / 1e6)}M`;
  if (size >= 9999.5) return `${short(value / 1e3)}k`;
  return fixed(value, Number.isInteger(value) || size >= 99.95 ? 0 : 1);
});

/** Something per second: 0 · 0.25 · 3.4 · 1,234 */
export const rate = or((value) => {
  if (value === 0) return "0";
  if (Math.abs(value) < 0.01) return "<0.01";
  return Math.abs(value) < 99.95 ? short(value).replace(/\.?0+$/, "") : count(Math.round(value));
});
export const perSecond = or((value) => `${rate(value)}${NBSP}/s`);
export const tokensPerSecond = or((value) => `${rate(value)}${NBSP}tok/s`);

/** A ratio 0–1 as per cent; what is not quite 0 or 100 does not read as 0 or 100. */
export const percent = or((ratio) => {
  const value = ratio * 100;
  if (value > 0 && value < 0.1) return `<0.1${NBSP}%`;
  if (value > 99 && value < 100) return `${fixed(Math.floor(value * 10) / 10, 1)}${NBSP}%`;
  return `${value < 9.95 && value > 0 ? fixed(value, 1) : fixed(value, 0)}${NBSP}%`;
});

/** A latency: 0.42 ms · 38.0 ms · 1.24 s · 2 min 5 s */
export const seconds = or((value) => {
  if (value === 0) return `0${NBSP}ms`;
  if (value < 0.9995) return `${short(value * 1e3)}${NBSP}ms`;
  return value < 59.5 ? `${short(value)}${NBSP}s` : age(value);
});

/** A stretch of time in whole units: 8 s · 2 min 5 s · 3 h 12 min · 5 d 3 h */
export const age = or((value) => {
  const whole = Math.max(0, Math.round(value));
  const pair = (big, bigUnit, small, smallUnit) =>
    `${Math.floor(whole / big)}${NBSP}${bigUnit}` +
    (Math.floor((whole % big) / small) ? ` ${Math.floor((whole % big) / small)}${NBSP}${smallUnit}` : "");
  if (whole < 60) return `${whole}${NBSP}s`;
  if (whole < 3600) return pair(60, "min", 1, "s");
  if (whole < 86400) return pair(3600, "h", 60, "min");
  return pair(86400, "d", 3600, "h");
});

/** A short fixed time such as an interval or a window: 0.5 s · 60 s · 10 min */
export const span = or((value) => (value <= 120 ? `${rate(value)}${NBSP}s` : age(value)));

export const bytes = or((value) => {
  const size = Math.abs(value);
  if (size < 1024) return `${fixed(value, 0)}${NBSP}B`;
  if (size < 1024 ** 2) return `${short(value / 1024)}${NBSP}KiB`;
  return size < 1024 ** 3 ? `${short(value / 1024 ** 2)}${NBSP}MiB` : `${short(value / 1024 ** 3)}${NBSP}GiB`;
});

export const watts = or((value) => `${fixed(value, 0)}${NBSP}W`);
export const celsius = or((value) => `${fixed(value, 0)}${NBSP}°C`);

/** "1 target", "2 targets" */
export const many = (n, noun) => `${count(n)} ${noun}${n === 1 ? "" : "s"}`;

/** The sum, or null as soon as one part is not known: a partial sum would look like a right number. */
export function sum(values) {
  return values.length && values.every(known) ? values.reduce((a, b) => a + b, 0) : null;
}

/** The largest known value, or null. */
export function most(values) {
  const there = values.filter(known);
  return there.length ? Math.max(...there) : null;
}
