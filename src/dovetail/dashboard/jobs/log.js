// The output of a job, as it arrives. Lines are appended as text nodes, not drawn by Preact: a job may print
// thousands a second, and output must never be read as markup. The page keeps only the last lines; the whole
// output can be downloaded. Scrolling up pauses the log; new lines are counted.

import { getText, stream } from "../api.js";
import { number } from "../format.js";
import { Button, html, Note, Select, useEffect, useRef, useState } from "../components.js";
import { counted } from "./resources.js";

/** @typedef {import("./resources.js").Job} Job */
/** @typedef {import("./resources.js").Attempt} Attempt */

const MOST_LINES = 5_000;
const TAIL = 2_000; // lines to begin with
const LARGEST_FILE = 200_000_000; // characters that are downloaded into a browser's memory
// Colours and cursor moves of terminals: CSI, OSC, and the other escapes; then what no font can show.
const ESCAPES = /\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b[ -/]*[0-~]/g;
const UNSEEN = /[\x00-\x08\x0b-\x1f\x7f\x80-\x9f]/g;

/** Text without what is meant for a terminal. @param {string} text */
export function plain(text) {
  return text.replace(ESCAPES, "").replace(UNSEEN, "");
}

/** The last lines in an element, with older ones taken away. @param {HTMLElement} element */
function scroll(element) {
  /** @type {{node: Text, lines: number}[]} */
  const pieces = [];
  let total = 0;
  return {
    /** @param {string[]} lines */
    add(lines) {
      const kept = lines.slice(-MOST_LINES);
      if (!kept.length) return;
      const node = document.createTextNode(kept.join("\n") + "\n");
      element.append(node);
      pieces.push({ node, lines: kept.length });
      total += kept.length;
      while (total - pieces[0].lines >= MOST_LINES) {
        total -= pieces[0].lines;
        pieces[0].node.remove();
        pieces.shift();
      }
    },
    clear() {
      element.replaceChildren();
      pieces.length = 0;
      total = 0;
    },
  };
}

/**
 * @typedef {object} Flow
 * @property {boolean} follow
 * @property {string[]} waiting lines that are not shown yet
 * @property {number} drawn the frame that will show them
 * @property {number} top where the box was scrolled to
 * @property {ReturnType<typeof scroll> | null} shown
 */

/** @param {{job: Job, attempts: Attempt[]}} props */
export function Log({ job, attempts }) {
  const [attempt, setAttempt] = useState("");
  const [rank, setRank] = useState("");
  const [follow, setFollow] = useState(true);
  const [wrap, setWrap] = useState(true);
  const [missed, setMissed] = useState(0);
  const [said, setSaid] = useState("");
  const [error, setError] = useState("");
  const [files, setFiles] = useState(1);
  const [saving, setSaving] = useState(false);
  /** @type {{current: HTMLPreElement | null}} */
  const box = useRef(null);
  /** @type {{current: Flow}} */
  const flow = useRef({ follow: true, waiting: [], drawn: 0, top: 0, shown: null });

  const down = () => {
    const element = box.current;
    if (!element) return;
    element.scrollTop = element.scrollHeight;
    flow.current.top = element.scrollTop;
  };

  const draw = () => {
    const state = flow.current;
    state.drawn = 0;
    if (!state.follow) return setMissed(state.waiting.length);
    state.shown?.add(state.waiting);
    state.waiting = [];
    down();
  };

  /** @param {string[]} lines */
  const add = (lines) => {
    const state = flow.current;
    state.waiting = [...state.waiting, ...lines].slice(-MOST_LINES);
    // A frame gathers what has come: a tab in the background draws when it is looked at.
    if (!state.drawn) state.drawn = requestAnimationFrame(draw);
  };

  /** @param {boolean} on */
  const turn = (on) => {
    flow.current.follow = on;
    setFollow(on);
    if (on) {
      setMissed(0);
      draw();
    }
  };

  useEffect(() => {
    const state = flow.current;
    if (!box.current) return undefined;
    state.shown = scroll(box.current);
    state.shown.clear();
    state.waiting = [];
    setMissed(0);
    setError("");
    setSaid("");
    let first = 0; // the attempt this began with
    const reading = stream(`/jobs/${job.id}/logs/stream`, { attempt, node: rank, tail: TAIL }, {
      open: () => setError(""),
      attempt: (/** @type {{attempt: number}} */ now) => {
        if (first && now.attempt !== first) add([`--- attempt ${now.attempt} ---`]);
        first = now.attempt;
        setSaid(now.attempt ? `attempt ${now.attempt}` : "not started yet");
      },
      message: (/** @type {string} */ text) => add(text.split("\n").map(plain)),
      end: (/** @type {{state: string, exit_code: number | null}} */ how) => {
        if (attempt) setSaid(`attempt ${attempt}, ended`);
        else setSaid(`${how.state}${how.exit_code === null ? "" : `, exit code ${how.exit_code}`}`);
        reading.close();
      },
      closed: (/** @type {Error | null} */ problem) => problem && setError(problem.message),
    });
    return () => {
      reading.close();
      cancelAnimationFrame(state.drawn);
      state.drawn = 0;
    };
  }, [job.id, attempt, rank]);

  // Every answer about the log has the number of files in a header.
  useEffect(() => {
    if (!job.attempt || (job.nodes < 2 && job.gpus < 2)) return;
    getText(`/jobs/${job.id}/logs`, { attempt, limit: 1 })
      .then(({ headers }) => setFiles(Number(headers.get("X-Files")) || 1))
      .catch(() => setFiles(1));
  }, [job.id, job.attempt, attempt]);

  useEffect(() => {
    if (follow) down();
  }, [wrap]);

  const save = async () => {
    setSaving(true);
    setError("");
    try {
      await saved(job.id, attempt, rank, files);
    } catch (problem) {
      setError(/** @type {Error} */ (problem).message);
    }
    setSaving(false);
  };

  const starts = attempts.map((one) => [String(one.attempt), `Attempt ${one.attempt}`]);
  const news = missed ? ` (${number(missed)} new)` : "";
  const here = attempts.find((one) => String(one.attempt) === attempt) ?? attempts[0];
  return html`
    <div class="toolbar jobs-log-bar">
      ${job.attempt > 1 && html`
        <${Select} label="Attempt" value=${attempt} onChange=${setAttempt}
          options=${[["", "Last and later attempts"], ...starts]} />`}
      ${files > 1 && html`
        <${Select} label="Node" value=${rank} onChange=${setRank}
          options=${[["", "All, marked by rank"], ...ranks(files, here)]} />`}
      <${Button} onClick=${() => turn(!follow)}>${follow ? "Pause" : `Follow${news}`}<//>
      <${Button} onClick=${save} busy=${saving} disabled=${!job.attempt}>Download<//>
      <label class="check jobs-check">
        <input type="checkbox" checked=${wrap} onChange=${() => setWrap(!wrap)} /> Wrap lines
      </label>
      <span class="muted" role="status">${said}</span>
    </div>
    ${error && html`<${Note} kind="error">${error}<//>`}
    <pre class=${`jobs-log mono ${wrap ? "jobs-log-wrap" : ""}`} ref=${box} tabindex="0" role="log"
      aria-live="off" aria-label=${`Output of ${job.id}, the last ${counted(MOST_LINES, "line")}`}
      data-test="log" onScroll=${(/** @type {Event & {currentTarget: HTMLElement}} */ e) => {
        const element = e.currentTarget;
        const { top } = flow.current;
        flow.current.top = element.scrollTop;
        const bottom = element.scrollHeight - element.scrollTop - element.clientHeight < 8;
        // Scrolling to the end resumes the log; the event of a scroll by this script may arrive late.
        if (bottom && element.scrollTop > top && !flow.current.follow) turn(true);
        else if (!bottom && element.scrollTop < top && flow.current.follow) turn(false);
      }}></pre>`;
}

/**
 * Which file is which.
 * @param {number} files @param {Attempt | undefined} attempt
 * @returns {[string, string][]}
 */
function ranks(files, attempt) {
  const nodes = attempt?.placement.map((part) => part.node) ?? [];
  const each = Math.max(1, Math.floor(files / Math.max(1, nodes.length)));
  return [...Array(files).keys()].map((rank) => {
    const node = nodes[Math.floor(rank / each)];
    return [String(rank), node ? `Rank ${rank} on ${node}` : `Rank ${rank}`];
  });
}

/**
 * All of it as a file, piece by piece as the API gives it.
 * @param {string} id @param {string} attempt @param {string} rank @param {number} files
 */
async function saved(id, attempt, rank, files) {
  /** @type {string[]} */
  const texts = [];
  let size = 0;
  const wanted = rank === "" && files > 1 ? [...Array(files).keys()].map(String) : [rank];
  for (const node of wanted) {
    if (wanted.length > 1) texts.push(`==> rank ${node} <==\n`);
    for (let offset = 0; ; ) {
      const { text, headers } = await getText(`/jobs/${id}/logs`, { attempt, node, offset });
      texts.push(text);
      size += text.length;
      const next = Number(headers.get("X-Next-Offset"));
      if (!(next > offset) || next >= Number(headers.get("X-Size"))) break;
      if (size > LARGEST_FILE) throw new Error(`The log is too large for a browser: dovetail logs ${id}`);
      offset = next;
    }
  }
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob(texts, { type: "text/plain" }));
  link.download = `${id}${attempt ? `-${attempt}` : ""}${rank ? `-rank${rank}` : ""}.log`;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
}
