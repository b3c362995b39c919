/** The sign-in page, for users without a valid token. */

import { Button, Field, html, Note, useEffect, useRef, useState } from "../components.js";
import { useSession } from "../session.js";

const HINT = html`<code>dovetail up</code> prints the first token; <code>dovetail token create</code> creates more.`;

export function SignInPage() {
  const { signIn, problem } = useSession();
  const [keep, setKeep] = useState(false);
  const [busy, setBusy] = useState(false);
  const [error, setError] = useState("");
  const input = useRef(/** @type {HTMLInputElement | null} */ (null));
  useEffect(() => {
    document.title = "Sign in · Dovetail";
    input.current?.focus();
  }, []);
  /** @param {Event} event */
  const submit = async (event) => {
    event.preventDefault();
    const token = input.current?.value.trim() || "";
    if (!token) return setError("Paste a token; it begins with dt_.");
    setBusy(true);
    setError("");
    try {
      await signIn(token, keep);
    } catch (failure) {
      setError(failure instanceof Error ? failure.message : String(failure));
      setBusy(false);
      input.current?.focus();
    }
  };
  return html`<div class="signin">
    <h1 class="brand"><img src="/page/icon.svg" alt="" width="28" height="28" />Dovetail</h1>
    <div class="card">
      <form onSubmit=${submit} novalidate>
        ${problem && !error && html`<${Note} kind="error">${problem}<//>`}
        <${Field} label="Token" hint=${HINT} error=${error}>
          <input type="password" name="token" ref=${input} autocomplete="current-password" />
        <//>
        <label class="check">
          <input type="checkbox" checked=${keep} onChange=${() => setKeep(!keep)} />
          Stay signed in on this device
        </label>
        <${Button} kind="primary" type="submit" busy=${busy}>Sign in<//>
      </form>
    </div>
  </div>`;
}
