// What a job runs: its command, its folder and its environment. The plane hides secrets.

import { Card, html } from "../components.js";

/** @typedef {Pick<import("./resources.js").JobArray, "command"> & {run?: string | null, setup?: string,
 *   workdir?: string, env?: Record<string, string>}} Program */

/** A word of a command as a shell takes it. @param {string} word */
function quoted(word) {
  return /^[\w@%+=:,./-]+$/.test(word) ? word : `'${word.replaceAll("'", `'"'"'`)}'`;
}

/** The command as one would type it. @param {Program} program */
export function commandText({ command, run, setup }) {
  if (command) return command.map(quoted).join(" ");
  return [setup, run].map((text) => (text ?? "").trim()).filter(Boolean).join("\n");
}

/** @param {{of: Program}} props */
export function ProgramCard({ of }) {
  const variables = Object.entries(of.env ?? {});
  return html`
    <${Card} title="What it runs">
      <div class="stack" data-test="program">
        <pre class="jobs-program" tabindex="0" aria-label="Command">${commandText(of)}</pre>
        <dl class="jobs-facts">
          <dt>Folder</dt>
          <dd>${of.workdir ? html`<span class="mono">${of.workdir}</span>` : "a folder of the attempt"}</dd>
          ${variables.length > 0 && html`<dt>Environment</dt>
            <dd class="mono">${variables.map(([name, value]) => html`<div key=${name}>${name}=${value}</div>`)}</dd>`}
        </dl>
      </div>
    <//>`;
}
