/** Inputs that several tools use: a number that may be half typed, and a policy with its options. */

import { get, onceBack } from "../api.js";
import { Field, Select, html, useEffect, useState } from "../components.js";

/**
 * A number in a field. What is typed stays as it is typed; only numbers in range are passed on.
 *
 * @param {object} props
 * @param {string} props.label          for screen readers; the caller shows a visible label
 * @param {number} props.value
 * @param {(value: number) => void} props.onChange
 * @param {number} [props.min]
 * @param {number} [props.max]
 * @param {number | "any"} [props.step]
 * @param {string} [props.id]
 */
export function NumberInput({ label, value, onChange, min = 0, max = 1e9, step = "any", id }) {
  const [typed, setTyped] = useState(String(value));
  useEffect(() => {
    if (Number(typed) !== value || typed.trim() === "") setTyped(String(value));
  }, [value]);
  /** @param {string} text */
  const sense = (text) => {
    const read = text.trim() === "" ? NaN : Number(text);
    const fits = Number.isFinite(read) && read >= min && read <= max;
    return fits && (step === "any" || read % step === 0) ? read : null;
  };
  return html`<input
    type="number"
    class="lab-number"
    id=${id}
    aria-label=${label}
    aria-invalid=${sense(typed) === null}
    inputmode=${step === "any" ? "decimal" : "numeric"}
    value=${typed}
    min=${min}
    max=${max}
    step=${step}
    onInput=${(/** @type {any} */ event) => {
      setTyped(event.target.value);
      const read = sense(event.target.value);
      if (read !== null) onChange(read);
    }}
    onBlur=${() => sense(typed) === null && setTyped(String(value))}
  />`;
}

/**
 * @typedef {object} Option
 * @property {string} name
 * @property {string} type
 * @property {any} default
 * @property {any[] | null} [choices]
 * @property {string | null} [help]
 */
/**
 * @typedef {object} Policy
 * @property {string} name
 * @property {string} title
 * @property {number | null} [year]
 * @property {string} [summary]
 * @property {Option[]} options
 */
/** @typedef {Record<string, any>} Options */

const FEW = 5; // up to this many options are shown at once

/** @type {Promise<Policy[]> | null} */
let policies = null;

/**
 * The policies the plane knows, asked for once.
 *
 * @returns {{policies: Policy[] | null, error: unknown}}
 */
export function usePolicies() {
  const [state, setState] = useState(
    /** @type {{policies: Policy[] | null, error: unknown}} */ ({ policies: null, error: null }),
  );
  useEffect(() => {
    let gone = false;
    const load = () => {
      policies ??= get("/policies").then((answer) => answer.items);
      policies.then(
        (known) => setState({ policies: known, error: null }),
        (error) => {
          policies = null;
          setState({ policies: null, error });
          onceBack(error, () => gone || load());
        },
      );
    };
    load();
    return () => void (gone = true);
  }, []);
  return state;
}

/**
 * A policy by name, and those of its options that differ from the defaults.
 *
 * @param {object} props
 * @param {Policy[] | null} props.policies
 * @param {string} props.policy
 * @param {Options} props.options
 * @param {(policy: string, options: Options) => void} props.onChange
 * @param {string} [props.label]
 */
export function PolicyChoice({ policies, policy, options, onChange, label = "Policy" }) {
  const known = policies ?? [];
  const chosen = known.find((one) => one.name === policy);
  const names = known.map((one) => /** @type {[string, string]} */ ([one.name, named(one)]));
  if (!chosen) names.unshift([policy, policy]);
  /**
   * @param {Option} option
   * @param {any} value
   */
  const set = (option, value) => {
    const rest = { ...options };
    if (value === undefined || same(value, option.default)) delete rest[option.name];
    else rest[option.name] = value;
    onChange(policy, rest);
  };
  const inputs = (chosen?.options ?? []).map(
    (option) => html`<${OptionInput}
      key=${`${policy} ${option.name}`}
      option=${option}
      value=${option.name in options ? options[option.name] : option.default}
      onChange=${(/** @type {any} */ value) => set(option, value)}
    />`,
  );
  const many = inputs.length > FEW;
  return html`<div class="lab-policy">
    <${Select} label=${label} value=${policy} options=${names}
      onChange=${(/** @type {string} */ name) => onChange(name, {})} />
    ${chosen?.summary && html`<p class="muted lab-summary">${quoted(chosen.summary)}</p>`}
    ${many
      ? html`<details class="lab-details" open=${Object.keys(options).length > 0}>
          <summary>${inputs.length} options</summary>
          <div class="lab-options">${inputs}</div>
        </details>`
      : html`<div class="lab-options">${inputs}</div>`}
  </div>`;
}

/**
 * Words between backticks are shown as code.
 *
 * @param {string} text
 */
function quoted(text) {
  return text.split("`").map((part, i) => (i % 2 ? html`<code>${part}</code>` : part));
}

/** @param {Policy} policy */
function named(policy) {
  return !policy.name ? policy.title : policy.title ? `${policy.name}: ${policy.title}` : policy.name;
}

/**
 * @param {any} a
 * @param {any} b
 */
function same(a, b) {
  return JSON.stringify(a) === JSON.stringify(b);
}

/**
 * @param {{option: Option, value: any, onChange: (value: any) => void}} props
 */
function OptionInput({ option, value, onChange }) {
  const label = option.name.replaceAll("_", " ");
  const choices = option.choices?.length ? option.choices : isFlag(option) ? [true, false] : null;
  if (choices) {
    const word = (/** @type {any} */ choice) =>
      choice === true ? "yes" : choice === false ? "no" : String(choice);
    return html`<div title=${option.help}>
      <${Select} label=${label} value=${JSON.stringify(value)}
        options=${choices.map((choice) => [JSON.stringify(choice), word(choice)])}
        onChange=${(/** @type {string} */ text) => onChange(JSON.parse(text))} />
    </div>`;
  }
  return html`<div title=${option.help}>
    <${Field} label=${label}><${TextOption} option=${option} value=${value} onChange=${onChange} /><//>
  </div>`;
}

/** @param {Option} option */
function isFlag(option) {
  return typeof option.default === "boolean" || option.type.startsWith("bool");
}

/** @param {Option} option */
function isNumber(option) {
  return typeof option.default === "number" || /^(whole )?number( \||$)/.test(option.type);
}

/**
 * A number, or text as it would be written for the command line; an empty field is the default.
 *
 * @param {{option: Option, value: any, onChange: (value: any) => void, id?: string}} props
 */
function TextOption({ option, value, onChange, ...wired }) {
  const text = Array.isArray(value) ? value.join(",") : String(value ?? "");
  return html`<input
    ...${wired}
    class="lab-option"
    type=${isNumber(option) ? "number" : "text"}
    step="any"
    value=${text}
    placeholder=${option.default === null ? "none" : ""}
    onChange=${(/** @type {any} */ event) => onChange(parsed(option, event.target.value))}
  />`;
}

/**
 * @param {Option} option
 * @param {string} text  the plane reads text as the command line does
 */
function parsed(option, text) {
  if (text.trim() === "") return undefined;
  return isNumber(option) ? Number(text) : text.trim();
}

/**
 * Options as they stand in an address: `o.NAME` with the value as JSON, or bare if it is a word.
 *
 * @param {Options} options
 * @returns {Record<string, string>}
 */
export function writtenOptions(options) {
  const bare = (/** @type {any} */ value) => (typeof value === "string" ? value : JSON.stringify(value));
  return Object.fromEntries(Object.entries(options).map(([name, value]) => [`o.${name}`, bare(value)]));
}

/**
 * @param {URLSearchParams} query
 * @returns {Options}
 */
export function readOptions(query) {
  /** @type {Options} */
  const options = {};
  for (const [name, text] of query) if (name.startsWith("o.")) options[name.slice(2)] = valueOf(text);
  return options;
}

/** @param {string} text */
export function valueOf(text) {
  try {
    return JSON.parse(text);
  } catch {
    return text;
  }
}

/**
 * `priority, higher is smaller`: a policy and what was changed in it, in a few words.
 *
 * @param {string} policy
 * @param {Options} options
 */
export function policyInWords(policy, options) {
  const changed = Object.entries(options).map(([name, value]) => {
    const words = name.replaceAll("_", " ");
    if (typeof value === "boolean") return value ? words : `no ${words}`;
    return `${words} ${Array.isArray(value) ? value.join(" ") : value}`;
  });
  return [policy, ...changed].join(", ");
}
