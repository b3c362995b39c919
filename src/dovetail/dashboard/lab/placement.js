/** Placement calculator: how much of a step goes into sending gradients, by the link between the GPUs. */

import { number } from "../format.js";
import { Card, Field, Select, Slider, html } from "../components.js";
import { Bar } from "./bars.js";
import { NumberInput } from "./inputs.js";
import { numberIn, share, useAnswer, useSetup } from "./setup.js";
import { Pending, Tool, Trouble } from "./tool.js";

/**
 * @typedef {object} Setup
 * @property {number} compute     ms
 * @property {number} size        GB
 * @property {"one_way" | "ring"} pattern
 * @property {number} gpus        in the ring
 * @property {Record<string, number>} links     GB/s
 */

/** @type {Record<string, number>} GB/s */
const LINKS = { NVLink: 600, InfiniBand: 25, Ethernet: 10 };

/** @type {Setup} */
const DEFAULT = { compute: 100, size: 1, pattern: "one_way", gpus: 4, links: LINKS };

/**
 * @param {URLSearchParams} query
 * @returns {Setup}
 */
function read(query) {
  const usual = Object.entries(LINKS);
  const links = usual.map(([name, speed]) => [name, numberIn(query.get(name), speed, 0.01, 100_000)]);
  return {
    compute: numberIn(query.get("compute"), DEFAULT.compute, 0, 10_000),
    size: numberIn(query.get("size"), DEFAULT.size, 0, 1000),
    pattern: query.get("pattern") === "ring" ? "ring" : "one_way",
    gpus: Math.round(numberIn(query.get("gpus"), DEFAULT.gpus, 2, 1024)),
    links: Object.fromEntries(links),
  };
}

/**
 * @param {Setup} setup
 * @returns {Record<string, string>}
 */
function write({ compute, size, pattern, gpus, links }) {
  const changed = Object.entries(links).filter(([name, speed]) => speed !== LINKS[name]);
  return {
    compute: String(compute),
    size: String(size),
    pattern,
    ...(pattern === "ring" ? { gpus: String(gpus) } : {}),
    ...Object.fromEntries(changed.map(([name, speed]) => [name, String(speed)])),
  };
}

/** The tool. */
export function Placement() {
  const [setup, change] = useSetup("placement", read, write);
  const answer = useAnswer("/lab/placement", {
    compute_ms: setup.compute,
    size_gb: setup.size,
    gpus: setup.gpus,
    pattern: setup.pattern,
    links: setup.links,
  });
  return html`<${Tool}
    title="Placement calculator"
    about="In each step, the GPUs of a job compute and then send each other their gradients: over NVLink
      within a node, over InfiniBand or Ethernet between nodes. Whether a job should stay on one node
      depends on its compute time and on the size of its gradients."
    setup=${setup} onTry=${change}
    trials=${[
      {
        label: "100 ms, 1 GB",
        notice:
          "The same step takes 101.7 ms over NVLink and 200 ms over Ethernet: over Ethernet " +
          "the GPUs are idle half of the time.",
        setup: { ...DEFAULT, compute: 100, size: 1 },
      },
      {
        label: "500 ms, 0.5 GB",
        notice:
          "Much computing, little to send: Ethernet costs a tenth. Such a job may be spread over " +
          "nodes.",
        setup: { ...DEFAULT, compute: 500, size: 0.5 },
      },
      {
        label: "200 ms, 0.5 GB",
        notice: "Over Ethernet it is about a quarter slower than over NVLink: a short wait for one node is worth it.",
        setup: { ...DEFAULT, compute: 200, size: 0.5 },
      },
      {
        label: "A ring of 4",
        notice:
          "A real all-reduce sends 2(n-1)/n times the gradients: 1.5 times for 4 GPUs, almost " +
          "twice for very many.",
        setup: { ...DEFAULT, compute: 100, size: 1, pattern: "ring", gpus: 4 },
      },
    ]}
  >
    <div class="lab-split">
      <${Card} title="One step of training">
        <div class="lab-form">
          <${Slider} label="Compute time" value=${setup.compute} min=${0} max=${1000} step=${5}
            format=${(/** @type {number} */ v) => `${number(v)} ms`}
            onChange=${(/** @type {number} */ compute) => change({ compute })} />
          <${Slider} label="Gradients to send" value=${setup.size} min=${0} max=${10} step=${0.1}
            format=${(/** @type {number} */ v) => `${number(v)} GB`}
            onChange=${(/** @type {number} */ size) => change({ size })} />
          <${Select} label="How they are sent" value=${setup.pattern}
            options=${[["one_way", "one way: all gradients once"], ["ring", "ring all-reduce"]]}
            onChange=${(/** @type {"one_way" | "ring"} */ pattern) => change({ pattern })} />
          ${setup.pattern === "ring" &&
          html`<${Slider} label="GPUs in the ring" value=${setup.gpus} min=${2} max=${64} step=${1}
            onChange=${(/** @type {number} */ gpus) => change({ gpus })} />`}
          <details class="lab-details">
            <summary>Speeds of the links</summary>
            <div class="row">
              ${Object.entries(setup.links).map(
                ([name, speed]) => html`<${Field} key=${name} label=${`${name}, GB/s`}>
                  <${NumberInput} label=${`${name}, GB/s`} value=${speed} min=${0.01} max=${100000}
                    onChange=${(/** @type {number} */ value) =>
                      change({ links: { ...setup.links, [name]: value } })} />
                <//>`,
              )}
            </div>
          </details>
        </div>
      <//>
      <div class="stack">
        <${Trouble} error=${answer.error} />
        <${Card} title="How long the step takes">
          ${answer.value && html`<${Steps} links=${answer.value.links}
            compute=${/** @type {any} */ (answer.of).compute_ms} />`}
          <${Pending} busy=${answer.loading} />
        <//>
      </div>
    </div>
  <//>`;
}

/**
 * @typedef {object} Link
 * @property {string} name
 * @property {number} bandwidth
 * @property {number} transfer_ms
 * @property {number} step_ms
 * @property {number} slowdown     1 for the fastest
 */

/**
 * @param {object} props
 * @param {Link[]} props.links
 * @param {number} props.compute
 */
function Steps({ links, compute }) {
  const most = Math.max(...links.map((link) => link.step_ms));
  const ms = (/** @type {number} */ value) => `${number(value, value < 10 ? 2 : 1)} ms`;
  return html`<ul class="lab-links">
      ${links.map(
        (link) => html`<li data-test=${`link-${link.name}`}>
          <div class="lab-share-head">
            <strong>${link.name}</strong><span class="muted">${number(link.bandwidth)} GB/s</span>
            <span class="lab-step number">${ms(link.step_ms)}</span>
          </div>
          <${Bar} most=${most} text=${`${link.name}: computes ${ms(compute)}, sends ${ms(link.transfer_ms)}`}
            parts=${[
              { value: compute, colour: 0, label: `computes ${ms(compute)}` },
              { value: link.transfer_ms, colour: 1, label: `sends ${ms(link.transfer_ms)}` },
            ]} />
          <p class="muted lab-sum">
            ${number(compute)} + ${ms(link.transfer_ms)} to send;
            ${link.slowdown > 1.00005 ? ` ${share(link.slowdown - 1)} slower than` : ""} the fastest;
            GPUs compute ${share(link.step_ms ? compute / link.step_ms : 1)} of the time
          </p>
        </li>`,
      )}
    </ul>`;
}
