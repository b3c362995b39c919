/** The dialog in which an admin switches the scheduling policy. */

import { get, put } from "../api.js";
import { Button, Dialog, Field, html, Loading, Note, Select, typed, useLoaded, useState } from "../components.js";

/** @typedef {{name: string, default: unknown, choices?: unknown[] | null, help?: string}} Option */
/** @typedef {{name: string, title: string, year: number | null, summary: string, options: Option[]}} Known */

async function load() {
  return { known: await get("/policies"), now: await get("/policy") };
}

/** @param {{inForce: string, onClose: () => void}} props */
export function PolicyDialog({ inForce, onClose }) {
  const { value, error } = useLoaded(load, []);
  const [name, setName] = useState(inForce);
  // null: the options in force, or the defaults of another policy
  const [options, setOptions] = useState(/** @type {Record<string, string> | null} */ (null));
  const [busy, setBusy] = useState(false);
  const [problem, setProblem] = useState("");
  /** @type {Known[]} */
  const items = value?.known.items || [];
  const filled = options || (name === value?.now.name ? written(value?.now.options) : {});
  const chosen = items.find((item) => item.name === name);
  /** @param {Event} event */
  const change = async (event) => {
    event.preventDefault();
    if (busy || !chosen) return;
    setBusy(true);
    setProblem("");
    try {
      await put("/policy", { name, options: given(filled) });
      onClose();
    } catch (failure) {
      setProblem(failure instanceof Error ? failure.message : String(failure));
      setBusy(false);
    }
  };
  /** @param {string} next */
  const choose = (next) => {
    setName(next);
    setOptions(null);
    setProblem("");
  };
  const names = items.map((item) => [item.name, item.name]);
  const title = chosen?.year ? `${chosen.title} (${chosen.year})` : chosen?.title;
  return html`<${Dialog} title="Change the policy" onClose=${onClose}>
    ${error && html`<${Note} kind="error">${error.message}<//>`}
    ${!value && !error && html`<${Loading} />`}
    ${value && html`<form class="stack" onSubmit=${change}>
      <${Select} label="Policy" value=${name} options=${names} onChange=${choose} />
      ${chosen && html`<p class="muted">${title}. ${chosen.summary}</p>`}
      ${chosen && chosen.options.length > 0 && html`<details>
        <summary>Options</summary>
        <div class="stack">${chosen.options.map((option) => html`<${OptionField}
          key=${`${name} ${option.name}`}
          option=${option}
          value=${filled[option.name] || ""}
          onChange=${(/** @type {string} */ text) => setOptions({ ...filled, [option.name]: text })}
        />`)}</div>
      </details>`}
      <${Note}>No job is lost. From the next decision on, ${name} decides; it may preempt jobs.<//>
      ${problem && html`<${Note} kind="error">${problem}<//>`}
      <div class="dialog-actions">
        <${Button} onClick=${onClose}>Keep ${inForce}<//>
        <${Button} kind="primary" type="submit" busy=${busy} disabled=${!chosen}>Switch to ${name}<//>
      </div>
    </form>`}
  <//>`;
}

/** @param {{option: Option, value: string, onChange: (text: string) => void}} props */
function OptionField({ option, value, onChange }) {
  const usual = JSON.stringify(option.default);
  if (option.choices?.length) {
    const choices = option.choices.map((choice) => [String(choice), String(choice)]);
    const all = [["", `default (${usual})`], ...choices];
    return html`<${Select} label=${option.name} value=${value} options=${all} onChange=${onChange} />`;
  }
  return html`<${Field} label=${option.name} hint=${option.help}>
    <input type="text" value=${value} placeholder=${usual} onInput=${typed(onChange)} />
  <//>`;
}

/** Options that are set, as one would fill them in. @param {Record<string, unknown>} [options] */
function written(options = {}) {
  /** @param {unknown} value */
  const text = (value) => (typeof value === "string" ? value : JSON.stringify(value));
  return Object.fromEntries(Object.entries(options).map(([name, value]) => [name, text(value)]));
}

/** What was filled in: as JSON where it reads so, else as text. @param {Record<string, string>} options */
function given(options) {
  /** @type {Record<string, unknown>} */
  const found = {};
  for (const [name, text] of Object.entries(options)) {
    if (text.trim() === "") continue;
    try {
      found[name] = JSON.parse(text);
    } catch {
      found[name] = text;
    }
  }
  return found;
}
