// The history of a job: when it waited, where it ran, why it was stopped. A bar and a table, both from its
// attempts.

import { duration, when } from "../format.js";
import { html, Table } from "../components.js";
import { between, ending, places, over } from "./resources.js";

/** @typedef {import("./resources.js").Job} Job */
/** @typedef {import("./resources.js").Attempt} Attempt */
/** @typedef {{from: number, to: number, kind: string, label: string, title: string}} Stretch */

/**
 * The time spans in which a job was held, waited or ran, in order; times in ms.
 * @param {Job} job @param {Attempt[]} attempts any order @param {number} now
 * @returns {Stretch[]}
 */
export function stretches(job, attempts, now) {
  /** @type {Stretch[]} */
  const found = [];
  const final = over(job.state);
  const end = job.ended_at ? Date.parse(job.ended_at) : now;
  let at = Date.parse(job.submitted_at);
  /** @param {number} to @param {string} kind @param {string} label @param {string} [title] */
  const add = (to, kind, label, title = label) => {
    if (to > at) found.push({ from: at, to, kind, label, title: `${title}, ${duration((to - at) / 1000)}` });
    at = Math.max(at, to);
  };
  const ordered = [...attempts].sort((a, b) => a.attempt - b.attempt);
  const eligible = job.eligible_at ? Date.parse(job.eligible_at) : at;
  const begun = ordered[0] ? Date.parse(ordered[0].started_at) : Infinity;
  if (eligible - at > 1000 && eligible <= begun) add(eligible, "held", "held");
  for (const attempt of ordered) {
    add(Date.parse(attempt.started_at), "waiting", "waiting");
    const how = attempt.ended_at ? `, then ${ending(attempt)}` : "";
    const where = places(attempt.placement);
    add(attempt.ended_at ? Date.parse(attempt.ended_at) : end, kindOf(attempt), where || "running",
      `attempt ${attempt.attempt} ${where ? `on ${where}` : ""}${how}`);
  }
  if (!final && !(ordered.length && !ordered[ordered.length - 1].ended_at)) {
    add(end, job.state === "held" ? "held" : "waiting", job.state === "held" ? "held" : "waiting");
  } else if (final && !ordered.length) {
    add(end, "waiting", "waiting");
  }
  return found;
}

/** @param {Attempt} attempt */
function kindOf(attempt) {
  if (!attempt.ended_at) return "running";
  if (attempt.cause === "stopped") return "stopped";
  return attempt.cause === "exited" && !attempt.exit_code ? "done" : "failed";
}

/** @type {[string, string][]} */
const KINDS = [
  ["held", "held"], ["waiting", "waiting"], ["running", "running"], ["stopped", "stopped"],
  ["done", "finished"], ["failed", "failed"],
];

/** @param {{job: Job, attempts: Attempt[], now: number}} props */
export function Timeline({ job, attempts, now }) {
  const bars = stretches(job, attempts, now);
  if (!bars.length) return null;
  const from = bars[0].from;
  const whole = Math.max(1, bars[bars.length - 1].to - from);
  const there = new Set(bars.map((bar) => bar.kind));
  const titles = bars.map((bar) => bar.title);
  const words = titles.length > 12 ? `${titles.length} time spans; the table lists them all` : titles.join("; ");
  /** @param {number} ms */
  const part = (ms) => `${(100 * ms) / whole}%`;
  return html`
    <figure class="jobs-timeline" data-test="timeline">
      <div class="jobs-bars" role="img" aria-label=${words}>
        ${bars.map((bar, n) => html`
          <span key=${n} class=${`jobs-bar jobs-bar-${bar.kind}`} title=${bar.title}
            style=${{ left: part(bar.from - from), width: part(bar.to - bar.from) }}>
            <span>${bar.label}</span>
          </span>`)}
      </div>
      <div class="jobs-axis muted"><span>${when(new Date(from).toISOString())}</span>
        <span>${duration(whole / 1000)}</span>
        <span>${over(job.state) ? when(job.ended_at) : "now"}</span></div>
      <figcaption class="row jobs-legend">
        ${KINDS.filter(([kind]) => there.has(kind)).map(([kind, label]) => html`
          <span key=${kind}>
            <span class=${`jobs-swatch jobs-bar-${kind}`} aria-hidden="true"></span> ${label}
          </span>`)}
      </figcaption>
    </figure>`;
}

/** @param {{attempts: Attempt[], now: number}} props */
export function Attempts({ attempts, now }) {
  /** @type {import("../components.js").Column<Attempt>[]} */
  const columns = [
    { title: "Attempt", cell: (one) => String(one.attempt) },
    { title: "Where", cell: devices },
    { title: "Started", cell: (one) => when(one.started_at) },
    { title: "Took", numeric: true, cell: (one) => took(one, now) },
    { title: "End", cell: end },
  ];
  return html`
    <${Table} caption="Starts of this job, the last one first" rows=${attempts} columns=${columns}
      rowKey=${(/** @type {Attempt} */ one) => one.attempt} />`;
}

/** @param {Attempt} attempt @param {number} now ms */
function took(attempt, now) {
  return attempt.ended_at ? duration(attempt.took) : between(attempt.started_at, null, now);
}

/** How the attempt ended. @param {Attempt} attempt */
function end(attempt) {
  const word = ending(attempt);
  if (!attempt.detail || attempt.detail.includes(word)) return attempt.detail || word;
  return html`${word} <span class="muted">${attempt.detail}</span>`;
}

/** n1: 0–3 (V100). @param {Attempt} attempt */
function devices(attempt) {
  const shown = attempt.placement.slice(0, 4).map((part) => {
    const share = part.share ? ` at ${part.share / 10}%` : "";
    return part.devices.length ? `${part.node}: ${ranges(part.devices)}${share}` : part.node;
  });
  const rest = attempt.placement.length - shown.length;
  const type = attempt.gpu_types.length ? ` (${attempt.gpu_types.join(", ")})` : "";
  return `${shown.join("; ")}${rest > 0 ? ` and ${rest} more` : ""}${type}`;
}

/** 0–3, 6. @param {number[]} numbers */
export function ranges(numbers) {
  /** @type {[number, number][]} */
  const found = [];
  for (const n of [...numbers].sort((a, b) => a - b)) {
    const last = found[found.length - 1];
    if (last && n === last[1] + 1) last[1] = n;
    else found.push([n, n]);
  }
  return found.map(([a, b]) => (a === b ? String(a) : `${a}–${b}`)).join(", ");
}
