/** Fairness against throughput: a floor under the worst-off job, and what it costs in total. */

import { number } from "../format.js";
import { Card, Select, Slider, Stat, html } from "../components.js";
import { Bar } from "./bars.js";
import { Lines } from "./lines.js";
import { numberIn, share, useAnswer, useSetup } from "./setup.js";
import { PAIR, SpeedTable, THREE, readSpeeds, writtenSpeeds } from "./speeds.js";
import { Pending, Tool, Trouble } from "./tool.js";

/** @typedef {import("./speeds.js").Speeds} Speeds */
/** @typedef {"fixed" | "flexible"} Sizes */
/**
 * floor: of the worst-off job, in %: 0 is what it has with the highest total, 100 the most that it can have
 * @typedef {Speeds & {floor: number, sizes: Sizes}} Setup
 */

const STEP = 5;
const FLOORS = Array.from({ length: 100 / STEP + 1 }, (_, i) => (i * STEP) / 100);

/**
 * @param {URLSearchParams} query
 * @returns {Setup}
 */
function read(query) {
  const said = query.get("floor") ?? query.get("weight"); // addresses of earlier versions have a weight
  const floor = STEP * Math.round(numberIn(said, 0, 0, 100) / STEP);
  const sizes = query.get("sizes") === "fixed" ? "fixed" : "flexible";
  return { ...readSpeeds(query, PAIR), floor, sizes };
}

/**
 * @param {Setup} setup
 * @returns {Record<string, string>}
 */
function write(setup) {
  return { floor: String(setup.floor), sizes: setup.sizes, ...writtenSpeeds(setup) };
}

/** @type {import("./tool.js").Trial[]} */
const TRIALS = [
  {
    label: "Highest total",
    notice:
      "A gets both V100 (160), B both K80 (100): 260 in total, but B has only 0.83 of " +
      "its fair share.",
    setup: { ...PAIR, sizes: "flexible", floor: 0 },
  },
  {
    label: "No job below its fair share",
    notice:
      "B also holds a part of a V100, where A would do a little more with it. B has 1.02 of its fair share, and " +
      "the total is 256.8: this much fairness costs 1.2 %.",
    setup: { ...PAIR, sizes: "flexible", floor: 50 },
  },
  {
    label: "Best for the worst-off job",
    notice: "Both jobs have 1.21 of a fair share. The total is 253.6, 2.5 % below the highest.",
    setup: { ...PAIR, sizes: "flexible", floor: 100 },
  },
  {
    label: "Whole GPUs only",
    notice:
      "If each job needs two whole GPUs, there are only two splits to choose from, 260 and 210: every floor above 0.83 " +
      "costs a fifth of the throughput. The fixed sizes are the cost, not fairness.",
    setup: { ...PAIR, sizes: "fixed", floor: 50 },
  },
  {
    label: "Three jobs",
    notice: "With the highest total C would get nothing. Raise the floor: C gets more and more of the P100.",
    setup: { ...THREE, sizes: "flexible", floor: 50 },
  },
];

/** The tool. */
export function Fairness() {
  const [setup, change] = useSetup("fairness", read, write);
  const { types, jobs, floor, sizes } = setup;
  // All points are loaded at once, so that moving the slider sends no request.
  const answer = useAnswer("/lab/frontier", { types, jobs, sizes, weights: [], floors: FLOORS });
  const points = answer.value?.floors;
  const point = points?.[Math.round(floor / STEP)];
  const level = point ? `${number(point.floor)} × a fair share` : "–";
  return html`<${Tool}
    title="Fairness against throughput"
    about="All GPUs for the jobs that use them best, or equal shares for all? A job's fair share is its
      throughput with an equal mix of all GPUs; 1 means exactly that. Raise the floor below which no job may
      fall, and see what it costs in total throughput."
    setup=${setup} trials=${TRIALS} onTry=${change}
  >
    <${Card} title="Throughput or fairness">
      <div class="lab-form">
        <${Slider} label="No job below" value=${floor} min=${0} max=${100} step=${STEP}
          format=${() => level}
          onChange=${(/** @type {number} */ value) => change({ floor: value })} />
        <div class="lab-ends muted"
          aria-hidden="true"><span>highest total</span><span>best for the worst-off job</span></div>
      </div>
      <${Trouble} error=${answer.error} />
      ${point && html`<${Figures} point=${point} most=${answer.value.most.total}
        of=${/** @type {any} */ (answer.of)} />`}
      <${Pending} busy=${answer.loading} />
    <//>
    <div class="lab-two">
      <${Card} title="Possible trade-offs">${point && html`<${Frontier} points=${points} point=${point} />`}<//>
      <${Card} title="What each job gets">${point && html`<${Each} point=${point} all=${points}
        of=${/** @type {any} */ (answer.of)} />`}<//>
    </div>
    <${Card} title="Jobs and GPUs">
      <div class="lab-form">
        <${Select} label="A job holds" value=${sizes}
          options=${[["fixed", "as many GPUs as it asks for"], ["flexible", "any number of GPUs"]]}
          onChange=${(/** @type {Sizes} */ value) => change({ sizes: value })} />
      </div>
      <${SpeedTable} speeds=${setup} sizes=${true} onChange=${change} />
    <//>
  <//>`;
}

/**
 * @typedef {object} Point
 * @property {number} floor
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
    <${Stat} label="Total" value=${`${number(point.total)}/s`}
      note=${point.throughput.map((value) => number(value)).join(" + ")} />
    <${Stat} label="Smallest share" value=${`${number(point.least)} ×`} note="of a fair share" />
    <${Stat} label="Price of fairness" value=${share(Math.max(0, lost))}
      note=${`of the highest total, ${number(most)}`} />
    <${Stat} label="Worst-off job"
      value=${alike ? "no job" : of.jobs[point.normalised.indexOf(least)]?.name ?? "–"}
      note=${alike ? "all have the same share" : "the job with the smallest share"} />
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
    `From a total of ${number(most)} with a smallest share of ${number(left)}, ` +
    `to a total of ${number(least)} with a smallest share of ${number(right)}; ` +
    `now ${number(point.total)} and ${number(point.least)}.`;
  return html`<${Lines} title="Total throughput against the smallest share"
    lines=${[{ label: "possible", points: line, dots: true, colour: 0 }]}
    x=${{ label: "smallest share (1 is fair)", min: Math.max(0, left - 0.1), max: right + 0.1, write }}
    y=${{ label: "total", min: Math.max(0, least - 0.15 * most), max: most * 1.08, write }}
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
