/** Assignment game: assign jobs to GPU types by hand, and compare with the optimum. */

import { number } from "../format.js";
import { Button, Card, Note, Select, Stat, html, useRef, useState } from "../components.js";
import { Bar } from "./bars.js";
import { share, useAnswer, useSetup } from "./setup.js";
import { THREE, TWO, readSpeeds, writtenSpeeds } from "./speeds.js";
import { Pending, Tool, Trouble } from "./tool.js";

/** @typedef {import("./speeds.js").Speeds} Speeds */
/** @typedef {Speeds & {put: (number | null)[]}} Setup   put: for each job the place of its type, or null */

/**
 * @param {URLSearchParams} query
 * @returns {Setup}
 */
function read(query) {
  const speeds = readSpeeds(query, THREE);
  const said = (query.get("put") ?? "").split(",");
  const isType = (/** @type {string} */ text) => /^\d$/.test(text) && Number(text) < speeds.types.length;
  return { ...speeds, put: speeds.jobs.map((_, i) => (isType(said[i] ?? "") ? Number(said[i]) : null)) };
}

/**
 * @param {Setup} setup
 * @returns {Record<string, string>}
 */
function write(setup) {
  return { ...writtenSpeeds(setup), put: setup.put.map((place) => place ?? "-").join(",") };
}

/** @param {Speeds} speeds @returns {Setup} */
const fresh = (speeds) => ({ ...speeds, put: speeds.jobs.map(() => null) });

/** Round robin over the types, as by a scheduler that does not know the speeds. @param {Speeds} speeds */
const inTurn = ({ types, jobs }) => jobs.map((_, i) => i % types.length);

/** A random problem: newer GPUs are faster for all jobs, by different factors. @returns {Speeds} */
function riddle() {
  const upTo = (/** @type {number} */ n) => Math.floor(Math.random() * n);
  const types = [
    { name: "K80", count: 2 },
    { name: "P100", count: 1 },
    { name: "V100", count: 1 },
  ];
  const jobs = [..."ABCD"].map((name) => {
    const slow = 5 + 5 * upTo(9);
    const middle = slow + 5 * (1 + upTo(8));
    return { name, gpus: 1, speeds: [slow, middle, Math.min(100, middle + 5 * (1 + upTo(10)))] };
  });
  return { types, jobs };
}

/** The tool. */
export function Assignment() {
  const [setup, change] = useSetup("assignment", read, write);
  const { types, jobs, put } = setup;
  const answer = useAnswer("/lab/throughput", { types, jobs, objective: "max-sum", assignment: put });
  const [picked, setPicked] = useState(/** @type {number | null} */ (null));
  const dragged = useRef(/** @type {number | null} */ (null));
  const moved = useRef("");
  /** @param {number} job @param {number | null} place */
  const move = (job, place) => {
    change({ put: put.map((old, i) => (i === job ? place : old)) });
    moved.current = `${jobs[job].name} ${place === null ? "waits" : `is on ${types[place].name}`}`;
    setPicked(null);
  };
  const best = answer.value?.optimum;
  return html`<${Tool}
    title="Assignment game"
    about="Put every job on a type of GPU: drag it, pick it up with a click and click where it should go,
      or choose from its list. The score is the sum of all speeds. Can you find the optimum?
      The fastest job does not always need the fastest GPU."
    setup=${setup} onTry=${change}
    trials=${[
      {
        label: "Round robin",
        notice:
          "A on K80, B on P100, C on V100: 135 of 185. Which job gains most on the V100?",
        setup: { ...THREE, put: inTurn(THREE) },
      },
      {
        label: "Two jobs",
        notice: "One K80, one V100: 130 or 80, depending on the assignment.",
        setup: fresh(TWO),
        about: ["types", "jobs"],
      },
      {
        label: "A random problem",
        notice: "Four jobs and four GPUs, with random speeds.",
        setup: () => fresh(riddle()),
        about: ["types", "jobs"],
      },
    ]}
  >
    <${Trouble} error=${answer.error} />
    <${Score} answer=${answer} put=${put}>
      <${Button} kind="plain" onClick=${() => change({ put: jobs.map(() => null) })}>Start over<//>
      <${Button} kind="primary" disabled=${!best || answer.loading}
        onClick=${() => best && change({ put: best.assignment })}>Show the optimum<//>
    <//>
    <div class="lab-board">
      ${[null, ...types.keys()].map(
        (place) => html`<${Place} key=${place ?? "none"} setup=${setup} place=${place} picked=${picked}
          onPick=${(/** @type {number | null} */ job) => setPicked(job === picked ? null : job)}
          onMove=${move} dragged=${dragged} />`,
      )}
    </div>
    <p class="visually-hidden" role="status">${moved.current}</p>
  <//>`;
}

/**
 * @param {object} props
 * @param {{value: any, of: Speeds | null, loading: boolean}} props.answer
 * @param {(number | null)[]} props.put
 * @param {any} props.children      buttons beside the title
 */
function Score({ answer, put, children }) {
  const { value, of, loading } = answer;
  const yours = value?.yours;
  const most = value?.optimum.total ?? 0;
  const all = put.every((place) => place !== null);
  const part = yours && most ? yours.total / most : 0;
  const parts = (yours?.throughput ?? []).map((/** @type {number} */ value, /** @type {number} */ i) => ({
    value,
    colour: i,
    label: `${of?.jobs[i].name} ${number(value)}`,
  }));
  const verdict =
    !yours || yours.problem ? ""
      : part >= 1 - 1e-9 ? "This is the optimum."
      : !all ? "A job is still waiting."
      : `There is a better assignment: ${number(most - yours.total)} more in total.`;
  return html`<${Card} title="Your score" actions=${children}>
    <div class="lab-stats" data-test="score" aria-busy=${loading}>
      <${Stat} label="Yours" value=${yours ? `${number(yours.total)}/s` : "–"}
        note="samples a second in total"
        />
      <${Stat} label="Optimum" value=${`${number(most)}/s`} note="samples a second in total" />
      <${Stat} label="Score" value=${yours?.problem ? "–" : share(part)} note="of the optimum" />
    </div>
    ${yours && !yours.problem &&
    html`<${Bar} most=${most} text=${`Your ${number(yours.total)} of ${number(most)}`} parts=${parts} />`}
    ${yours?.problem && html`<${Note} kind="error">Too many on one type: ${yours.problem}.<//>`}
    <p class="lab-verdict" role="status">${verdict}</p>
    <${Pending} busy=${loading} />
  <//>`;
}

/**
 * A type of GPU with the jobs on it; or, with place null, the waiting jobs.
 *
 * @param {object} props
 * @param {Setup} props.setup
 * @param {number | null} props.place
 * @param {number | null} props.picked
 * @param {(job: number) => void} props.onPick
 * @param {(job: number, place: number | null) => void} props.onMove
 * @param {{current: number | null}} props.dragged
 */
function Place({ setup, place, picked, onPick, onMove, dragged }) {
  const { types, jobs, put } = setup;
  const [over, setOver] = useState(false);
  const here = jobs.flatMap((_, i) => (put[i] === place ? [i] : []));
  const taken = here.reduce((sum, i) => sum + jobs[i].gpus, 0);
  const name = place === null ? "Waiting" : types[place].name;
  const count = place === null ? 0 : types[place].count;
  const full = place !== null && taken > count;
  return html`<section
    class=${`lab-place ${over ? "over" : ""} ${full ? "full" : ""} ${place === null ? "none" : ""}`}
    aria-label=${place === null ? "Waiting" : `${name}: ${taken} of ${count} taken`}
    data-test=${`place-${name}`}
    onDragOver=${(/** @type {DragEvent} */ event) => {
      event.preventDefault();
      setOver(true);
    }}
    onDragLeave=${() => setOver(false)}
    onDrop=${(/** @type {DragEvent} */ event) => {
      event.preventDefault();
      setOver(false);
      if (dragged.current !== null) onMove(dragged.current, place);
      dragged.current = null;
    }}
  >
    <header>
      <h2>${name}</h2>
      <span class="muted number">${place === null ? "" : `${taken} of ${count}`}</span>
    </header>
    <ul>
      ${here.map(
        (i) => html`<li key=${i} class="lab-piece" draggable="true" style=${{ "--bar": `var(--t${i})` }}
          data-test=${`job-${jobs[i].name}`}
          onDragStart=${(/** @type {DragEvent} */ event) => {
            dragged.current = i;
            event.dataTransfer?.setData("text/plain", jobs[i].name);
          }}>
          <button type="button" class="lab-pick" aria-pressed=${picked === i} onClick=${() => onPick(i)}>
            <span class="lab-chip">${jobs[i].name}</span>
            <span class="lab-now number">
              ${place === null ? "waits" : `${number(jobs[i].speeds[place] * jobs[i].gpus)}/s`}
            </span>
            <span class="visually-hidden">pick up</span>
          </button>
          <dl class="lab-piece-speeds">
            ${types.map((type, k) => html`<div class=${k === place ? "here" : ""}><dt>${type.name}</dt><dd
              class="number">${number(jobs[i].speeds[k])}</dd></div>`)}
          </dl>
          <${Select} label=${`${jobs[i].name} runs on`} value=${place === null ? "" : String(place)}
            options=${[["", "nothing yet"], ...types.map((type, k) => [String(k), type.name])]}
            onChange=${(/** @type {string} */ value) => onMove(i, value === "" ? null : Number(value))} />
        </li>`,
      )}
      ${Array.from({ length: Math.max(0, count - taken) }, () =>
        html`<li class="lab-slot muted" aria-hidden="true">a free ${name}</li>`)}
    </ul>
    ${picked !== null && put[picked] !== place &&
    html`<${Button} kind="primary" onClick=${() => onMove(picked, place)}>Put ${jobs[picked].name} here<//>`}
  </section>`;
}
