/** Queue simulator: jobs arrive and compete for a few GPUs; the schedule is drawn as time goes on. */

import { number } from "../format.js";
import { Gantt } from "../gantt.js";
import { Button, Card, Field, Select, Stat, html } from "../components.js";
import { useEffect, useLayoutEffect, useMemo, useRef, useState } from "../components.js";
import { NumberInput, PolicyChoice, readOptions, usePolicies, writtenOptions } from "./inputs.js";
import { numberIn, plainName, share, useAnswer, useSetup } from "./setup.js";
import { Pending, Tool, Trouble } from "./tool.js";

/**
 * @typedef {object} Job     times in the unit that was chosen
 * @property {string} id
 * @property {number} submit
 * @property {number} gpus
 * @property {number} duration
 * @property {number} priority
 */
/**
 * @typedef {object} Setup
 * @property {Job[]} jobs
 * @property {number} gpus
 * @property {string} unit
 * @property {string} policy
 * @property {Record<string, any>} options
 * @property {"gpus" | "jobs"} rows      what the picture has a row for
 */

/**
 * @typedef {object} Answer     of the simulation; times in seconds
 * @property {{id: string, submit: number, start: number | null, finish: number | null, jct: number | null,
 *   wait: number | null, preemptions: number}[]} jobs
 * @property {{job: string, start: number, end: number, devices: [string, number][]}[]} stretches
 * @property {{jct_mean: number, makespan: number, wait_mean: number, first_start_mean: number, utilization: number,
 *   preemptions: number}} metrics
 */

const TOLD = 12; // jobs that are named, at most

/** @type {Record<string, number>} */
export const UNITS = { s: 1, min: 60, h: 3600 };
const MOST_JOBS = 200;
const MOST_GPUS = 64; // a row each
const WHOLE_S = 8; // how long the whole run takes to play at speed 1

/** @type {Job[]} */
export const FOUR = [
  { id: "0", submit: 0, gpus: 1, duration: 30, priority: 3 },
  { id: "1", submit: 0, gpus: 1, duration: 10, priority: 1 },
  { id: "2", submit: 1, gpus: 1, duration: 25, priority: 2 },
  { id: "3", submit: 4, gpus: 1, duration: 40, priority: 4 },
];

/** @type {Job[]} */
const RESEARCHERS = [
  { id: "Alice", submit: 0, gpus: 4, duration: 6, priority: 0 },
  { id: "Bob", submit: 0, gpus: 2, duration: 1, priority: 0 },
  { id: "Carol", submit: 0, gpus: 1, duration: 0.5, priority: 0 },
  { id: "Dave", submit: 0, gpus: 2, duration: 3, priority: 0 },
  { id: "Eve", submit: 0, gpus: 1, duration: 0.25, priority: 0 },
];

/** @type {Job[]} */
const BLOCKED = [
  { id: "A", submit: 0, gpus: 6, duration: 10, priority: 0 },
  { id: "H", submit: 0, gpus: 8, duration: 5, priority: 0 },
  { id: "B", submit: 0, gpus: 2, duration: 4, priority: 0 },
  { id: "C", submit: 0, gpus: 2, duration: 12, priority: 0 },
];

/** @type {Setup} */
const DEFAULT = { jobs: FOUR, gpus: 2, unit: "s", policy: "fifo", options: {}, rows: "gpus" };

/**
 * @param {URLSearchParams} query
 * @returns {Setup}
 */
function read(query) {
  const jobs = (query.get("jobs") ?? "")
    .split(";")
    .map((text) => text.split(","))
    .filter((fields) => fields[0] && fields.length === 5)
    .slice(0, MOST_JOBS)
    .map(([id, submit, gpus, duration, priority]) => ({
      id: plainName(id),
      submit: numberIn(submit, 0),
      gpus: Math.round(numberIn(gpus, 1, 1, MOST_GPUS)),
      duration: numberIn(duration, 1, 0.001),
      priority: numberIn(priority, 0, -1000, 1000),
    }));
  const unit = query.get("unit") ?? "";
  return {
    jobs: jobs.length ? jobs : DEFAULT.jobs,
    gpus: Math.round(numberIn(query.get("gpus"), DEFAULT.gpus, 1, MOST_GPUS)),
    unit: unit in UNITS ? unit : DEFAULT.unit,
    policy: query.get("policy") || DEFAULT.policy,
    options: readOptions(query),
    rows: query.get("rows") === "jobs" ? "jobs" : "gpus",
  };
}

/**
 * @param {Setup} setup
 * @returns {Record<string, string>}
 */
function write(setup) {
  const jobs = setup.jobs.map((job) =>
    [job.id, job.submit, job.gpus, job.duration, job.priority].join(",")).join(";");
  const { unit, policy, options, rows } = setup;
  return { gpus: String(setup.gpus), unit, policy, ...writtenOptions(options), rows, jobs };
}

/** The tool. */
export function Queue() {
  const [setup, change] = useSetup("queue", read, write);
  const { policies, error: lost } = usePolicies();
  const scale = UNITS[setup.unit];
  const answer = useAnswer("/lab/simulate", {
    cluster: `1x${setup.gpus}`,
    jobs: setup.jobs.map((job) => ({ ...job, submit: job.submit * scale, duration: job.duration * scale })),
    policy: setup.policy,
    options: setup.options,
  });
  return html`<${Tool}
    title="Queue simulator"
    about="Jobs arrive and ask for GPUs. There are not enough GPUs for all jobs at once. The policy decides
      which job goes first. Change the jobs, the policy or the number of GPUs: the real scheduler computes
      the schedule at once. Completion time is the time from arrival to finish. Makespan is the time from
      the first arrival to the last finish."
    setup=${setup} trials=${TRIALS} onTry=${change}
  >
    <div class="lab-split">
      <${Card} title="Jobs and policy">
        <div class="lab-form">
          <${PolicyChoice} policies=${policies} policy=${setup.policy} options=${setup.options}
            onChange=${(/** @type {string} */ policy, /** @type {any} */ options) =>
              change({ policy, options })} />
          <div class="row">
            <${Field} label="GPUs"><${NumberInput} label="GPUs" value=${setup.gpus} min=${1} max=${MOST_GPUS}
              step=${1}
              onChange=${(/** @type {number} */ gpus) => change({ gpus })} /><//>
            <${Select} label="Time in" value=${setup.unit}
              options=${[["s", "seconds"], ["min", "minutes"], ["h", "hours"]]}
              onChange=${(/** @type {string} */ unit) => change({ unit })} />
          </div>
        </div>
        <${JobTable} jobs=${setup.jobs} unit=${setup.unit}
          onChange=${(/** @type {Job[]} */ jobs) => change({ jobs })} />
      <//>
      <div class="stack">
        <${Trouble} error=${lost} />
        <${Trouble} error=${answer.error} />
        <${Outcome} answer=${answer} scale=${scale} unit=${setup.unit} rows=${setup.rows}
          onRows=${(/** @type {"gpus" | "jobs"} */ rows) => change({ rows })} />
      </div>
    </div>
  <//>`;
}

const { rows: _, ...FIRST } = DEFAULT; // a row for each GPU or job is a matter of the picture
/** @type {import("./tool.js").Trial[]} */
const TRIALS = [
  {
    label: "First come, first served",
    notice: "Job 3 waits 26 s for jobs that arrived before it. At the end one GPU is idle for 35 s.",
    setup: FIRST,
  },
  {
    label: "Least remaining time first",
    notice:
      "Job 0 is preempted as soon as the shorter job 2 arrives. The mean falls to 34 s, the " +
      "lowest possible here.",
    setup: { ...FIRST, policy: "srtf" },
  },
  {
    label: "By priority",
    notice:
      "Jobs 0 and 3 have the highest priority and never wait. The mean is the highest of all policies, " +
      "but the makespan is the lowest.",
    setup: { ...FIRST, policy: "priority" },
  },
  {
    label: "Five researchers, 8 GPUs",
    notice:
      "Eve's job of 15 minutes waits behind Dave's, though a GPU is free. Set discipline to skip: it " +
      "starts at once.",
    setup: { ...FIRST, jobs: RESEARCHERS, gpus: 8, unit: "h" },
  },
  {
    label: "Backfilling",
    notice:
      "Short job B starts before H, because B ends before H could start. Long job C must wait. H still " +
      "starts at 10 h.",
    setup: { ...FIRST, jobs: BLOCKED, gpus: 8, unit: "h", policy: "backfill" },
  },
];

/**
 * @param {{jobs: Job[], unit: string, onChange: (jobs: Job[]) => void}} props
 */
function JobTable({ jobs, unit, onChange }) {
  /**
   * @param {number} at
   * @param {Partial<Job>} part
   */
  const set = (at, part) => onChange(jobs.map((job, i) => (i === at ? { ...job, ...part } : job)));
  /**
   * @param {Job} job
   * @param {number} i
   * @param {"submit" | "gpus" | "duration" | "priority"} key
   * @param {string} what
   * @param {{min: number, max?: number, step?: number}} range
   */
  const cell = (job, i, key, what, range) => html`<td>
    <${NumberInput} label=${`${what} of job ${job.id}`} value=${job[key]} ...${range}
      onChange=${(/** @type {number} */ value) => set(i, { [key]: value })} />
  </td>`;
  return html`<table class="lab-jobs">
      <caption class="visually-hidden">Jobs; times in ${unit}</caption>
      <thead>
        <tr>
          <th scope="col">Job</th>
          <th scope="col">Arrives</th>
          <th scope="col">GPUs</th>
          <th scope="col">Duration</th>
          <th scope="col">Priority</th>
          <td></td>
        </tr>
      </thead>
      <tbody>
        ${jobs.map(
          (job, i) => html`<tr key=${i} style=${{ "--bar": `var(--t${i % 12})` }}>
            <td class="lab-name">
              <input aria-label=${`Name of job ${job.id}`} value=${job.id}
                onChange=${(/** @type {any} */ event) =>
                  set(i, { id: unused(plainName(event.target.value), jobs, i) })} />
            </td>
            ${cell(job, i, "submit", "Arrival", { min: 0 })}
            ${cell(job, i, "gpus", "GPUs", { min: 1, max: MOST_GPUS, step: 1 })}
            ${cell(job, i, "duration", "Duration", { min: 0.001 })}
            ${cell(job, i, "priority", "Priority", { min: -1000, max: 1000, step: 1 })}
            <td>
              <button type="button" class="lab-remove" disabled=${jobs.length < 2}
                aria-label=${`Remove job ${job.id}`} title="Remove"
                onClick=${() => onChange(jobs.filter((_, j) => j !== i))}>×</button>
            </td>
          </tr>`,
        )}
      </tbody>
    </table>
    <${Button} kind="plain" disabled=${jobs.length >= MOST_JOBS}
      onClick=${() => onChange([...jobs, another(jobs)])}>Add a job<//>`;
}

/**
 * @param {string} name
 * @param {Job[]} jobs
 * @param {number} at  index of the job
 */
function unused(name, jobs, at) {
  const taken = new Set(jobs.filter((_, i) => i !== at).map((job) => job.id));
  const wanted = name.trim() || "job";
  if (!taken.has(wanted)) return wanted;
  let n = 2;
  while (taken.has(`${wanted}-${n}`)) n++;
  return `${wanted}-${n}`;
}

/**
 * @param {Job[]} jobs
 * @returns {Job}
 */
function another(jobs) {
  const last = jobs[jobs.length - 1];
  let n = jobs.length;
  while (jobs.some((job) => job.id === String(n))) n++;
  return { id: String(n), submit: last.submit + 1, gpus: 1, duration: last.duration, priority: 0 };
}

/**
 * @param {object} props
 * @param {{value: Answer | null, of: {cluster: string, jobs: unknown[]} | null, loading: boolean}} props.answer
 * @param {number} props.scale
 * @param {string} props.unit
 * @param {"gpus" | "jobs"} props.rows
 * @param {(rows: "gpus" | "jobs") => void} props.onRows
 */
function Outcome({ answer, scale, unit, rows, onRows }) {
  const { value, of, loading } = answer;
  const moments = useMemo(() => (value ? momentsOf(value) : [0]), [value]);
  const until = moments[moments.length - 1];
  const player = usePlayer(until, moments, JSON.stringify(of?.jobs));
  const picture = useMemo(() => {
    if (!value || !of) return null;
    return rows === "jobs" ? byJob(value, scale) : byDevice(value, Number(of.cluster.split("x")[1]), scale);
  }, [value, rows, scale]);
  if (!value || !picture) return html`<${Card} title="Schedule"><${Pending} busy=${loading} /><//>`;
  const time = (/** @type {number} */ seconds) => `${number(seconds / scale)} ${unit}`;
  const { metrics } = value;
  const row = Math.max(16, Math.min(38, 420 / picture.rows.length));
  return html`
    <div class="lab-stats" data-test="queue-figures" aria-busy=${loading}>
      <${Stat} label="Mean completion" value=${time(metrics.jct_mean)} note="from arrival to finish" />
      <${Stat} label="Makespan" value=${time(metrics.makespan)} note="first arrival to last finish" />
      <${Stat} label="Mean wait" value=${time(metrics.wait_mean)} note="eligible and not running" />
      <${Stat} label="Mean first start" value=${time(metrics.first_start_mean)} note="from arrival" />
      <${Stat} label="GPUs in use" value=${share(metrics.utilization)} note="of the available time" />
      <${Stat} label="Preemptions" value=${number(metrics.preemptions)} note="of running jobs" />
    </div>
    <${Card} title="Schedule"
      actions=${html`<${Select} label="A row for each" value=${rows}
      options=${[["gpus", "GPU"], ["jobs", "job"]]} onChange=${onRows} />`}>
      <${Gantt} rows=${picture.rows} bars=${picture.bars} until=${until / scale} now=${player.at / scale}
        unit=${unit}
        title=${rows === "jobs" ? "When each job waits and runs" : "Which job each GPU runs"}
        height=${Math.max(90, picture.rows.length * row + 26)} />
      <${Controls} player=${player} until=${until} time=${time} />
      <${Moment} value=${value} at=${player.at} playing=${player.playing} time=${time} />
      <${Pending} busy=${loading} />
    <//>
    <${JobOutcomes} value=${value} time=${time} />
  `;
}

/** When something happens, in order; the last is the end. @param {Answer} value @returns {number[]} */
function momentsOf(value) {
  const all = [0];
  for (const job of value.jobs) all.push(job.submit);
  for (const one of value.stretches) all.push(one.start, one.end);
  return [...new Set(all)].sort((a, b) => a - b);
}

/**
 * @param {Answer} value
 * @param {number} gpus
 * @param {number} scale
 */
function byDevice(value, gpus, scale) {
  const colours = coloursOf(value);
  /** @type {import("../gantt.js").Bar[]} */
  const bars = [];
  for (const one of value.stretches) {
    const [start, end] = [one.start / scale, one.end / scale];
    const rows = one.devices.map(([, index]) => index).sort((a, b) => a - b); // there is only one node
    for (const [row, span] of runs(rows)) {
      bars.push({ row, span, start, end, label: one.job, colour: colours.get(one.job) });
    }
  }
  return { rows: Array.from({ length: gpus }, (_, i) => `GPU ${i}`), bars };
}

/**
 * Neighbours in a sorted list, as [first, how many]: a job on three GPUs side by side is one block.
 *
 * @param {number[]} sorted
 * @returns {[number, number][]}
 */
function runs(sorted) {
  /** @type {[number, number][]} */
  const found = [];
  for (const row of sorted) {
    const last = found[found.length - 1];
    if (last && last[0] + last[1] === row) last[1]++;
    else found.push([row, 1]);
  }
  return found;
}

/**
 * @param {Answer} value
 * @param {number} scale
 */
function byJob(value, scale) {
  const colours = coloursOf(value);
  /** @type {import("../gantt.js").Bar[]} */
  const bars = [];
  for (const [row, job] of value.jobs.entries()) {
    const mine = value.stretches.filter((one) => one.job === job.id).sort((a, b) => a.start - b.start);
    const colour = colours.get(job.id);
    let free = job.submit;
    for (const one of mine) {
      const [start, end] = [one.start / scale, one.end / scale];
      if (one.start > free + 1e-9) {
        bars.push({ row, start: free / scale, end: start, label: "waits", kind: "wait", colour });
      }
      bars.push({ row, start, end, label: job.id, colour });
      free = Math.max(free, one.end);
    }
  }
  return { rows: value.jobs.map((job) => `job ${job.id}`), bars };
}

/** @param {Answer} value @returns {Map<string, number>} */
function coloursOf(value) {
  return new Map(value.jobs.map((job, i) => [job.id, i % 12]));
}

/**
 * The time that is shown: it plays, steps from event to event, or follows the slider. It is kept when only the
 * policy changes. Of other jobs a time means nothing: they are shown to the end.
 *
 * @param {number} until
 * @param {number[]} moments
 * @param {string} jobs    that the schedule is of
 */
function usePlayer(until, moments, jobs) {
  const still = useMemo(() => matchMedia("(prefers-reduced-motion: reduce)").matches, []);
  const [at, setAt] = useState(still ? Infinity : 0); // Infinity: the end, wherever it is
  const [playing, setPlaying] = useState(!still);
  const [speed, setSpeed] = useState(1);
  const clock = useRef({ at: 0, speed: 1, runs: false }); // runs: a frame that was asked for may still move it
  clock.current.speed = speed;
  clock.current.at = Math.min(at, until);
  const shown = useRef(jobs);
  useLayoutEffect(() => {
    if (shown.current !== jobs && shown.current !== undefined && !playing) setAt(Infinity);
    shown.current = jobs;
  }, [jobs]);
  useEffect(() => {
    if (!playing || !until) return undefined;
    let last = performance.now();
    let frame = 0;
    clock.current.runs = true;
    const tick = (/** @type {number} */ now) => {
      if (!clock.current.runs) return;
      const next = clock.current.at + ((now - last) / 1000) * (until / WHOLE_S) * clock.current.speed;
      last = now;
      if (next >= until) {
        setAt(Infinity);
        setPlaying(false);
        return;
      }
      setAt(next);
      frame = requestAnimationFrame(tick);
    };
    frame = requestAnimationFrame(tick);
    return () => cancelAnimationFrame(frame);
  }, [playing, until]);
  const pause = () => {
    clock.current.runs = false;
    setPlaying(false);
  };
  return {
    at: Math.min(at, until),
    playing,
    speed,
    still,
    setSpeed,
    play: () => {
      if (clock.current.at >= until) setAt(0);
      setPlaying(true);
    },
    pause,
    seek: (/** @type {number} */ to) => {
      pause();
      setAt(to >= until ? Infinity : to);
    },
    step: (/** @type {1 | -1} */ way) => {
      pause();
      const here = Math.min(at, until);
      const past = moments.filter((moment) => moment < here - 1e-9);
      const next = way > 0 ? moments.find((moment) => moment > here + 1e-9) : past.pop();
      setAt(next === undefined || next >= until ? (way > 0 ? Infinity : 0) : next);
    },
  };
}

/**
 * @param {{player: ReturnType<typeof usePlayer>, until: number, time: (seconds: number) => string}} props
 */
function Controls({ player, until, time }) {
  return html`<div class="lab-player">
    ${!player.still &&
    html`<${Button} kind="primary"
      onClick=${player.playing ? player.pause : player.play}>${player.playing ? "Pause" : "Play"}<//>`}
    <${Button} kind="plain" onClick=${() => player.step(-1)} disabled=${player.at <= 0}>Back<//>
    <${Button} kind="plain" onClick=${() => player.step(1)} disabled=${player.at >= until}>Step<//>
    <label class="lab-scrub">
      <span>Time <output class="number">${time(player.at)}</output></span>
      <input type="range" min="0" max=${until} step=${until / 500} value=${player.at} aria-label="Time"
        aria-valuetext=${time(player.at)}
        onInput=${(/** @type {any} */ event) => player.seek(Number(event.target.value))} />
    </label>
    ${!player.still &&
    html`<${Select} label="Speed" value=${String(player.speed)}
      options=${[["0.5", "half"], ["1", "normal"], ["3", "fast"]]}
      onChange=${(/** @type {string} */ value) => player.setSpeed(Number(value))} />`}
  </div>`;
}

/**
 * The jobs that run, wait and are done at one time.
 *
 * @param {{value: Answer, at: number, playing: boolean, time: (seconds: number) => string}} props
 */
function Moment({ value, at, playing, time }) {
  const held = value.stretches.filter((one) => one.start <= at && at < one.end);
  const running = new Set(held.map((one) => one.job));
  const here = value.jobs.filter((job) => job.submit <= at);
  const done = here.filter((job) => job.finish !== null && job.finish <= at);
  const waiting = here.filter((job) => !running.has(job.id) && !done.includes(job));
  const names = (/** @type {Answer["jobs"]} */ jobs) => {
    const more = jobs.length > TOLD ? ` and ${jobs.length - TOLD} more` : "";
    return (jobs.slice(0, TOLD).map((job) => job.id).join(", ") || "none") + more;
  };
  return html`<dl class="lab-moment" aria-live=${playing ? "off" : "polite"} aria-label=${`At ${time(at)}`}>
    <div><dt>Running</dt><dd>${names(here.filter((job) => running.has(job.id)))}</dd></div>
    <div><dt>Waiting</dt><dd>${names(waiting)}</dd></div>
    <div><dt>Done</dt><dd>${names(done)}</dd></div>
  </dl>`;
}

/**
 * @param {{value: Answer, time: (seconds: number) => string}} props
 */
function JobOutcomes({ value, time }) {
  const dash = (/** @type {number | null} */ seconds) => (seconds === null ? "–" : time(seconds));
  const titles = ["Job", "Start", "Finish", "Completion", "Wait", "Preemptions"];
  return html`<details class="lab-details">
    <summary>Results of each job</summary>
    <div class="lab-wide" tabindex="0" role="region" aria-label="Results of each job">
      <table class="lab-figures">
        <thead><tr>${titles.map((title) => html`<th scope="col">${title}</th>`)}</tr></thead>
        <tbody>
          ${value.jobs.map(
            (job) => html`<tr key=${job.id}>
              <th scope="row">${job.id}</th>
              <td>${dash(job.start)}</td>
              <td>${dash(job.finish)}</td>
              <td>${dash(job.jct)}</td>
              <td>${dash(job.wait)}</td>
              <td>${job.preemptions}</td>
            </tr>`,
          )}
        </tbody>
      </table>
    </div>
  </details>`;
}
