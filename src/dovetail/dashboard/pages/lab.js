/** The Lab: an index of the tools, and the chosen tool, loaded when it is opened. */

import { planeBack } from "../api.js";
import { Loading, Note, Page, html, useEffect, useState } from "../components.js";

/**
 * @typedef {object} Entry
 * @property {string} title
 * @property {string} question     that it answers
 * @property {string} about        one line
 * @property {() => Promise<any>} load
 * @property {string} name         of the component in the module
 */

/** @type {Record<string, Entry>} */
const TOOLS = {
  queue: {
    title: "Queue simulator",
    question: "Which job goes first, and how long do the others wait?",
    about: "A few jobs, a few GPUs, any policy: the schedule drawn as time goes on.",
    load: () => import("../lab/queue.js"),
    name: "Queue",
  },
  compare: {
    title: "Policy comparison",
    question: "Which policy is best, and at what?",
    about: "Several policies on four jobs or on a real trace, side by side.",
    load: () => import("../lab/compare.js"),
    name: "Compare",
  },
  sensitivity: {
    title: "Throughput sensitivity",
    question: "Which job should get the fast GPUs?",
    about: "Speeds by GPU type with sliders; the best split is computed as you move them.",
    load: () => import("../lab/sensitivity.js"),
    name: "Sensitivity",
  },
  assignment: {
    title: "Assignment game",
    question: "Can you do as well as the solver?",
    about: "Assign jobs to GPUs by hand and compare with the optimum.",
    load: () => import("../lab/assignment.js"),
    name: "Assignment",
  },
  placement: {
    title: "Placement calculator",
    question: "Should a job be spread over nodes?",
    about: "Compute time and gradients against NVLink, InfiniBand and Ethernet.",
    load: () => import("../lab/placement.js"),
    name: "Placement",
  },
  fairness: {
    title: "Fairness against throughput",
    question: "What does it cost to be fair?",
    about: "A floor under the worst-off job, and what it costs in total throughput.",
    load: () => import("../lab/fairness.js"),
    name: "Fairness",
  },
  whatif: {
    title: "What if",
    question: "When would my jobs run with another policy, or with more nodes?",
    about: "The present queue of this cluster, simulated forward by the same scheduler.",
    load: () => import("../lab/whatif.js"),
    name: "WhatIf",
  },
};

/** @type {Map<string, any>} */
const loaded = new Map();

/** @param {{id?: string}} props  the name of a tool, or nothing for all of them */
export function LabPage({ id }) {
  if (!id) return html`<${Index} />`;
  if (!Object.hasOwn(TOOLS, id)) {
    return html`<${Page} title="Lab">
      <${Note} kind="error">The Lab has no tool of that name. <a href="#/lab">See all</a><//>
    <//>`;
  }
  return html`<${Current} key=${id} id=${id} />`;
}

/** @param {{id: string}} props */
function Current({ id }) {
  const [, setTurn] = useState(0);
  const [problem, setProblem] = useState("");
  useEffect(() => {
    if (loaded.has(id)) return undefined;
    let gone = false;
    TOOLS[id].load().then(
      (module) => {
        loaded.set(id, module[TOOLS[id].name]);
        setTurn((turn) => turn + 1);
      },
      async () => {
        if (gone) return;
        setProblem("This tool could not be loaded; check that the plane runs.");
        await planeBack();
        if (!gone) location.reload(); // a browser does not ask twice for a module that it did not get
      },
    );
    return () => void (gone = true);
  }, [id]);
  const Tool = loaded.get(id);
  if (Tool) return html`<${Tool} />`;
  return problem ? html`<${Note} kind="error">${problem}<//>` : html`<${Loading} />`;
}

/** All tools, each with the question that it answers. */
function Index() {
  return html`<${Page} title="Lab">
    <p class="lab-about">
      Try policies before you use them. The code that schedules this cluster computes everything here, in a
      separate process. Nothing here changes a job of the cluster.
    </p>
    <ul class="lab-index">
      ${Object.entries(TOOLS).map(
        ([id, tool]) => html`<li key=${id}>
          <a class="lab-entry" href=${`#/lab/${id}`}>
            <${Sketch} id=${id} />
            <span class="lab-entry-title">${tool.title}</span>
            <span class="lab-question">${tool.question}</span>
            <span class="muted">${tool.about}</span>
          </a>
        </li>`,
      )}
    </ul>
  <//>`;
}

// A sign for each tool: bars as x, y, width, colour on a ground of 120 x 44.
/** @type {Record<string, [number, number, number, number][]>} */
const SKETCHES = {
  queue: [[0, 4, 46, 0], [48, 4, 70, 3], [0, 18, 22, 1], [24, 18, 52, 2], [78, 18, 28, 4], [0, 32, 34, 5],
    [36, 32, 40, 6]],
  compare: [[0, 4, 108, 0], [0, 18, 78, 1], [0, 32, 52, 2]],
  sensitivity: [[0, 4, 30, 6], [32, 4, 84, 8], [0, 18, 76, 7], [78, 18, 38, 8], [0, 32, 52, 6],
    [54, 32, 62, 7]],
  assignment: [[0, 4, 36, 0], [42, 4, 36, 11], [84, 4, 36, 1], [0, 18, 36, 11], [42, 18, 36, 2],
    [84, 18, 36, 11], [0, 32, 36, 3]],
  placement: [[0, 4, 60, 0], [62, 4, 4, 1], [0, 18, 60, 0], [62, 18, 22, 1], [0, 32, 60, 0], [62, 32, 54, 1]],
  fairness: [[0, 4, 96, 0], [0, 18, 58, 1], [0, 32, 76, 2]],
  whatif: [[0, 4, 90, 11], [0, 18, 56, 0], [0, 32, 34, 2]],
};

/** @param {{id: string}} props */
function Sketch({ id }) {
  return html`<svg class="lab-sketch" viewBox="0 0 120 44" aria-hidden="true">
    ${SKETCHES[id].map(([x, y, width, colour]) => html`<rect x=${x} y=${y} width=${width} height="9" rx="2.5"
      style=${{ fill: `var(--t${colour})` }} />`)}
  </svg>`;
}
