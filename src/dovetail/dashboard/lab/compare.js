/** Policy comparison: the same jobs under several policies; one request and one row per policy. */

import { get } from "../api.js";
import { duration, number } from "../format.js";
import { Button, Card, Field, Select, html, useEffect, useLoaded, useRef, useState } from "../components.js";
import { NumberInput, PolicyChoice, policyInWords, usePolicies, valueOf } from "./inputs.js";
import { Lines } from "./lines.js";
import { FOUR } from "./queue.js";
import { asked, numberIn, share, useSetup } from "./setup.js";
import { Tool, Trouble } from "./tool.js";

/** @typedef {{policy: string, options: Record<string, any>}} Entry */
/**
 * @typedef {object} Setup
 * @property {string} source      "four", or the name of a shipped trace
 * @property {number} head
 * @property {string} cluster     of a trace; the four jobs have two GPUs
 * @property {Entry[]} entries
 */

const FOUR_CLUSTER = "1x2";
const MOST_ENTRIES = 12;

/** @type {Entry[]} */
const CLASSICS = [
  { policy: "fifo", options: {} },
  { policy: "sjf", options: {} },
  { policy: "srtf", options: {} },
  { policy: "priority", options: {} },
  { policy: "priority", options: { higher_is: "smaller" } },
];

/** @type {Entry[]} */
const BLIND = [
  { policy: "fifo", options: {} },
  { policy: "fifo", options: { discipline: "skip" } },
  { policy: "backfill", options: {} },
  { policy: "tiresias-l", options: {} },
  { policy: "srtf", options: {} },
];

/** @type {Setup} */
const DEFAULT = { source: "four", head: 2000, cluster: "52x8", entries: CLASSICS };

/**
 * @param {URLSearchParams} query
 * @returns {Setup}
 */
function read(query) {
  const entries = (query.get("policies") ?? "")
    .split(";")
    .filter(Boolean)
    .slice(0, MOST_ENTRIES)
    .map((text) => {
      const [policy, ...options] = text.split("|");
      const pairs = options.map((one) => [one.split("=")[0], valueOf(one.slice(one.indexOf("=") + 1))]);
      return { policy, options: Object.fromEntries(pairs) };
    });
  return {
    source: query.get("jobs") || DEFAULT.source,
    head: Math.round(numberIn(query.get("head"), DEFAULT.head, 1, 20_000)),
    cluster: query.get("cluster") || DEFAULT.cluster,
    entries: entries.length ? entries : DEFAULT.entries,
  };
}

/**
 * @param {Setup} setup
 * @returns {Record<string, string>}
 */
function write({ source, head, cluster, entries }) {
  const bare = (/** @type {any} */ value) => (typeof value === "string" ? value : JSON.stringify(value));
  const written = entries.map(({ policy, options }) =>
    [policy, ...Object.entries(options).map(([name, value]) => `${name}=${bare(value)}`)].join("|"),
  );
  /** @type {Record<string, string>} */
  const rest = source === "four" ? {} : { head: String(head), cluster };
  return { jobs: source, ...rest, policies: written.join(";") };
}

/**
 * @param {Setup} setup
 * @param {Entry} entry
 */
function question(setup, { policy, options }) {
  const { source, head, cluster } = setup;
  const jobs = source === "four" ? { jobs: FOUR, cluster: FOUR_CLUSTER } : { trace: source, head, cluster };
  return { ...jobs, policy, options };
}

/** @typedef {{state: "waits" | "runs" | "done" | "failed", value?: any, error?: unknown}} Result */

/** The tool. */
export function Compare() {
  const [setup, change] = useSetup("compare", read, write);
  const { policies, error: lost } = usePolicies();
  const traces = useLoaded(() => get("/traces"), []);
  const [results, setResults] = useState(/** @type {Record<string, Result>} */ ({}));
  const [running, setRunning] = useState(false);
  const current = useRef({ on: false });
  const eager = useRef(true);
  const keys = setup.entries.map((entry) => JSON.stringify(question(setup, entry)));

  const stop = () => {
    current.current.on = false;
    setRunning(false);
    setResults((old) => Object.fromEntries(Object.entries(old).filter(([, { state }]) => state === "done")));
  };
  const start = async () => {
    stop();
    const mine = { on: true };
    current.current = mine;
    setRunning(true);
    /** @param {string} key @param {Result} result */
    const put = (key, result) => mine.on && setResults((old) => ({ ...old, [key]: result }));
    const missing = keys.filter((key) => results[key]?.state !== "done");
    for (const key of missing) put(key, { state: "waits" });
    for (const key of missing) {
      put(key, { state: "runs" });
      try {
        const value = await asked("/lab/compare", JSON.parse(key), { wanted: () => mine.on });
        if (value === undefined) return;
        put(key, { state: "done", value });
      } catch (error) {
        put(key, { state: "failed", error });
      }
    }
    if (mine.on) setRunning(false);
  };
  useEffect(() => () => void (current.current.on = false), []);
  const together = keys.join("\n");
  useEffect(() => {
    // Four jobs take no time. A trace is run when the tool opens or a trial is chosen; after changes, by the button.
    if (setup.source === "four" || eager.current) start();
    else stop();
    eager.current = false;
  }, [together]);

  const rows = setup.entries.map(({ policy, options }, i) => ({
    name: policyInWords(policy, options),
    i,
    result: results[keys[i]],
  }));
  const done = rows.filter((row) => row.result?.state === "done");
  const time = setup.source === "four" ? (/** @type {number | null} */ s) => `${number(s)} s` : duration;
  return html`<${Tool}
    title="Policy comparison"
    about="The same jobs, once under each policy. No policy is best at everything: look for the policy
      that is best in the column you care about, and at its figures in the other columns. The curves show
      the share of jobs that are done within a time: further left is sooner."
    setup=${setup} trials=${TRIALS}
    onTry=${(/** @type {Partial<Setup>} */ part) => {
      eager.current = true;
      change(part);
    }}
  >
    <${Card} title="Jobs">
      <div class="lab-form">
        <div class="row">
          <${Select} label="Jobs" value=${setup.source} options=${sources(traces.value, setup.source)} 
            onChange=${(/** @type {string} */ source) =>
              change({ source, cluster: suggested(traces.value, source) })} />
          ${setup.source !== "four" &&
          html`<${Field} label="First N jobs"><${NumberInput} label="First N jobs" value=${setup.head}
            min=${1} max=${20000} step=${1}
                onChange=${(/** @type {number} */ head) => change({ head })} /><//>
              <${Field} label="Cluster"><input class="lab-cluster" value=${setup.cluster} spellcheck="false"
                onChange=${(/** @type {any} */ event) =>
                  change({ cluster: event.target.value.trim() || DEFAULT.cluster })} /><//>`}
        </div>
        <p class="muted">${aboutSource(traces.value, setup.source)}</p>
      </div>
    <//>
    <${Trouble} error=${lost ?? traces.error} />
    <${Card} title="Policies" actions=${html`
      ${running && html`<${Button} kind="plain" onClick=${stop}>Cancel<//>`}
      <${Button} kind="primary" busy=${running} onClick=${start}>
        ${running ? "Comparing…" : "Compare"}
      <//>`}>
      <${Outcomes} rows=${rows}
        columns=${setup.source === "four" ? COLUMNS.filter((one) => !one.many) : COLUMNS} time=${time}
        onRemove=${(/** @type {number} */ at) =>
        change({ entries: setup.entries.filter((_, i) => i !== at) })} />
      <${Adder} policies=${policies} full=${setup.entries.length >= MOST_ENTRIES}
        onAdd=${(/** @type {Entry} */ entry) => change({ entries: [...setup.entries, entry] })} />
    <//>
    ${done.length > 0 &&
    html`<div class="lab-two">
      <${Card} title="Completion times"><${Distribution} done=${done} four=${setup.source === "four"}
        time=${time} /><//>
      <${Card} title="Waiting jobs"><${Waiting} done=${done} time=${time} /><//>
    </div>`}
  <//>`;
}

/** @type {import("./tool.js").Trial[]} */
const TRIALS = [
  {
    label: "Four jobs",
    notice:
      "srtf has the lowest mean, priority the lowest makespan. The mean of priority is 43.5 s if a higher " +
      "number goes first, and 34 s if a smaller number goes first.",
    setup: DEFAULT,
    about: ["source", "entries"], // the four jobs have a cluster of their own
  },
  {
    label: "A real trace",
    notice:
      "The first 2,000 jobs of Microsoft's Philly cluster. Under fifo half of them take days. " +
      "Tiresias does not know how long they take; under it half of them take only minutes. " +
      "Compare the other columns.",
    setup: { source: "philly", head: 2000, cluster: "52x8", entries: BLIND },
  },
];

/**
 * @param {any} traces
 * @param {string} chosen
 * @returns {[string, string][]}
 */
function sources(traces, chosen) {
  /** @type {[string, string][]} */
  const known = (traces?.items ?? []).map((/** @type {any} */ one) =>
    [one.name, `${one.name} (${number(one.jobs)} jobs)`]);
  const missing = chosen !== "four" && !known.some(([name]) => name === chosen);
  if (missing) known.unshift([chosen, chosen]);
  return [["four", "Four jobs, 2 GPUs"], ...known];
}

/**
 * A cluster on which there is a queue.
 *
 * @param {any} traces
 * @param {string} name
 */
function suggested(traces, name) {
  return traces?.items.find((/** @type {any} */ one) => one.name === name)?.cluster ?? DEFAULT.cluster;
}

/**
 * @param {any} traces
 * @param {string} chosen
 */
function aboutSource(traces, chosen) {
  if (chosen === "four") {
    return "Each job asks for one GPU: two arrive at 0 s and take 30 s and 10 s, one at 1 s (25 s), one at 4 s (40 s).";
  }
  const trace = traces?.items.find((/** @type {any} */ one) => one.name === chosen);
  const written = "A cluster is written as nodes x GPUs, such as 8x8 or 4x8:V100,4x4:K80.";
  return trace ? `${trace.about}. ${written}` : written;
}

/**
 * @typedef {object} Column
 * @property {string} key
 * @property {string} title
 * @property {"low" | "high" | null} best
 * @property {string} [hide]
 * @property {boolean} [many]    not shown for the four jobs
 */

/** @type {Column[]} */
const COLUMNS = [
  { key: "jct_mean", title: "Mean completion", best: "low" },
  { key: "jct_p50", title: "p50 completion", best: "low", hide: "phone-hide", many: true },
  { key: "jct_p99", title: "p99 completion", best: "low", hide: "phone-hide", many: true },
  { key: "wait_mean", title: "Mean wait", best: "low", hide: "phone-hide" },
  { key: "first_start_mean", title: "Mean first start", best: "low", hide: "phone-hide" },
  { key: "makespan", title: "Makespan", best: "low" },
  { key: "utilization", title: "In use", best: "high", hide: "phone-hide" },
  { key: "preemptions", title: "Preemptions", best: null, hide: "phone-hide" },
];

/** @typedef {{name: string, i: number, result: Result | undefined}} Row */

/** Marks the best value, not by colour alone. */
function Star() {
  return html`<span class="star" title="best" aria-hidden="true">★</span>
    <span class="visually-hidden">best: </span>`;
}

/**
 * @param {object} props
 * @param {Row[]} props.rows
 * @param {Column[]} props.columns
 * @param {(seconds: number) => string} props.time
 * @param {(at: number) => void} props.onRemove
 */
function Outcomes({ rows, columns, time, onRemove }) {
  const write = (/** @type {string} */ key, /** @type {any} */ value) =>
    value === null || value === undefined ? "–"
      : key === "utilization" ? share(value)
      : key === "preemptions" ? number(value)
      : time(value);
  const best = Object.fromEntries(columns.map((column) => [column.key, bestOf(rows, column)]));
  const notes = [...new Set(rows.flatMap((row) => row.result?.value?.notes ?? []))];
  return html`<div class="lab-wide" tabindex="0" role="region" aria-label="Figures of each policy">
      <table class="lab-figures" data-test="compare">
        <caption class="visually-hidden">Figures of each policy; a star marks the best of a column</caption>
        <thead>
          <tr>
            <th scope="col">Policy</th>
            ${columns.map((column) => html`<th scope="col" class=${column.hide ?? ""}>${column.title}</th>`)}
            <td></td>
          </tr>
        </thead>
        <tbody>
          ${rows.map(
            ({ name, i, result }) => html`<tr key=${`${i} ${name}`} aria-busy=${result?.state === "runs"}
              style=${{ "--bar": `var(--t${i % 12})` }}>
              <th scope="row"><span class="lab-name"><span class="lab-dot"></span>${name}</span></th>
              ${result?.state === "done"
                ? columns.map((column) => {
                    const value = result.value.metrics[column.key];
                    const wins = best[column.key] !== null && value === best[column.key];
                    return html`<td class=${`${column.hide ?? ""} ${wins ? "best" : ""}`}>
                      ${wins && html`<${Star} />`}${write(column.key, value)}
                    </td>`;
                  })
                : html`<td colspan=${columns.length} class="lab-state">${stateOf(result)}</td>`}
              <td>
                <button type="button" class="lab-remove" disabled=${rows.length < 2}
                  aria-label=${`Remove ${name}`} title="Remove" onClick=${() => onRemove(i)}>×</button>
              </td>
            </tr>`,
          )}
        </tbody>
      </table>
    </div>
    ${notes.map((note) => html`<p class="muted">${note}</p>`)}`;
}

/** @param {Result | undefined} result */
function stateOf(result) {
  if (!result) return "not run yet";
  if (result.state === "waits") return "queued…";
  if (result.state === "runs") return "running…";
  const message = result.error instanceof Error ? result.error.message : String(result.error);
  return html`<span class="lab-failed">${message}</span>`;
}

/**
 * The best value of a column, if the values differ.
 *
 * @param {Row[]} rows
 * @param {{key: string, best: "low" | "high" | null}} column
 */
function bestOf(rows, column) {
  const done = rows.filter((row) => row.result?.state === "done");
  const values = done.map((row) => row.result?.value.metrics[column.key]).filter((value) => value !== null);
  if (!column.best || values.length < 2 || new Set(values).size < 2) return null;
  return column.best === "low" ? Math.min(...values) : Math.max(...values);
}

/**
 * @param {object} props
 * @param {import("./inputs.js").Policy[] | null} props.policies
 * @param {boolean} props.full
 * @param {(entry: Entry) => void} props.onAdd
 */
function Adder({ policies, full, onAdd }) {
  const [entry, setEntry] = useState(/** @type {Entry} */ ({ policy: "tiresias-l", options: {} }));
  return html`<details class="lab-details">
    <summary>Add a policy</summary>
    <div class="lab-form">
      <${PolicyChoice} policies=${policies} policy=${entry.policy} options=${entry.options}
        label="Policy to add"
        onChange=${(/** @type {string} */ policy, /** @type {any} */ options) =>
          setEntry({ policy, options })} />
      <div><${Button} kind="plain" disabled=${full}
        onClick=${() => onAdd(entry)}>Add ${policyInWords(entry.policy, entry.options)}<//></div>
    </div>
  </details>`;
}

/**
 * @param {{done: Row[], four: boolean, time: (seconds: number) => string}} props
 */
function Distribution({ done, four, time }) {
  const lines = done.map(({ name, i, result }) => {
    /** @type {[number, number][]} */
    const cdf = result?.value.cdf ?? [];
    /** @type {[number, number][]} */
    const points = [[cdf[0]?.[0] ?? 0, 0], ...cdf];
    return { label: name, points, colour: i, step: true };
  });
  const halves = done.map(({ name, result }) => `${name} ${time(result?.value.metrics.jct_p50)}`);
  const write = (/** @type {number} */ value) => `${Math.round(100 * value)} %`;
  return html`<${Lines} title="Share of jobs done within a time" lines=${lines}
    x=${{
      label: four ? "completion time" : "completion time (logarithmic)",
      write: time,
      log: !four,
      min: four ? 0 : undefined,
    }}
    y=${{ label: "share of the jobs", write, min: 0, max: 1 }}
    text=${`Half of the jobs are done within: ${halves.join(", ")}.`} />`;
}

/**
 * @param {{done: Row[], time: (seconds: number) => string}} props
 */
function Waiting({ done, time }) {
  const lines = done.map(({ name, i, result }) => {
    /** @type {[number, number, number][]} time, GPUs in use, waiting jobs */
    const series = result?.value.series ?? [];
    const points = series.map(([at, , waiting]) => /** @type {[number, number]} */ ([at, waiting]));
    return { label: name, points, colour: i, step: true };
  });
  const most = lines.map((line) => `${line.label} ${number(Math.max(0, ...line.points.map(([, n]) => n)))}`);
  return html`<${Lines} title="Waiting jobs over time" lines=${lines}
    x=${{ label: "time", write: time, min: 0, clock: true }}
    y=${{ label: "waiting jobs", min: 0, whole: true, write: (/** @type {number} */ v) => number(v) }}
    text=${`Most at once: ${most.join(", ")}.`} />`;
}
