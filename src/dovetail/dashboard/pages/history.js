// GPU-hours by tenant, user or time, their cost, and the jobs that have ended. The plane sums up the recorded
// attempts; the CSV file is the same answer in another format.

import { download, get, onceBack } from "../api.js";
import { go, useRoute } from "../app.js";
import { duration, hours, money, number, when } from "../format.js";
import { setting, ticked, typed, unsent } from "../jobs/inputs.js";
import { PriceCard } from "../jobs/prices.js";
import { asked, over, STATES } from "../jobs/resources.js";
import {
  Button, Card, Empty, Field, html, Loading, Note, Page, Select, Stat, State, Stats, Table, useEffect,
  useLoaded, useRef, useState,
} from "../components.js";
import { may, planeNow, useSession } from "../session.js";
import { pattern, Typed } from "./jobs.js";

/** @typedef {import("../jobs/resources.js").Job} Job */
/** @typedef {{mean: number | null, p50: number | null, p90: number | null}} Wait */
/** @typedef {{gpu_hours: number, lost_gpu_hours: number, jobs: number, cost: number | null}} Sum */
/** @typedef {Sum & {key: string, wait: Wait}} Usage */
/** @typedef {{since: string | null, until: string | null}} Limits */

/**
 * @typedef {object} Report
 * @property {string} by
 * @property {string} since
 * @property {string} until
 * @property {Usage[]} items
 * @property {number} more
 * @property {string} [currency]
 * @property {Sum} total
 */

const DAY = 86_400_000;
const PAGE = 50;
const MOST_BARS = 20;
/** @type {Usage} */
const NOTHING = {
  key: "", gpu_hours: 0, lost_gpu_hours: 0, jobs: 0, cost: 0, wait: { mean: null, p50: null, p90: null },
};
/** @type {[string, string][]} */
const BY = [
  ["tenant", "Tenant"], ["user", "User"], ["model", "Model"], ["month", "Month"], ["day", "Day"],
  ["type", "GPU type"],
];
/** @type {[string, string][]} */
const RANGES = [
  ["1", "Last 24 hours"], ["7", "Last 7 days"], ["30", "Last 30 days"], ["90", "Last 90 days"],
  ["365", "Last 365 days"], ["month", "This month"], ["before", "Last month"], ["dates", "From … to …"],
];

/**
 * @typedef {object} Choice
 * @property {string} by
 * @property {string} range
 * @property {string} from
 * @property {string} to
 * @property {string} state of the jobs that are listed, as all that follows
 * @property {string} name
 * @property {string} user
 * @property {boolean} mine
 */

/** @param {URLSearchParams} query @returns {Choice} */
function choiceOf(query) {
  const by = query.get("by") ?? "";
  const range = query.get("range") ?? "";
  const state = query.get("state") ?? "";
  return {
    by: BY.some(([value]) => value === by) ? by : "tenant",
    range: RANGES.some(([value]) => value === range) ? range : "30",
    from: query.get("from") ?? "",
    to: query.get("to") ?? "",
    state: STATES.includes(state) && over(state) ? state : "",
    name: query.get("name") ?? "",
    user: query.get("user") ?? "",
    mine: query.get("mine") === "1",
  };
}

/** @param {Choice} choice */
function hashOf(choice) {
  const query = new URLSearchParams();
  if (choice.by !== "tenant") query.set("by", choice.by);
  if (choice.range !== "30") query.set("range", choice.range);
  if (choice.range === "dates" && choice.from) query.set("from", choice.from);
  if (choice.range === "dates" && choice.to) query.set("to", choice.to);
  if (choice.state) query.set("state", choice.state);
  if (choice.name) query.set("name", choice.name);
  if (choice.user) query.set("user", choice.user);
  if (choice.mine) query.set("mine", "1");
  return `#/history${query.size ? `?${query}` : ""}`;
}

/**
 * The bounds of a range; the end is left open where it is now. Months and days are in UTC, as the sums are.
 * @param {Choice} choice @param {number} now ms
 * @returns {Limits}
 */
export function bounds({ range, from, to }, now) {
  const today = new Date(now);
  const [year, here] = [today.getUTCFullYear(), today.getUTCMonth()];
  const month = (/** @type {number} */ back) => new Date(Date.UTC(year, here - back, 1)).toISOString();
  if (range === "month") return { since: month(0), until: null };
  if (range === "before") return { since: month(1), until: month(0) };
  if (range === "dates") {
    const [first, last] = [Date.parse(`${from}T00:00:00Z`), Date.parse(`${to}T00:00:00Z`)];
    return {
      since: Number.isNaN(first) ? null : new Date(first).toISOString(),
      until: Number.isNaN(last) ? null : new Date(last + DAY).toISOString(), // the day itself counts
    };
  }
  return { since: new Date(now - Number(range) * DAY).toISOString(), until: null };
}

export function HistoryPage() {
  const { me } = useSession();
  const choice = choiceOf(useRoute().query);
  /** @param {Partial<Choice>} change */
  const set = (change) => go(hashOf({ ...choice, ...change }), { replace: true });
  const key = JSON.stringify([choice.range, choice.from, choice.to]);
  const [turn, setTurn] = useState(0);
  const limits = useLimits(choice, key, turn);
  const report = useLoaded(() => get("/report", { by: choice.by, ...limits }), [choice.by, limits]);
  const types = useLoaded(() => get("/report", { by: "type", ...limits }), [limits]);
  const prices = useLoaded(() => get("/prices"), []);
  const [error, setError] = useState("");

  const save = async () => {
    setError("");
    try {
      const asked = { by: choice.by, ...limits, format: "csv" };
      await download("/report", asked, `dovetail-${choice.by}.csv`, "text/csv");
    } catch (problem) {
      setError(/** @type {Error} */ (problem).message);
    }
  };
  const items = /** @type {Report | null} */ (types.value)?.items ?? [];
  const used = [...new Set(items.flatMap((one) => one.key.split(",")))]; // a job may have held several types
  return html`
    <${Page} title="History">
      <form class="toolbar" aria-label="What to sum up" onSubmit=${unsent}>
        <${Select} label="Range" value=${choice.range} options=${RANGES} onChange=${setting(set, "range")} />
        ${choice.range === "dates" && html`
          <${Day} label="From" value=${choice.from} onChange=${setting(set, "from")} />
          <${Day} label="To" value=${choice.to} onChange=${setting(set, "to")} />`}
        <${Select} label="By" value=${choice.by} options=${BY} onChange=${setting(set, "by")} />
        <${Button} onClick=${() => setTurn(turn + 1)} busy=${report.loading}>Refresh<//>
        <${Button} onClick=${save}>Export CSV<//>
      </form>
      ${error && html`<${Note} kind="error">${error}<//>`}
      ${report.error && html`<${Note} kind="error">${report.error.message}<//>`}
      ${report.value ? html`<${Sums} report=${report.value} />` : !report.error && html`<${Loading} />`}
      <${PriceCard} prices=${prices.value} error=${prices.error} admin=${may(me, "admin")}
        types=${used.filter((type) => type && type !== "-")}
        onChange=${() => {
          prices.again();
          setTurn(turn + 1);
        }} />
      <${Ended} choice=${choice} set=${set} limits=${limits} />
    <//>`;
}

/**
 * The bounds as they were when they were chosen: the sums, the list and the file are of the same time.
 * @param {Choice} choice @param {string} key @param {number} turn
 */
function useLimits(choice, key, turn) {
  const kept = useRef({ key: "", limits: bounds(choice, planeNow()) });
  const now = `${key} ${turn}`;
  if (kept.current.key !== now) kept.current = { key: now, limits: bounds(choice, planeNow()) };
  return kept.current.limits;
}

/** @param {{label: string, value: string, onChange: (value: string) => void}} props */
function Day({ label, value, onChange }) {
  return html`
    <${Field} label=${label}>
      <input type="date" value=${value}
        onChange=${typed(onChange)} />
    <//>`;
}

// --- sums ----------------------------------------------------------------------------------------------

/** @param {{report: Report}} props */
function Sums({ report }) {
  const { by, total, items } = report; // shown until the next report is loaded
  const title = BY.find(([value]) => value === by)?.[1] ?? by;
  const currency = report.currency ?? "";
  const priced = items.some((one) => one.cost !== null);
  const unknown = priced ? "some GPU types have no price" : "no prices are set";
  return html`
    <div data-test="totals"><${Stats}>
      <${Stat} label="GPU-hours" value=${hours(total.gpu_hours)}
        note=${`${when(report.since)} to ${when(report.until)}`} />
      <${Stat} label="Lost GPU-hours" value=${hours(total.lost_gpu_hours)} note="work that was not saved" />
      <${Stat} label="Cost" value=${money(total.cost, currency)}
        note=${total.cost === null ? unknown : "at current prices"} />
      <${Stat} label="Jobs that ran" value=${number(total.jobs)} /><//>
    </div>
    <${Card} title=${`GPU-hours by ${title === "GPU type" ? title : title.toLowerCase()}`}>
      ${items.length === 0 ? html`<${Empty}>No job ran in this time.<//>` : html`
        ${by === "day" || by === "month"
          ? html`<${Columns} items=${items} />`
          : html`<${Bars} items=${items} />`}
        <${UsageTable} items=${items} total=${total} title=${title} currency=${currency} priced=${priced} />
        ${report.more > 0 && html`
          <p class="muted">${number(report.more)} more rows are not shown.</p>`}`}
    <//>`;
}

/** What a group is called if it has no name. @param {string} key */
function named(key) {
  return key || "(none)";
}

/** The lengths of the two parts of a bar: lasting work, and lost GPU time. @param {Usage} one @param {number} most */
function lengths(one, most) {
  const lost = Math.min(one.lost_gpu_hours, one.gpu_hours);
  return { kept: `${(100 * (one.gpu_hours - lost)) / most}%`, lost: `${(100 * lost) / most}%` };
}

/** Horizontal bars, because the names of categories are long. @param {{items: Usage[]}} props */
function Bars({ items }) {
  const shown = items.slice(0, MOST_BARS);
  const most = Math.max(...shown.map((one) => one.gpu_hours), 1e-9);
  return html`
    <div class="jobs-hbars" aria-hidden="true">
      ${shown.map((one) => html`
        <div key=${one.key} class="jobs-hbar">
          <span class="jobs-hbar-name">${named(one.key)}</span>
          <span class="jobs-hbar-track">
            <span class="jobs-hbar-kept" style=${{ width: lengths(one, most).kept }}></span>
            <span class="jobs-hbar-lost" style=${{ width: lengths(one, most).lost }}></span>
          </span>
        </div>`)}
      <${Key} lost=${shown.some((one) => one.lost_gpu_hours > 0)} />
    </div>`;
}

/** Time goes from left to right; time without use is a gap. @param {{items: Usage[]}} props */
function Columns({ items }) {
  const whole = filled(items);
  const most = Math.max(...whole.map((one) => one.gpu_hours), 1e-9);
  const every = Math.ceil(whole.length / 12);
  return html`
    <div class="jobs-vbars" aria-hidden="true">
      <div class="jobs-vbars-plot">
        ${whole.map((one) => html`
          <span key=${one.key} class="jobs-vbar" title=${`${one.key}: ${hours(one.gpu_hours)} GPU-hours`}>
            <span class="jobs-hbar-lost" style=${{ height: lengths(one, most).lost }}></span>
            <span class="jobs-hbar-kept" style=${{ height: lengths(one, most).kept }}></span>
          </span>`)}
      </div>
      <div class="jobs-vbars-names muted">
        ${whole.map((one, n) => html`<span key=${one.key}>${n % every === 0 ? brief(one.key) : ""}</span>`)}
      </div>
      <${Key} lost=${whole.some((one) => one.lost_gpu_hours > 0)} />
    </div>`;
}

/** A day without its year, a month as it is. @param {string} key */
function brief(key) {
  return key.length > 7 ? key.slice(5) : key;
}

/** @param {{lost: boolean}} props */
function Key({ lost }) {
  return html`<div class="row jobs-legend"><span><span class="jobs-swatch jobs-hbar-kept"></span> held</span>
    ${lost && html`<span><span class="jobs-swatch jobs-hbar-lost"></span> lost</span>`}</div>`;
}

/** Days or months without gaps, at most 400. @param {Usage[]} items */
export function filled(items) {
  /** @type {Map<string, Usage>} */
  const known = new Map(items.map((one) => [one.key, one]));
  const keys = [...known.keys()].sort();
  const months = keys[0].length === 7;
  /** @type {Usage[]} */
  const found = [];
  const last = keys[keys.length - 1];
  const at = new Date(`${keys[0]}${months ? "-01" : ""}T00:00:00Z`);
  if (!months) at.setTime(Math.max(at.getTime(), Date.parse(`${last}T00:00:00Z`) - 399 * 86_400_000));
  for (let n = 0; n < 400; n += 1) {
    const key = at.toISOString().slice(0, months ? 7 : 10);
    found.push(known.get(key) ?? { ...NOTHING, key });
    if (key >= last) break;
    if (months) at.setUTCMonth(at.getUTCMonth() + 1);
    else at.setUTCDate(at.getUTCDate() + 1);
  }
  return found;
}

/** @param {{items: Usage[], total: Sum, title: string, currency: string, priced: boolean}} props */
function UsageTable({ items, total, title, currency, priced }) {
  /** @param {Sum} one */
  const cost = (one) => html`<td class="number">${money(one.cost)}</td>`;
  return html`
    <div class="jobs-scroll" tabindex="0" role="region" aria-label=${`Table by ${title}`}>
      <table class="jobs-list" data-test="usage">
        <caption class="visually-hidden">GPU-hours by ${title}</caption>
        <thead><tr>
          <th scope="col">${title}</th>
          <th scope="col" class="number">GPU-hours</th>
          <th scope="col" class="number">Lost</th>
          ${priced && html`<th scope="col" class="number">Cost${currency && ` (${currency})`}</th>`}
          <th scope="col" class="number phone-hide">Jobs</th>
          <th scope="col" class="number phone-hide">Mean wait</th>
          <th scope="col" class="number phone-hide">90 % waited less than</th>
        </tr></thead>
        <tbody>${items.map((one) => html`
          <tr key=${one.key}>
            <th scope="row">${named(one.key)}</th>
            <td class="number">${hours(one.gpu_hours)}</td>
            <td class="number">${hours(one.lost_gpu_hours)}</td>
            ${priced && cost(one)}
            <td class="number phone-hide">${number(one.jobs)}</td>
            <td class="number phone-hide">${duration(one.wait.mean)}</td>
            <td class="number phone-hide">${duration(one.wait.p90)}</td>
          </tr>`)}</tbody>
        <tfoot><tr>
          <th scope="row">All</th>
          <td class="number">${hours(total.gpu_hours)}</td>
          <td class="number">${hours(total.lost_gpu_hours)}</td>
          ${priced && cost(total)}
          <td class="number phone-hide">${number(total.jobs)}</td>
          <td class="phone-hide"></td><td class="phone-hide"></td>
        </tr></tfoot>
      </table>
    </div>`;
}

// --- jobs that have ended ------------------------------------------------------------------------------

/** @param {{choice: Choice, set: (change: Partial<Choice>) => void, limits: Limits}} props */
function Ended({ choice, set, limits }) {
  const { state, name, user, mine } = choice;
  const asking = { ...limits, state, name: pattern(name), user: mine ? "" : user, mine: mine || null };
  const [jobs, setJobs] = useState(/** @type {Job[]} */ ([]));
  const [next, setNext] = useState(/** @type {string | null} */ (null));
  const [busy, setBusy] = useState(true);
  const [error, setError] = useState("");
  const turn = useRef(0);

  /** @param {string | null} cursor */
  const load = async (cursor) => {
    const mine = (turn.current += 1);
    setBusy(true);
    setError("");
    try {
      const page = await get("/history", { ...asking, limit: PAGE, cursor });
      if (mine !== turn.current) return;
      setJobs((before) => (cursor ? [...before, ...page.items] : page.items));
      setNext(page.next);
    } catch (problem) {
      if (mine === turn.current) setError(/** @type {Error} */ (problem).message);
      onceBack(problem, () => mine === turn.current && load(cursor));
    }
    if (mine === turn.current) setBusy(false);
  };
  useEffect(() => {
    load(null);
    return () => void (turn.current += 1);
  }, [limits, state, name, user, mine]);

  const states = STATES.filter(over);
  return html`
    <${Card} title="Jobs that have ended">
      <form class="toolbar jobs-above" role="search" aria-label="Jobs that have ended" onSubmit=${unsent}>
        <${Select} label="State" value=${state} options=${[["", "Any"], ...states.map((one) => [one, one])]}
          onChange=${setting(set, "state")} />
        <${Typed} label="Name" placeholder="train*" value=${name} onChange=${setting(set, "name")} />
        ${!mine && html`
          <${Typed} label="User" placeholder="any" value=${user} onChange=${setting(set, "user")} />`}
        <label class="check jobs-check">
          <input type="checkbox" checked=${mine}
            onChange=${ticked((mine) => set({ mine }))} /> Only mine
        </label>
      </form>
      ${error && html`<${Note} kind="error">${error}<//>`}
      ${busy && !jobs.length ? html`<${Loading} />` : html`<${EndedTable} jobs=${jobs} />`}
      ${next && html`<div class="row jobs-more"><${Button} busy=${busy} onClick=${() => load(next)}>More<//>
        <span class="muted">${number(jobs.length)} shown</span></div>`}
    <//>`;
}

/** @type {import("../components.js").Column<Job>[]} */
const COLUMNS = [
  {
    title: "Job",
    cell: (job) => html`<a class="mono" href=${`#/jobs/${job.id}`}>${job.id}</a>
      <span class="jobs-name">${job.name}</span>`,
  },
  { title: "State", cell: (job) => html`<${State} state=${job.state} />` },
  { title: "Requested", hide: "phone", cell: asked },
  {
    title: "User, tenant",
    hide: "phone",
    cell: (job) => html`${job.user}<span class="muted"> ${job.tenant}</span>`,
  },
  { title: "Ended", cell: (job) => when(job.ended_at) },
  {
    title: "Took",
    hide: "phone",
    numeric: true,
    cell: (job) => (job.first_started_at ? duration(job.took) : ""),
  },
  { title: "GPU-hours", numeric: true, cell: (job) => hours(job.gpu_seconds / 3600) },
  {
    title: "Lost",
    hide: "phone",
    numeric: true,
    cell: (job) => (job.lost_gpu_seconds ? hours(job.lost_gpu_seconds / 3600) : ""),
  },
];

/** @param {{jobs: Job[]}} props */
function EndedTable({ jobs }) {
  return html`
    <${Table} caption="Jobs that have ended, the last one first" rows=${jobs} columns=${COLUMNS}
      empty="No job matches." />`;
}
