/**
 * What the tools of the Lab have in common: a set-up that is kept in the address, so that it can be shared,
 * and requests that are sent to the plane one after another, at most one a second.
 */

import { planeBack, Problem, post, unanswered } from "../api.js";
import { number } from "../format.js";
import { useEffect, useLayoutEffect, useRef, useState } from "../components.js";

const PACE_MS = 1000;
const PATIENCE = 40; // times that a request to a busy Lab is sent again
const KEPT = 300; // answers remembered: the same question has the same answer, so sliding back costs nothing

/** @type {Map<string, any>} */
const answers = new Map();
/** @type {Promise<unknown>} */
let line = Promise.resolve();
let lastAsked = -Infinity;

/**
 * The plane's answer to a request; undefined if it was no longer wanted when it could be sent.
 *
 * The plane computes one request of a token at a time, so requests wait here and not there.
 *
 * @param {string} path
 * @param {unknown} body
 * @param {{fresh?: boolean, wanted?: () => boolean}} [how]  fresh: do not use a stored answer
 * @returns {Promise<any>}
 */
export async function asked(path, body, { fresh = false, wanted = () => true } = {}) {
  const key = questionKey(path, body);
  if (!fresh && answers.has(key)) return answers.get(key);
  const turn = line.then(() => inTurn(path, body, wanted));
  line = turn.catch(() => undefined);
  const answer = await turn;
  if (!fresh && answer !== undefined) {
    answers.set(key, answer);
    if (answers.size > KEPT) answers.delete(/** @type {string} */ (answers.keys().next().value));
  }
  return answer;
}

/**
 * @param {string} path
 * @param {unknown} body
 */
function questionKey(path, body) {
  return `${path} ${JSON.stringify(body)}`;
}

/**
 * @param {string} path
 * @param {unknown} body
 * @param {() => boolean} wanted
 */
async function inTurn(path, body, wanted) {
  for (let tries = 1; ; tries++) {
    const early = lastAsked + PACE_MS - performance.now();
    if (wanted() && early > 0) await new Promise((done) => setTimeout(done, early));
    if (!wanted()) return undefined;
    lastAsked = performance.now();
    try {
      return await post(path, body);
    } catch (error) {
      const away = unanswered(error) && /** @type {Problem} */ (error).status !== 503;
      const busy = error instanceof Problem && (error.status === 429 || error.status === 503);
      if (!away && (!busy || tries >= PATIENCE)) throw error;
      if (away) await planeBack();
    }
  }
}

/**
 * The answer to a request that changes as the user changes inputs. Meanwhile the last answer stays,
 * together with its request, so that the two always agree.
 *
 * @template B
 * @param {string} path
 * @param {B | null} body  null: nothing is asked
 * @returns {{value: any, of: B | null, error: unknown, loading: boolean}}
 */
export function useAnswer(path, body) {
  const key = body === null ? null : questionKey(path, body);
  /** @type {{value: any, of: B | null, error: unknown, key: string | null}} */
  const first = { value: null, of: null, error: null, key: null };
  const [state, setState] = useState(first);
  const turns = useRef({ given: 0, shown: 0, mounted: true });
  useEffect(() => {
    turns.current.mounted = true;
    return () => {
      turns.current.mounted = false;
    };
  }, []);
  useEffect(() => {
    if (key === null) return undefined;
    const mine = ++turns.current.given;
    let wanted = true;
    /** @param {(old: any) => any} next */
    const show = (next) => {
      if (!turns.current.mounted || turns.current.shown > mine) return;
      turns.current.shown = mine;
      setState(next);
    };
    asked(path, body, { wanted: () => wanted }).then(
      (value) => value !== undefined && show(() => ({ value, of: body, error: null, key })),
      (error) => show((old) => ({ ...old, error, key })),
    );
    return () => {
      wanted = false;
    };
  }, [key]);
  return { value: state.value, of: state.of, error: state.error, loading: key !== null && key !== state.key };
}

/** The query in the address, after the tool's name. */
function query() {
  const at = location.hash.indexOf("?");
  return new URLSearchParams(at < 0 ? "" : location.hash.slice(at + 1));
}

/**
 * A tool's set-up: read from the address, written back to it a moment after each change.
 *
 * @template S
 * @param {string} tool
 * @param {(query: URLSearchParams) => S} read    missing or invalid values become the default
 * @param {(setup: S) => Record<string, string>} write
 * @returns {[S, (part: Partial<S>) => void]}
 */
export function useSetup(tool, read, write) {
  const [setup, setSetup] = useState(() => read(query()));
  const latest = useRef(setup);
  const timer = useRef(0);
  // Before the browser paints: an address that changes between the first look at it and an effect would be missed.
  useLayoutEffect(() => {
    const moved = () => {
      if (location.hash.split("?")[0] !== `#/lab/${tool}`) return;
      latest.current = read(query());
      setSetup(latest.current);
    };
    addEventListener("hashchange", moved);
    return () => {
      removeEventListener("hashchange", moved);
      clearTimeout(timer.current);
    };
  }, []);
  /** @param {Partial<S>} part */
  const change = (part) => {
    latest.current = { ...latest.current, ...part };
    setSetup(latest.current);
    clearTimeout(timer.current);
    // A slider moves many times a second, and browsers allow an address only so many changes.
    timer.current = window.setTimeout(() => {
      const query = new URLSearchParams(write(latest.current)).toString();
      const text = query.replaceAll("%2C", ",").replaceAll("%3A", ":"); // a hash may hold them as they are
      history.replaceState(history.state, "", `#/lab/${tool}${text && "?"}${text}`);
    }, 250);
  };
  return [setup, change];
}

/**
 * A number from an address: the default if it is not a number, and never out of its range.
 *
 * @param {string | null | undefined} text
 * @param {number} otherwise
 * @param {number} [least]
 * @param {number} [most]
 */
export function numberIn(text, otherwise, least = 0, most = 1e9) {
  const value = text === null || text === undefined || text.trim() === "" ? NaN : Number(text);
  return Number.isFinite(value) ? Math.min(most, Math.max(least, value)) : otherwise;
}

/**
 * A share with one decimal digit, as in 79.5.
 *
 * @param {number | null | undefined} share
 */
export function share(share) {
  return typeof share === "number" && Number.isFinite(share) ? `${number(100 * share, 1)} %` : "–";
}

/**
 * A name that an address can hold between its separators.
 *
 * @param {string} text
 */
export function plainName(text) {
  return text.replace(/[,;:|]/g, " ").slice(0, 24);
}
