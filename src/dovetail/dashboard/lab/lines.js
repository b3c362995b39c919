/**
 * Lines over numbers: shares of jobs by completion time, a frontier. chart.js draws values
 * over dates; here both axes are plain numbers, the x axis may be logarithmic, and lines also differ by
 * dashes.
 */

import { ticks, useWidth } from "../gantt.js";
import { html } from "../components.js";

/**
 * @typedef {object} Line
 * @property {string} label
 * @property {[number, number][]} points
 * @property {number} [colour]     one of --t0 … --t11
 * @property {boolean} [step]      it keeps its value until the next point
 * @property {boolean} [dots]
 */
/**
 * @typedef {object} Axis
 * @property {string} label
 * @property {(value: number) => string} [write]
 * @property {number} [min]
 * @property {number} [max]
 * @property {boolean} [log]
 * @property {boolean} [clock]     seconds: ticks at round minutes, hours and days
 * @property {boolean} [whole]     only whole numbers are written
 */

const DASHES = ["", "7 3", "2 3", "9 3 2 3", "12 4", "4 2 1 2"];
const LEFT = 64;
const BELOW = 40;
const ABOVE = 10;

/**
 * @param {object} props
 * @param {string} props.title
 * @param {Line[]} props.lines
 * @param {Axis} props.x
 * @param {Axis} props.y
 * @param {{x: number, y: number, label: string} | null} [props.mark]   one point to look at
 * @param {number} [props.height]
 * @param {string} props.text      the same for screen readers
 */
export function Lines({ title, lines, x, y, mark = null, height = 260, text }) {
  const [ref, width] = useWidth(600);
  const across = scale(x, lines.flatMap((line) => line.points.map((point) => point[0])), LEFT, width - 14);
  const up = scale(y, lines.flatMap((line) => line.points.map((point) => point[1])), height - BELOW, ABOVE);
  const write = { x: x.write ?? String, y: y.write ?? String };
  return html`<figure class="lines" ref=${ref}>
    <svg width=${width} height=${height} role="img" aria-label=${`${title}. ${text}`}>
      ${up.ticks(4).map(
        (at) => html`<g class="tick">
          <line x1=${LEFT} x2=${width - 14} y1=${up.at(at)} y2=${up.at(at)} />
          <text x=${LEFT - 8} y=${up.at(at)} text-anchor="end"
            dominant-baseline="central">${write.y(at)}</text>
        </g>`,
      )}
      ${across.ticks(Math.max(2, Math.floor((width - LEFT) / 76))).map(
        (at, i, all) => html`<g class="tick">
          <line x1=${across.at(at)} x2=${across.at(at)} y1=${ABOVE} y2=${height - BELOW} />
          <text x=${across.at(at)} y=${height - BELOW + 16}
            text-anchor=${i === all.length - 1 && across.at(at) > width - 40 ? "end" : "middle"}>
            ${write.x(at)}
          </text>
        </g>`,
      )}
      <text class="axis" x=${(LEFT + width) / 2} y=${height - 5} text-anchor="middle">${x.label}</text>
      <text class="axis" x=${-(height - BELOW) / 2} y="13" text-anchor="middle"
        transform="rotate(-90)">${y.label}</text>
      ${lines.map(
        (line, i) => html`<g class="line" style=${{ "--bar": `var(--t${(line.colour ?? i) % 12})` }}>
          <path d=${path(line, across.at, up.at)} stroke-dasharray=${DASHES[i % DASHES.length]} />
          ${line.dots && line.points.map((point) =>
            html`<circle cx=${across.at(point[0])} cy=${up.at(point[1])} r="3" />`)}
        </g>`,
      )}
      ${mark &&
      html`<g class="mark">
        <circle cx=${across.at(mark.x)} cy=${up.at(mark.y)} r="8" />
        <text x=${across.at(mark.x) + (across.at(mark.x) > width / 2 ? -14 : 14)}
          y=${up.at(mark.y) + (up.at(mark.y) < 30 ? 18 : -14)}
          text-anchor=${across.at(mark.x) > width / 2 ? "end" : "start"}>${mark.label}</text>
      </g>`}
    </svg>
    ${lines.length > 1 &&
    html`<ul class="lab-legend">
      ${lines.map(
        (line, i) => html`<li style=${{ "--bar": `var(--t${(line.colour ?? i) % 12})` }}>
          <svg width="26" height="10" aria-hidden="true"><line x1="1" x2="25" y1="5" y2="5"
            stroke-dasharray=${DASHES[i % DASHES.length]} /></svg>
          ${line.label}
        </li>`,
      )}
    </ul>`}
  </figure>`;
}

/**
 * @param {Axis} axis
 * @param {number[]} values
 * @param {number} from  pixels of the least
 * @param {number} to    pixels of the most
 */
function scale(axis, values, from, to) {
  const seen = axis.log ? values.filter((value) => value > 0) : values;
  const low = axis.min ?? (seen.length ? Math.min(...seen) : 0);
  const high = Math.max(axis.max ?? (seen.length ? Math.max(...seen) : 1), low * 1.0001 + 1e-9);
  const turn = (/** @type {number} */ value) => (axis.log ? Math.log10(Math.max(value, low)) : value);
  const [bottom, top] = [turn(low), turn(high)];
  return {
    at: (/** @type {number} */ value) => from + ((to - from) * (turn(value) - bottom)) / (top - bottom),
    ticks: (/** @type {number} */ most) => {
      const all = axis.log ? decades(low, high, most) : between(low, high, most, axis);
      return axis.whole ? all.filter(Number.isInteger) : all;
    },
  };
}

const [MINUTE, HOUR, DAY] = [60, 3_600, 86_400];
// Steps that are round on the clock; beyond them, tens of days are as good as any.
const STEPS = [
  ...[1, 2, 5, 10, 30].map((n) => n * MINUTE),
  ...[1, 2, 6, 12].map((n) => n * HOUR),
  ...[1, 2, 5, 10, 20, 50].map((n) => n * DAY),
];

/**
 * @param {number} low
 * @param {number} high
 * @param {number} most
 * @param {Axis} axis
 */
function between(low, high, most, { clock }) {
  const width = ticks(high - low, most);
  const rough = width.length > 1 ? width[1] : high - low || 1;
  const step = clock && rough >= 30 ? STEPS.find((one) => one >= (high - low) / most) ?? rough : rough;
  const first = Math.ceil(low / step - 1e-9) * step;
  return Array.from({ length: Math.floor((high - first) / step + 1e-9) + 1 }, (_, i) =>
    Number((first + i * step).toPrecision(12)));
}

// Powers of ten are not round times; these are.
const ROUND = [1, 10, MINUTE, 10 * MINUTE, HOUR, 6 * HOUR, DAY, 7 * DAY, 28 * DAY, 280 * DAY];

/**
 * @param {number} low
 * @param {number} high
 * @param {number} most
 */
function decades(low, high, most) {
  const inside = ROUND.filter((value) => value >= low * 0.999 && value <= high * 1.001);
  const every = Math.ceil(inside.length / most);
  return inside.length ? inside.filter((_, i) => i % every === 0) : [low, high];
}

/**
 * @param {Line} line
 * @param {(value: number) => number} x
 * @param {(value: number) => number} y
 */
function path(line, x, y) {
  let drawn = "";
  for (const [i, [px, py]] of line.points.entries()) {
    const [cx, cy] = [x(px).toFixed(1), y(py).toFixed(1)];
    drawn += i === 0 ? `M${cx} ${cy}` : line.step ? `H${cx}V${cy}` : `L${cx} ${cy}`;
  }
  return drawn;
}
