/**
 * Numbers, moments and spans as people read them; null, undefined and what is no number become a dash.
 * The command line has the same rules for amounts, in model/formats.py; a test compares the two.
 */

const NONE = "–";
const MINUTE = 60;
const HOUR = 3_600;
const DAY = 86_400;

/**
 * @param {unknown} x
 * @returns {x is number}
 */
function isNumber(x) {
  return typeof x === "number" && Number.isFinite(x);
}

/**
 * 1,234 or 12.5: as many digits as matter.
 * @param {number | null | undefined} x
 * @param {number} [digits] after the point, at most
 */
export function number(x, digits = 2) {
  if (!isNumber(x)) return NONE;
  const most = Math.abs(x) >= 100 ? Math.min(digits, 1) : digits;
  return x.toLocaleString("en-GB", { maximumFractionDigits: most });
}

/**
 * 0.713 is 71 %.
 * @param {number | null | undefined} x
 */
export function percent(x) {
  if (!isNumber(x)) return NONE;
  if (x > 0 && x < 0.0005) return "<0.1 %";
  const digits = Math.abs(x) < 0.1 && x !== 0 ? 1 : 0;
  return `${(100 * x).toLocaleString("en-GB", { maximumFractionDigits: digits })} %`;
}

/**
 * 45 s, 12 min, 1 h 5 min, 3 d 4 h.
 * @param {number | null | undefined} seconds
 * @returns {string}
 */
export function duration(seconds) {
  if (!isNumber(seconds)) return NONE;
  if (seconds < 0) return `-${duration(-seconds)}`;
  if (seconds > 0 && seconds < 0.1) return seconds < 0.0005 ? "<1 ms" : `${Math.round(1000 * seconds)} ms`;
  if (seconds < 9.95) return `${Math.round(10 * seconds) / 10} s`;
  if (seconds < MINUTE - 0.5) return `${Math.round(seconds)} s`;
  if (seconds < 10 * MINUTE) return parts(seconds, MINUTE, "min", 1, "s");
  if (seconds < HOUR - 30) return `${Math.round(seconds / MINUTE)} min`;
  if (seconds < DAY - 30) return parts(seconds, HOUR, "h", MINUTE, "min");
  return parts(seconds, DAY, "d", HOUR, "h");
}

/** @param {number} x @param {number} large @param {string} one @param {number} small @param {string} other */
function parts(x, large, one, small, other) {
  const units = Math.round(x / small);
  const whole = Math.floor((units * small) / large);
  const rest = units - (whole * large) / small;
  const most = whole.toLocaleString("en-GB");
  return rest ? `${most} ${one} ${rest} ${other}` : `${most} ${one}`;
}

/**
 * 5 min ago, in 2 h.
 * @param {string | null | undefined} iso
 * @param {number} [now] milliseconds, as useNow() gives it
 */
export function ago(iso, now = Date.now()) {
  const at = iso ? Date.parse(iso) : NaN;
  if (!isNumber(at)) return NONE;
  const seconds = Math.round((now - at) / 1000);
  if (Math.abs(seconds) < 2) return "just now";
  return seconds > 0 ? `${coarse(seconds)} ago` : `in ${coarse(-seconds)}`;
}

/** @param {number} seconds */
function coarse(seconds) {
  if (seconds < MINUTE) return `${seconds} s`;
  if (seconds < HOUR) return `${Math.floor(seconds / MINUTE)} min`;
  if (seconds < DAY) return duration(seconds - (seconds % MINUTE));
  return `${Math.floor(seconds / DAY)} d`;
}

/**
 * 14:05 today, 16 Nov 14:05 this year, 16 Nov 2024 14:05 before: in the reader's own time zone.
 * @param {string | number | null | undefined} iso
 */
export function when(iso) {
  const at = iso === null || iso === undefined || iso === "" ? null : new Date(iso);
  if (at === null || Number.isNaN(at.getTime())) return NONE;
  const now = new Date();
  const time = at.toLocaleTimeString("en-GB", { hour: "2-digit", minute: "2-digit" });
  if (at.toDateString() === now.toDateString()) return time;
  /** @type {Intl.DateTimeFormatOptions} */
  const form = { day: "numeric", month: "short" };
  if (at.getFullYear() !== now.getFullYear()) form.year = "numeric";
  return `${at.toLocaleDateString("en-GB", form)} ${time}`;
}

/**
 * About 14:05 (13:50 to 15:10).
 * @param {{low: string | null, likely: string | null, high: string | null} | null | undefined} expected
 */
export function span(expected) {
  if (!expected || (!expected.likely && !expected.low && !expected.high)) return NONE;
  const { low, likely, high } = expected;
  const between = low && high ? (when(low) === when(high) ? "" : `${when(low)} to ${when(high)}`)
    : low ? `not before ${when(low)}` : high ? `until ${when(high)}` : "";
  if (!likely) return between || when(low);
  return between ? `about ${when(likely)} (${between})` : `about ${when(likely)}`;
}

/**
 * A number of GPU hours, for a column that names the unit.
 * @param {number | null | undefined} x
 */
export function hours(x) {
  if (!isNumber(x)) return NONE;
  if (x > 0 && x < 0.0005) return "<0.001";
  return number(x, Math.abs(x) < 1 ? 3 : 1);
}

/**
 * GPU-seconds as GPU hours.
 * @param {number | null | undefined} seconds
 */
export function gpuHours(seconds) {
  return isNumber(seconds) ? `${hours(seconds / HOUR)} GPU h` : NONE;
}

/** @param {number | null | undefined} n */
export function bytes(n) {
  if (!isNumber(n)) return NONE;
  const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
  let at = 0;
  while (n >= 1024 && at < units.length - 1) {
    n /= 1024;
    at += 1;
  }
  return `${number(n, n < 10 ? 1 : 0)} ${units[at]}`;
}

/**
 * @param {number | null | undefined} x
 * @param {string} [currency] such as EUR
 */
export function money(x, currency = "") {
  if (!isNumber(x)) return NONE;
  const text = x.toLocaleString("en-GB", { minimumFractionDigits: 2, maximumFractionDigits: 2 });
  return currency ? `${text} ${currency}` : text;
}
