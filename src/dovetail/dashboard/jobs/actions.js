// The actions on a job. Only actions that make sense in its state, and that the user may do, are offered; the
// plane checks both again.

import { post } from "../api.js";
import { Button, Dialog, Field, html, Note, useState } from "../components.js";
import { may } from "../session.js";
import { typed } from "./inputs.js";
import { over } from "./resources.js";

/** @typedef {import("./resources.js").Job} Job */
/** @typedef {import("../session.js").Me} Me */
/** @typedef {"hold" | "release" | "requeue" | "priority" | "cancel"} Verb */

/** @type {Record<Verb, string>} */
const LABELS = {
  hold: "Hold", release: "Release", requeue: "Requeue", priority: "Change priority", cancel: "Cancel",
};
/** @type {[string, string][]} */
const PRIORITIES = [["-100", "low"], ["0", "normal"], ["100", "high"], ["1000", "urgent"]];
const MOST_PRIORITY = 1_000_000;

/**
 * @param {Me | null} me
 * @param {{state: string, reason: string}[]} jobs one, or what the members of an array are
 * @returns {Verb[]}
 */
export function offered(me, jobs) {
  if (!may(me, "user")) return [];
  /** @type {(test: (job: {state: string, reason: string}) => boolean) => boolean} */
  const any = (test) => jobs.some(test);
  /** @type {Verb[]} */
  const found = [];
  if (any((job) => job.state === "held" && heldBy(job.reason, may(me, "admin")))) found.push("release");
  if (any((job) => ["pending", "running"].includes(job.state) || gated(job))) found.push("hold");
  if (any((job) => job.state === "running")) found.push("requeue");
  if (any((job) => !over(job.state))) found.push("priority", "cancel");
  return found;
}

/** Held by a time, a dependency or an array limit, not by a user. @param {{state: string, reason: string}} job */
function gated(job) {
  return job.state === "held" && !job.reason.startsWith("JobHeld");
}

/** Whether this user may release the job. @param {string} reason @param {boolean} admin */
function heldBy(reason, admin) {
  return reason === "JobHeldUser" || reason === "" || (admin && reason === "JobHeldAdmin");
}

/**
 * @param {object} props
 * @param {string} props.id
 * @param {Verb[]} props.verbs
 * @param {number | null} props.priority
 * @param {boolean} props.many whether it is an array
 * @param {(said: string) => void} props.onDone
 */
export function Actions({ id, verbs, priority, many, onDone }) {
  const [asking, setAsking] = useState(/** @type {Verb | null} */ (null));
  const [busy, setBusy] = useState(/** @type {Verb | null} */ (null));
  const [error, setError] = useState("");

  /** @param {Verb} verb @param {unknown} [body] */
  const act = async (verb, body) => {
    setBusy(verb);
    setError("");
    try {
      await post(`/jobs/${id}/${verb}`, body);
      setAsking(null);
      onDone(DONE[verb]);
    } catch (problem) {
      setError(/** @type {Error} */ (problem).message);
    }
    setBusy(null);
  };

  /** @param {Verb} verb */
  const begin = (verb) => {
    setError("");
    if (verb === "hold" || verb === "release") act(verb);
    else setAsking(verb);
  };
  const close = () => setAsking(null);
  const wrong = error && html`<${Note} kind="error">${error}<//>`;
  const what = many ? `all jobs of ${id}` : id;
  return html`
    ${verbs.map((verb) => html`
      <${Button} key=${verb} kind=${verb === "cancel" ? "danger" : "plain"} busy=${busy === verb}
        onClick=${() => begin(verb)}>${LABELS[verb]}<//>`)}
    ${!asking && wrong}
    ${asking === "cancel" && html`
      <${Sure} title=${`Cancel ${what}?`} yes="Yes, cancel" busy=${busy === "cancel"} error=${wrong}
        onClose=${close} onYes=${() => act("cancel")}>
        Running jobs are told to stop, and do not start again.<//>`}
    ${asking === "requeue" && html`
      <${Sure} title=${`Requeue ${what}?`} yes="Yes, requeue" busy=${busy === "requeue"} error=${wrong}
        onClose=${close} onYes=${() => act("requeue")}>
        The job is told to stop and waits in the queue again. Work since its last checkpoint is lost.<//>`}
    ${asking === "priority" && html`
      <${Priority} what=${what} now=${priority} busy=${busy === "priority"} error=${wrong} onClose=${close}
        onSet=${(/** @type {number} */ value) => act("priority", { priority: value })} />`}`;
}

/** @type {Record<Verb, string>} */
const DONE = {
  hold: "The job is held.",
  release: "The job is in the queue again.",
  requeue: "The job was told to stop and will wait again.",
  priority: "The priority was changed.",
  cancel: "The job was cancelled.",
};

/**
 * @typedef {object} Asking
 * @property {boolean} busy
 * @property {any} error what went wrong, as it is shown
 * @property {() => void} onClose
 */

/** @param {Asking & {title: string, yes: string, onYes: () => void, children?: any}} props */
function Sure({ title, yes, busy, error, onClose, onYes, children }) {
  return html`
    <${Dialog} title=${title} onClose=${onClose}>
      <div class="stack">
        <p>${children}</p>
        ${error}
        <div class="row">
          <${Button} kind="danger" busy=${busy} onClick=${onYes}>${yes}<//>
          <${Button} onClick=${onClose}>Keep it<//>
        </div>
      </div>
    <//>`;
}

/** @param {Asking & {what: string, now: number | null, onSet: (value: number) => void}} props */
function Priority({ what, now, busy, error, onClose, onSet }) {
  const [text, setText] = useState(String(now ?? 0));
  const value = Number(text);
  const right = /^[-+]?\d+$/.test(text.trim()) && Math.abs(value) <= MOST_PRIORITY;
  return html`
    <${Dialog} title=${`Priority of ${what}`} onClose=${onClose}>
      <form class="stack" onSubmit=${(/** @type {Event} */ e) => {
        e.preventDefault();
        if (right && !busy) onSet(value);
      }}>
        <${Field} label="Priority" hint="A higher number goes first."
          error=${right ? "" : "a whole number between -1,000,000 and 1,000,000"}>
          <input inputmode="numeric" value=${text} autocomplete="off"
            onInput=${typed(setText)} />
        <//>
        <div class="row">
          ${PRIORITIES.map(([number, word]) => html`
            <${Button} key=${word} onClick=${() => setText(number)}>${word} (${number})<//>`)}
        </div>
        ${error}
        <div class="row">
          <${Button} kind="primary" type="submit" busy=${busy} disabled=${!right}>Set priority<//>
          <${Button} onClick=${onClose}>Keep the priority<//>
        </div>
      </form>
    <//>`;
}
