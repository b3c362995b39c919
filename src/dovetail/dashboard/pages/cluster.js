/** The cluster page: figures, every device, use over time. */

import { choose, useRoute } from "../app.js";
import { figures, total, useCluster } from "../cluster/live.js";
import { NodeMap, sizeFor } from "../cluster/map.js";
import { NodeDialog } from "../cluster/node.js";
import { PolicyDialog } from "../cluster/policy.js";
import { FairShares, History } from "../cluster/usage.js";
import { number, percent } from "../format.js";
import {
  Button, Card, html, Loading, Note, Page, Select, Stat, Stats, Tenant, useCallback, useMemo, useState,
} from "../components.js";
import { may, useSession } from "../session.js";

/** @typedef {import("../cluster/live.js").Cluster} Cluster */
/** @typedef {import("../cluster/live.js").Node} Node */
/** @typedef {{type: string, state: string, tenant: string, sort: string}} Filter */

const names = new Intl.Collator("en", { numeric: true }); // n2 before n10

export function ClusterPage() {
  const { me } = useSession();
  const { cluster, live, problem } = useCluster();
  const [changing, setChanging] = useState(false);
  const policy = cluster?.policy || me?.policy || "";
  const link = live ? "Live" : cluster ? "Reconnecting" : "Connecting";
  const actions = html`<span class=${`live ${live ? "on" : ""}`} role="status">${link}</span>
    <span>Policy <b data-test="policy">${policy}</b></span>
    ${may(me, "admin") && html`<${Button} onClick=${() => setChanging(true)}>Change policy<//>`}`;
  return html`<${Page} title="Cluster" actions=${actions}>
    ${problem && !live && html`<${Note} kind="error">${problem}<//>`}
    ${cluster?.policy_failure && html`<${Note} kind="error">${sentence(cluster.policy_failure)}<//>`}
    ${cluster ? html`<${Shown} cluster=${cluster} me=${me} />` : !problem && html`<${Loading} />`}
    ${changing && html`<${PolicyDialog} inForce=${policy} onClose=${() => setChanging(false)} />`}
  <//>`;
}

/** @param {string} text */
function sentence(text) {
  return `${text[0].toUpperCase()}${text.slice(1)}.`;
}

/** @param {{cluster: Cluster, me: import("../session.js").Me | null}} props */
function Shown({ cluster, me }) {
  const past = useMemo(() => html`<div><${History} /></div>`, []); // not drawn again when a node changes
  return html`<${Numbers} cluster=${cluster} />
    <${Nodes} cluster=${cluster} me=${me} />
    <div class="past">${past}<${FairShares} news=${cluster} /></div>`;
}

/** @param {{cluster: Cluster}} props */
function Numbers({ cluster }) {
  const rows = useMemo(() => figures(cluster), [cluster.nodes]);
  const gpus = total(rows, "gpus");
  const used = total(rows, "used");
  const free = total(rows, "free");
  const broken = total(rows, "broken");
  const largest = Math.max(0, ...rows.map((row) => row.largest));
  const gangs = rows.map((row) => `${row.type} ${row.largest}`).join(" · ");
  /** @type {[string, string, string?][]} */
  const shown = [
    ["GPUs in use", number(used), `of ${number(gpus)}, ${percent(gpus ? used / gpus : 0)}`],
    ["Free GPUs", number(free), `${number(free - broken)} on empty nodes`],
    ["Out of service", number(total(rows, "out")), "drained, lost or off"],
    ["Jobs running", number(cluster.running)],
    ["Jobs waiting", number(cluster.waiting), `asking for ${number(cluster.asked)} GPUs`],
    ["Fragmentation", percent(free ? broken / free : 0), "of free GPUs are on partly used nodes"],
    ["Largest gang now", number(largest), `on one node: ${gangs}`],
  ];
  return html`<${Stats}>
    ${shown.map(([label, value, note]) => html`<${Stat} label=${label} value=${value} note=${note} />`)}
  <//>`;
}

// --- the map and its filters ---------------------------------------------------------------------------

/** @typedef {[string, string][]} Choices */

/** @type {Choices} */
const SORTS = [["", "Name"], ["most", "Most used first"], ["least", "Least used first"]];
/** @type {Choices} */
const STATES = [
  ["", "All"],
  ["up", "Up"],
  ["room", "With free GPUs"],
  ["idle", "Empty"],
  ["out", "Drained, lost or off"],
];

const FILTERS = ["type", "state", "tenant", "sort"];

/** @type {Record<string, (node: Node) => boolean>} */
const FITS = {
  "": () => true,
  up: (node) => node.state === "u",
  room: (node) => node.state === "u" && node.free > 0,
  idle: (node) => node.state === "u" && node.free === node.devices.length,
  out: (node) => node.state !== "u",
};

/** @param {{cluster: Cluster, me: import("../session.js").Me | null}} props */
function Nodes({ cluster, me }) {
  const { query } = useRoute();
  const [open, setOpen] = useState(/** @type {string | null} */ (null));
  const [type, state, tenant, sort] = FILTERS.map((name) => query.get(name) || "");
  const filter = { type, state, tenant, sort };
  const nodes = useMemo(() => chosen(cluster.nodes, filter), [cluster.nodes, type, state, tenant, sort]);
  const onNode = useCallback((/** @type {Node} */ node) => setOpen(node.name), []);
  const shown = open === null ? undefined : cluster.nodes.find((node) => node.name === open);
  const every = number(cluster.nodes.length);
  const count = nodes.length === cluster.nodes.length ? every : `${number(nodes.length)} of ${every}`;
  /** @param {string} label @param {keyof Filter} name @param {Choices} options */
  const choice = (label, name, options) => html`<${Select}
    label=${label}
    value=${filter[name]}
    options=${options}
    onChange=${(/** @type {string} */ value) => choose({ [name]: value })}
  />`;
  const tenants = [...cluster.tenants].sort(names.compare);
  const tools = html`<div class="toolbar">
    ${(cluster.types.length > 1 || type) && choice("Type", "type", all(cluster.types, type))}
    ${choice("State", "state", STATES)}
    ${(tenants.length > 1 || tenant) && choice("Tenant", "tenant", all(tenants, tenant))}
    ${choice("Order", "sort", SORTS)}
  </div>`;
  return html`<${Card} title=${`Nodes (${count})`} actions=${tools}>
    <${NodeMap} nodes=${nodes} size=${sizeFor(cluster.nodes.length)} racks=${!filter.sort} onNode=${onNode} />
    <${Key} cluster=${cluster} />
    ${shown && html`<${NodeDialog} node=${shown} me=${me} onClose=${() => setOpen(null)} />`}
  <//>`;
}

/**
 * All, or one of these; what is chosen is among them, even if there is none of it now.
 * @param {string[]} names
 * @param {string} chosen
 * @returns {Choices}
 */
function all(names, chosen) {
  const known = chosen && !names.includes(chosen) ? [...names, chosen] : names;
  return [["", "All"], ...known.map((name) => /** @type {[string, string]} */ ([name, name]))];
}

/** @param {Node[]} nodes @param {Filter} filter */
function chosen(nodes, { type, state, tenant, sort }) {
  const fits = FITS[state] || FITS[""];
  const found = nodes.filter(
    (node) => fits(node) && (!type || node.type === type) && (!tenant || holds(node, tenant)),
  );
  const way = sort === "most" ? -1 : sort === "least" ? 1 : 0;
  /** @param {Node} node */
  const use = (node) => node.used / Math.max(1, node.devices.length);
  return found.sort((a, b) => way * (use(a) - use(b)) || names.compare(a.name, b.name));
}

/** @param {Node} node @param {string} tenant */
function holds(node, tenant) {
  return node.devices.some((shares) => shares.some((share) => share.tenant === tenant));
}

/** @param {Node} node */
function hasOthers(node) {
  return node.devices.some((shares) => shares.some((share) => share.job === null));
}

/** What the colours and frames mean. @param {{cluster: Cluster}} props */
function Key({ cluster }) {
  const others = useMemo(() => cluster.nodes.some(hasOthers), [cluster.nodes]);
  return html`<ul class="key">
    ${cluster.tenants.map((name) => html`<li key=${name}><${Tenant} name=${name} /></li>`)}
    ${others && html`<li><span class="cell other"></span>other tenants</li>`}
    <li><span class="cell free"></span>free</li>
    <li><span class="cell part half"></span>shared; the fill is the share in use</li>
    <li><span class="node d"><span class="cell free"></span></span>drained</li>
    <li><span class="node l"><span class="cell free"></span></span>lost</li>
  </ul>`;
}
