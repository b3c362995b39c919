// Why a job waits: the reason, the jobs that hold the resources, what would help, and the expected start. The
// sentences come from the scheduler; the page only lays them out.

import { number, span, when } from "../format.js";
import { Card, html, Loading, Note } from "../components.js";
import { counted } from "./resources.js";

/** @typedef {import("./resources.js").Job} Job */
/** @typedef {import("./resources.js").Why} Why */

/** @param {{job: Job, why: Why | null, error: string}} props */
export function Waiting({ job, why, error }) {
  const title = job.state === "held" ? "Why it is held" : "Why it waits";
  if (!why) {
    const instead = error ? html`<${Note} kind="error">${error}<//>` : html`<${Loading} />`;
    return html`<${Card} title=${title}>${instead}<//>`;
  }
  const starts = why.starts_at;
  const ends = why.ends_at ?? job.ends_at ?? null;
  return html`
    <${Card} title=${title}>
      <div class="stack" data-test="why">
        <p class="jobs-sentence">${why.sentence}</p>
        <dl class="jobs-facts">
          ${why.remedy && html`<dt>What would help</dt><dd>${said(why.remedy)}</dd>`}
          ${starts && html`<dt>Expected start</dt><dd>${span(starts)}</dd>`}
          ${ends && html`<dt>Expected finish</dt><dd>${span(ends)}</dd>`}
          ${why.begin_at && html`<dt>Not before</dt><dd>${when(why.begin_at)}</dd>`}
          ${job.state === "pending" && html`<dt>Ahead of it</dt><dd>${ahead(why)}</dd>`}
        </dl>
        ${why.holders.length > 0 && html`
          <h3>Jobs on GPUs that it could use</h3>
          <ul class="jobs-holders">
            ${why.holders.map((one, n) => html`
              <li key=${one.job ?? n}>${counted(one.gpus, "GPU")}:
                ${one.job
                  ? html` <a class="mono" href=${`#/jobs/${one.job}`}>${one.job}</a>`
                  : " jobs of other tenants"}
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

/** A sentence, or a command as it is typed. @param {string} text */
function said(text) {
  if (text.startsWith("dovetail ")) return html`<code>${text}</code>`;
  return text.charAt(0).toUpperCase() + text.slice(1);
}
