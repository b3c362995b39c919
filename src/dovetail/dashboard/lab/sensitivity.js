/** Throughput sensitivity: which job should get which GPU type, if a fast GPU speeds up some jobs more than others? */

import { number } from "../format.js";
import { Card, Stat, html } from "../components.js";
import { Bar } from "./bars.js";
import { share, useAnswer, useSetup } from "./setup.js";
import { SpeedTable, THREE, TWO, readSpeeds, writtenSpeeds } from "./speeds.js";
import { Pending, Tool, Trouble } from "./tool.js";

/** @typedef {import("./speeds.js").Speeds} Speeds */

const KINDS = 6; // where the colours of types begin; those of jobs begin at 0

/** The tool. */
export function Sensitivity() {
  const [speeds, change] = useSetup("sensitivity", (query) => readSpeeds(query, THREE), writtenSpeeds);
  // One request for both: with one GPU per job, whole jobs on whole GPUs always reach the largest sum. So the
  // best assignment, which comes with every answer, is also the best split of time.
  const answer = useAnswer("/lab/throughput", { ...speeds, objective: "max-min" });
  const of = /** @type {Speeds | null} */ (answer.of);
  return html`<${Tool}
    title="Throughput sensitivity"
    about="A new GPU makes one job eight times as fast and another hardly faster. The sliders set the samples a
      second of each job on each type. Max-sum gives the fast GPU to the jobs that gain most; max-min
      shares time so that the worst-off job gets as much as possible."
    setup=${speeds} onTry=${change}
    trials=${[
      {
        label: "Three jobs",
        notice:
          "A gets the V100, where it is 8 times as fast. B loses little on the old K80. The total is 185, " +
          "the maximum.",
        setup: THREE,
      },
      {
        label: "Two jobs, two GPUs",
        notice:
          "The Transformer on the V100 and ResNet on the K80 make 130 in total; the other way " +
          "round it would be 80.",
        setup: TWO,
      },
      {
        label: "All alike",
        notice:
          "When every job gains the same, every assignment has the same total.",
        setup: { ...THREE, jobs: THREE.jobs.map((job) => ({ ...job, speeds: [20, 40, 80] })) },
      },
    ]}
  >
    <div class="lab-split">
      <${Card} title="Samples a second, by type"><${SpeedTable} speeds=${speeds} onChange=${change} /><//>
      <div class="stack">
        <${Trouble} error=${answer.error} />
        ${answer.value && of
          ? html`
              <${Split} title="Max-sum: highest total throughput" of=${of} test="max-sum"
                total=${answer.value.optimum.total}
                shares=${of.jobs.map((_, i) =>
                  of.types.map((_, k) => (answer.value.optimum.assignment[i] === k ? 1 : 0)))}
                equal=${answer.value.equal_share} />
              <${Split} title="Max-min: best for the worst-off job" of=${of} test="max-min"
                total=${answer.value.total} shares=${answer.value.shares} equal=${answer.value.equal_share} />
            `
          : ""}
        <${Pending} busy=${answer.loading} />
      </div>
    </div>
  <//>`;
}

/**
 * Each job's share of time on each GPU type, and the throughput that follows.
 *
 * @param {object} props
 * @param {string} props.title
 * @param {string} props.test
 * @param {Speeds} props.of
 * @param {number[][]} props.shares
 * @param {number[]} props.equal     throughput of each job with an equal share of all GPUs
 * @param {number} props.total
 */
function Split({ title, test, of, shares, equal, total }) {
  const made = of.jobs.map((job, i) => job.speeds.reduce((sum, speed, k) => sum + speed * shares[i][k], 0));
  const against = made.map((value, i) => (equal[i] > 0 ? value / equal[i] : 0));
  return html`<${Card} title=${title}>
    <div class="lab-stats" data-test=${test}>
      <${Stat} label="Total" value=${`${number(total)}/s`} note="samples a second" />
      <${Stat} label="Worst-off job" value=${`${number(Math.min(...against), 2)} ×`}
        note="of its speed on an equal share" />
    </div>
    <ul class="lab-shares">
      ${of.jobs.map((job, i) => {
        const parts = of.types.map((type, k) =>
          ({ value: shares[i][k], colour: KINDS + k, label: `${type.name} ${share(shares[i][k])}` }));
        const had = parts.filter((part) => part.value > 0.0005);
        const words = had.length ? had.map((part) => part.label).join(", ") : "nothing";
        return html`<li>
          <div class="lab-share-head">
            <span class="lab-chip" style=${{ "--bar": `var(--t${i})` }}>${job.name}</span>
            <span class="number">${number(made[i])}/s</span>
            <span class="muted number">${number(against[i])} × an equal share</span>
          </div>
          <${Bar} parts=${had} most=${1} text=${`${job.name} has ${words}`} />
          <p class="muted lab-sum">${sum(job, of, shares[i], made[i])}</p>
        </li>`;
      })}
    </ul>
  <//>`;
}

/**
 * 0.6 × 80 + 0.4 × 10 = 52: the effective throughput, as a sum.
 *
 * @param {Speeds["jobs"][number]} job
 * @param {Speeds} of
 * @param {number[]} shares
 * @param {number} made
 */
function sum(job, of, shares, made) {
  const terms = of.types.flatMap((type, k) =>
    (shares[k] > 0.0005 ? [`${number(shares[k])} × ${number(job.speeds[k])} (${type.name})`] : []));
  if (!terms.length) return "gets no GPU: another job is faster on every type";
  return `${terms.join(" + ")} = ${number(made)}`;
}
