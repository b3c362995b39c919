// A plain editor for job files: a textarea with line numbers, and errors beside their lines. Under the textarea
// lies a second layer with the same text, invisible, and the error notes, visible: so a note stands at the end
// of its line and scrolls with it.

import { html, useLayoutEffect, useRef } from "../components.js";
import { typed } from "./inputs.js";

/** @typedef {{line: number, detail: string}} Mark */

const STEP = "  ";

/**
 * @param {object} props
 * @param {string} props.value
 * @param {Mark[]} props.marks
 * @param {(text: string) => void} props.onInput
 * @param {string} props.label
 * @param {string} props.described id of the element with instructions
 */
export function Editor({ value, marks, onInput, label, described }) {
  /** @type {{current: HTMLTextAreaElement | null}} */
  const area = useRef(null);
  /** @type {{current: HTMLElement | null}} */
  const gutter = useRef(null);
  /** @type {{current: HTMLElement | null}} */
  const sheet = useRef(null);
  const leaving = useRef(false); // Esc was pressed: the next Tab goes on to the next control
  const lines = value.split("\n");
  /** @type {Map<number, string>} */
  const notes = new Map();
  for (const { line, detail } of marks) {
    notes.set(line, notes.has(line) ? `${notes.get(line)}; ${detail}` : detail);
  }

  const follow = () => {
    if (!area.current || !gutter.current || !sheet.current) return;
    gutter.current.scrollTop = area.current.scrollTop;
    sheet.current.scrollTop = area.current.scrollTop;
    sheet.current.scrollLeft = area.current.scrollLeft;
  };
  useLayoutEffect(follow);

  /** @param {KeyboardEvent & {currentTarget: HTMLTextAreaElement}} event */
  const key = (event) => {
    const plain = !event.ctrlKey && !event.metaKey && !event.altKey && !event.shiftKey;
    if (event.key === "Escape") {
      leaving.current = true;
      return;
    }
    if (event.key === "Tab" && plain && !leaving.current) {
      event.preventDefault();
      insert(event.currentTarget, STEP);
    } else if (event.key === "Enter" && plain) {
      const { value: text, selectionStart: at } = event.currentTarget;
      const line = text.slice(text.lastIndexOf("\n", at - 1) + 1, at);
      const indent = /^\s*/.exec(line)?.[0] ?? "";
      event.preventDefault();
      insert(event.currentTarget, `\n${indent}${/[:|>]\s*$/.test(line) ? STEP : ""}`);
    }
    leaving.current = false;
  };

  return html`
    <div class="jobs-editor">
      <div class="jobs-gutter mono" ref=${gutter} aria-hidden="true">
        ${lines.map((_, n) => html`
          <div key=${n} class=${notes.has(n + 1) ? "jobs-wrong" : ""}>${n + 1}</div>`)}
      </div>
      <div class="jobs-sheets">
        <div class="jobs-sheet mono" ref=${sheet} aria-hidden="true">
          ${lines.map((line, n) => html`
            <div key=${n} class=${notes.has(n + 1) ? "jobs-wrong-line" : ""}>
              <span class="jobs-unseen">${line || " "}</span>
              ${notes.has(n + 1) && html`
                <span class="jobs-mark" data-test="mark">${notes.get(n + 1)}</span>`}
            </div>`)}
        </div>
        <textarea class="mono" ref=${area} aria-label=${label} aria-describedby=${described} wrap="off"
          spellcheck=${false} autocapitalize="off" autocomplete="off" autocorrect=${false}
          value=${value} rows="18" aria-invalid=${marks.length ? "true" : undefined}
          onScroll=${follow} onKeyDown=${key} onBlur=${() => (leaving.current = false)}
          onInput=${typed(onInput)}></textarea>
      </div>
    </div>`;
}

/** Put the cursor on a line. @param {HTMLTextAreaElement} area @param {number} line from 1 */
export function showLine(area, line) {
  const lines = area.value.split("\n");
  const start = lines.slice(0, line - 1).reduce((sum, one) => sum + one.length + 1, 0);
  area.focus();
  area.setSelectionRange(start, start + (lines[line - 1]?.length ?? 0));
}

/** As if it were typed, so that it can be undone. @param {HTMLTextAreaElement} area @param {string} text */
function insert(area, text) {
  if (document.execCommand("insertText", false, text)) return;
  area.setRangeText(text, area.selectionStart, area.selectionEnd, "end");
  area.dispatchEvent(new Event("input", { bubbles: true }));
}
