// Why a job waits: the reason, the jobs that hold the resources, what would help, and the expected start. The
// sentences come from the scheduler; the page only lays them out.

import { bytes, number, span, when } from "../format.js";
import { Card, html, Loading, Note } from "../components.js";
import { counted } from "./resources.js";

/** @typedef {import("./resources.js").Job} Job */
/** @typedef {import("./resources.js").Why} Why */
/** @typedef {Why["holders"][number]} Holder */

/** @param {{job: Job, why: Why | null, error: string}} props */
export function Waiting({ job, why, error }) {
  const title = job.state === "held" ? "Why it is held" : "Why it waits";
  if (!why) {
    const instead = error ? html`<${Note} kind="error">${error}<//>` : html`<${Loading} />`;
    return html`<${Card} title=${title}>${instead}<//>`;
  }
  const starts = why.starts_at;
  const sooner = why.remedies.filter((one) => one.kind !== "wait");
  const ends = why.ends_at ?? job.ends_at ?? null;
  return html`
    <${Card} title=${title}>
      <div class="stack" data-test="why">
        <p class="jobs-sentence">${why.sentence}</p>
        <dl class="jobs-facts">
          ${sooner.length > 0 && html`<dt>To start sooner</dt>
            ${sooner.map((one) => html`<dd key=${one.text} data-test="remedy">${said(one.text)}</dd>`)}`}
          ${why.remedies_in && html`<dt>To start sooner</dt><dd>Not tried now: too many questions with this token.
            Known in ${counted(why.remedies_in, "second")}.</dd>`}
          ${starts && html`<dt>Expected start</dt><dd>${span(starts)}</dd>`}
          ${why.assumed && html`<dt>Estimates</dt><dd data-test="assumed">${said(why.assumed)}</dd>`}
          ${ends && html`<dt>Expected finish</dt><dd>${span(ends)}</dd>`}
          ${why.begin_at && html`<dt>Not before</dt><dd>${when(why.begin_at)}</dd>`}
          ${job.state === "pending" && html`<dt>Ahead of it</dt><dd>${ahead(why)}</dd>`}
        </dl>
        ${why.holders.length > 0 && html`
          <h3>Jobs that hold it</h3>
          <ul class="jobs-holders">
            ${why.holders.map((one, n) => html`
              <li key=${one.job ?? n} data-test="holder">${held(one, why)}:
                ${one.job
                  ? html` <a class="mono" href=${`#/jobs/${one.job}`}>${one.job}</a>`
                  : ` ${unnamed(one)}`}
                ${one.ends_at && html`<span class="muted"> until about ${when(one.ends_at)}</span>`}</li>`)}
          </ul>`}
      </div>
    <//>`;
}

/** @param {Why} why */
function ahead(why) {
  const { own, others } = why.ahead;
  if (!own) return others ? "jobs of other tenants" : "no jobs";
  return `${number(own)} ${own === 1 ? "job" : "jobs"}${others ? ", and jobs of other tenants" : ""}`;
}

/** What a job holds of the resources that are short: 4 CPUs, 2 GiB. @param {Holder} one @param {Why} why */
function held(one, why) {
  /** @type {Why["short"][number]["resource"][]} */
  const short = why.short.length ? why.short.map((each) => each.resource) : ["gpus"];
  const amounts = { gpus: counted(one.gpus, "GPU"), cpus: counted(one.cpus, "CPU"), memory: bytes(one.memory) };
  return short.map((resource) => amounts[resource]).join(", ");
}

/** Jobs that are counted, not named. @param {Holder} one */
function unnamed(one) {
  if (one.hidden) return one.jobs === 1 ? "a job of another tenant" : `${number(one.jobs)} jobs of other tenants`;
  return counted(one.jobs, "more job");
}

/** A sentence, or a command as it is typed. @param {string} text */
function said(text) {
  if (text.startsWith("dovetail ")) return html`<code>${text}</code>`;
  return text.charAt(0).toUpperCase() + text.slice(1);
}
