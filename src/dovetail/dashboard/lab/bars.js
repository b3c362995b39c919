/** Horizontal bars, with figures beside them. */

import { html } from "../components.js";

/**
 * @typedef {object} Part
 * @property {number} value
 * @property {number} colour      one of --t0 … --t11
 * @property {string} label       written in it where there is room, and under the pointer
 */

/**
 * One bar of several parts after each other.
 *
 * @param {object} props
 * @param {Part[]} props.parts
 * @param {number} props.most     the value of the full length
 * @param {string} props.text     the same for screen readers
 * @param {number} [props.line]   a value to compare with, drawn across
 */
export function Bar({ parts, most, text, line }) {
  const shown = parts.filter((part) => part.value > 0);
  const width = (/** @type {number} */ value) => `${Math.min(100, (100 * value) / (most || 1))}%`;
  return html`<div class="lab-bar" role="img" aria-label=${text}>
    ${shown.map(
      (part) => html`<span style=${{ width: width(part.value), "--bar": `var(--t${part.colour % 12})` }}
        title=${part.label}>
        <span>${part.label}</span>
      </span>`,
    )}
    ${line !== undefined && html`<i style=${{ left: width(line) }}></i>`}
  </div>`;
}
