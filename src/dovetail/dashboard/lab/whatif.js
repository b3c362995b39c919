/** What if: the live queue, simulated forward without and with a change. */

import { stream } from "../api.js";
import { duration, number } from "../format.js";
import { Button, Card, Empty, Field, Note, Select, Table } from "../components.js";
import { html, useEffect, useRef, useState } from "../components.js";
import { useSession } from "../session.js";
import { NumberInput, PolicyChoice, usePolicies } from "./inputs.js";
import { policyInWords, readOptions, writtenOptions } from "./inputs.js";
import { asked, numberIn, share, useSetup } from "./setup.js";
import { Pending, Tool, Trouble } from "./tool.js";

/**
 * @typedef {object} Setup
 * @property {string} policy     "" for the one in force
 * @property {Record<string, any>} options
 * @property {number} nodes      to add
 * @property {number} gpus       on each
 * @property {string} type       of the added GPUs; "" for the most common type
 * @property {string} from       a type to replace, or ""
 * @property {string} to
 * @property {number} faster     how many times as fast, if that type is not there yet
 */

/** @type {Setup} */
const DEFAULT = { policy: "", options: {}, nodes: 0, gpus: 8, type: "", from: "", to: "", faster: 2 };
const KINDS = ["K80", "P100", "V100", "T4", "A100", "H100", "H200", "B200"]; // to choose from, besides the cluster's types
const TRAINING = ["K80", "P100", "V100", "A100", "H100", "H200", "B200"]; // each newer and faster than the one before
const TOLD = 5; // jobs listed as done sooner, and as done later

/**
 * @param {URLSearchParams} query
 * @returns {Setup}
 */
function read(query) {
  const word = (/** @type {string} */ name) => (query.get(name) ?? "").slice(0, 40);
  return {
    policy: word("policy"),
    options: readOptions(query),
    nodes: Math.round(numberIn(query.get("nodes"), DEFAULT.nodes, 0, 1000)),
    gpus: Math.round(numberIn(query.get("gpus"), DEFAULT.gpus, 1, 64)),
    type: word("type"),
    from: word("from"),
    to: word("to"),
    faster: numberIn(query.get("faster"), DEFAULT.faster, 0.01, 100),
  };
}

/**
 * @param {Setup} setup
 * @returns {Record<string, string>}
 */
function write(setup) {
  /** @type {Record<string, string>} */
  const written = { policy: setup.policy, ...writtenOptions(setup.options) };
  const { nodes, gpus, type, from, to, faster } = setup;
  if (nodes) Object.assign(written, { nodes: String(nodes), gpus: String(gpus), type });
  if (from) Object.assign(written, { from, to, faster: String(faster) });
  return Object.fromEntries(Object.entries(written).filter(([, value]) => value !== ""));
}

/**
 * @param {Setup} setup
 * @param {Live | null} live
 */
function question(setup, live) {
  /** @type {Record<string, any>} */
  const body = {};
  if (setup.policy) Object.assign(body, { policy: setup.policy, options: setup.options });
  if (setup.nodes) body.add = [{ nodes: setup.nodes, gpus: setup.gpus, type: setup.type || commonest(live) }];
  if (setup.from && setup.to) {
    body.replace = { from: setup.from, to: setup.to };
    if (!isThere(live, setup.to)) body.replace.speed = setup.faster;
  }
  return body;
}

/** @param {Live | null} live @param {string} name */
function isThere(live, name) {
  return live !== null && live.types.some((type) => type.name === name);
}

/**
 * The oldest type of the cluster, and the newest type to replace it; null if there is none newer.
 * @param {string[]} types of the cluster
 */
export function upgrade(types) {
  /** The place of a type among the known ones; types have names such as A100-80GB. @param {string} type */
  const age = (type) => TRAINING.findIndex((kind) => type.toUpperCase().includes(kind));
  const known = types.filter((type) => age(type) >= 0).sort((a, b) => age(a) - age(b));
  const [from] = known.length ? known : types; // nothing is known of the others: any type may be newer
  if (!from) return null;
  const newer = TRAINING.slice(age(from) + 1);
  const to = [...newer].reverse().find((kind) => !types.some((type) => age(type) === TRAINING.indexOf(kind)))
    ?? types.filter((type) => age(type) > age(from)).sort((a, b) => age(b) - age(a))[0];
  return to ? { from, to } : null;
}

/** @param {Live | null} live */
function commonest(live) {
  return live && live.types.length ? live.types.reduce((a, b) => (b.gpus > a.gpus ? b : a)).name : "gpu";
}

/**
 * @typedef {object} Live
 * @property {{name: string, gpus: number}[]} types
 * @property {number} running
 * @property {number} waiting
 * @property {string} policy
 */

/**
 * The cluster, kept up to date by the stream that the cluster page reads.
 *
 * @returns {Live | null}
 */
function useLive() {
  const [live, setLive] = useState(/** @type {Live | null} */ (null));
  useEffect(() => {
    const open = stream("/cluster/stream", {}, {
      cluster: (/** @type {any} */ all) => {
        const types = all.types.map((/** @type {string} */ name) => ({ name, gpus: 0 }));
        for (const [, type, , , devices] of all.nodes) types[type].gpus += devices.length;
        setLive({ types, running: all.running, waiting: all.waiting, policy: all.policy });
      },
      changes: (/** @type {any} */ news) =>
        setLive((old) => {
          if (!old) return old;
          const { running = old.running, waiting = old.waiting, policy = old.policy } = news;
          return { ...old, running, waiting, policy };
        }),
    });
    return () => open.close();
  }, []);
  return live;
}

/** The tool. */
export function WhatIf() {
  const [setup, change] = useSetup("whatif", read, write);
  const { policies, error: lost } = usePolicies();
  const { me } = useSession();
  const live = useLive();
  /** @type {{value: any, of: any, error: unknown, busy: boolean}} */
  const first = { value: null, of: null, error: null, busy: false };
  const [state, setState] = useState(first);
  const turn = useRef(0);
  useEffect(() => () => void (turn.current = -1), []);
  const body = question(setup, live);
  const nothing = Object.keys(body).length === 0;
  const earlier = state.value && JSON.stringify(state.of) !== JSON.stringify(body);
  const ask = async () => {
    const mine = ++turn.current;
    const wanted = () => turn.current === mine;
    setState((old) => ({ ...old, busy: true, error: null }));
    try {
      const value = await asked("/lab/what-if", body, { fresh: true, wanted });
      if (wanted()) setState({ value, of: body, error: null, busy: false });
    } catch (error) {
      if (wanted()) setState((old) => ({ ...old, error, busy: false }));
    }
  };
  const types = (live?.types ?? []).map((type) => type.name);
  const kinds = [...new Set([...types, ...KINDS, setup.type, setup.to].filter(Boolean))];
  const policy = live?.policy ?? me?.policy ?? "";
  const newer = live && upgrade(types);
  const asItIs = { name: "", title: policy ? `unchanged (${policy})` : "unchanged", options: [] };
  return html`<${Tool}
    title="What if"
    about="The scheduler simulates the running and waiting jobs of this cluster twice: without and with your
      change. The live cluster is not changed."
    setup=${setup} onTry=${change}
    trials=${[
      {
        label: "One node more",
        notice: "Would it help, or would it come too late for the jobs that wait now?",
        setup: { ...DEFAULT, nodes: 1 },
      },
      {
        label: "Shortest first",
        notice: "The mean falls, but long jobs are done later.",
        setup: { ...DEFAULT, policy: "srtf" },
      },
      {
        label: "Newer GPUs",
        notice:
          "The oldest GPUs are replaced by newer ones. The plane does not know the speed of a type that it does not " +
          "have: here they are twice as fast.",
        setup: newer && { ...DEFAULT, ...newer, faster: 2 },
      },
    ]}
  >
    <div class="lab-split">
      <${Card} title="What to change">
        <div class="lab-form">
          <p>${live ? inWords(live) : "Loading the cluster…"}</p>
          <${PolicyChoice}
            policies=${[asItIs, ...(policies ?? [])]}
            policy=${setup.policy} options=${setup.options}
            onChange=${(/** @type {string} */ name, /** @type {any} */ options) =>
              change({ policy: name, options })} />
          <fieldset>
            <legend>More nodes</legend>
            <div class="row">
              <${Field} label="Nodes to add"><${NumberInput} label="Nodes to add" value=${setup.nodes}
                min=${0} max=${1000} step=${1}
                onChange=${(/** @type {number} */ nodes) => change({ nodes })} /><//>
              <${Field} label="GPUs on each"><${NumberInput} label="GPUs on each" value=${setup.gpus}
                min=${1} max=${64} step=${1}
                onChange=${(/** @type {number} */ gpus) => change({ gpus })} /><//>
              <${Select} label="Of type" value=${setup.type || commonest(live)}
                options=${kinds.map((kind) => [kind, kind])}
                onChange=${(/** @type {string} */ type) => change({ type })} />
            </div>
          </fieldset>
          <fieldset>
            <legend>Another type of GPU</legend>
            <div class="row">
              <${Select} label="Replace" value=${setup.from}
                options=${[["", "none"], ...types.map((type) => [type, type])]}
                onChange=${(/** @type {string} */ from) =>
                  change({ from, to: setup.to || kinds.find((kind) => kind !== from) || "" })} />
              ${setup.from &&
              html`<${Select} label="With" value=${setup.to}
                options=${kinds.filter((kind) => kind !== setup.from).map((kind) => [kind, kind])}
                  onChange=${(/** @type {string} */ to) => change({ to })} />
                ${!isThere(live, setup.to) &&
                html`<${Field} label="Speed factor"><${NumberInput} label="Speed factor"
                  value=${setup.faster} min=${0.01} max=${100}
                  onChange=${(/** @type {number} */ faster) => change({ faster })} /><//>`}`}
            </div>
          </fieldset>
          <div class="row">
            <${Button} kind="primary" busy=${state.busy} disabled=${nothing || !live}
              onClick=${ask}>Simulate<//>
            ${nothing && html`<span class="muted">Change something first.</span>`}
          </div>
        </div>
      <//>
      <div class="stack">
        <${Trouble} error=${lost} />
        <${Trouble} error=${state.error} />
        ${earlier && html`<${Note}>
          You have changed the question. This is the answer to the earlier one: ${changeInWords(state.of)}.${" "}
          ${nothing ? "" : "Press Simulate for a new answer."}
        <//>`}
        ${state.value && html`<div class=${`stack ${earlier ? "lab-earlier" : ""}`}>
          <${Outcome} value=${state.value} of=${state.of} /></div>`}
        ${!state.value && !state.busy &&
        html`<${Card} title="Result"><${Empty}>Choose a change, then press Simulate.<//><//>`}
        <${Pending} busy=${state.busy}>simulating the queue twice…<//>
        <${Note}>
          What this assumes: every estimate is exact, no more jobs are submitted, and no node fails. The
          result is about the jobs of the present queue, not about future jobs.
        <//>
      </div>
    </div>
  <//>`;
}

/** @param {Live} live */
function inWords(live) {
  const gpus = live.types.map((type) => `${number(type.gpus)} ${type.name}`).join(", ");
  const jobs = `${number(live.running)} running, ${number(live.waiting)} waiting`;
  return `The cluster now: ${gpus || "no GPU"}; ${jobs}, under ${live.policy}.`;
}

/** @typedef {{key: string, title: string, kind: "time" | "share" | "count", low: boolean}} Row */

/** @type {Row[]} low: less is better */
const ROWS = [
  { key: "mean_wait", title: "Mean wait from now", kind: "time", low: true },
  { key: "mean_first_start_after", title: "Mean first start from now", kind: "time", low: true },
  { key: "mean_finish", title: "Mean time to finish", kind: "time", low: true },
  { key: "last_finish", title: "Last finish", kind: "time", low: true },
  { key: "utilization", title: "GPUs in use until then", kind: "share", low: false },
  { key: "preemptions", title: "Preemptions", kind: "count", low: true },
];

/** @param {any} of */
function changeInWords(of) {
  const parts = [];
  if (of.policy) parts.push(policyInWords(of.policy, of.options ?? {}));
  for (const { nodes, gpus, type } of of.add ?? []) {
    parts.push(`${nodes} more ${nodes === 1 ? "node" : "nodes"} with ${gpus} ${type}`);
  }
  if (of.replace) {
    const { from, to, speed } = of.replace;
    parts.push(`${to} instead of ${from}${speed ? `, ${number(speed)} times as fast` : ""}`);
  }
  return parts.join("; ");
}

/** @param {Row} row @param {number | null | undefined} value */
function written(row, value) {
  if (value === null || value === undefined) return "–";
  return row.kind === "time" ? duration(value) : row.kind === "share" ? share(value) : number(value);
}

/**
 * @param {{value: any, of: any}} props
 */
function Outcome({ value, of }) {
  const { now, then, jobs } = value;
  const { me } = useSession();
  const scope = me?.role === "admin" ? "Of all jobs" : "Of your tenant's jobs";
  const when = now.complete ? " with the change" : then.complete ? " without the change" : "";
  return html`<${Card} title=${`Now, and with ${changeInWords(of)}`}>
      <div class="lab-wide" tabindex="0" role="region" aria-label="Figures without and with the change">
        <table class="lab-figures" data-test="whatif">
          <thead>
            <tr>
              <th scope="col">${scope} (${number(now.waiting)} waiting)</th>
              <th scope="col">Unchanged</th>
              <th scope="col">With the change</th>
              <th scope="col" class="phone-hide">Difference</th>
            </tr>
          </thead>
          <tbody>
            ${ROWS.map(
              (row) => html`<tr key=${row.key} data-test=${row.key}>
                <th scope="row">${row.title}</th>
                <td>${written(row, now[row.key])}</td>
                <td>${written(row, then[row.key])}</td>
                <td class="phone-hide">
                  <${Difference} row=${row} now=${now[row.key]} then=${then[row.key]} />
                </td>
              </tr>`,
            )}
          </tbody>
        </table>
      </div>
      ${!(now.complete && then.complete) &&
      html`<p class="muted">
        Not all jobs end within the simulated time${when}; the figures cover the jobs that do.
      </p>`}
      ${then.left_out > 0 &&
      html`<p class="lab-worse">
        Jobs that fit on no node after the change and could never run: ${number(then.left_out)}.
      </p>`}
    <//>
    <${Jobs} jobs=${jobs} at=${Date.parse(value.at)} more=${value.more} />`;
}

/**
 * @param {{row: Row, now: number | null, then: number | null}} props
 */
function Difference({ row, now, then }) {
  if (now === null || then === null) return "–";
  if (written(row, now) === written(row, then)) return "the same"; // a difference too small to be shown does not count
  const by = then - now;
  const better = row.low ? by < 0 : by > 0;
  const text = `${by > 0 ? "+" : "−"}${written(row, Math.abs(by))} ${better ? "better" : "worse"}`;
  return html`<span class=${better ? "lab-better" : "lab-worse"}>${text}</span>`;
}

/**
 * @typedef {object} Job     first without, then with the change
 * @property {string} id
 * @property {string} name
 * @property {(string | null)[]} starts
 * @property {(string | null)[]} ends
 */

/** @param {Job} job  seconds later (or sooner, below 0) that it ends; null if one of the two is not known */
function later(job) {
  const [now, then] = job.ends;
  return now && then ? (Date.parse(then) - Date.parse(now)) / 1000 : null;
}

/** @param {{jobs: Job[], at: number, more: number}} props  at: milliseconds */
function Jobs({ jobs, at, more }) {
  if (!jobs.length) {
    return html`<${Card} title="Your jobs"><${Empty}>None of your jobs runs or waits now.<//><//>`;
  }
  const known = jobs.filter((job) => later(job) !== null);
  const ranked = known.sort((a, b) => Number(later(a)) - Number(later(b)));
  const winners = ranked.filter((job) => Number(later(job)) < -0.5).slice(0, TOLD);
  const losers = ranked.filter((job) => Number(later(job)) > 0.5).reverse().slice(0, TOLD);
  /** @param {"starts" | "ends"} key @param {0 | 1} which */
  const moment = (key, which) => (/** @type {Job} */ job) => fromNow(job[key][which], at);
  const columns = [
    { title: "Job", cell: (/** @type {Job} */ job) => html`<${Name} job=${job} />` },
    { title: "Start", cell: moment("starts", 0), numeric: true, hide: "phone" },
    { title: "Start with the change", cell: moment("starts", 1), numeric: true, hide: "phone" },
    { title: "End", cell: moment("ends", 0), numeric: true, hide: "phone" },
    { title: "End with the change", cell: moment("ends", 1), numeric: true },
    { title: "Difference", cell: (/** @type {Job} */ job) => html`<${Later} job=${job} />`, numeric: true },
  ];
  return html`<div class="lab-two">
      <${Told} title="Done sooner" jobs=${winners} none="No job is done sooner." />
      <${Told} title="Done later" jobs=${losers} none="No job is done later." />
    </div>
    <${Card} title="Your jobs, without and with the change">
      <${Table} caption="Start and end of your jobs, without and with the change" rows=${jobs}
        columns=${columns} />
      ${more > 0 && html`<p class="muted">${number(more)} more are not listed.</p>`}
    <//>`;
}

/** @param {{title: string, jobs: Job[], none: string}} props */
function Told({ title, jobs, none }) {
  return html`<${Card} title=${title}>
    ${jobs.length === 0 && html`<p class="muted">${none}</p>`}
    <ul class="lab-told">
      ${jobs.map((job) => html`<li key=${job.id}><${Name} job=${job} />${" "}<${Later} job=${job} /></li>`)}
    </ul>
  <//>`;
}

/** @param {{job: Job}} props */
function Name({ job }) {
  return html`<a href=${`#/jobs/${job.id}`}>${job.name || job.id}</a>`;
}

/** @param {string | null} moment @param {number} at */
function fromNow(moment, at) {
  if (!moment) return "–";
  const seconds = (Date.parse(moment) - at) / 1000;
  return seconds <= 0 ? "now" : `in ${duration(seconds)}`;
}

/** @param {{job: Job}} props */
function Later({ job }) {
  const by = later(job);
  if (by === null) return html`<span class="muted">not known</span>`;
  if (Math.abs(by) <= 0.5) return html`<span class="muted">the same</span>`;
  const text = `${duration(Math.abs(by))} ${by < 0 ? "sooner" : "later"}`;
  return html`<span class=${by < 0 ? "lab-better" : "lab-worse"}>${text}</span>`;
}
