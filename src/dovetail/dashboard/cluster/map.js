/**
 * Every node and device at a glance. A node is one button, its devices are cells in it. A node that did not
 * change keeps its vnode, so Preact does not compare it again: an update costs only the nodes that changed.
 * One node at a time is in the tab order, arrows move among them.
 */

import { number, percent } from "../format.js";
import { tenantColour } from "../colours.js";
import { Empty, html, useEffect, useMemo, useRef, useState } from "../components.js";
import { STATES, usedOf } from "./live.js";

/** @typedef {import("./live.js").Node} Node */
/** @typedef {import("./live.js").Share} Share */
/** @typedef {"large" | "medium" | "small"} Size */

const LARGE = 64; // nodes, up to which a cell has room for a letter
const MEDIUM = 320; // up to which a node has room for its name
const MOST_PARTS = 60; // racks that are shown separately
const REACHED = '.node[tabindex="0"]'; // the one that Tab leads to

/** @param {number} nodes @returns {Size} */
export function sizeFor(nodes) {
  return nodes <= LARGE ? "large" : nodes <= MEDIUM ? "medium" : "small";
}

/** "n17, A100, 6 of 8 in use". @param {Node} node */
export function spoken(node) {
  const state = node.state === "u" ? "" : `, ${STATES[node.state]}`;
  return `${node.name}, ${node.type}, ${number(node.used)} of ${node.devices.length} in use${state}`;
}

// --- one node ------------------------------------------------------------------------------------------

/** @type {Record<Size, WeakMap<Node, any>>} */
const drawn = { large: new WeakMap(), medium: new WeakMap(), small: new WeakMap() };

/** @param {Node} node @param {Size} size */
function drawnNode(node, size) {
  let found = drawn[size].get(node);
  if (!found) {
    found = draw(node, size);
    drawn[size].set(node, found);
  }
  return found;
}

/** @param {Node} node @param {Size} size */
function draw(node, size) {
  const count = node.devices.length;
  const columns = size === "small" ? (count > 4 ? 4 : count) : count > 4 ? 8 : count;
  return html`<button
    key=${node.name}
    type="button"
    tabindex="-1"
    class=${`node ${node.state}`}
    data-at=${node.index}
    aria-label=${spoken(node)}
    aria-haspopup="dialog"
  >
    ${size !== "small" && html`<span class="node-name"><b>${node.name}</b>${mark(node)}</span>`}
    ${size === "small" ? strip(node, columns)
      : html`<span class=${`cells c${columns}`}>${node.devices.map((shares, at) => cell(shares, at, size))}</span>`}
  </button>`;
}

// Of a thousand nodes the devices are painted, not elements of their own: a gradient for each row of cells.
const CELL = 6; // px
const STEP = 7; // from one cell to the next

/** @param {Node} node @param {number} columns */
function strip(node, columns) {
  const rows = Math.ceil(node.devices.length / columns);
  const images = [];
  const places = [];
  for (let row = 0; row < rows; row += 1) {
    const stops = node.devices.slice(row * columns, (row + 1) * columns).map((shares, at) => {
      const from = at * STEP;
      return `${tint(shares, node)} ${from}px ${from + CELL}px, transparent ${from + CELL}px ${from + STEP}px`;
    });
    images.push(`linear-gradient(90deg, ${stops.join(", ")})`);
    places.push(`0 ${row * STEP}px`);
  }
  const style = {
    width: `${columns * STEP - 1}px`,
    height: `${rows * STEP - 1}px`,
    backgroundImage: images.join(", "),
    backgroundPosition: places.join(", "),
  };
  return html`<span class="strip" style=${style}></span>`;
}

/** The colour of a device, paler the less of it is used. @param {Share[]} shares @param {Node} node */
function tint(shares, node) {
  if (!shares.length) return node.state === "u" ? "var(--line)" : "transparent";
  const { tenant } = shares[0];
  const colour = tenant === null ? "var(--muted)" : `var(--${tenantColour(tenant)})`;
  const used = usedOf(shares);
  return used < 1 ? `color-mix(in srgb, ${colour} ${Math.round(30 + 50 * used)}%, var(--surface))` : colour;
}

/** The text beside the name. CSS shows it, because the label already says it to screen readers. @param {Node} node */
function mark(node) {
  const text = node.state === "u" ? `${number(node.used, 1)}/${node.devices.length}` : STATES[node.state];
  return html`<i class=${node.state === "u" ? "" : "node-mark"} data-text=${text}></i>`;
}

/** @param {Share[]} shares @param {number} at @param {Size} size */
function cell(shares, at, size) {
  if (!shares.length) return html`<span class="cell free" data-device=${at}></span>`;
  const [first] = shares;
  const whole = shares.length === 1 && first.milli >= 1000;
  const letter = size === "large" ? letterOf(shares) : undefined;
  if (whole && first.tenant === null) return html`<span class="cell other" data-device=${at}></span>`;
  const colour = first.tenant === null ? "" : tenantColour(first.tenant);
  if (whole) return html`<span class=${`cell ${colour}`} data-device=${at} data-text=${letter}></span>`;
  return html`<span
    class=${`cell part ${colour} ${usedOf(shares) < 0.6 ? "low" : ""}`}
    style=${{ backgroundImage: layers(shares) }}
    data-device=${at}
    data-text=${letter}
  ></span>`;
}

/** A shared device is striped, and filled from below, each share as high as it is. @param {Share[]} shares */
function layers(shares) {
  let from = 0;
  const stops = shares.map(({ tenant, milli }) => {
    const colour = tenant === null ? "var(--muted)" : `var(--${tenantColour(tenant)})`;
    const to = Math.min(100, from + milli / 10);
    const stop = `${colour} ${from}% ${to}%`;
    from = to;
    return stop;
  });
  return `var(--stripes), linear-gradient(to top, ${stops.join(", ")}, transparent ${from}%)`;
}

/** The number of jobs on a shared device; else the first letter of the tenant. @param {Share[]} shares */
function letterOf(shares) {
  if (shares.length > 1) return String(shares.length);
  return (shares[0].tenant || "").slice(0, 1).toUpperCase();
}

// --- the map -------------------------------------------------------------------------------------------

/**
 * @param {object} props
 * @param {Node[]} props.nodes those to be shown, in the order of the map
 * @param {Size} props.size
 * @param {boolean} props.racks whether nodes with the same name prefix are grouped
 * @param {(node: Node) => void} props.onNode
 */
export function NodeMap({ nodes, size, racks, onNode }) {
  const box = useRef(/** @type {HTMLDivElement | null} */ (null));
  const point = useRef(/** @type {(at: Pointed | null) => void} */ (() => {}));
  const groups = useMemo(() => grouped(nodes, racks), [nodes, racks]);
  const byIndex = useRef(/** @type {Map<number, Node>} */ (new Map()));
  byIndex.current = useMemo(() => new Map(nodes.map((node) => [node.index, node])), [nodes]);
  useEffect(() => {
    const map = box.current;
    if (map && !map.querySelector(REACHED)) map.querySelector(".node")?.setAttribute("tabindex", "0");
  });

  /** @param {Event} event */
  const buttonOf = (event) => {
    const button = event.target instanceof Element ? event.target.closest(".node") : null;
    return button instanceof HTMLElement ? button : null;
  };
  /** @param {Event} event */
  const show = (event) => {
    const button = buttonOf(event);
    const node = button && byIndex.current.get(Number(button.dataset.at));
    if (!button || !node) return point.current(null);
    const over = event.type === "focusin" ? null : /** @type {Element} */ (event.target).closest(".cell");
    const device = over instanceof HTMLElement ? Number(over.dataset.device) : null;
    point.current({ index: node.index, device, box: button.getBoundingClientRect() });
  };
  /** @param {FocusEvent} event */
  const focus = (event) => {
    const button = buttonOf(event);
    if (!button) return;
    for (const other of box.current?.querySelectorAll(REACHED) || []) other.setAttribute("tabindex", "-1");
    button.setAttribute("tabindex", "0");
    if (button.matches(":focus-visible")) show(event);
  };
  /** @param {PointerEvent} event */
  const hover = (event) => {
    if (event.pointerType === "mouse") show(event);
  };
  const leave = () => point.current(null);
  /** @param {Event} event */
  const open = (event) => {
    const button = buttonOf(event);
    const node = button && byIndex.current.get(Number(button.dataset.at));
    leave();
    if (node) onNode(node);
  };
  /** @param {KeyboardEvent} event */
  const press = (event) => {
    if (event.key === "Escape") return leave();
    const button = buttonOf(event);
    const target = button && box.current && neighbour(box.current, button, event.key);
    if (!target) return;
    event.preventDefault();
    target.focus();
    target.scrollIntoView({ block: "nearest" });
  };

  if (!nodes.length) return html`<${Empty}>No node matches the filters.<//>`;
  return html`<div
    ref=${box}
    class=${`map ${size}`}
    onClick=${open}
    onKeyDown=${press}
    onfocusin=${focus}
    onfocusout=${leave}
    onPointerOver=${hover}
    onPointerLeave=${leave}
  >
    ${groups.map((group) => html`<${Group} key=${group.type} group=${group} size=${size} />`)}
    <${Tip} point=${point} nodes=${byIndex} />
  </div>`;
}

/** @param {{group: {type: string, parts: {prefix: string, nodes: Node[]}[]}, size: Size}} props */
function Group({ group, size }) {
  const { type, parts } = group;
  const all = parts.flatMap((part) => part.nodes);
  const gpus = all.reduce((sum, node) => sum + node.devices.length, 0);
  const used = all.reduce((sum, node) => sum + node.used, 0);
  const count = all.length === 1 ? "1 node" : `${number(all.length)} nodes`;
  const about = `${count} · ${number(used)} of ${number(gpus)} GPUs in use`;
  return html`<section class="map-group" aria-label=${`${type} nodes`}>
    <h3>${type}<span>${about}</span></h3>
    ${parts.map(({ prefix, nodes }) => html`<div class="map-part" key=${prefix}>
      ${prefix && html`<h4 title=${prefix}>${prefix}</h4>`}
      <div class="nodes" role="group" aria-label=${`${type} ${prefix}`.trim()}>
        ${nodes.map((node) => drawnNode(node, size))}
      </div>
    </div>`)}
  </section>`;
}

/**
 * Nodes by type and, where there are several, by the part of their names before the last number.
 * @param {Node[]} nodes
 * @param {boolean} racks
 */
export function grouped(nodes, racks) {
  /** @type {Map<string, Map<string, Node[]>>} */
  const types = new Map();
  for (const node of nodes) {
    const parts = types.get(node.type) || new Map();
    types.set(node.type, parts);
    const prefix = racks ? node.name.replace(/\d+$/, "") : "";
    const part = parts.get(prefix) || [];
    parts.set(prefix, part);
    part.push(node);
  }
  return [...types].map(([type, parts]) => {
    const count = [...parts.values()].reduce((sum, part) => sum + part.length, 0);
    const apart = parts.size > 1 && parts.size <= MOST_PARTS && 2 * parts.size <= count;
    const whole = [{ prefix: "", nodes: [...parts.values()].flat() }];
    return { type, parts: apart ? [...parts].map(([prefix, part]) => ({ prefix, nodes: part })) : whole };
  });
}

/**
 * Where an arrow leads from a node: along the row, or to the nearest one of the row above or below.
 * @param {HTMLElement} map
 * @param {HTMLElement} from
 * @param {string} key
 * @returns {HTMLElement | null}
 */
function neighbour(map, from, key) {
  const all = /** @type {HTMLElement[]} */ ([...map.querySelectorAll(".node")]);
  const at = all.indexOf(from);
  if (key === "ArrowRight") return all[at + 1] || null;
  if (key === "ArrowLeft") return all[at - 1] || null;
  if (key === "Home") return all[0];
  if (key === "End") return all[all.length - 1];
  if (key !== "ArrowDown" && key !== "ArrowUp") return null;
  const step = key === "ArrowDown" ? 1 : -1;
  const here = from.getBoundingClientRect();
  /** @type {HTMLElement | null} */
  let best = null;
  let row = NaN;
  let least = Infinity;
  for (let next = at + step; next >= 0 && next < all.length; next += step) {
    const box = all[next].getBoundingClientRect();
    if (Math.abs(box.top - here.top) < 2) continue;
    if (Number.isNaN(row)) row = box.top;
    if (Math.abs(box.top - row) > 2) break;
    const off = Math.abs(box.left - here.left);
    if (off < least) [best, least] = [all[next], off];
  }
  return best;
}

// --- what is under the pointer -------------------------------------------------------------------------

/** @typedef {{index: number, device: number | null, box: DOMRect}} Pointed */

/**
 * Kept apart from the map, so that moving the pointer draws nothing else. What it says is in the node's label
 * and in its dialog too; it is for the eye only.
 * @param {{point: {current: (at: Pointed | null) => void}, nodes: {current: Map<number, Node>}}} props
 */
function Tip({ point, nodes }) {
  const [at, setAt] = useState(/** @type {Pointed | null} */ (null));
  point.current = setAt;
  const node = at && nodes.current.get(at.index);
  if (!at || !node) return null;
  const low = at.box.bottom + 160 > innerHeight;
  const place = {
    left: `${Math.max(8, Math.min(at.box.left, innerWidth - 296))}px`,
    ...(low ? { bottom: `${innerHeight - at.box.top + 6}px` } : { top: `${at.box.bottom + 6}px` }),
  };
  const kind = node.state === "u" ? node.type : `${node.type}, ${STATES[node.state]}`;
  return html`<div class="tip" style=${place} aria-hidden="true">
    <div><b>${node.name}</b> <span class="muted">${kind}</span></div>
    ${node.reason && html`<div>${node.reason}</div>`}
    ${at.device === null ? html`<div>${number(node.used)} of ${node.devices.length} GPUs in use</div>` : html`
      <div class="muted">GPU ${at.device}, ${deviceState(node.devices[at.device])}</div>
      ${node.devices[at.device].map((share) => html`<div>${shareText(share)}</div>`)}`}
  </div>`;
}

/** @param {Share[]} shares */
export function deviceState(shares) {
  const used = usedOf(shares);
  return used === 0 ? "free" : used < 1 || shares.length > 1 ? `${percent(used)} in use` : "in use";
}

/** @param {Share} share */
function shareText({ job, tenant, milli }) {
  const part = milli >= 1000 ? "" : `, ${percent(milli / 1000)}`;
  return job === null ? `another tenant${part}` : `${job} (${tenant})${part}`;
}
