/** The frame of a tool of the Lab: the question it answers, what to try and what to notice, then the tool. */

import { Problem } from "../api.js";
import { Button, Note, Page, html, useState } from "../components.js";

/**
 * @typedef {object} Trial
 * @property {string} label     on the button that sets it up
 * @property {string} notice    what to look at
 * @property {() => void} set
 */

const CAME = "This set-up came with the address; the buttons load others.";

/**
 * @param {object} props
 * @param {string} props.title
 * @param {string} props.about        two or three plain sentences
 * @param {Trial[]} [props.trials]
 * @param {any} props.children
 */
export function Tool({ title, about, trials = [], children }) {
  // Without a set-up in the address the first trial is shown.
  const [tried, setTried] = useState(location.hash.includes("?") ? -1 : 0);
  return html`<${Page} title=${title} actions=${html`<a class="lab-back" href="#/lab">All tools</a>`}>
    <div class="lab stack">
      <p class="lab-about">${about}</p>
      ${trials.length > 0 &&
      html`<section class="lab-trials" aria-label="What to try">
        <div class="row">
          <strong>Try</strong>
          ${trials.map(
            (trial, i) => html`<${Button} key=${trial.label} kind="plain" pressed=${tried === i}
              onClick=${() => {
                setTried(i);
                trial.set();
              }}>${trial.label}<//>`,
          )}
        </div>
        <p role="status"><strong>${tried < 0 ? "" : "Notice: "}</strong>${trials[tried]?.notice ?? CAME}</p>
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
