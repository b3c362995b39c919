// Types of job documents of the API, and texts about jobs that several pages share.

import { duration, number } from "../format.js";

// The documents of the API; documents.d.ts is generated from their one definition in Python.
/** @typedef {import("dovetail/documents").Span} Span */
/** @typedef {import("dovetail/documents").Part} Part */
/** @typedef {import("dovetail/documents").Members} Members */
/** @typedef {import("dovetail/documents").Job} Job */
/** @typedef {import("dovetail/documents").Array} JobArray */
/** @typedef {import("dovetail/documents").JobAttempt} Attempt */
/** @typedef {import("dovetail/documents").Why} Why */

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

/** Whether it holds devices. @param {{state: string}} job */
export function onDevices(job) {
  return job.state === "running" || job.state === "stopping";
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
  if (job.gpus_least !== null) {
    const any = job.gpu_types.length ? listed(job.gpu_types, "or") : "GPUs";
    return `${job.gpus_held ? `${job.gpus_held} of ` : ""}${job.gpus_least} to ${job.gpus} ${any}`;
  }
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

/** The words for the end of an attempt. @type {Record<string, string>} */
const CAUSES = { oom: "out of memory", lost: "node lost", timeout: "time limit", stopped: "told to stop" };

/** @param {{ended_at: string | null, cause: string, exit_code: number | null}} attempt */
export function ending(attempt) {
  if (!attempt.ended_at) return "running";
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
