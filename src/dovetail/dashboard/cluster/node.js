/** A node's dialog: what is on each of its devices; an admin may drain and resume it. */

import { get, post } from "../api.js";
import { bytes, number, percent } from "../format.js";
import { Button, Dialog, Field, html, Note, Table, Tenant, typed, useLoaded, useState } from "../components.js";
import { may } from "../session.js";
import { STATES, usedOf } from "./live.js";

/** @typedef {import("./live.js").Node} Node */
/** @typedef {import("./live.js").Share} Share */

/** @param {{node: Node, me: import("../session.js").Me | null, onClose: () => void}} props */
export function NodeDialog({ node, me, onClose }) {
  const more = useLoaded(() => get(`/nodes/${encodeURIComponent(node.name)}`), [node.name]).value;
  const state = STATES[node.state];
  return html`<${Dialog} title=${`Node ${node.name}`} onClose=${onClose}>
    <dl class="facts">
      <dt>Type</dt><dd>${node.type}</dd>
      <dt>State</dt><dd data-test="node-state">${state}${node.reason ? `: ${node.reason}` : ""}</dd>
      <dt>In use</dt><dd>${number(node.used)} of ${node.devices.length} GPUs</dd>
      ${more?.cpus > 0 && html`<dt>CPUs</dt><dd>${number(more.cpus)}</dd>`}
      ${more?.memory > 0 && html`<dt>Memory</dt><dd>${bytes(more.memory)}</dd>`}
    </dl>
    <${Devices} devices=${node.devices} />
    ${may(me, "admin") && html`<${Service} node=${node} />`}
  <//>`;
}

/** @param {{devices: Share[][]}} props */
function Devices({ devices }) {
  const rows = devices.map((shares, index) => ({ id: index, shares }));
  return html`<${Table} caption="Devices of the node" columns=${COLUMNS} rows=${rows} />`;
}

/** @type {import("../components.js").Column<{id: number, shares: Share[]}>[]} */
const COLUMNS = [
  { title: "GPU", cell: (row) => row.id },
  { title: "In use", numeric: true, cell: (row) => percent(usedOf(row.shares)) },
  { title: "Job", cell: (row) => lines(row.shares, jobOf, "free") },
  { title: "Tenant", cell: (row) => lines(row.shares, tenantOf) },
  { title: "Share", numeric: true, cell: (row) => lines(row.shares, (share) => percent(share.milli / 1000)) },
];

/** @param {Share[]} shares @param {(share: Share) => any} cell @param {string} [none] */
function lines(shares, cell, none = "") {
  if (!shares.length) return html`<span class="muted">${none}</span>`;
  return shares.map((share) => html`<div>${cell(share)}</div>`);
}

/** @param {Share} share */
function jobOf({ job }) {
  if (job === null) return html`<span class="muted">job of another tenant</span>`;
  return html`<a href=${`#/jobs/${job}`} class="mono">${job}</a>`;
}

/** @param {Share} share */
function tenantOf({ tenant }) {
  return tenant === null ? html`<span class="muted">another tenant</span>` : html`<${Tenant} name=${tenant} />`;
}

/** Drain or resume. @param {{node: Node}} props */
function Service({ node }) {
  const [reason, setReason] = useState("");
  const [busy, setBusy] = useState(false);
  const [problem, setProblem] = useState("");
  /** @param {string} verb @param {object} [body] */
  const act = async (verb, body) => {
    setBusy(true);
    setProblem("");
    try {
      await post(`/nodes/${encodeURIComponent(node.name)}/${verb}`, body);
      setReason("");
    } catch (error) {
      setProblem(error instanceof Error ? error.message : String(error));
    }
    setBusy(false);
  };
  /** @param {Event} event */
  const drain = (event) => {
    event.preventDefault();
    if (!busy) act("drain", { reason });
  };
  return html`<div class="stack">
    ${problem && html`<${Note} kind="error">${problem}<//>`}
    ${node.state === "d"
      ? html`<div class="row"><${Button} kind="primary" busy=${busy} onClick=${() => act("resume")}>Resume<//>
          <span class="muted">The node accepts jobs again.</span></div>`
      : html`<form class="toolbar" onSubmit=${drain}>
          <${Field} label="Reason for draining">
            <input type="text" maxlength="500" value=${reason} onInput=${typed(setReason)} />
          <//>
          <${Button} kind="danger" type="submit" busy=${busy}>Drain<//>
          <span class="hint">Running jobs continue; no new job starts here.</span>
        </form>`}
  </div>`;
}
