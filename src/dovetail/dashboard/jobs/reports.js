// The progress reports of a job: a small chart for each number, loss and speed first.

import { Chart } from "../chart.js";
import { number } from "../format.js";
import { html, useMemo } from "../components.js";

/** @typedef {Record<string, unknown>} Report */

const FIRST = ["loss", "steps_per_second"];
const NO_SERIES = new Set(["time", "step", "epoch"]); // positions, not measurements
const MOST_KEYS = 12;
const MOST_POINTS = 2_000; // kept while a page is open
/** @type {Record<string, string>} */
const TITLES = { loss: "Loss", steps_per_second: "Speed" };
/** @type {Record<string, string>} */
const UNITS = { steps_per_second: "steps/s" };

/**
 * Known and new reports in order of time, thinned out if there are very many.
 * @param {Report[]} known @param {Report[]} news
 */
export function merged(known, news) {
  const last = known.length ? Number(known[known.length - 1].time) : -Infinity;
  const fresh = news.filter((one) => Number(one.time) > last);
  if (!fresh.length) return known;
  const all = [...known, ...fresh];
  return all.length > MOST_POINTS ? all.filter((_, n) => n % 2 || n > all.length - 200) : all;
}

/** The numbers that are reported. @param {Report[]} reports */
export function keysOf(reports) {
  /** @type {Set<string>} */
  const found = new Set();
  for (const report of reports) {
    for (const [key, value] of Object.entries(report)) {
      if (typeof value === "number" && Number.isFinite(value) && !NO_SERIES.has(key)) found.add(key);
    }
  }
  const rest = [...found].filter((key) => !FIRST.includes(key)).sort();
  return [...FIRST.filter((key) => found.has(key)), ...rest].slice(0, MOST_KEYS);
}

/** @param {{reports: Report[], progress: Report | null}} props  progress: what the plane sums up of them */
export function Reports({ reports, progress }) {
  const keys = keysOf(reports);
  return html`
    <div class="stack" data-test="reports">
      <p class="jobs-last">${lastWords(progress ?? {})}</p>
      <div class="jobs-charts">
        ${keys.map((key) => html`<${Curve} key=${key} name=${key} reports=${reports} />`)}
      </div>
    </div>`;
}

/** One number over time. @param {{name: string, reports: Report[]}} props */
function Curve({ name, reports }) {
  const title = TITLES[name] ?? name;
  // A chart is drawn again when its values change, so equal reports must give the same arrays.
  const { times, series } = useMemo(() => {
    const points = reports.filter((one) => typeof one[name] === "number" && typeof one.time === "number");
    const values = points.map((one) => one[name]);
    return { times: points.map((one) => one.time), series: [{ label: title, values, colour: "--accent" }] };
  }, [reports, name]);
  return html`<div data-test=${`chart-${name}`}><h3>${title}</h3>
    <${Chart} title=${title} unit=${UNITS[name] ?? ""} height=${170} times=${times} series=${series} />
  </div>`;
}

/** Step 300, epoch 2, loss 0.41. @param {Report} last */
function lastWords(last) {
  const numbers = Object.entries(last).filter(([key, value]) => key !== "time" && typeof value === "number");
  const said = numbers.slice(0, 8).map(([key, value]) => `${key} ${number(Number(value), 4)}`);
  const words = said.join(", ").replaceAll("_", " ");
  return words.charAt(0).toUpperCase() + words.slice(1);
}
