// The queue: which jobs wait and why, which jobs run and where. Filters are in the address, so that a view can
// be bookmarked and shared.

import { post } from "../api.js";
import { go, useRoute } from "../app.js";
import { ago, duration, number } from "../format.js";
import { setting, ticked, typed, unsent } from "../jobs/inputs.js";
import { liveList, rowKey, tookSoFar, waitedSoFar } from "../jobs/list.js";
import { asked, counted, onDevices, over, places, STATES, waits } from "../jobs/resources.js";
import {
  Button, Dialog, Empty, Field, html, Loading, Note, Page, Select, State, useCallback, useEffect, useMemo,
  useNow, useRef, useState,
} from "../components.js";
import { may, useSession } from "../session.js";

/** @typedef {import("../jobs/resources.js").Job} Job */
/** @typedef {import("../jobs/list.js").Listed} Listed */

/** @typedef {{label: string, ask: Record<string, string | boolean>}} Group */
/** What each choice asks of the API. @type {Record<string, Group>} */
const GROUPS = {
  active: { label: "Active", ask: { active: true } },
  waiting: { label: "Waiting", ask: { state: "pending,held" } },
  running: { label: "Running", ask: { state: "running,stopping" } },
  ended: { label: "Ended", ask: { active: false } },
  all: { label: "All", ask: {} },
};
const AN_ID = /^[a-z0-9]{5,12}(_\d+)?$/;
const MOST_AT_ONCE = 1_000; // ids that one request may cancel
/** @type {Listed} */
const NOTHING = { rows: [], further: false, loading: true, live: false, error: null };

/** @typedef {{group: string, mine: boolean, tenant: string, name: string}} Filter */

/** @param {{get(name: string): string | null | undefined}} query @returns {Filter} */
function filterOf(query) {
  const group = query.get("state") ?? "";
  return {
    group: group in GROUPS ? group : "active",
    mine: query.get("mine") === "1",
    tenant: query.get("tenant") ?? "",
    name: query.get("name") ?? "",
  };
}

/** @param {Filter} filter */
function hashOf(filter) {
  const query = new URLSearchParams();
  if (filter.group !== "active") query.set("state", filter.group);
  if (filter.mine) query.set("mine", "1");
  if (filter.tenant) query.set("tenant", filter.tenant);
  if (filter.name) query.set("name", filter.name);
  return `#/jobs${query.size ? `?${query}` : ""}`;
}

/** A word matches names that contain it; a pattern with a star is used unchanged. @param {string} name */
export function pattern(name) {
  return !name || name.includes("*") ? name : `*${name}*`;
}

/** The list, alive as long as the page is shown. @param {Filter} filter */
function useList(filter) {
  const [listed, setListed] = useState(NOTHING);
  /** @type {{current: ReturnType<typeof liveList> | null}} */
  const list = useRef(null);
  const key = JSON.stringify(filter);
  useEffect(() => {
    const { group, mine, tenant, name } = filter;
    setListed(NOTHING);
    const made = liveList(
      { ...GROUPS[group].ask, mine: mine || null, tenant: mine ? null : tenant, name: pattern(name) },
      setListed,
    );
    list.current = made;
    return () => made.close();
  }, [key]);
  const more = useCallback(() => list.current?.more(), []);
  const again = useCallback(() => list.current?.again(), []);
  return { ...listed, more, again };
}

export function JobsPage() {
  const { me } = useSession();
  const { query } = useRoute();
  const filter = filterOf(query);
  const listed = useList(filter);
  const [chosen, setChosen] = useState(/** @type {ReadonlySet<string>} */ (new Set()));
  const [asking, setAsking] = useState(false);
  const [said, setSaid] = useState("");
  const acts = may(me, "user");

  const still = listed.rows.filter(cancellable).map(rowKey);
  const picked = still.filter((id) => chosen.has(id));
  const choose = useCallback((/** @type {string} */ id, /** @type {boolean} */ on) => {
    setChosen((before) => {
      const next = new Set(before);
      if (on) next.add(id);
      else next.delete(id);
      return next;
    });
  }, []);

  const link = listed.live ? "Live" : listed.rows.length ? "Reconnecting" : "Connecting";
  const beside = html`<span class=${`live ${listed.live ? "on" : ""}`} role="status">${link}</span>
    ${acts && html`<a class="button primary" href="#/submit">Submit a job</a>`}`;
  return html`
    <${Page} title="Jobs" actions=${beside}>
      <${Filters} filter=${filter} admin=${may(me, "admin")} />
      ${said && html`<${Note} kind="ok">${said}<//>`}
      ${listed.error && html`<${Note} kind="error">${listed.error.message}<//>`}
      ${acts && picked.length > 0 && html`
        <div class="toolbar jobs-picked" data-test="picked">
          <span>${counted(picked.length, "row")} selected</span>
          <${Button} kind="danger" onClick=${() => setAsking(true)}>Cancel selected<//>
          <${Button} onClick=${() => setChosen(new Set())}>Clear selection<//>
        </div>`}
      <${Rows} listed=${listed} chosen=${chosen} choose=${choose} acts=${acts} still=${still}
        all=${picked.length > 0 && picked.length === still.length}
        chooseAll=${(/** @type {boolean} */ on) => setChosen(new Set(on ? still : []))} filter=${filter} />
      ${asking && html`
        <${CancelMany} ids=${picked} onClose=${() => setAsking(false)}
          onDone=${(/** @type {string} */ words) => {
            setAsking(false);
            setChosen(new Set());
            setSaid(words);
            listed.again();
          }} />`}
    <//>`;
}

/** @param {Job} job */
function cancellable(job) {
  return job.members ? Object.keys(job.members.states).some((state) => !over(state)) : !over(job.state);
}

/** @param {{filter: Filter, admin: boolean}} props */
function Filters({ filter, admin }) {
  /** @param {Partial<Filter>} change */
  const set = (change) => go(hashOf({ ...filter, ...change }), { replace: true });
  return html`
    <form class="toolbar jobs-filters" role="search" aria-label="Jobs" onSubmit=${unsent}>
      <${Select} label="Show" value=${filter.group}
        options=${Object.entries(GROUPS).map(([value, { label }]) => [value, label])}
        onChange=${setting(set, "group")} />
      <${Typed} label="Name" placeholder="train*" value=${filter.name}
        onChange=${setting(set, "name")} />
      ${admin && !filter.mine && html`
        <${Typed} label="Tenant" placeholder="any" value=${filter.tenant}
          onChange=${setting(set, "tenant")} />`}
      <label class="check jobs-check">
        <input type="checkbox" checked=${filter.mine}
          onChange=${ticked((mine) => set({ mine }))} />
        Only mine
      </label>
    </form>`;
}

/**
 * A text field that reports its value when the user stops typing.
 * @param {{label: string, placeholder?: string, value: string, onChange: (value: string) => void}} props
 */
export function Typed({ label, placeholder, value, onChange }) {
  const [text, setText] = useState(value);
  const timer = useRef(0);
  useEffect(() => setText(value), [value]);
  useEffect(() => () => window.clearTimeout(timer.current), []);
  /** @param {string} next @param {number} ms */
  const tell = (next, ms) => {
    window.clearTimeout(timer.current);
    timer.current = window.setTimeout(() => next !== value && onChange(next), ms);
  };
  return html`
    <${Field} label=${label}>
      <input type="search" value=${text} placeholder=${placeholder} maxlength="100" autocomplete="off"
        spellcheck=${false} onChange=${typed((now) => tell(now.trim(), 0))}
        onInput=${typed((now) => {
          setText(now);
          tell(now.trim(), 400);
        })} />
    <//>`;
}

/** @typedef {(id: string, on: boolean) => void} Choose */

/**
 * @param {object} props
 * @param {Listed & {more(): void}} props.listed
 * @param {Filter} props.filter
 * @param {boolean} props.acts whether the user may cancel jobs
 * @param {string[]} props.still jobs that can be cancelled
 * @param {ReadonlySet<string>} props.chosen
 * @param {Choose} props.choose
 * @param {boolean} props.all whether all of them are chosen
 * @param {(on: boolean) => void} props.chooseAll
 */
function Rows({ listed, chosen, choose, acts, still, all, chooseAll, filter }) {
  const now = useNow(5_000);
  const { rows, loading } = listed;
  if (!rows.length && loading) return html`<${Loading} />`;
  if (!rows.length) return listed.error ? null : html`<${Nothing} filter=${filter} />`;
  return html`
    <div class="jobs-scroll">
      <table class="jobs-list">
        <caption class="visually-hidden">Jobs, newest first</caption>
        <thead>
          <tr>
            ${acts && html`
              <th scope="col" class="jobs-pick">
                <input type="checkbox" aria-label="Select all that can be cancelled" checked=${all}
                  disabled=${!still.length} onChange=${ticked(chooseAll)} />
              </th>`}
            <th scope="col">Job</th>
            <th scope="col">State</th>
            <th scope="col">Requested</th>
            <th scope="col" class="phone-hide">Where</th>
            <th scope="col" class="phone-hide">User, tenant</th>
            <th scope="col" class="phone-hide number">Priority</th>
            <th scope="col" class="phone-hide">Submitted</th>
            <th scope="col" class="phone-hide number">Time</th>
          </tr>
        </thead>
        <tbody>
          ${rows.map((job) => html`
            <${Row} key=${rowKey(job)} job=${job} age=${ago(job.submitted_at, now)} time=${timeOf(job, now)}
              picked=${chosen.has(rowKey(job))} choose=${choose} acts=${acts} />`)}
        </tbody>
      </table>
    </div>
    ${listed.further && html`
      <div class="row jobs-more"><${Button} onClick=${listed.more} busy=${loading}>More<//>
        <span class="muted">${number(rows.length)} shown</span></div>`}`;
}

/** @param {Job} job @param {number} now */
function timeOf(job, now) {
  if (job.members) return "";
  if (onDevices(job)) return `runs ${duration(tookSoFar(job, now))}`;
  if (waits(job)) return `waits ${duration(waitedSoFar(job, now))}`;
  return job.first_started_at ? `took ${duration(job.took)}` : "";
}

/**
 * One row. It is drawn again only if what it shows has changed.
 * @param {{job: Job, age: string, time: string, picked: boolean, choose: Choose, acts: boolean}} props
 */
function Row({ job, age, time, picked, choose, acts }) {
  return useMemo(() => {
    const id = rowKey(job);
    const many = job.members;
    return html`
      <tr data-job=${id}>
        ${acts && html`
          <td class="jobs-pick">
            ${cancellable(job) && html`
              <input type="checkbox" aria-label=${`Select ${id}`} checked=${picked}
                onChange=${ticked((on) => choose(id, on))} />`}
          </td>`}
        <th scope="row">
          <a href=${`#/jobs/${id}`} class="mono">${id}</a>
          <span class="jobs-name">${job.name}
            ${many && html` <span class="muted">× ${number(many.count)}</span>`}</span>
        </th>
        <td>${many ? html`<${Counts} states=${many.states} />` : html`<${State} state=${job.state} />`}
          ${!many && waits(job) && job.reason && html` <span class="jobs-reason">${job.reason}</span>`}</td>
        <td>${asked(job)}${many && html`<span class="muted"> each</span>`}</td>
        <td class="phone-hide">${many ? "" : places(job.placement)}</td>
        <td class="phone-hide">${job.user}<span class="muted"> ${job.tenant}</span></td>
        <td class="phone-hide number">${job.priority}</td>
        <td class="phone-hide jobs-age">${age}</td>
        <td class="phone-hide number">${time}</td>
      </tr>`;
  }, [job, age, time, picked, choose, acts]);
}

/** How many members are in which state. @param {{states: Record<string, number>}} props */
export function Counts({ states }) {
  const there = STATES.filter((state) => states[state]);
  return html`<span class="jobs-counts">
    ${there.map((state) => html`
      <span key=${state}>${number(states[state])} <${State} state=${state} /></span>`)}
  </span>`;
}

/** @param {{filter: Filter}} props */
function Nothing({ filter }) {
  const { name, group } = filter;
  const narrow = name || filter.tenant || filter.mine;
  const none = group === "all" ? "There are no jobs yet." : `No job is ${GROUPS[group].label.toLowerCase()}.`;
  return html`
    <${Empty}>
      ${narrow ? "No job matches these filters." : none}
      ${AN_ID.test(name) && html` <a href=${`#/jobs/${name}`}>Open the job with the id ${name}</a>`}
      ${!name && group === "active" && html` <a href="#/jobs?state=ended">Show ended jobs</a>`}
    <//>`;
}

/** @param {{ids: string[], onClose: () => void, onDone: (words: string) => void}} props */
function CancelMany({ ids, onClose, onDone }) {
  const [busy, setBusy] = useState(false);
  const [error, setError] = useState("");
  const cancel = async () => {
    setBusy(true);
    try {
      let count = 0;
      for (let at = 0; at < ids.length; at += MOST_AT_ONCE) {
        count += (await post("/jobs/cancel", { ids: ids.slice(at, at + MOST_AT_ONCE) })).count;
      }
      onDone(`${counted(count, "job")} cancelled.`);
    } catch (problem) {
      setError(/** @type {Error} */ (problem).message);
      setBusy(false);
    }
  };
  const shown = ids.slice(0, 8);
  const rest = ids.length - shown.length;
  const what = ids.length === 1 ? ids[0] : `${number(ids.length)} rows`;
  return html`
    <${Dialog} title=${`Cancel ${what}?`} onClose=${onClose}>
      <p>Running jobs are told to stop, and do not start again. For an array, all members are cancelled.</p>
      <p class="mono jobs-ids">${shown.join(" ")}${rest > 0 && ` and ${rest} more`}</p>
      ${error && html`<${Note} kind="error">${error}<//>`}
      <div class="row">
        <${Button} kind="danger" busy=${busy} onClick=${cancel}>Yes, cancel<//>
        <${Button} onClick=${onClose}>Keep<//>
      </div>
    <//>`;
}
