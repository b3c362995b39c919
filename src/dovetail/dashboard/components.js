/**
 * The components of the pages. Every control is a real button, link or input, and no information is given by
 * colour alone.
 * `html` is htm bound to Preact's `h`: html`<${Button} kind="primary" onClick=${save}>Save<//>`.
 */

import { cloneElement, h, toChildArray } from "preact";
import { useCallback, useEffect, useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";
import htm from "htm";
import { onceBack } from "./api.js";
import { tenantColour } from "./colours.js";
import { planeNow } from "./session.js";

/** @typedef {import("preact").ComponentChildren} Children */
/** @typedef {import("preact").VNode<any>} VNode */

/** @type {(strings: TemplateStringsArray, ...values: any[]) => any} */
const html = htm.bind(h);

export { html, useState, useEffect, useLayoutEffect, useMemo, useRef, useCallback };

let names = 0;

/** An id that no other element has, the same for the life of a component. */
export function useName() {
  return useState(() => `p${(names += 1)}`)[0];
}

// --- pages and cards -----------------------------------------------------------------------------------

let shown = 0; // pages so far: the first one leaves the focus where the browser put it

/**
 * The content of <main>: an <h1>, actions beside it, the rest below. Sets the title of the document, and
 * moves the focus to the heading on navigation, so that a screen reader announces the page.
 * @param {{title: string, actions?: Children, children?: Children}} props
 */
export function Page({ title, actions, children }) {
  const heading = useRef(/** @type {HTMLHeadingElement | null} */ (null));
  useEffect(() => {
    document.title = `${title} · Dovetail`;
  }, [title]);
  useEffect(() => {
    if (shown) heading.current?.focus({ preventScroll: true });
    if (shown) window.scrollTo(0, 0);
    shown += 1;
  }, []);
  return html`<header class="page-head">
      <h1 tabindex="-1" ref=${heading}>${title}</h1>
      ${actions && html`<div class="row">${actions}</div>`}
    </header>
    <div class="page-body">${children}</div>`;
}

/** @param {{title?: Children, actions?: Children, class?: string, children?: Children}} props */
export function Card({ title, actions, class: more = "", children }) {
  const name = useName();
  return html`<section class=${`card ${more}`} aria-labelledby=${title ? name : undefined}>
    ${(title || actions) && html`<header class="card-head">
      ${title && html`<h2 id=${name}>${title}</h2>`}
      ${actions && html`<div class="row">${actions}</div>`}
    </header>`}
    ${children}
  </section>`;
}

// --- tables --------------------------------------------------------------------------------------------

/**
 * @template T
 * @typedef {object} Column
 * @property {Children} title
 * @property {(row: T) => any} cell
 * @property {boolean} [numeric]
 * @property {"phone"} [hide]
 */

/**
 * Preact reserves `key`, so rows are identified by `rowKey`, or else by their id or name.
 * `onRow` is a convenience for the mouse: the row must hold a link or button that does the same.
 * @template T
 * @param {object} props
 * @param {Column<T>[]} props.columns
 * @param {T[]} props.rows
 * @param {(row: T) => string | number} [props.rowKey]
 * @param {(row: T) => void} [props.onRow]
 * @param {Children} [props.empty] text shown when there are no rows
 * @param {string} props.caption for screen readers
 */
export function Table({ columns, rows, rowKey, onRow, empty, caption }) {
  const box = useRef(/** @type {HTMLDivElement | null} */ (null));
  const [wide, setWide] = useState(false);
  useEffect(() => {
    const element = box.current;
    if (!element) return;
    const look = new ResizeObserver(() => setWide(element.scrollWidth > element.clientWidth + 1));
    look.observe(element);
    if (element.firstElementChild) look.observe(element.firstElementChild);
    return () => look.disconnect();
  }, [rows.length === 0]);
  if (!rows.length) return html`<${Empty}>${empty || "Nothing here."}<//>`;
  /** @param {Column<T>} column */
  const look = (column) => `${column.numeric ? "number" : ""} ${column.hide === "phone" ? "phone-hide" : ""}`;
  const scroll = wide ? { tabindex: 0, role: "region", "aria-label": caption } : {};
  /** @param {T} row @param {MouseEvent} event */
  const click = (row, event) => {
    const inner = event.target instanceof Element && event.target.closest("a, button, input, select, label");
    if (!inner && onRow) onRow(row);
  };
  return html`<div class="table" ref=${box} ...${scroll}>
    <table>
      <caption class="visually-hidden">${caption}</caption>
      <thead><tr>
        ${columns.map((column) => html`<th scope="col" class=${look(column)}>${column.title}</th>`)}
      </tr></thead>
      <tbody>
        ${rows.map((row, at) => html`<tr
          key=${rowKey ? rowKey(row) : nameOf(row, at)}
          class=${onRow ? "clickable" : ""}
          onClick=${onRow ? (/** @type {MouseEvent} */ event) => click(row, event) : undefined}
        >
          ${columns.map((column) => html`<td class=${look(column)}>${column.cell(row)}</td>`)}
        </tr>`)}
      </tbody>
    </table>
  </div>`;
}

/** @param {any} row @param {number} at */
function nameOf(row, at) {
  return row?.id ?? row?.name ?? at;
}

// --- controls ------------------------------------------------------------------------------------------

/**
 * @param {object} props
 * @param {(event: MouseEvent) => void} [props.onClick]
 * @param {"primary" | "plain" | "danger"} [props.kind]
 * @param {boolean} [props.busy] its action is still running
 * @param {boolean} [props.disabled]
 * @param {"button" | "submit"} [props.type]
 * @param {string} [props.label] for screen readers, if the content is only a symbol
 * @param {boolean} [props.pressed] for a button that is on or off
 * @param {Children} [props.children]
 */
export function Button(props) {
  const { onClick, kind = "plain", busy = false, disabled = false, type = "button", label, pressed } = props;
  return html`<button
    type=${type}
    class=${`button ${kind}`}
    disabled=${disabled}
    aria-disabled=${busy ? "true" : undefined}
    aria-busy=${busy ? "true" : undefined}
    aria-label=${label}
    aria-pressed=${pressed === undefined ? undefined : String(pressed)}
    onClick=${busy ? (/** @type {MouseEvent} */ event) => event.preventDefault() : onClick}
  >${props.children}</button>`;
}

/**
 * What was typed or chosen, for `onInput` and `onChange`: onInput=${typed(setName)}.
 * @param {(text: string) => void} change
 */
export function typed(change) {
  return (/** @type {{currentTarget: HTMLInputElement | HTMLSelectElement | HTMLTextAreaElement}} */ event) =>
    change(event.currentTarget.value);
}

/**
 * A label above a control, a hint and an error below, wired by id; the first child is the control.
 * @param {{label: Children, hint?: Children, error?: Children, children?: Children}} props
 */
export function Field({ label, hint, error, children }) {
  const name = useName();
  const [control, ...rest] = toChildArray(children);
  const said = [hint && `${name}h`, error && `${name}e`].filter(Boolean).join(" ") || undefined;
  const wired = typeof control === "object"
    ? cloneElement(/** @type {VNode} */ (control), {
        id: name, "aria-describedby": said, "aria-invalid": error ? "true" : undefined,
      })
    : control;
  return html`<div class="field">
    <label for=${name}>${label}</label>
    ${wired}${rest}
    ${hint && html`<p class="hint" id=${`${name}h`}>${hint}</p>`}
    ${error && html`<p class="field-error" id=${`${name}e`} role="alert">${error}</p>`}
  </div>`;
}

/**
 * @param {object} props
 * @param {string} props.label
 * @param {string} props.value
 * @param {[string, string][]} props.options value and label of each
 * @param {(value: string) => void} props.onChange
 * @param {boolean} [props.disabled]
 */
export function Select({ label, value, options, onChange, disabled }) {
  const name = useName();
  return html`<div class="field">
    <label for=${name}>${label}</label>
    <select id=${name} value=${value} disabled=${disabled} onChange=${typed(onChange)}>
      ${options.map(([key, text]) => html`
        <option key=${key} value=${key} selected=${key === value}>${text}</option>`)}
    </select>
  </div>`;
}

/**
 * @param {object} props
 * @param {string} props.label
 * @param {number} props.value
 * @param {number} props.min
 * @param {number} props.max
 * @param {number} [props.step]
 * @param {(value: number) => void} props.onChange
 * @param {(value: number) => string} [props.format]
 */
export function Slider({ label, value, min, max, step = 1, onChange, format = String }) {
  const name = useName();
  return html`<div class="field slider">
    <div class="slider-head">
      <label for=${name}>${label}</label>
      <output for=${name}>${format(value)}</output>
    </div>
    <input
      type="range"
      id=${name}
      min=${min}
      max=${max}
      step=${step}
      value=${value}
      aria-valuetext=${format(value)}
      onInput=${typed((text) => onChange(Number(text)))}
    />
  </div>`;
}

// --- words and figures ---------------------------------------------------------------------------------

/** A figure with what it is. @param {{label: Children, value: Children, note?: Children}} props */
export function Stat({ label, value, note }) {
  return html`<div class="stat">
    <div class="stat-label">${label}</div>
    <div class="stat-value">${value}</div>
    ${note && html`<div class="stat-note">${note}</div>`}
  </div>`;
}

/** A group of Stat. @param {{children?: Children}} props */
export function Stats({ children }) {
  return html`<div class="stats">${children}</div>`;
}

const RING = "M5 1.5a3.5 3.5 0 1 0 0 7a3.5 3.5 0 0 0 0-7Z";
const CROSS = "M2 2l6 6M8 2l-6 6";
/** @type {Record<string, [string, string, boolean]>} tone, shape, filled? */
const STATES = {
  pending: ["waits", RING, false],
  held: ["waits", "M3.2 1.5v7M6.8 1.5v7", false],
  running: ["runs", "M2 1l7 4l-7 4Z", true],
  stopping: ["warns", "M2 2h6v6h-6Z", true],
  completed: ["ended", "M1.5 5.5l2.5 2.5l4.5-6", false],
  failed: ["failed", CROSS, false],
  cancelled: ["quiet", "M1.5 5h7", false],
  timeout: ["failed", `${RING}M5 3v2l1.5 1`, false],
  "node-failed": ["failed", CROSS, false],
  "out-of-memory": ["failed", "M5 1l4 7.5h-8Z", true],
  refused: ["failed", `${RING}M2.6 7.4l4.8-4.8`, false],
};

/**
 * A job's state as a word with a shape.
 * @param {{state: string}} props
 */
export function State({ state }) {
  const [tone, path, filled] = STATES[state] || ["quiet", RING, false];
  return html`<span class=${`state ${tone}`} data-state=${state}>
    <svg viewBox="0 0 10 10" aria-hidden="true"><path d=${path} class=${filled ? "filled" : ""} /></svg>
    ${state}
  </span>`;
}

/** @param {{kind?: "info" | "error" | "ok", children?: Children}} props */
export function Note({ kind = "info", children }) {
  return html`<div class=${`note ${kind}`} role=${kind === "error" ? "alert" : "status"}>${children}</div>`;
}

/** @param {{children?: Children}} props */
export function Empty({ children }) {
  return html`<p class="empty">${children}</p>`;
}

/** @param {{what?: string}} props */
export function Loading({ what = "Loading" }) {
  return html`<p class="loading" role="status">
    <span class="spinner" aria-hidden="true"></span>${what}…
  </p>`;
}

// --- tenants -------------------------------------------------------------------------------------------

/** A tenant's name with its colour beside it. @param {{name: string}} props */
export function Tenant({ name }) {
  const swatch = html`<span class=${`swatch ${tenantColour(name)}`} aria-hidden="true"></span>`;
  return html`<span class="tenant">${swatch}${name}</span>`;
}

// --- dialog --------------------------------------------------------------------------------------------

/**
 * A <dialog> over the page: the focus stays inside, Esc and the backdrop close it, and the focus returns to
 * where it was.
 * @param {{title: Children, onClose: () => void, children?: Children}} props
 */
export function Dialog({ title, onClose, children }) {
  const box = useRef(/** @type {HTMLDialogElement | null} */ (null));
  const name = useName();
  useLayoutEffect(() => {
    const dialog = box.current;
    dialog?.showModal();
    return () => dialog?.close();
  }, []);
  /** @param {Event} event */
  const cancel = (event) => {
    event.preventDefault();
    onClose();
  };
  /** @param {MouseEvent} event */
  const click = (event) => {
    if (event.target === box.current) onClose();
  };
  return html`<dialog ref=${box} aria-labelledby=${name} onCancel=${cancel} onMouseDown=${click}>
    <div class="dialog">
      <header class="card-head">
        <h2 id=${name}>${title}</h2>
        <${Button} label="Close" onClick=${onClose}><span aria-hidden="true">✕</span><//>
      </header>
      ${children}
    </div>
  </dialog>`;
}

// --- hooks ---------------------------------------------------------------------------------------------

/**
 * The result of `load`, loaded again whenever `deps` change or `again()` is called. The old value stays until
 * the new one arrives; an answer that was overtaken by a later request is dropped. A request that the plane did
 * not answer is sent again once it answers.
 * @template T
 * @param {() => Promise<T>} load
 * @param {unknown[]} deps
 * @returns {{value: T | null, error: Error | null, loading: boolean, again: () => void}}
 */
export function useLoaded(load, deps) {
  /** @typedef {{value: T | null, error: Error | null, loading: boolean}} Result */
  const [result, setResult] = useState(/** @type {Result} */ ({ value: null, error: null, loading: true }));
  const turn = useRef(0);
  const latest = useRef(load);
  latest.current = load;
  const again = useCallback(async () => {
    const mine = (turn.current += 1);
    setResult((old) => ({ ...old, loading: true }));
    try {
      const value = await latest.current();
      if (mine === turn.current) setResult({ value, error: null, loading: false });
    } catch (thrown) {
      const error = thrown instanceof Error ? thrown : new Error(String(thrown));
      if (mine === turn.current) setResult((old) => ({ ...old, error, loading: false }));
      onceBack(error, () => mine === turn.current && again());
    }
  }, []);
  useEffect(() => {
    again();
    return () => void (turn.current += 1);
  }, deps);
  return { ...result, again };
}

/**
 * A clock that ticks, for ages: the plane's time in milliseconds.
 * @param {number} [ms]
 */
export function useNow(ms = 1000) {
  const [now, set] = useState(planeNow);
  useEffect(() => {
    const timer = setInterval(() => !document.hidden && set(planeNow()), ms);
    return () => clearInterval(timer);
  }, [ms]);
  return now;
}
