/** Lines, steps and stacks over time, drawn by uPlot (loaded with the first chart), and as a table. */

import { planeBack } from "./api.js";
import { duration, number, when } from "./format.js";
import { Empty, html, useEffect, useLayoutEffect, useMemo, useRef, useState } from "./components.js";

const MOST_ROWS = 48; // of the table
const EPOCH = 1e8; // a first moment above this is a date (seconds since 1970), below it a span

/**
 * @typedef {object} Series
 * @property {string} label
 * @property {(number | null)[]} values
 * @property {string} [colour] a class such as "t3", a custom property such as "--accent", or any CSS colour
 * @property {boolean} [fill]
 * @property {boolean} [stacked] on top of the stacked series before it
 * @property {boolean} [dashed]
 */

/**
 * @param {object} props
 * @param {string} props.title
 * @param {number[]} props.times seconds: since 1970, or since a beginning (or any number, with x="number")
 * @param {Series[]} props.series
 * @param {string} [props.unit] such as GPUs
 * @param {number} [props.height] in pixels
 * @param {boolean} [props.step] a value holds until the next moment
 * @param {"date" | "span" | "number"} [props.x] what `times` are, where it cannot be seen from them
 */
export function Chart({ title, times, series, unit = "", height = 200, step = false, x }) {
  const box = useRef(/** @type {HTMLDivElement | null} */ (null));
  const plot = useRef(/** @type {any} */ (null));
  const [at, setAt] = useState(/** @type {number | null} */ (null));
  const theme = useTheme();
  const axis = x || (times.length && times[0] > EPOCH ? "date" : "span");
  const data = useMemo(() => [times, ...stacked(series)], [times, series]);
  const shape = JSON.stringify([theme, axis, step, unit, height, series.map(({ values, ...rest }) => rest)]);
  const empty = times.length === 0 || series.length === 0;
  const latest = useRef(data);
  latest.current = data;

  useEffect(() => {
    const element = box.current;
    if (empty || !element) return;
    let gone = false;
    /** @type {ResizeObserver | null} */
    let look = null;
    plotter().then((uPlot) => {
      if (gone) return;
      const size = { width: Math.max(element.clientWidth, 100), height };
      const made = options(uPlot, { series, axis, step, ...size }, element, setAt);
      const drawn = new uPlot(made, /** @type {any} */ (latest.current), element);
      plot.current = drawn;
      look = new ResizeObserver(() => {
        const width = Math.max(element.clientWidth, 100);
        if (width !== drawn.width) drawn.setSize({ width, height });
      });
      look.observe(element);
    });
    return () => {
      gone = true;
      look?.disconnect();
      plot.current?.destroy();
      plot.current = null;
    };
  }, [shape, empty]);

  useLayoutEffect(() => {
    if (plot.current && plot.current.series.length === data.length) plot.current.setData(data);
  }, [data]);

  if (empty) return html`<${Empty}>Nothing to draw yet.<//>`;
  const shown = at !== null && at < times.length ? at : null;
  const time = shown === null ? unit : moment(times[shown], axis);
  return html`<figure class="chart">
    <div class="plot" ref=${box} style=${{ height: `${height}px` }} aria-hidden="true"></div>
    <${Legend} series=${series} at=${shown} note=${time} />
    <${Figures} title=${title} times=${times} series=${series} unit=${unit} axis=${axis} />
  </figure>`;
}

/** @param {number} time @param {string} axis */
function moment(time, axis) {
  return axis === "date" ? when(1000 * time) : axis === "span" ? duration(time) : number(time);
}

/** @param {{series: Series[], at: number | null, note: string}} props */
function Legend({ series, at, note }) {
  return html`<ul class="legend" aria-hidden="true">
    ${series.map(({ label, colour, dashed, values }) => html`<li key=${label}>
      <span class=${`swatch ${dashed ? "dashed" : ""}`} style=${{ "--own": paint(colour) }}></span>${label}
      ${at !== null && html`<span class="number">${number(values[at])}</span>`}
    </li>`)}
    <li class="muted">${note}</li>
  </ul>`;
}

/** @param {{title: string, times: number[], series: Series[], unit: string, axis: string}} props */
function Figures({ title, times, series, unit, axis }) {
  const every = Math.max(1, Math.ceil(times.length / MOST_ROWS));
  const kept = times.map((_, at) => at).filter((at) => at % every === 0 || at === times.length - 1);
  return html`<div class="visually-hidden"><table>
    <caption>${title}${unit && `, in ${unit}`}</caption>
    <thead><tr>
      <th scope="col">${axis === "number" ? "at" : "time"}</th>
      ${series.map((one) => html`<th scope="col">${one.label}</th>`)}
    </tr></thead>
    <tbody>
      ${kept.map((at) => html`<tr key=${at}>
        <th scope="row">${moment(times[at], axis)}</th>
        ${series.map((one) => html`<td>${number(one.values[at])}</td>`)}
      </tr>`)}
    </tbody>
  </table></div>`;
}

/**
 * The values as they are drawn: a stacked series on top of those before it.
 * @param {Series[]} series
 */
function stacked(series) {
  /** @type {number[]} */
  let below = [];
  return series.map(({ values, stacked: onTop }) => {
    if (!onTop) return values;
    below = values.map((value, at) => (below[at] || 0) + (value || 0));
    return below;
  });
}

/**
 * uPlot, which is asked for under another address if it could not be loaded: a browser does not ask twice for a
 * module that it did not get.
 */
async function plotter() {
  for (let tries = 0; ; tries += 1) {
    try {
      return (await import(tries ? `/page/vendor/uPlot.esm.js?again=${tries}` : "uplot")).default;
    } catch {
      await planeBack();
    }
  }
}

// --- uPlot ---------------------------------------------------------------------------------------------

/** @param {string | undefined} colour */
function paint(colour) {
  if (!colour) return "var(--accent)";
  if (/^t\d+$/.test(colour)) return `var(--${colour})`;
  return colour.startsWith("--") ? `var(${colour})` : colour;
}

/**
 * What a colour of the theme is in numbers, since a canvas knows no custom properties.
 * @param {HTMLElement} element
 * @param {string} colour
 * @param {number} [opacity]
 */
function resolved(element, colour, opacity = 1) {
  const probe = document.createElement("span");
  probe.style.color = opacity < 1 ? `color-mix(in srgb, ${colour} ${100 * opacity}%, transparent)` : colour;
  element.append(probe);
  const found = getComputedStyle(probe).color;
  probe.remove();
  return found;
}

/**
 * @param {any} uPlot
 * @param {{series: Series[], axis: string, step: boolean, width: number, height: number}} what
 * @param {HTMLElement} element
 * @param {(at: number | null) => void} onCursor
 * @returns {any}
 */
function options(uPlot, { series, axis, step, width, height }, element, onCursor) {
  const muted = resolved(element, "var(--muted)");
  const line = resolved(element, "var(--line)");
  const font = `11px ${getComputedStyle(element).fontFamily}`;
  const paths = step ? uPlot.paths.stepped({ align: 1 }) : undefined;
  const side = { stroke: muted, font, grid: { stroke: line, width: 1 }, ticks: { show: false } };
  /** @type {(_: any, values: number[]) => string[]} */
  const spans = (_, values) => values.map((value) => moment(value, axis));
  /** @type {(_: any, values: number[]) => string[]} */
  const numbers = (_, values) => values.map((value) => number(value));
  /** @type {(_: any, low: number, high: number) => [number, number]} */
  const range = (_, low, high) => [Math.min(0, low || 0), high > 0 ? 1.08 * high : 1];
  /** @type {{series: [number, number]}[]} */
  const bands = [];
  let below = 0;
  series.forEach((one, at) => {
    if (!one.stacked) return;
    if (below) bands.push({ series: [at + 1, below] });
    below = at + 1;
  });
  return {
    width,
    height,
    legend: { show: false },
    padding: [8, axis === "date" ? 28 : 8, 0, 0], // half of the last label, such as 14:05:30
    cursor: { y: false, drag: { x: false, y: false }, points: { size: 6 } },
    scales: {
      x: { time: axis === "date" },
      y: { range },
    },
    axes: [
      { ...side, grid: { show: false }, size: labelHeight, values: axis === "date" ? DATES : spans },
      { ...side, size: 44, values: numbers },
    ],
    series: [
      {},
      ...series.map(({ label, colour, fill, stacked: onTop, dashed }) => ({
        label,
        stroke: resolved(element, paint(colour)),
        fill: fill || onTop ? resolved(element, paint(colour), onTop ? 0.7 : 0.18) : undefined,
        width: onTop ? 1 : 1.75,
        dash: dashed ? [5, 4] : undefined,
        points: { show: false },
        paths,
      })),
    ],
    bands,
    hooks: { setCursor: [(/** @type {any} */ drawn) => onCursor(drawn.cursor.idx ?? null)] },
  };
}

/** A label may have its date on a second line. @param {any} _ @param {string[] | null} labels */
function labelHeight(_, labels) {
  return labels?.some((label) => label?.includes("\n")) ? 44 : 28;
}

// Hours and minutes as a clock on the wall shows them, days with their month.
const DATES = [
  [31_536_000, "{YYYY}", null, null, null, null, null, null, 1],
  [2_419_200, "{MMM}", "\n{YYYY}", null, null, null, null, null, 1],
  [86_400, "{D} {MMM}", null, null, null, null, null, null, 1],
  [3_600, "{HH}:{mm}", "\n{D} {MMM}", null, "\n{D} {MMM}", null, null, null, 1],
  [60, "{HH}:{mm}", null, null, null, null, null, null, 1],
  [1, "{HH}:{mm}:{ss}", null, null, null, null, null, null, 1],
];

/** Changes whenever colours do: the system turned dark, or the switch was used. */
function useTheme() {
  const [turn, setTurn] = useState(0);
  useEffect(() => {
    const tell = () => setTurn((old) => old + 1);
    const dark = matchMedia("(prefers-color-scheme: dark)");
    const look = new MutationObserver(tell);
    look.observe(document.documentElement, { attributes: true, attributeFilter: ["data-theme"] });
    dark.addEventListener("change", tell);
    return () => {
      look.disconnect();
      dark.removeEventListener("change", tell);
    };
  }, []);
  return turn;
}
