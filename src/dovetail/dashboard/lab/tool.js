/** The frame of a tool of the Lab: the question it answers, what to try and what to notice, then the tool. */

import { Problem } from "../api.js";
import { Button, Note, Page, html, useRef } from "../components.js";

/**
 * @typedef {object} Trial
 * @property {string} label     on the button that sets it up
 * @property {string} notice    what to look at
 * @property {Record<string, any> | (() => Record<string, any>) | null} setup   the parts of the set-up that it
 *   sets; a function makes other ones each time; null: it cannot be set now
 * @property {string[]} [about] the parts that the notice is true of, if not of all that it sets
 */

const OWN = "This set-up is your own, or came with the address; the buttons load others.";

/** Whether the set-up is still what a trial has set. @param {any} setup @param {any} part @param {Trial} trial */
function holds(setup, part, { about }) {
  return part && (about ?? Object.keys(part)).every((key) => same(setup[key], part[key]));
}

/** @param {any} a @param {any} b */
function same(a, b) {
  return JSON.stringify(a) === JSON.stringify(b);
}

/**
 * A trial is shown as chosen, with what to notice, as long as the set-up is the one that it sets.
 *
 * @param {object} props
 * @param {string} props.title
 * @param {string} props.about        two or three plain sentences
 * @param {any} props.setup           the present one
 * @param {Trial[]} props.trials
 * @param {(part: any) => void} props.onTry
 * @param {any} props.children
 */
export function Tool({ title, about, setup, trials, onTry, children }) {
  const made = useRef(/** @type {Record<number, any>} */ ({})); // what functions made, by the trial's place
  const parts = trials.map((trial, i) => (typeof trial.setup === "function" ? made.current[i] : trial.setup));
  const tried = trials.findIndex((trial, i) => holds(setup, parts[i], trial));
  return html`<${Page} title=${title} actions=${html`<a class="lab-back" href="#/lab">All tools</a>`}>
    <div class="lab stack">
      <p class="lab-about">${about}</p>
      ${trials.length > 0 &&
      html`<section class="lab-trials" aria-label="What to try">
        <div class="row">
          <strong>Try</strong>
          ${trials.map(
            (trial, i) => html`<${Button} key=${trial.label} kind="plain" pressed=${tried === i}
              disabled=${trial.setup === null}
              onClick=${() => {
                if (typeof trial.setup === "function") made.current[i] = trial.setup();
                onTry(made.current[i] ?? trial.setup);
              }}>${trial.label}<//>`,
          )}
        </div>
        <p role="status"><strong>${tried < 0 ? "" : "Notice: "}</strong>${trials[tried]?.notice ?? OWN}</p>
      </section>`}
      ${children}
      <p class="muted lab-share">
        The address of this page holds the set-up: share it to show the same set-up.
      </p>
    </div>
  <//>`;
}

/**
 * What went wrong, as the plane says it, with each wrong field.
 *
 * @param {{error: unknown}} props
 */
export function Trouble({ error }) {
  if (!error) return null;
  const errors = error instanceof Problem ? error.errors ?? [] : [];
  const message = error instanceof Error ? error.message : String(error);
  return html`<${Note} kind="error">
    ${message}
    ${errors.length > 0 &&
    html`<ul>
      ${errors.slice(0, 5).map((one) => html`<li>${one.pointer ? `${one.pointer}: ` : ""}${one.detail}</li>`)}
    </ul>`}
  <//>`;
}

/**
 * Says that an answer is on its way without moving anything on the page.
 *
 * @param {{busy: boolean, children?: any}} props
 */
export function Pending({ busy, children = "computing…" }) {
  return html`<p class=${busy ? "lab-pending busy" : "lab-pending"}
    role="status">${busy ? children : ""}</p>`;
}
