/**
 * The cluster, from the event stream of the plane. A node object is replaced only when the node changes, so
 * that components can tell by identity whether to draw it again.
 */

import { stream } from "../api.js";
import { learnTenants } from "../colours.js";
import { useEffect, useState } from "../components.js";

const WHOLE = 1000;

/**
 * @typedef {object} Share the share of a device that one job holds, or all jobs of other tenants
 * @property {string | null} job null: jobs of other tenants
 * @property {string | null} tenant
 * @property {number} milli
 */

/**
 * @typedef {object} Node
 * @property {number} index in the stream's list
 * @property {string} name
 * @property {string} type
 * @property {"u" | "d" | "l" | "o"} state
 * @property {string} reason
 * @property {Share[][]} devices
 * @property {number} used GPUs, in parts
 * @property {number} free devices without a job
 */

/**
 * @typedef {object} Cluster
 * @property {string} now
 * @property {string} policy
 * @property {string} policy_failure why another policy decides instead, as a sentence; "" if it does not
 * @property {string[]} types
 * @property {string[]} tenants
 * @property {Node[]} nodes
 * @property {number} waiting jobs
 * @property {number} running jobs
 * @property {number} asked GPUs that waiting jobs ask for
 */

export const STATES = { u: "up", d: "drained", l: "lost", o: "off" };

/** @param {any} raw @param {string[]} tenants @returns {Share[]} */
function sharesOf(raw, tenants) {
  if (raw === 0) return [];
  if (raw === 1) return [{ job: null, tenant: null, milli: WHOLE }];
  if (typeof raw === "string") {
    const at = raw.lastIndexOf(":");
    return [{ job: raw.slice(0, at), tenant: tenants[Number(raw.slice(at + 1))], milli: WHOLE }];
  }
  /** @type {[string | null, number, number][]} */
  const parts = raw;
  return parts.map(([job, milli, tenant]) => ({ job, milli, tenant: job === null ? null : tenants[tenant] }));
}

/**
 * @param {any} row
 * @param {number} index
 * @param {string[]} types
 * @param {string[]} tenants
 * @returns {Node}
 */
function nodeOf([name, type, state, reason, devices], index, types, tenants) {
  /** @type {Share[][]} */
  const read = devices.map((/** @type {any} */ raw) => sharesOf(raw, tenants));
  const used = read.reduce((sum, shares) => sum + usedOf(shares), 0);
  const free = read.filter((shares) => shares.length === 0).length;
  return { index, name, type: types[type], state, reason, devices: read, used, free };
}

/** The used share of a device, 0 to 1. @param {Share[]} shares */
export function usedOf(shares) {
  return Math.min(WHOLE, shares.reduce((sum, share) => sum + share.milli, 0)) / WHOLE;
}

/** The cluster of the first event. @param {any} said @returns {Cluster} */
export function clusterOf(said) {
  const { types, tenants } = said;
  /** @type {any[]} */
  const rows = said.nodes;
  learnTenants(tenants);
  return { ...said, nodes: rows.map((row, at) => nodeOf(row, at, types, tenants)) };
}

/** The cluster after a later event. @param {Cluster} old @param {any} said @returns {Cluster} */
export function changed(old, said) {
  const { nodes: rows, tenants: more, ...figures } = said;
  const tenants = more?.length ? [...old.tenants, ...more] : old.tenants;
  if (more?.length) learnTenants(more);
  const touched = Object.entries(rows || {});
  const nodes = touched.length ? [...old.nodes] : old.nodes;
  for (const [at, row] of touched) nodes[Number(at)] = nodeOf(row, Number(at), old.types, tenants);
  return { ...old, ...figures, tenants, nodes };
}

/**
 * The cluster, updated while the component is mounted.
 * @returns {{cluster: Cluster | null, live: boolean, problem: string}}
 */
export function useCluster() {
  const [cluster, setCluster] = useState(/** @type {Cluster | null} */ (null));
  const [link, setLink] = useState({ live: false, problem: "" });
  useEffect(() => {
    const opened = stream("/cluster/stream", null, {
      cluster: (said) => {
        setCluster(clusterOf(said));
        setLink({ live: true, problem: "" });
      },
      changes: (said) => setCluster((old) => old && changed(old, said)),
      closed: (problem) => setLink({ live: false, problem: problem?.message || "" }),
    });
    return () => opened.close();
  }, []);
  return { cluster, ...link };
}

// --- figures -------------------------------------------------------------------------------------------

/**
 * @typedef {object} Figures
 * @property {string} type
 * @property {number} nodes
 * @property {number} gpus
 * @property {number} used
 * @property {number} free whole devices of nodes in service
 * @property {number} broken free devices on nodes that are partly in use
 * @property {number} out free devices of nodes out of service
 * @property {number} largest gang that starts now on one node
 */

/**
 * The figures of each GPU type.
 * @param {Cluster} cluster
 * @returns {Figures[]}
 */
export function figures(cluster) {
  const none = { nodes: 0, gpus: 0, used: 0, free: 0, broken: 0, out: 0, largest: 0 };
  /** @type {Map<string, Figures>} */
  const found = new Map(cluster.types.map((type) => [type, { type, ...none }]));
  for (const node of cluster.nodes) {
    const of = /** @type {Figures} */ (found.get(node.type));
    of.nodes += 1;
    of.gpus += node.devices.length;
    of.used += node.used;
    if (node.state !== "u") {
      of.out += node.free;
      continue;
    }
    of.free += node.free;
    if (node.free < node.devices.length) of.broken += node.free;
    of.largest = Math.max(of.largest, node.free);
  }
  return [...found.values()].filter((of) => of.gpus > 0);
}

/**
 * The sum over all types.
 * @param {Figures[]} rows
 * @param {"nodes" | "gpus" | "used" | "free" | "broken" | "out"} what
 */
export function total(rows, what) {
  return rows.reduce((sum, row) => sum + row[what], 0);
}
