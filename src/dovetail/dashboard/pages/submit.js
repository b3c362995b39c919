// Submit a job: write the job file, see the plan, confirm. The plan is for exactly the text that is submitted:
// after a change it has to be planned again.

import { get, postText } from "../api.js";
import { go } from "../app.js";
import { ago, money, number, span } from "../format.js";
import { Editor, showLine } from "../jobs/editor.js";
import { typed } from "../jobs/inputs.js";
import { counted, listed } from "../jobs/resources.js";
import { Button, Card, html, Note, Page, useEffect, useRef, useState } from "../components.js";
import { may, planeNow, useSession } from "../session.js";

/** @typedef {import("dovetail/documents").Span} Span */
/** @typedef {import("dovetail/documents").Plan} Plan */
/** @typedef {{line: number, detail: string}} Mark */
/** @typedef {{marks: Mark[], others: string[]}} Mistakes */
/** @typedef {{pointer: string, detail: string, line?: number | null}} Refused */

const DRAFT = "dovetail.draft";
const YAML = "application/yaml";

/** @type {[string, string][]} */
export const TEMPLATES = [
  ["One GPU", `name: train
resources:
  gpus: 1
time: 1h          # time limit
expected: 10m     # estimate
run: |
  echo "training on GPU $CUDA_VISIBLE_DEVICES"
`],
  ["4 GPUs on one node", `name: train
resources:
  accelerators: any:4     # or a type, such as V100:4
time: 4h
checkpoint:
  grace: 60s              # time to save, after the signal to stop
run: |
  torchrun --standalone --nproc-per-node=4 train.py
`],
  ["2 nodes with 8 GPUs each", `name: train-large
nodes: 2                  # two tasks that start together or not at all
resources:
  gpus: 8                 # on each node
time: 1-00:00:00
checkpoint:
  every: 30m
run: |
  torchrun --nnodes=$NNODES --node-rank=$NODE_RANK --nproc-per-node=$NPROC_PER_NODE \\
    --master-addr=$MASTER_ADDR --master-port=$MASTER_PORT train.py
`],
  ["Array", `name: sweep
array: 0-9%4              # ten jobs, four at a time
resources:
  gpus: 1
time: 1h
run: |
  echo "member $DOVETAIL_ARRAY_INDEX"
`],
  ["CPU only", `name: prepare
kind: batch
resources:
  cpus: 2
  memory: 4G
time: 30m
run: |
  echo "no GPU needed"
`],
];

/** A key with which repeated clicks submit once. crypto.randomUUID does not exist on plain http. */
function freshKey() {
  const bytes = [...crypto.getRandomValues(new Uint8Array(16))];
  return `page-${bytes.map((byte) => byte.toString(16).padStart(2, "0")).join("")}`;
}

/**
 * The errors of a refused request: those that name a line, and the others.
 * @param {unknown} problem
 * @returns {Mistakes}
 */
function mistakes(problem) {
  const { errors = [], message } = /** @type {import("../api.js").Problem} */ (problem);
  /** @type {Mark[]} */
  const marks = [];
  /** @type {string[]} */
  const others = [];
  for (const { pointer, detail, line } of /** @type {Refused[]} */ (errors)) {
    if (line) marks.push({ line, detail: detail.replace(/^line \d+(, column \d+)?: /, "") });
    else others.push(pointer ? `${pointer.slice(1).replaceAll("/", ".")}: ${detail}` : detail);
  }
  return { marks, others: marks.length || others.length ? others : [message] };
}

export function SubmitPage() {
  const { me } = useSession();
  const [text, setText] = useState(() => sessionStorage.getItem(DRAFT) ?? TEMPLATES[0][1]);
  const [plan, setPlan] = useState(/** @type {{plan: Plan, text: string, key: string} | null} */ (null));
  const [wrong, setWrong] = useState(/** @type {Mistakes} */ ({ marks: [], others: [] }));
  const [busy, setBusy] = useState("");
  const box = useRef(/** @type {HTMLElement | null} */ (null));
  const answer = useRef(/** @type {HTMLElement | null} */ (null));

  /** @param {string} next */
  const write = (next) => {
    setText(next);
    sessionStorage.setItem(DRAFT, next);
    setWrong({ marks: [], others: [] });
  };

  const look = async () => {
    if (busy) return;
    setBusy("plan");
    setPlan(null);
    try {
      setPlan({ plan: await postText("/plan", text, YAML), text, key: freshKey() });
      setWrong({ marks: [], others: [] });
      requestAnimationFrame(() => answer.current?.scrollIntoView({ block: "nearest" }));
    } catch (problem) {
      setWrong(mistakes(problem));
    }
    setBusy("");
  };

  const submit = async () => {
    if (busy || !plan || plan.text !== text) return;
    setBusy("submit");
    try {
      const made = await postText("/jobs", plan.text, YAML, { "Idempotency-Key": plan.key });
      go(`#/jobs/${encodeURIComponent(made.id)}`);
    } catch (problem) {
      setWrong(mistakes(problem));
      setBusy("");
    }
  };

  if (!may(me, "user")) {
    return html`
      <${Page} title="Submit a job">
        <${Note}>Your token cannot submit jobs; ask for one with the role user.<//>
      <//>`;
  }
  const stale = plan !== null && plan.text !== text;
  return html`
    <${Page} title="Submit a job">
      <div class="jobs-submit" ref=${box}>
        <${Card} title="Job file" actions=${html`<${Templates} text=${text} onChoose=${write} />`}>
          <${Editor} value=${text} marks=${wrong.marks} onInput=${write} label="Job file in YAML"
            described="jobs-editor-hint" />
          <p class="muted" id="jobs-editor-hint">
            Tab inserts two spaces; to leave the editor press Esc, then Tab.${" "}
            <code>run</code> or <code>command</code> is required; everything else is optional.</p>
          ${wrong.others.map((detail) => html`<${Note} key=${detail} kind="error">${detail}<//>`)}
          ${wrong.marks.length > 0 && html`
            <${Note} kind="error">
              <ul class="jobs-mistakes">
                ${wrong.marks.map(({ line, detail }) => html`
                  <li key=${`${line}${detail}`}><button type="button" class="jobs-line" onClick=${() => {
                    const area = box.current?.querySelector("textarea");
                    if (area) showLine(area, line);
                  }}>Line ${line}</button>: ${detail}</li>`)}
              </ul>
            <//>`}
          <div class="row">
            <${Button} kind=${plan && !stale ? "plain" : "primary"} busy=${busy === "plan"}
              onClick=${look}>Plan<//>
            <span class="muted">Nothing is submitted yet.</span>
          </div>
        <//>
        <div ref=${answer} aria-live="polite">
          ${plan && html`
            <${Planned} plan=${plan.plan} stale=${stale} busy=${busy === "submit"} onConfirm=${submit} />`}
        </div>
      </div>
    <//>`;
}

/** @param {{text: string, onChoose: (text: string) => void}} props */
function Templates({ text, onChoose }) {
  const now = TEMPLATES.findIndex(([, body]) => body === text);
  return html`
    <label class="check jobs-check">Template
      <select value=${String(now)} onChange=${typed((n) => onChoose(TEMPLATES[Number(n)]?.[1] ?? text))}>
        ${now < 0 && html`<option value="-1">My own</option>`}
        ${TEMPLATES.map(([label], n) => html`
          <option key=${label} value=${String(n)} selected=${n === now}>${label}</option>`)}
      </select></label>`;
}

/** @param {{plan: Plan, stale: boolean, busy: boolean, onConfirm: () => void}} props */
function Planned({ plan, stale, busy, onConfirm }) {
  const currency = useCurrency(plan);
  const gpus = plan.placement.reduce((sum, part) => sum + part.gpus, 0);
  const others = plan.preempts_others ? [`${counted(plan.preempts_others, "job")} of other tenants`] : [];
  const notes = plan.fits ? plan.notes : [];
  const sum = plan.placement.length > 1 && gpus > 0 ? `, ${counted(gpus, "GPU")} in all` : "";
  return html`
    <${Card} title="Plan">
      <div class="stack" data-test="plan">
        ${plan.fits
          ? html`<p class="jobs-sentence">It fits${start(plan.starts_at)}.</p>`
          : html`<p class="jobs-sentence">It does not fit on the cluster as it is now. ${plan.detail}</p>`}
        <dl class="jobs-facts">
          <dt>Starts</dt><dd>${plan.starts_at ? span(plan.starts_at) : "not on the cluster as it is now"}</dd>
          ${plan.ends_at && html`<dt>Finishes</dt><dd>${span(plan.ends_at)}</dd>`}
          ${plan.placement.length > 0 && html`<dt>Where</dt><dd>${places(plan.placement)}${sum}</dd>`}
          <dt>Would preempt</dt><dd>${plan.preempts.length || others.length
            ? html`${plan.preempts.slice(0, 10).map((id) => html`
                <a key=${id} class="mono jobs-id" href=${`#/jobs/${id}`}>${id}</a> `)}
              ${plan.preempts.length > 10 && `and ${plan.preempts.length - 10} more `}${others.join("")}`
            : "no job"}</dd>
          ${plan.cost !== null && html`<dt>Cost</dt><dd>about ${money(plan.cost, currency)}</dd>`}
        </dl>
        ${notes.length > 0 && html`
          <ul>
            ${notes.map((note) => html`<li key=${note}>${note.charAt(0).toUpperCase() + note.slice(1)}</li>`)}
          </ul>`}
        ${stale && html`<${Note}>The job file has changed since this plan; plan again.<//>`}
        <div class="row">
          <${Button} kind="primary" busy=${busy} disabled=${stale} onClick=${onConfirm}>Confirm and submit<//>
        </div>
      </div>
    <//>`;
}

/** @param {Span | null} span */
function start(span) {
  if (!span) return "";
  if (!span.likely) return ", but its start time is unknown yet";
  const now = planeNow();
  return `, and would start ${Date.parse(span.likely) - now < 2_000 ? "at once" : ago(span.likely, now)}`;
}

/** The currency of the cost in the plan. @param {Plan} plan */
function useCurrency(plan) {
  const [currency, setCurrency] = useState("");
  const wanted = plan.cost !== null;
  useEffect(() => {
    if (wanted) get("/prices").then((found) => setCurrency(found.currency), () => {});
  }, [wanted]);
  return currency;
}

/** @param {{node: string, gpus: number}[]} placement */
function places(placement) {
  const first = placement.slice(0, 6);
  const shown = first.map(({ node, gpus }) => (gpus ? `${node} (${counted(gpus, "GPU")})` : node));
  const rest = placement.length - shown.length;
  return rest > 0 ? `${shown.join(", ")} and ${number(rest)} more` : listed(shown);
}
