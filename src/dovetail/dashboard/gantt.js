/**
 * A Gantt chart: one row for each device (or job), one bar for each time span.
 *
 * The bars are drawn once and a clip moves over them, so that a picture that grows with time costs one
 * attribute a frame. Screen readers get the same as sentences, row by row.
 */

import { html, useEffect, useMemo, useRef, useState } from "./components.js";

/**
 * @typedef {object} Bar
 * @property {number} row          the first row it covers
 * @property {number} [span]       how many rows it covers (1)
 * @property {number} start
 * @property {number} end
 * @property {string} label        written in the bar where there is room
 * @property {number} [colour]     one of the colours --t0 … --t11
 * @property {"run" | "wait"} [kind]   waiting is drawn as a dashed outline
 * @property {string} [title]      shown under the pointer; the label and the times if left out
 */

const AXIS = 26;
const ROW = 34;
const LETTER = 7.2; // width of a letter of the labels, roughly; a label that might not fit is left out

let made = 0;

/**
 * The times to write on an axis: round, and not so many that they touch.
 *
 * @param {number} until
 * @param {number} most
 * @returns {number[]}
 */
export function ticks(until, most) {
  if (!(until > 0)) return [0];
  const rough = until / Math.max(1, most);
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((n) => n * power).find((n) => n >= rough) ?? rough;
  return Array.from({ length: Math.floor(until / step + 1e-9) + 1 }, (_, i) =>
    Number((i * step).toPrecision(12)));
}

/**
 * How wide an element is, now and whenever that changes.
 *
 * @param {number} start  taken before it has been measured
 * @returns {[{current: HTMLElement | null}, number]}
 */
export function useWidth(start) {
  const ref = useRef(/** @type {HTMLElement | null} */ (null));
  const [width, setWidth] = useState(start);
  useEffect(() => {
    const element = ref.current;
    if (!element) return undefined;
    const observer = new ResizeObserver(() => setWidth(Math.max(200, element.clientWidth)));
    observer.observe(element);
    return () => observer.disconnect();
  }, []);
  return [ref, width];
}

/**
 * @param {object} props
 * @param {string[]} props.rows       the names of the rows, from the top
 * @param {Bar[]} props.bars
 * @param {number} props.until        where the axis of time ends
 * @param {number} [props.now]        nothing later is drawn; left out, all is
 * @param {string | ((time: number) => string)} [props.unit]   after a time, or how to write one
 * @param {number} [props.height]     of the whole picture, in pixels
 * @param {string} [props.title]      what it is a picture of
 */
export function Gantt({ rows, bars, until, now, unit = "", height, title = "Schedule" }) {
  const [ref, width] = useWidth(640);
  const [id] = useState(() => `gantt-${++made}`);
  const time = typeof unit === "function" ? unit : (/** @type {number} */ t) =>
    `${rounded(t)}${unit && ` ${unit}`}`;
  const names = Math.min(width * 0.3, 14 + LETTER * Math.max(3, ...rows.map((row) => row.length)));
  const tall = height ?? rows.length * ROW + AXIS;
  const row = (tall - AXIS) / Math.max(1, rows.length);
  const end = until > 0 ? until : 1;
  const x = (/** @type {number} */ t) => names + ((width - names - 10) * Math.min(t, end)) / end;
  const marks = ticks(end, Math.max(2, (width - names) / 64));

  const drawn = useMemo(
    () =>
      bars.map((bar) => {
        const left = x(bar.start);
        const wide = Math.max(1.5, x(bar.end) - left - 1);
        const top = bar.row * row + 3;
        const deep = row * (bar.span ?? 1) - 6;
        const fits = wide > bar.label.length * LETTER + 8 && deep >= 12;
        return html`<g class=${`bar ${bar.kind ?? "run"}`}
          style=${{ "--bar": `var(--t${(bar.colour ?? 0) % 12})` }}>
          <title>${bar.title ?? `${bar.label}: ${time(bar.start)} to ${time(bar.end)}`}</title>
          <rect x=${left} y=${top} width=${wide} height=${deep} rx="4" />
          ${fits && html`<text x=${left + wide / 2} y=${top + deep / 2}>${bar.label}</text>`}
        </g>`;
      }),
    [bars, width, row, end, names],
  );

  return html`<figure class="gantt" ref=${ref}>
    <svg width=${width} height=${tall} role="img" aria-label=${`${title}. The same follows as text.`}>
      <defs><clipPath id=${id}><rect x="0" y="0" width=${now === undefined ? width : x(now)} height=${tall}
        /></clipPath></defs>
      ${rows.map(
        (name, i) => html`<g class="lane">
          <rect x=${names} y=${i * row + 1} width=${width - names - 10} height=${row - 2} />
          <text x=${names - 8} y=${(i + 0.5) * row}>${shortened(name, names - 10)}</text>
        </g>`,
      )}
      ${marks.map(
        (mark, i) => html`<g class="tick">
          <line x1=${x(mark)} x2=${x(mark)} y1="0" y2=${tall - AXIS + 4} />
          <text x=${x(mark)} y=${tall - 6}
            text-anchor=${i === 0 ? "start" : x(mark) > width - 34 ? "end" : "middle"}>
            ${time(mark)}
          </text>
        </g>`,
      )}
      <g clip-path=${`url(#${id})`}>${drawn}</g>
      ${now !== undefined && now < end && html`<line class="now" x1=${x(now)} x2=${x(now)} y1="0"
        y2=${tall - AXIS + 4} />`}
    </svg>
    <ul class="visually-hidden" aria-label=${title}>
      ${rows.map((name, i) => html`<li>${name}: ${inWords(bars, i, time)}</li>`)}
    </ul>
  </figure>`;
}

/**
 * @param {Bar[]} bars
 * @param {number} row
 * @param {(time: number) => string} time
 */
function inWords(bars, row, time) {
  const here = bars
    .filter((bar) => bar.row <= row && row < bar.row + (bar.span ?? 1))
    .sort((a, b) => a.start - b.start)
    .map((bar) => `${bar.kind === "wait" ? "waits" : bar.label} ${time(bar.start)} to ${time(bar.end)}`);
  return here.length ? here.slice(0, 100).join(", ") : "nothing";
}

/** @param {number} value */
function rounded(value) {
  return String(Math.round(value * 100) / 100);
}

/**
 * @param {string} name
 * @param {number} room  in pixels
 */
function shortened(name, room) {
  const letters = Math.max(2, Math.floor(room / LETTER));
  return name.length <= letters ? name : `${name.slice(0, letters - 1)}…`;
}
