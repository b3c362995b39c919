/** Fairness against throughput: a slider between the two, and what each job has of it. */

import { number } from "../format.js";
import { Card, Select, Slider, Stat, html } from "../parts.js";
import { Bar } from "./bars.js";
import { Lines } from "./lines.js";
import { numberIn, share, useAnswer, useSetup } from "./setup.js";
import { PAIR, SpeedTable, THREE, readSpeeds, writtenSpeeds } from "./speeds.js";
import { Pending, Tool, Trouble } from "./tool.js";

/** @typedef {import("./speeds.js").Speeds} Speeds */
/** @typedef {Speeds & {weight: number, sizes: "fixed" | "flexible"}} Setup  weight: of fairness, in % */

const STEP = 5;
const WEIGHTS = Array.from({ length: 100 / STEP + 1 }, (_, i) => (i * STEP) / 100);

/**
 * @param {URLSearchParams} query
 * @returns {Setup}
 */
function read(query) {
  const weight = STEP * Math.round(numberIn(query.get("weight"), 0, 0, 100) / STEP);
  const sizes = query.get("sizes") === "flexible" ? "flexible" : "fixed";
  return { ...readSpeeds(query, PAIR), weight, sizes };
}

/**
 * @param {Setup} setup
 * @returns {Record<string, string>}
 */
function write(setup) {
  return { weight: String(setup.weight), sizes: setup.sizes, ...writtenSpeeds(setup) };
}

/** The tool. */
export function Fairness() {
  const [setup, change] = useSetup("fairness", read, write);
  const { types, jobs, weight, sizes } = setup;
  // All of the way at once: the slider then moves without a question.
  const answer = useAnswer("/lab/frontier", { types, jobs, sizes, weights: WEIGHTS });
  const point = answer.value?.points[Math.round(weight / STEP)];
  return html`<${Tool}
    title="Fairness against throughput"
    about="Everything for whoever makes most of it, or the same for all? A job's fair share is what it
      would do with an equal mix of all GPUs; 1 means that it gets just that. Move the slider and
      watch what fairness costs in sum, and what throughput costs the one who loses."
    trials=${[
      {
        label: "All for throughput",
        notice:
          "A takes both V100 (160), B is left with the K80 (100): 260 in sum, but B has only 0.83 of " +
          "its fair share.",
        set: () => change({ ...PAIR, sizes: "fixed", weight: 0 }),
      },
      {
        label: "All for fairness",
        notice:
          "One of each to both: 90 + 120 = 210. Nobody is below 1, and a fifth of the throughput is " +
          "gone.",
        set: () => change({ ...PAIR, sizes: "fixed", weight: 100 }),
      },
      {
        label: "Sizes may vary",
        notice:
          "If a job may hold more or fewer GPUs than two, both get 1.21 and 253.6 in sum: fairness was " +
          "not what was dear.",
        set: () => change({ ...PAIR, sizes: "flexible", weight: 100 }),
      },
      {
        label: "Three jobs",
        notice: "More ways to share, more steps between the ends.",
        set: () => change({ ...THREE, sizes: "flexible", weight: 50 }),
      },
    ]}
  >
    <${Card} title="Between the two">
      <div class="lab-form">
        <${Slider} label="How much fairness counts" value=${weight} min=${0} max=${100} step=${STEP}
          format=${(/** @type {number} */ v) => `${v} %`}
          onChange=${(/** @type {number} */ value) => change({ weight: value })} />
        <div class="lab-ends muted"
          aria-hidden="true"><span>most throughput</span><span>most fair</span></div>
      </div>
      <${Trouble} error=${answer.error} />
      ${point && html`<${Figures} point=${point} most=${answer.value.most.total}
        of=${/** @type {any} */ (answer.of)} />`}
      <${Pending} busy=${answer.loading} />
    <//>
    <div class="lab-two">
      <${Card} title="What can be had">${point && html`<${Frontier} points=${answer.value.points}
        point=${point} />`}<//>
      <${Card} title="What each job has">${point && html`<${Each} point=${point} all=${answer.value.points}
        of=${/** @type {any} */ (answer.of)} />`}<//>
    </div>
    <${Card} title="The jobs and the GPUs">
      <div class="lab-form">
        <${Select} label="A job holds" value=${sizes}
          options=${[["fixed", "as many GPUs as it asks for"], ["flexible", "any number of GPUs"]]}
          onChange=${(/** @type {"fixed" | "flexible"} */ value) => change({ sizes: value })} />
      </div>
      <${SpeedTable} speeds=${setup} sizes=${true} onChange=${change} />
    <//>
  <//>`;
}

/**
 * @typedef {object} Point
 * @property {number} weight
 * @property {number} total
 * @property {number} least
 * @property {number[]} throughput
 * @property {number[]} normalised
 * @property {number[][]} shares     GPUs of each type that each job holds
 */

/**
 * @param {{point: Point, most: number, of: Speeds}} props
 */
function Figures({ point, most, of }) {
  const lost = most > 0 ? 1 - point.total / most : 0;
  const least = Math.min(...point.normalised);
  const alike = Math.max(...point.normalised) - least < 0.005;
  return html`<div class="lab-stats" data-test="fairness">
    <${Stat} label="In sum" value=${`${number(point.total)}/s`}
      note=${point.throughput.map((value) => number(value)).join(" + ")} />
    <${Stat} label="Worst off" value=${`${number(point.least)} ×`} note="of a fair share" />
    <${Stat} label="Price of fairness" value=${share(Math.max(0, lost))}
      note=${`of the ${number(most)} that could be had`} />
    <${Stat} label="Worst off is"
      value=${alike ? "nobody" : of.jobs[point.normalised.indexOf(least)]?.name ?? "–"}
      note=${alike ? "all are equally well off" : "the job that has least"} />
  </div>`;
}

/**
 * @param {{points: Point[], point: Point}} props
 */
function Frontier({ points, point }) {
  const seen = new Map(points.map((one) => [`${one.least.toFixed(6)} ${one.total.toFixed(6)}`, one]));
  /** @type {[number, number][]} */
  const line = [...seen.values()].map((one) => [one.least, one.total]);
  line.sort((a, b) => a[0] - b[0]);
  const [least, most] = [Math.min(...line.map((one) => one[1])), Math.max(...line.map((one) => one[1]))];
  const [left, right] = [line[0][0], line[line.length - 1][0]];
  const write = (/** @type {number} */ value) => number(value);
  const text =
    `From ${number(most)} in sum with the worst off at ${number(left)}, ` +
    `to ${number(least)} in sum with the worst off at ${number(right)}; ` +
    `now ${number(point.total)} and ${number(point.least)}.`;
  return html`<${Lines} title="Sum against the worst-off share"
    lines=${[{ label: "what can be had", points: line, dots: true, colour: 0 }]}
    x=${{ label: "worst-off share (1 is fair)", min: Math.max(0, left - 0.1), max: right + 0.1, write }}
    y=${{ label: "in sum", min: Math.max(0, least - 0.15 * most), max: most * 1.08, write }}
    mark=${{ x: point.least, y: point.total, label: `${number(point.total)}/s, ${number(point.least)} ×` }}
    text=${text} />`;
}

/**
 * @param {{point: Point, all: Point[], of: Speeds}} props
 */
function Each({ point, all, of }) {
  const most = Math.max(1.2, ...all.flatMap((one) => one.normalised));
  return html`<ul class="lab-shares">
      ${of.jobs.map((job, i) => {
        const had = point.normalised[i];
        const held = of.types.flatMap((type, k) =>
          (point.shares[i][k] > 0.0005 ? [`${number(point.shares[i][k])} ${type.name}`] : []));
        return html`<li data-test=${`fair-${job.name}`}>
          <div class="lab-share-head">
            <span class="lab-chip" style=${{ "--bar": `var(--t${i})` }}>${job.name}</span>
            <span class="number">${number(point.throughput[i])}/s</span>
            <span class="muted">${held.length ? held.join(" + ") : "nothing"}</span>
          </div>
          <${Bar} most=${most} line=${1}
            text=${`${job.name}: ${number(had)} of its fair share`}
            parts=${[{ value: had, colour: i, label: `${number(had)} × a fair share` }]} />
        </li>`;
      })}
    </ul>
    <p class="muted lab-sum">The line across marks a fair share: 1.</p>`;
}
