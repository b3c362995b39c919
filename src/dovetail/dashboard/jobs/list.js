// A list of jobs that stays up to date. It is kept in pages as the API returns them (newest first, cursors). A
// change event of /watch marks the page with that job, or the first page if none has it; marked pages are loaded
// again, one a second. Jobs that did not change stay the same object, so that they are not drawn again.

import { get, onceBack, Problem, stream } from "../api.js";
import { planeNow } from "../session.js";
import { onDevices } from "./resources.js";
import { throttle } from "./throttle.js";

/** @typedef {import("./resources.js").Job} Job */

/**
 * @typedef {object} Segment one page
 * @property {string | null} cursor
 * @property {Job[]} items
 * @property {string | null} next
 * @property {boolean} marked to be asked for again
 * @property {boolean} asked it was, at least once
 */

/**
 * @typedef {object} Listed
 * @property {Job[]} rows
 * @property {boolean} further whether there are further pages
 * @property {boolean} loading the first page, or a further one
 * @property {boolean} live whether the change stream is connected
 * @property {Error | null} error of the last request
 */

// Figures that grow while a job waits or runs: a row is not read again for them, but adds the time that has passed.
const MOVING = new Set(["waited", "took", "gpu_seconds"]);
const AT_ONCE = 100;
const RETRY = 5_000; // ms after a request that the plane could not answer

/** When a job of a list was read, by the plane's clock in ms. @type {WeakMap<Job, number>} */
const readAt = new WeakMap();

/** Seconds since a job was read. @param {Job} job @param {number} now ms */
function age(job, now) {
  return Math.max(0, (now - (readAt.get(job) ?? now)) / 1000);
}

/** The plane's figure of how long it ran, and the time since. @param {Job} job @param {number} now ms */
export function tookSoFar(job, now) {
  return job.took + (onDevices(job) ? age(job, now) : 0);
}

/** The plane's figure of how long it waited, and the time since. @param {Job} job @param {number} now ms */
export function waitedSoFar(job, now) {
  return job.waited + (job.waiting_since ? age(job, now) : 0);
}

/**
 * @param {Record<string, string | boolean | null>} filter what GET /jobs is asked with
 * @param {(listed: Listed) => void} tell
 * @param {object} [how]
 * @param {number} [how.every] ms between requests
 * @param {string} [how.job] only changes of this array
 * @param {() => void} [how.changed] called at each change
 */
export function liveList(filter, tell, { every, job = "", changed } = {}) {
  const requests = throttle(every);
  /** @type {Segment[]} */
  const segments = [{ cursor: null, items: [], next: null, marked: true, asked: false }];
  /** @type {Map<string, {text: string, job: Job}>} */
  let known = new Map();
  let last = -1; // the segment that was asked for before
  let closed = false;
  let retry = 0;
  let live = false;
  /** @type {Error | null} */
  let problem = null; // of the last request

  /** @param {Job} job */
  function same(job) {
    const text = JSON.stringify(job, (key, value) => (MOVING.has(key) ? undefined : value));
    const before = known.get(job.id);
    if (before?.text === text) return before.job;
    known.set(job.id, { text, job });
    readAt.set(job, planeNow());
    return job;
  }

  function show() {
    /** @type {Map<string, Job>} */
    const rows = new Map(); // while pages are shifting, one job may stand in two of them
    for (const segment of segments) {
      for (const job of segment.items) if (!rows.has(rowKey(job))) rows.set(rowKey(job), job);
    }
    const there = new Set([...rows.values()].map((job) => job.id));
    known = new Map([...known].filter(([id]) => there.has(id)));
    const edge = segments[segments.length - 1];
    const coming = !edge.asked && segments.length > 1; // the button stays where it is
    const further = edge.next !== null || coming;
    tell({ rows: [...rows.values()], further, loading: loading(), live, error: problem });
  }

  /** Whether some page was never answered. */
  function loading() {
    return segments.some((one) => !one.asked);
  }

  async function load() {
    const order = [...segments.keys()].map((n) => (last + 1 + n) % segments.length); // each has its turn
    const at = order.find((n) => segments[n].marked);
    if (at === undefined) return;
    last = at;
    const segment = segments[at];
    segment.marked = false;
    try {
      const page = await get("/jobs", { fold: true, ...filter, limit: AT_ONCE, cursor: segment.cursor });
      problem = null;
      replace(at, page);
    } catch (error) {
      problem = /** @type {Error} */ (error);
    }
    if (closed) return;
    if (problem instanceof Problem && passing(problem.status)) {
      segment.marked = true;
      window.clearTimeout(retry);
      retry = window.setTimeout(() => requests.ask("list", load), RETRY);
      onceBack(problem, () => !closed && requests.ask("list", load));
    }
    segment.asked = true;
    show();
    if (!problem && segments.some((one) => one.marked)) requests.ask("list", load);
  }

  /** @param {number} at @param {import("./resources.js").Paged<Job>} page */
  function replace(at, page) {
    const segment = segments[at];
    const following = segments[at + 1];
    const items = page.items.map(same);
    if (following && page.next !== segment.next) {
      // New ones have pushed others over the edge, or gaps were closed: the next page begins elsewhere.
      const ids = segment.items.map(rowKey);
      const edge = items.length ? ids.lastIndexOf(rowKey(items[items.length - 1])) : -1;
      if (edge >= 0) following.items = [...segment.items.slice(edge + 1), ...following.items];
      following.cursor = page.next;
      following.marked = page.next !== null;
      if (page.next === null) segments.splice(at + 1);
    }
    segment.items = items;
    segment.next = page.next;
  }

  /** @param {string | null} id null: anything may have changed */
  function mark(id) {
    const key = id?.split("_")[0];
    const holding = segments.filter((one) => one.items.some((job) => job.id === id || rowKey(job) === key));
    for (const one of id === null ? segments : holding.length ? holding : [segments[0]]) one.marked = true;
    requests.ask("list", load);
    changed?.();
  }

  /** @param {boolean} now */
  function connected(now) {
    if (live === now || closed) return;
    live = now;
    show();
  }

  const watch = stream("/watch", { job }, {
    open: () => connected(true),
    closed: () => connected(false),
    ready: () => mark(null),
    lost: () => mark(null),
    job: (/** @type {{id: string}} */ change) => mark(change.id),
  });
  requests.ask("list", load);

  return {
    more() {
      const edge = segments[segments.length - 1];
      if (edge.next === null || loading()) return;
      segments.push({ cursor: edge.next, items: [], next: null, marked: true, asked: false });
      last = segments.length - 2; // its turn is next
      show();
      requests.ask("list", load);
    },
    again: () => mark(null),
    close() {
      closed = true;
      window.clearTimeout(retry);
      requests.close();
      watch.close();
    },
  };
}

/** Whether trying again may help. @param {number} status */
function passing(status) {
  return status < 400 || status === 429 || status >= 500;
}

/** One row for a job, or for the whole array it stands for. @param {Job} job */
export function rowKey(job) {
  return job.members && job.array ? job.array.id : job.id;
}
