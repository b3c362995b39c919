/**
 * The user who is signed in. The token is kept in the tab (sessionStorage) or, if asked, on the device (localStorage);
 * `#token=…` in the address signs in, for links that `dovetail up` prints, and is wiped at once.
 */

import { useEffect, useState } from "preact/hooks";
import { get, planeBack, Problem, setToken, unanswered } from "./api.js";
import { forgetTenants, learnTenants } from "./colours.js";

const KEY = "dovetail.token";
const ROLES = ["viewer", "user", "admin"];

/**
 * @typedef {object} Me answer of GET /me
 * @property {string} user
 * @property {string | null} tenant
 * @property {"viewer" | "user" | "admin"} role
 * @property {string[]} tenants that the user sees
 * @property {{name: string, expires_at: string | null}} token
 * @property {string} version
 * @property {string} now
 * @property {string} policy
 * @property {boolean} virtual
 * @property {number} scale
 * @property {number} gpus
 * @property {number} nodes
 */

/**
 * @typedef {object} Session
 * @property {Me | null} me null while no user is signed in
 * @property {boolean} loading a kept token is being tried, or will be once the plane answers
 * @property {string} problem why there is no `me`, in one line; "" if there is nothing to say
 */

/** @type {Session} */
let session = { me: null, loading: true, problem: "" };
/** @type {Set<(session: Session) => void>} */
const listeners = new Set();
let clock = { plane: 0, wall: 0, scale: 1 };

/** @param {Session} next */
function become(next) {
  session = next;
  for (const tell of [...listeners]) tell(session);
}

/** The plane's time in milliseconds since 1970: its clock may be set otherwise, or run faster. */
export function planeNow() {
  return clock.wall ? clock.plane + (Date.now() - clock.wall) * clock.scale : Date.now();
}

/**
 * @param {string} token
 * @param {boolean} [keep] on this device, not only in this tab
 * @returns {Promise<Me>} throws Problem if the plane refuses the token
 */
export async function signIn(token, keep = false) {
  setToken(token, () => signOut("This token is no longer valid; sign in with another."));
  const asked = Date.now();
  /** @type {Me} */
  let me;
  try {
    me = await get("/me");
  } catch (error) {
    setToken("");
    throw error;
  }
  learnTenants(me.tenants);
  clock = { plane: Date.parse(me.now), wall: (asked + Date.now()) / 2, scale: me.scale || 1 };
  // What is kept on the device is left to other tabs, unless this one replaces it.
  if (keep) localStorage.setItem(KEY, token);
  else if (localStorage.getItem(KEY) !== token) sessionStorage.setItem(KEY, token);
  if (keep) sessionStorage.removeItem(KEY);
  become({ me, loading: false, problem: "" });
  return me;
}

/** @param {string} [problem] */
export function signOut(problem = "") {
  setToken("");
  forgetTenants();
  sessionStorage.clear(); // drafts too: the next user of this tab may be another person
  localStorage.removeItem(KEY);
  become({ me: null, loading: false, problem });
}

addEventListener("storage", ({ key }) => {
  const gone = key === KEY && !localStorage.getItem(KEY) && !sessionStorage.getItem(KEY);
  if (gone && session.me) signOut("You signed out in another tab.");
});

let tries = 0; // of `resume`: of several, the last one counts

/** Sign in with the token of the address or the one that was kept; for app.js, once. */
export async function resume() {
  const mine = (tries += 1);
  const said = /^#token=([^&]+)/.exec(location.hash);
  if (said) history.replaceState(null, "", location.pathname + location.search + "#/cluster");
  const kept = localStorage.getItem(KEY);
  const token = said ? said[1] : sessionStorage.getItem(KEY) || kept; // tokens need no escapes
  if (!token) return become({ me: null, loading: false, problem: "" });
  become({ me: null, loading: true, problem: "" });
  for (;;) {
    try {
      await signIn(token, !said && token === kept);
      return;
    } catch (error) {
      const problem = error instanceof Error ? error.message : String(error);
      if (unanswered(error)) {
        if (mine === tries) become({ me: null, loading: true, problem });
        await planeBack();
        if (mine !== tries) return;
        continue;
      }
      if (error instanceof Problem && error.status === 401) {
        for (const store of [sessionStorage, localStorage]) {
          if (store.getItem(KEY) === token) store.removeItem(KEY);
        }
      }
      return become({ me: null, loading: false, problem });
    }
  }
}

/**
 * @returns {Session & {signIn: typeof signIn, signOut: typeof signOut}}
 */
export function useSession() {
  const [now, set] = useState(session);
  useEffect(() => {
    set(session);
    listeners.add(set);
    return () => void listeners.delete(set);
  }, []);
  return { ...now, signIn, signOut };
}

/**
 * viewer < user < admin.
 * @param {Me | null} me
 * @param {"viewer" | "user" | "admin"} role
 */
export function may(me, role) {
  return me !== null && ROLES.indexOf(me.role) >= ROLES.indexOf(role);
}
