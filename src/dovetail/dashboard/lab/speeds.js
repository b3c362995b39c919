/**
 * Jobs with different speeds on different GPU types: how many GPUs of each type there are, and how many samples a
 * second each job does on one of them. Three tools use this table.
 */

import { number } from "../format.js";
import { Button, Slider, html } from "../components.js";
import { NumberInput } from "./inputs.js";
import { numberIn, plainName } from "./setup.js";

/**
 * @typedef {object} Speeds
 * @property {{name: string, count: number}[]} types
 * @property {{name: string, gpus: number, speeds: number[]}[]} jobs   speeds of one GPU, by type
 */

/** @type {Speeds} Three jobs; A gains most by the fast GPU. */
export const THREE = {
  types: [
    { name: "K80", count: 2 },
    { name: "P100", count: 1 },
    { name: "V100", count: 1 },
  ],
  jobs: [
    { name: "A", gpus: 1, speeds: [10, 30, 80] },
    { name: "B", gpus: 1, speeds: [50, 65, 70] },
    { name: "C", gpus: 1, speeds: [20, 55, 60] },
  ],
};

/** @type {Speeds} The first two again, one old GPU and one new. */
export const TWO = {
  types: [
    { name: "K80", count: 1 },
    { name: "P100", count: 0 },
    { name: "V100", count: 1 },
  ],
  jobs: [
    { name: "Transformer", gpus: 1, speeds: [10, 30, 80] },
    { name: "ResNet", gpus: 1, speeds: [50, 65, 70] },
  ],
};

/** @type {Speeds} Two jobs of two GPUs each, and GPUs of two types. */
export const PAIR = {
  types: [
    { name: "V100", count: 2 },
    { name: "K80", count: 2 },
  ],
  jobs: [
    { name: "A", gpus: 2, speeds: [80, 10] },
    { name: "B", gpus: 2, speeds: [70, 50] },
  ],
};

const FASTEST = 100;
const MOST_JOBS = 8;

/**
 * @param {URLSearchParams} query
 * @param {Speeds} otherwise
 * @returns {Speeds}
 */
export function readSpeeds(query, otherwise) {
  const types = (query.get("types") ?? "")
    .split(",")
    .map((text) => text.split(":"))
    .filter(([name, count]) => name && count !== undefined)
    .slice(0, 6)
    .map(([name, count]) => ({ name: plainName(name), count: Math.round(numberIn(count, 1, 0, 64)) }));
  const jobs = (query.get("jobs") ?? "")
    .split(",")
    .map((text) => text.split(":"))
    .filter((fields) => fields[0] && fields.length === types.length + 2)
    .slice(0, MOST_JOBS)
    .map(([name, gpus, ...speeds]) => ({
      name: plainName(name),
      gpus: Math.round(numberIn(gpus, 1, 1, 64)),
      speeds: speeds.map((speed) => numberIn(speed, 1, 0, 1000)),
    }));
  return types.length && jobs.length ? { types, jobs } : otherwise;
}

/**
 * @param {Speeds} speeds
 * @returns {Record<string, string>}
 */
export function writtenSpeeds({ types, jobs }) {
  return {
    types: types.map((type) => `${type.name}:${type.count}`).join(","),
    jobs: jobs.map((job) => [job.name, job.gpus, ...job.speeds].join(":")).join(","),
  };
}

/**
 * The table as sliders, with the speed-up of the fastest type over the slowest.
 *
 * @param {object} props
 * @param {Speeds} props.speeds
 * @param {(speeds: Speeds) => void} props.onChange
 * @param {boolean} [props.sizes]     whether a job may take several GPUs
 */
export function SpeedTable({ speeds, onChange, sizes = false }) {
  const { types, jobs } = speeds;
  /**
   * @param {number} at
   * @param {Partial<Speeds["jobs"][number]>} part
   */
  const setJob = (at, part) =>
    onChange({ types, jobs: jobs.map((job, i) => (i === at ? { ...job, ...part } : job)) });
  return html`<div class="lab-speeds stack">
    <fieldset class="lab-counts">
      <legend>Number of GPUs</legend>
      ${types.map(
        (type, k) => html`<label class="lab-count">
          <span>${type.name}</span>
          <${NumberInput} label=${`Number of ${type.name}`} value=${type.count} min=${0} max=${64} step=${1}
            onChange=${(/** @type {number} */ count) =>
              onChange({ jobs, types: types.map((one, i) => (i === k ? { ...one, count } : one)) })} />
        </label>`,
      )}
    </fieldset>
    ${jobs.map(
      (job, i) => html`<fieldset class="lab-job" key=${i} style=${{ "--bar": `var(--t${i})` }}>
        <legend>
          <span class="lab-chip">${job.name}</span> <span class="muted">${gain(types, job)}</span>
        </legend>
        <button type="button" class="lab-remove" disabled=${jobs.length < 2}
          aria-label=${`Remove job ${job.name}`} title="Remove"
          onClick=${() => onChange({ types, jobs: jobs.filter((_, j) => j !== i) })}>×</button>
        <div class="lab-sliders">
          ${types.map(
            (type, k) => html`<${Slider} label=${`${job.name} on ${type.name}`} value=${job.speeds[k]}
              min=${0} max=${FASTEST} step=${1}
              format=${(/** @type {number} */ value) => `${number(value)}/s`}
              onChange=${(/** @type {number} */ value) =>
                setJob(i, { speeds: job.speeds.map((speed, j) => (j === k ? value : speed)) })} />`,
          )}
          ${sizes &&
          html`<label class="lab-count">
            <span>GPUs</span>
            <${NumberInput} label=${`GPUs of ${job.name}`} value=${job.gpus} min=${1} max=${16} step=${1}
              onChange=${(/** @type {number} */ gpus) => setJob(i, { gpus })} />
          </label>`}
        </div>
      </fieldset>`,
    )}
    <div>
      <${Button} kind="plain" disabled=${jobs.length >= MOST_JOBS}
        onClick=${() => onChange({ types, jobs: [...jobs, another(speeds)] })}>Add a job<//>
    </div>
  </div>`;
}

/** @param {Speeds} speeds */
function another({ types, jobs }) {
  const taken = new Set(jobs.map((job) => job.name));
  const name = [..."ABCDEFGHIJKLMNOP"].find((letter) => !taken.has(letter)) ?? `J${jobs.length}`;
  return { name, gpus: 1, speeds: types.map((_, k) => 20 + 20 * k) };
}

/**
 * The speed-up of a job from the slowest type to the fastest: 8 times, or 1.4 times.
 *
 * @param {Speeds["types"]} types
 * @param {Speeds["jobs"][number]} job
 */
function gain(types, job) {
  const slow = job.speeds.indexOf(Math.min(...job.speeds));
  const fast = job.speeds.indexOf(Math.max(...job.speeds));
  if (slow === fast || job.speeds[slow] === job.speeds[fast]) return "the same on all types";
  if (job.speeds[slow] <= 0) return `cannot run on ${types[slow].name}`;
  const times = number(job.speeds[fast] / job.speeds[slow]);
  return `${times} times as fast on ${types[fast].name} as ${types[slow].name}`;
}
