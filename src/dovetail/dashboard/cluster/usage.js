/** Use and queue over time, and fair share against use. They show the past, so they are refreshed slowly. */

import { get, onceBack, paced } from "../api.js";
import { choose, useRoute } from "../app.js";
import { Chart } from "../chart.js";
import { learnTenants, tenantColour, typeColours } from "../colours.js";
import { number } from "../format.js";
import {
  Button, Card, Empty, html, Loading, Note, Select, Tenant, useEffect, useMemo, useRef, useState,
} from "../components.js";
import { planeNow } from "../session.js";

const REFRESH = 30_000; // ms between requests for the past
const SHARES_EVERY = 5_000; // least ms between requests for the shares
const POINTS = 120;
/** @type {[string, string][]} */
const RANGES = [["3600", "1 hour"], ["86400", "24 hours"], ["604800", "7 days"], ["2592000", "30 days"]];
const OTHERS = "all others"; // the plane's name for what is too much to show by itself
/** @type {[string, string][]} */
const GROUPS = [["tenant", "Tenant"], ["type", "GPU type"]];

/**
 * @typedef {object} Usage answer of GET /usage
 * @property {string} since
 * @property {number} step seconds
 * @property {number} capacity GPUs
 * @property {{name: string, used: number[]}[]} series
 * @property {number[]} waiting jobs
 * @property {number[]} asked GPUs
 */

/**
 * @typedef {object} Share of GET /shares
 * @property {string} tenant
 * @property {number | null} quota
 * @property {number} used
 * @property {number | null} [fair]
 * @property {number} pending
 */

/** The choice in the address, or the first one. @param {[string, string][]} among @param {string | null} said */
function chosen(among, said) {
  return among.find(([value]) => value === said)?.[0] ?? among[0][0];
}

/** Both charts, from one answer. What they show is in the address. */
export function History() {
  const { query } = useRoute();
  const [range, by] = [chosen(RANGES, query.get("last")), chosen(GROUPS, query.get("by"))];
  /** @param {string} name @param {[string, string][]} among */
  const set = (name, among) => (/** @type {string} */ value) =>
    choose({ [name]: value === among[0][0] ? "" : value });
  const { usage, problem, busy, again } = useUsage(Number(range), by);
  const actions = html`<div class="toolbar">
    <${Select} label="By" value=${by} options=${GROUPS} onChange=${set("by", GROUPS)} />
    <${Select} label="Last" value=${range} options=${RANGES} onChange=${set("last", RANGES)} />
    <${Button} onClick=${again} disabled=${busy}>Refresh<//>
  </div>`;
  const charts = useMemo(() => usage && drawn(usage.value, usage.by), [usage]);
  const times = charts?.times;
  return html`<${Card} title="GPUs in use" actions=${actions}>
      ${problem && html`<${Note} kind="error">${problem}<//>`}
      ${charts && html`
        <${Chart} title="GPUs in use" unit="GPUs" height=${240} step times=${times} series=${charts.used} />`}
      ${!charts && !problem && html`<${Loading} />`}
    <//>
    <${Card} title="Queue">
      ${charts && html`<${Chart} title="Queue" step times=${times} series=${charts.queue} />`}
      ${!charts && !problem && html`<${Loading} />`}
    <//>`;
}

/** @param {number} seconds @param {string} by */
function useUsage(seconds, by) {
  /** @typedef {{usage: {value: Usage, by: string} | null, problem: string, busy: boolean}} Result */
  const [result, setResult] = useState(/** @type {Result} */ ({ usage: null, problem: "", busy: true }));
  const [turn, setTurn] = useState(0);
  useEffect(() => {
    let gone = false;
    const load = async () => {
      const since = new Date(planeNow() - 1000 * seconds).toISOString();
      try {
        const value = await get("/usage", { since, by, points: POINTS });
        if (!gone) setResult({ usage: { value, by }, problem: "", busy: false });
      } catch (error) {
        const problem = error instanceof Error ? error.message : String(error);
        if (!gone) setResult((old) => ({ ...old, problem, busy: false }));
        onceBack(error, () => !gone && load());
      }
    };
    setResult((old) => ({ ...old, busy: true }));
    load();
    const timer = setInterval(() => !document.hidden && load(), REFRESH);
    return () => {
      gone = true;
      clearInterval(timer);
    };
  }, [seconds, by, turn]);
  const again = useMemo(() => paced(() => setTurn((old) => old + 1)), []);
  return { ...result, again };
}

/** @param {Usage} usage @param {string} by */
function drawn(usage, by) {
  const first = Date.parse(usage.since) / 1000;
  const times = [...usage.waiting, 0].map((_, at) => first + at * usage.step); // the last bin has an end too
  const names = usage.series.map(({ name }) => name).filter((name) => name !== OTHERS);
  const types = by === "type" ? typeColours(names) : null;
  if (!types) learnTenants(names);
  const series = usage.series.map(({ name, used }) => ({
    label: name,
    values: ended(used),
    stacked: true,
    colour: name === OTHERS ? "--muted" : types ? types.get(name) : tenantColour(name),
  }));
  const all = times.map(() => usage.capacity);
  const capacity = { label: "all GPUs", values: all, colour: "--muted", dashed: true };
  return {
    times,
    used: [...series, capacity],
    queue: [
      { label: "jobs waiting", values: ended(usage.waiting), colour: "--accent", fill: true },
      { label: "GPUs asked for", values: ended(usage.asked), colour: "--warn", dashed: true },
    ],
  };
}

/** @param {number[]} values */
function ended(values) {
  return [...values, values[values.length - 1]];
}

// --- shares --------------------------------------------------------------------------------------------

/**
 * The GPUs in use by each tenant, its fair share and its quota.
 * @param {{news: unknown}} props loaded again when `news` changes
 */
export function FairShares({ news }) {
  const [shares, setShares] = useState(/** @type {{items: Share[], total: {gpus: number}} | null} */ (null));
  const [problem, setProblem] = useState("");
  const gone = useRef(false);
  const load = useMemo(() => paced(async () => {
    try {
      setShares(await get("/shares"));
      setProblem("");
    } catch (error) {
      setProblem(error instanceof Error ? error.message : String(error));
      onceBack(error, () => !gone.current && load());
    }
  }, SHARES_EVERY), []);
  useEffect(() => load(), [news]);
  useEffect(() => () => {
    gone.current = true;
    load.cancel();
  }, []);
  return html`<${Card} title="Fair share and use">
    ${problem && html`<${Note} kind="error">${problem}<//>`}
    ${shares ? html`<${Bars} shares=${shares} />` : !problem && html`<${Loading} />`}
  <//>`;
}

/** @param {{shares: {items: Share[], total: {gpus: number}}}} props */
function Bars({ shares }) {
  const { items, total } = shares;
  learnTenants(items.map((item) => item.tenant));
  if (!items.length) return html`<${Empty}>There are no tenants yet.<//>`;
  const quota = (/** @type {Share} */ item) => Math.min(item.quota || 0, total.gpus);
  const most = Math.max(1, ...items.map((item) => Math.max(item.used, item.fair || 0, quota(item))));
  /** @param {number} gpus */
  const width = (gpus) => `${Math.min(100, (100 * gpus) / most)}%`;
  return html`<ul class="shares">
      ${items.map((item) => html`<li key=${item.tenant}>
        <div class="share-head">
          <${Tenant} name=${item.tenant} /><span class="number">${shareText(item)}</span>
        </div>
        <div class=${`bar ${tenantColour(item.tenant)}`} aria-hidden="true">
          <i class="used" style=${{ width: width(item.used) }}></i>
          ${item.quota !== null && html`<i class="quota" style=${{ width: width(item.quota) }}></i>`}
          ${typeof item.fair === "number" && html`<i class="fair" style=${{ left: width(item.fair) }}></i>`}
        </div>
      </li>`)}
    </ul>
    <ul class="key" aria-hidden="true">
      <li><span class="swatch"></span>in use</li>
      <li><span class="key-fair"></span>fair share by weight and demand</li>
      <li><span class="key-quota"></span>quota</li>
    </ul>`;
}

/** @param {Share} item */
function shareText(item) {
  const parts = [`${number(item.used)} in use`];
  if (typeof item.fair === "number") parts.push(`${number(item.fair, 1)} fair`);
  parts.push(item.quota === null ? "no quota" : `quota ${number(item.quota)}`);
  if (item.pending) parts.push(`${number(item.pending)} waiting`);
  return parts.join(" · ");
}
