// What GPUs cost, by type: shown to all, changed by an administrator.

import { put } from "../api.js";
import { money } from "../format.js";
import { Button, Card, Dialog, Empty, Field, html, Note, useState } from "../components.js";
import { typed } from "./inputs.js";

/** @typedef {{currency: string, per_gpu_hour: Record<string, number>}} Prices */

/**
 * @param {object} props
 * @param {Prices | null} props.prices
 * @param {Error | null} props.error
 * @param {string[]} props.types that were used, whether or not they have a price
 * @param {boolean} props.admin
 * @param {() => void} props.onChange
 */
export function PriceCard({ prices, error, types, admin, onChange }) {
  const [editing, setEditing] = useState(false);
  const listed = Object.entries(prices?.per_gpu_hour ?? {});
  const missing = types.filter((type) => !(type in (prices?.per_gpu_hour ?? {})));
  const change = admin && prices && html`<${Button} onClick=${() => setEditing(true)}>Change prices<//>`;
  return html`
    <${Card} title="Prices" actions=${change}>
      <div data-test="prices" class="stack">
        ${error && html`<${Note} kind="error">${error.message}<//>`}
        ${prices && !listed.length && html`<${Empty}>No GPU type has a price, so there are no costs.<//>`}
        ${listed.length > 0 && html`
          <dl class="jobs-facts">${listed.map(([type, price]) => html`
            <dt key=${type}>${type}</dt><dd>${money(price, prices?.currency)} per GPU-hour</dd>`)}</dl>`}
        ${listed.length > 0 && missing.length > 0 && html`
          <p class="muted">Without a price: ${missing.join(", ")}. Jobs on these types have no cost.</p>`}
      </div>
      ${editing && prices && html`
        <${PriceDialog} prices=${prices} types=${[...new Set([...listed.map(([type]) => type), ...types])]}
          onClose=${() => setEditing(false)}
          onSaved=${() => {
            setEditing(false);
            onChange();
          }} />`}
    <//>`;
}

/** @param {{prices: Prices, types: string[], onClose: () => void, onSaved: () => void}} props */
function PriceDialog({ prices, types, onClose, onSaved }) {
  const [currency, setCurrency] = useState(prices.currency);
  // Types may still be loading when the dialog opens, so only what was typed is state.
  const [changed, setChanged] = useState(/** @type {Record<string, string>} */ ({}));
  const [added, setAdded] = useState(/** @type {{type: string, price: string}[]} */ ([]));
  const known = [...types].sort().map((type) => (
    { type, price: changed[type] ?? String(prices.per_gpu_hour[type] ?? "") }
  ));
  const rows = [...known, ...added];
  const [busy, setBusy] = useState(false);
  const [error, setError] = useState("");
  /** @param {number} at @param {Partial<{type: string, price: string}>} change */
  const setAdd = (at, change) => setAdded(added.map((row, n) => (n === at ? { ...row, ...change } : row)));
  const wrong = rows.find(({ price }) => isWrong(price));

  /** @param {Event} event */
  const save = async (event) => {
    event.preventDefault();
    if (busy || wrong) return;
    setBusy(true);
    const kept = rows.filter(({ type, price }) => type.trim() && price.trim() !== "");
    const per_gpu_hour = Object.fromEntries(kept.map(({ type, price }) => [type.trim(), Number(price)]));
    try {
      await put("/prices", { currency: currency.trim(), per_gpu_hour });
      onSaved();
    } catch (problem) {
      setError(/** @type {Error} */ (problem).message);
      setBusy(false);
    }
  };
  return html`
    <${Dialog} title="Prices of a GPU-hour" onClose=${onClose}>
      <form class="stack" onSubmit=${save}>
        <${Field} label="Currency">
          <input value=${currency} maxlength="8" autocomplete="off"
            onInput=${typed(setCurrency)} />
        <//>
        ${known.map(({ type, price }) => html`
          <div class="row" key=${type}>
            <${Price} label=${type} price=${price}
              onChange=${(/** @type {string} */ price) => setChanged((old) => ({ ...old, [type]: price }))} />
          </div>`)}
        ${added.map((row, n) => html`
          <div class="row" key=${n}>
            <${Field} label="Type of GPU">
              <input value=${row.type} maxlength="64" autocomplete="off"
                onInput=${typed((type) => setAdd(n, { type }))} />
            <//>
            <${Price} label="Price" price=${row.price}
              onChange=${(/** @type {string} */ price) => setAdd(n, { price })} />
          </div>`)}
        <div class="row">
          <${Button} onClick=${() => setAdded([...added, { type: "", price: "" }])}>Add a type<//>
        </div>
        ${error && html`<${Note} kind="error">${error}<//>`}
        <div class="row">
          <${Button} kind="primary" type="submit" busy=${busy} disabled=${Boolean(wrong)}>Save prices<//>
          <${Button} onClick=${onClose}>Keep the prices<//>
        </div>
      </form>
    <//>`;
}

/** @param {string} price as it was typed */
function isWrong(price) {
  return price.trim() !== "" && !(Number(price) >= 0);
}

/** @param {{label: string, price: string, onChange: (price: string) => void}} props */
function Price({ label, price, onChange }) {
  return html`
    <${Field} label=${label} hint=${price.trim() === "" ? "Empty: no price known. 0: free." : ""}
      error=${isWrong(price) ? "a number, 0 or more" : ""}>
      <input inputmode="decimal" value=${price} autocomplete="off" onInput=${typed(onChange)} />
    <//>`;
}
