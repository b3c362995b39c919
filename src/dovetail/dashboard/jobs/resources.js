// What the API says of jobs, as types, and the few words that several pages say of them.

import { duration, number } from "../format.js";

/** @typedef {{low: string | null, likely: string | null, high: string | null}} Span */
/** @typedef {{node: string, devices: number[], share?: number | null}} Part */
/** @typedef {{count: number, states: Record<string, number>, first_started_at: string | null}} Members */

/**
 * @typedef {object} Job
 * @property {string} id
 * @property {string} name
 * @property {string} state
 * @property {string} reason
 * @property {string} kind
 * @property {string} tenant
 * @property {string} user
 * @property {string} model
 * @property {number} priority
 * @property {number} gpus
 * @property {number | null} gpu_share
 * @property {number} nodes
 * @property {number | null} cpus
 * @property {number | null} memory
 * @property {string[]} gpu_types
 * @property {number | null} time_limit
 * @property {string} submitted_at
 * @property {string | null} begin_at
 * @property {string | null} eligible_at
 * @property {string | null} started_at
 * @property {string | null} first_started_at
 * @property {string | null} ended_at
 * @property {number | null} waited
 * @property {number} took
 * @property {Part[]} placement
 * @property {number} attempt
 * @property {number} restarts
 * @property {number | null} exit_code
 * @property {string} cause
 * @property {string} detail
 * @property {{id: string, index: number} | null} array
 * @property {Members | null} members
 * @property {string | null} dependency
 * @property {string | null} output
 * @property {Record<string, unknown> | null} progress
 * @property {number} gpu_seconds
 * @property {number} lost_gpu_seconds
 * @property {Span | null} [starts_at]
 * @property {Span | null} [ends_at]
 */

/**
 * @typedef {object} JobArray
 * @property {string} id
 * @property {number} count
 * @property {Record<string, number>} states
 * @property {string} name
 * @property {string} tenant
 * @property {string} user
 * @property {string} submitted_at
 * @property {string | null} first_started_at
 * @property {string | null} ended_at
 * @property {number} gpu_seconds
 * @property {number} lost_gpu_seconds
 */

/**
 * @typedef {object} Attempt
 * @property {number} attempt
 * @property {Part[]} placement
 * @property {string[]} gpu_types
 * @property {string} started_at
 * @property {string | null} ended_at
 * @property {number | null} exit_code
 * @property {string} cause
 * @property {string} detail
 */

/**
 * @typedef {object} Why
 * @property {string} state
 * @property {string} reason
 * @property {string} sentence
 * @property {{job: string | null, tenant: string | null, gpus: number, ends_at: string | null}[]} holders
 * @property {string} remedy
 * @property {Span | null} starts_at
 * @property {Span | null} [ends_at]
 * @property {string | null} begin_at
 * @property {{own: number, others: boolean}} ahead
 */

/**
 * @template T
 * @typedef {{items: T[], next: string | null}} Paged
 */

/** In the order in which a job may pass through them. */
export const STATES = [
  "held", "pending", "running", "stopping", "completed", "failed", "cancelled", "timeout", "node-failed",
  "out-of-memory", "refused",
];
const ACTIVE = new Set(["held", "pending", "running", "stopping"]);

/** @param {string} state */
export function over(state) {
  return !ACTIVE.has(state);
}

/** @param {{state: string}} job */
export function waits(job) {
  return job.state === "pending" || job.state === "held";
}

/** @param {number} count @param {string} word @param {string} [many] */
export function counted(count, word, many = `${word}s`) {
  return `${number(count)} ${count === 1 ? word : many}`;
}

/** A list as people say it. @param {string[]} words @param {string} [last] */
export function listed(words, last = "and") {
  return words.length < 2 ? words.join("") : `${words.slice(0, -1).join(", ")} ${last} ${words.at(-1)}`;
}

/** What a job asked for, short: 2 × 4 V100. @param {Job} job */
export function asked(job) {
  if (!job.gpus) return job.nodes > 1 ? `${counted(job.nodes, "node")}, no GPU` : "no GPU";
  const each = job.nodes > 1 ? `${job.nodes} × ${job.gpus / job.nodes}` : String(job.gpus);
  const share = job.gpu_share !== null && job.gpu_share < 1 ? ` × ${Math.round(job.gpu_share * 100)}%` : "";
  const type = job.gpu_types.length ? listed(job.gpu_types, "or") : job.gpus > 1 ? "GPUs" : "GPU";
  return `${each}${share} ${type}`;
}

/** Where it is: n1, n2 and 3 more. @param {Part[]} placement @param {number} [most] */
export function places(placement, most = 2) {
  const nodes = [...new Set(placement.map((part) => part.node))];
  const rest = nodes.length - most;
  return rest > 0 ? `${nodes.slice(0, most).join(", ")} and ${rest} more` : nodes.join(", ");
}

/** How the end of an attempt is called. @type {Record<string, string>} */
const CAUSES = { oom: "out of memory", lost: "node lost", timeout: "time limit", stopped: "told to stop" };

/** @param {{ended_at: string | null, cause: string, exit_code: number | null}} attempt */
export function ending(attempt) {
  if (!attempt.ended_at) return "runs";
  if (attempt.cause === "exited" || !attempt.cause) {
    return attempt.exit_code ? `exit code ${attempt.exit_code}` : "finished";
  }
  return CAUSES[attempt.cause] ?? attempt.cause;
}

/**
 * Between two moments; the second may be still to come.
 * @param {string} from @param {string | null} to @param {number} now ms
 */
export function between(from, to, now) {
  return duration(Math.max(0, ((to ? Date.parse(to) : now) - Date.parse(from)) / 1000));
}
