// One job: its state and the actions on it, why it waits, its history, its output and its progress reports. An
// array shows its members instead.

import { get, onceBack, Problem, stream } from "../api.js";
import { bytes, duration, gpuHours, number, span, when } from "../format.js";
import { Actions, offered } from "../jobs/actions.js";
import { typed } from "../jobs/inputs.js";
import { liveList, rowKey, tookSoFar } from "../jobs/list.js";
import { Log } from "../jobs/log.js";
import { ProgramCard } from "../jobs/program.js";
import { Waiting } from "../jobs/reasons.js";
import { merged, Reports } from "../jobs/reports.js";
import { asked, between, counted, onDevices, over, waits } from "../jobs/resources.js";
import { Attempts, ranges, Timeline } from "../jobs/timeline.js";
import { throttle } from "../jobs/throttle.js";
import {
  Button, Card, html, Loading, Note, Page, State, Table, useCallback, useEffect, useNow, useRef, useState,
} from "../components.js";
import { planeNow, useSession } from "../session.js";
import { Counts } from "./jobs.js";

/** @typedef {import("../jobs/resources.js").Job} Job */
/** @typedef {import("../jobs/resources.js").JobArray} JobArray */
/** @typedef {import("../jobs/resources.js").Attempt} Attempt */
/** @typedef {import("../jobs/resources.js").Why} Why */
/** @typedef {import("../jobs/reports.js").Report} Report */

const LOOK_MS = 5_000; // between requests for what no event announces: progress, and the expected start

/** The id comes from the address: whatever it is, it stays one word of the path. @param {string} id */
const pathOf = (id) => `/jobs/${encodeURIComponent(id)}`;

/** @param {{id: string}} props */
export function JobPage({ id }) {
  const [found, setFound] = useState(/** @type {Job | JobArray | null} */ (null));
  const [error, setError] = useState(/** @type {Error | null} */ (null));
  useEffect(() => {
    let gone = false;
    const load = () => get(pathOf(id)).then(
      (value) => {
        if (gone) return;
        setFound(value);
        setError(null);
      },
      (problem) => {
        if (gone) return;
        setError(problem);
        onceBack(problem, () => !gone && load());
      },
    );
    load();
    return () => {
      gone = true;
    };
  }, [id]);
  if (error) return html`<${Unknown} id=${id} error=${error} />`;
  if (!found) return html`<${Page} title=${`Job ${id}`}><${Loading} /><//>`;
  return "states" in found ? html`<${ArrayView} first=${found} />` : html`<${JobView} first=${found} />`;
}

/** @param {{id: string, error: Error}} props */
function Unknown({ id, error }) {
  const missing = error instanceof Problem && (error.status === 404 || error.status === 422);
  return html`
    <${Page} title=${missing ? "No such job" : `Job ${id}`}>
      ${missing
        ? html`<p>No job that you may see has the id <span class="mono">${id.slice(0, 60)}</span>.</p>`
        : html`<${Note} kind="error">${error.message}<//>`}
      <p><a href="#/jobs?state=all">All jobs</a></p>
    <//>`;
}

/**
 * The job and all that belongs to it, kept up to date. At first everything is requested at once. Later a change
 * event or a timer requests what may have changed, one request a second.
 * @param {Job} first
 */
function useJob(first) {
  const [job, setJob] = useState(first);
  const [attempts, setAttempts] = useState(/** @type {Attempt[]} */ ([]));
  const [why, setWhy] = useState(/** @type {Why | null} */ (null));
  const [whyError, setWhyError] = useState("");
  const [reports, setReports] = useState(/** @type {Report[]} */ ([]));
  const [error, setError] = useState("");
  const again = useRef(() => {});
  const { id } = first;

  useEffect(() => {
    const requests = throttle(undefined, true);
    let now = first;
    let reported = 0; // the attempt that `reports` are of
    let closed = false;

    /**
     * A request by its name, sent again once the plane answers if it did not.
     * @param {string} name
     * @param {() => Promise<() => void>} ask  asks, and returns what to do with the answer
     * @param {(problem: string) => void} [tell]
     */
    const loader = (name, ask, tell = setError) => {
      const load = async () => {
        try {
          const take = await ask();
          if (closed) return;
          take();
          tell("");
        } catch (problem) {
          if (closed) return;
          tell(/** @type {Error} */ (problem).message);
          onceBack(problem, () => !closed && requests.ask(name, load));
        }
      };
      return load;
    };
    const loadAttempts = loader("attempts", async () => {
      const page = await get(`/jobs/${id}/attempts`, { limit: 200 });
      return () => setAttempts(page.items);
    });
    const loadReports = loader("reports", async () => {
      const fresh = reported !== now.attempt; // a new attempt: points from all of it; later only new reports
      const page = await get(`/jobs/${id}/reports`, { limit: 200, spread: fresh });
      return () => {
        reported = now.attempt;
        setReports((before) => merged(fresh ? [] : before, page.items));
      };
    });
    const loadWhy = loader("why", async () => {
      const value = await get(`/jobs/${id}/why`);
      return () => setWhy(value);
    }, setWhyError);
    const loadJob = loader("job", async () => {
      const next = await get(`/jobs/${id}`);
      return () => taken(next);
    });
    /** @param {Job} next */
    const taken = (next) => {
      const before = now;
      now = next;
      if (JSON.stringify(next) !== JSON.stringify(before)) setJob(next);
      if (next.attempt !== before.attempt || next.state !== before.state) {
        if (next.attempt) requests.ask("attempts", loadAttempts);
        if (!over(next.state) && next.state !== "running") requests.ask("why", loadWhy);
        if (next.attempt) requests.ask("reports", loadReports);
      }
    };

    if (now.attempt) {
      loadAttempts();
      loadReports();
    }
    if (!over(now.state) && now.state !== "running") loadWhy();
    const changed = () => requests.ask("job", loadJob);
    // A job that has ended does not change: do not watch it, because a browser has only six connections.
    const told = { ready: changed, lost: changed, job: changed };
    const watch = over(now.state) ? null : stream("/watch", { job: id }, told);
    const clock = window.setInterval(() => {
      if (over(now.state)) return watch?.close();
      changed();
      if (waits(now)) requests.ask("why", loadWhy);
      if (now.state === "running") requests.ask("reports", loadReports);
    }, LOOK_MS);
    again.current = changed;
    return () => {
      closed = true;
      window.clearInterval(clock);
      watch?.close();
      requests.close();
    };
  }, [id]);

  const reload = useCallback(() => again.current(), []);
  return { job, attempts, why, whyError, reports, error, reload };
}

/** @param {{first: Job}} props */
function JobView({ first }) {
  const { me } = useSession();
  const { job, attempts, why, whyError, reports, error, reload } = useJob(first);
  const [said, setSaid] = useState("");
  const now = useNow(1_000);
  const verbs = offered(me, [job]);
  const runs = job.state === "running";
  const reason = job.reason || (why?.state === job.state ? why.reason : "");
  useEffect(() => setSaid(""), [job.state, job.attempt]);
  return html`
    <${Page} title=${`${job.name} ${job.id}`} actions=${verbs.length > 0 && html`
      <${Actions} id=${job.id} verbs=${verbs} priority=${job.priority} many=${false}
        onDone=${(/** @type {string} */ words) => {
          setSaid(words);
          reload();
        }} />`}>
      <div class="row jobs-head" data-test="state">
        <span role="status"><${State} state=${job.state} /></span>
        ${waits(job) && reason && html`<span class="jobs-reason">${reason}</span>`}
        ${over(job.state) && job.detail && html`<span>${job.detail}</span>`}
        ${runs && job.started_at && html`<span>for ${between(job.started_at, null, now)}</span>`}
        ${runs && job.ends_at && html`<span class="muted">expected to finish ${span(job.ends_at)}</span>`}
        ${job.array && html`<span>member ${job.array.index} of the array${" "}
          <a class="mono" href=${`#/jobs/${job.array.id}`}>${job.array.id}</a></span>`}
      </div>
      ${said && html`<${Note} kind="ok">${said}<//>`}
      ${error && html`<${Note} kind="error">${error}<//>`}
      ${!over(job.state) && !runs && html`<${Waiting} job=${job} why=${why} error=${whyError} />`}
      <${Facts} job=${job} now=${now} />
      <${ProgramCard} of=${job} />
      <${Card} title="Timeline">
        <${Timeline} job=${job} attempts=${attempts} now=${now} />
        ${attempts.length > 0 && html`<${Attempts} attempts=${attempts} now=${now} />`}
      <//>
      ${reports.length > 0 && html`
        <${Card} title="Progress reports"><${Reports} reports=${reports} progress=${job.progress} /><//>`}
      ${job.attempt > 0 && html`<${Card} title="Output"><${Log} job=${job} attempts=${attempts} /><//>`}
    <//>`;
}

/**
 * Seconds since a document was read: so much older are its figures. @param {unknown} document @param {number} now
 */
function useAge(document, now) {
  const read = useRef({ document, at: planeNow() });
  if (read.current.document !== document) read.current = { document, at: planeNow() };
  return Math.max(0, (now - read.current.at) / 1000);
}

/** @param {{job: Job, now: number}} props */
function Facts({ job, now }) {
  const since = useAge(job, now);
  const alive = onDevices(job);
  const running = alive ? since : 0;
  const held = job.gpu_seconds + running * job.gpus_held;
  /** @type {[string, any][]} */
  const facts = [
    ["Requested", askedFully(job)],
    ["Runs on", job.placement.length ? where(job) : null],
    ["Promised by", job.promised_by && when(job.promised_by)],
    ["Owner", `${job.user}, tenant ${job.tenant}`],
    ["Priority", number(job.priority)],
    ["Model", job.model || null],
    ["Dependency", job.dependency],
    ["Submitted", when(job.submitted_at)],
    ["Not before", job.begin_at && when(job.begin_at)],
    ["First start", job.first_started_at && when(job.first_started_at)],
    ["Waited", duration(job.waited + (job.waiting_since ? since : 0))],
    ["Last start", job.restarts && job.started_at ? when(job.started_at) : null],
    ["Ended", job.ended_at && when(job.ended_at)],
    ["Took", job.attempt ? duration(job.took + running) + (alive ? " so far" : "") : null],
    ["Restarts", job.attempt ? number(job.restarts) : null],
    ["GPU time", job.attempt && job.gpus ? gpuHours(held) : null],
    ["Lost GPU time", job.lost_gpu_seconds > 0 ? gpuHours(job.lost_gpu_seconds) : null],
    ["Exit code", over(job.state) && job.exit_code !== null ? String(job.exit_code) : null],
    ["Output file", job.output && html`<span class="mono">${job.output}</span>`],
  ];
  return html`
    <${Card} title="Facts">
      <dl class="jobs-facts jobs-facts-wide" data-test="facts">
        ${facts.filter(([, value]) => value !== null && value !== "").map(([word, value]) => html`
          <div key=${word}><dt>${word}</dt><dd>${value}</dd></div>`)}
      </dl>
    <//>`;
}

/** @param {Job} job */
function askedFully(job) {
  const beside = [
    job.cpus !== null && counted(job.cpus, "core"),
    job.memory !== null && bytes(job.memory),
  ].filter(Boolean).join(", ");
  const limit = job.time_limit ? `, at most ${duration(job.time_limit)}` : "";
  return `${asked(job)}${beside ? `, ${beside}${job.nodes > 1 ? " on each node" : ""}` : ""}${limit}`;
}

/** @param {Job} job */
function where(job) {
  const shown = job.placement.slice(0, 8);
  const rest = job.placement.length - shown.length;
  const words = shown.map(({ node, devices }) => (devices.length ? `${node} (${ranges(devices)})` : node));
  return words.join(", ") + (rest > 0 ? ` and ${rest} more` : "");
}

// --- arrays --------------------------------------------------------------------------------------------

/** @param {{first: JobArray}} props */
function ArrayView({ first }) {
  const { me } = useSession();
  const [array, setArray] = useState(first);
  const [listed, setListed] = useState(/** @type {import("../jobs/list.js").Listed | null} */ (null));
  const [said, setSaid] = useState("");
  const [error, setError] = useState("");
  const [group, setGroup] = useState("");
  const list = useRef(/** @type {ReturnType<typeof liveList> | null} */ (null));
  const look = useRef(() => {});
  const now = useNow(1_000);
  const { id } = first;

  useEffect(() => {
    const requests = throttle(2_100); // beside the list of members, which asks too
    let closed = false;
    const load = async () => {
      try {
        const next = await get(`/arrays/${id}`);
        if (!closed) setArray(next);
        setError("");
      } catch (problem) {
        if (!closed) setError(/** @type {Error} */ (problem).message);
        onceBack(problem, () => !closed && look.current());
      }
    };
    look.current = () => requests.ask("array", load);
    return () => {
      closed = true;
      requests.close();
    };
  }, [id]);

  useEffect(() => {
    setListed(null);
    const how = { every: 2_100, job: id, changed: () => look.current() };
    const made = liveList({ array: id, fold: false, state: group || null }, setListed, how);
    list.current = made;
    return () => made.close();
  }, [id, group]);

  // Which kinds of members there are decides what is offered; of those held most are held by their user.
  const kinds = Object.keys(array.states).map((state) => (
    { state, reason: state === "held" ? heldReason(listed?.rows) : "" }
  ));
  const verbs = offered(me, kinds);
  const age = useAge(array, now);
  return html`
    <${Page} title=${`${array.name} ${id}`} actions=${verbs.length > 0 && html`
      <${Actions} id=${id} verbs=${verbs} priority=${listed?.rows[0]?.priority ?? 0} many=${true}
        onDone=${(/** @type {string} */ words) => {
          setSaid(ofMany(words));
          look.current();
          list.current?.again();
        }} />`}>
      <div class="row jobs-head" data-test="state">
        <span>An array of ${counted(array.count, "job")}:</span> <${Counts} states=${array.states} />
      </div>
      ${said && html`<${Note} kind="ok">${said}<//>`}
      ${error && html`<${Note} kind="error">${error}<//>`}
      <${Card} title="Facts">
        <dl class="jobs-facts jobs-facts-wide" data-test="facts">
          <div><dt>Owner</dt><dd>${array.user}, tenant ${array.tenant}</dd></div>
          <div><dt>Submitted</dt><dd>${when(array.submitted_at)}</dd></div>
          ${array.first_started_at && html`
            <div><dt>First start</dt><dd>${when(array.first_started_at)}</dd></div>`}
          ${array.ended_at && html`<div><dt>Ended</dt><dd>${when(array.ended_at)}</dd></div>`}
          <div><dt>GPU time</dt><dd>${gpuHours(array.gpu_seconds + age * array.gpus_held)}</dd></div>
          ${array.lost_gpu_seconds > 0 && html`
            <div><dt>Lost GPU time</dt><dd>${gpuHours(array.lost_gpu_seconds)}</dd></div>`}
        </dl>
      <//>
      <${ProgramCard} of=${array} />
      <${Card} title="Members" actions=${html`
        <label class="check jobs-check">Show
          <select value=${group} onChange=${typed(setGroup)}>
            <option value="">all</option>
            ${Object.entries(array.states).map(([state, count]) => html`
              <option key=${state} value=${state}>${state} (${count})</option>`)}
          </select></label>`}>
        ${listed?.error && html`<${Note} kind="error">${listed.error.message}<//>`}
        ${!listed || (listed.loading && !listed.rows.length)
          ? html`<${Loading} />`
          : html`<${Members} rows=${listed.rows} now=${now} />`}
        ${listed?.further && html`
          <div class="row jobs-more">
            <${Button} busy=${listed.loading} onClick=${() => list.current?.more()}>More<//>
          </div>`}
      <//>
    <//>`;
}

/** @param {Job[] | undefined} rows */
function heldReason(rows) {
  return rows?.find((job) => job.state === "held")?.reason ?? "JobHeldUser";
}

/** The message about one job, reworded for several jobs. @param {string} words */
function ofMany(words) {
  return words.replace(/^The job is/, "The jobs are").replace(/^The job was/, "The jobs were");
}

/** @param {{rows: Job[], now: number}} props */
function Members({ rows, now }) {
  /** @type {import("../components.js").Column<Job>[]} */
  const columns = [
    { title: "Job", cell: (job) => html`<a class="mono" href=${`#/jobs/${job.id}`}>${job.id}</a>` },
    {
      title: "State",
      cell: (job) => html`<${State} state=${job.state} />
        ${waits(job) && job.reason && html` <span class="jobs-reason">${job.reason}</span>`}`,
    },
    { title: "Where", hide: "phone", cell: where },
    {
      title: "Took",
      numeric: true,
      cell: (job) => (job.first_started_at ? duration(tookSoFar(job, now)) : ""),
    },
    { title: "Exit code", numeric: true, hide: "phone", cell: (job) => job.exit_code ?? "" },
  ];
  return html`
    <${Table} caption="Members of the array" rows=${rows} rowKey=${rowKey} columns=${columns}
      empty="No member is in this state." />`;
}
