/**
 * All traffic with the plane. The token goes into a header, never into an address or a cookie; streams are
 * read with `fetch`, because an EventSource cannot send a header. An answer other than a success is
 * thrown as `Problem`; its message is one line that can be shown to the user.
 */

const BASE = "/api/v1";

/** @typedef {Record<string, string | number | boolean | null | undefined>} Params */
/** @typedef {{pointer: string, detail: string}} Mistake */

/** A refusal of the plane (RFC 9457), or the news that it cannot be reached (status 0). */
export class Problem extends Error {
  /**
   * @param {number} status
   * @param {{type?: string, title?: string, detail?: string, errors?: Mistake[]}} [said]
   */
  constructor(status, said = {}) {
    const errors = Array.isArray(said.errors) ? said.errors : [];
    super(said.detail || errors[0]?.detail || said.title || `the plane answered ${status}`);
    this.name = "Problem";
    this.status = status;
    this.type = said.type || "about:blank";
    this.detail = said.detail || said.title || "";
    this.errors = errors;
    this.retryAfter = 1; // seconds until it is worth asking again, where asking again may help
  }
}

// --- the token -----------------------------------------------------------------------------------------

let token = "";
/** @type {() => void} */
let refused = () => {};

/**
 * For session.js: the token to send from now on, and what to do when the plane refuses it.
 * @param {string} value
 * @param {() => void} [onRefused]
 */
export function setToken(value, onRefused) {
  token = value;
  if (onRefused) refused = onRefused;
}

// --- a plane that does not answer ----------------------------------------------------------------------

const FIRST_LOOK = 700; // ms until the first look whether the plane answers again
const LONGEST_LOOK = 5_000;

/** @type {Promise<void> | null} */
let returning = null;
let away = false;
/** @type {Set<(away: boolean) => void>} */
const listeners = new Set();

/** Whether the plane could not be reached, or could not answer for now. @param {unknown} error */
export function unanswered(error) {
  return error instanceof Problem && [0, 502, 503, 504].includes(error.status);
}

/**
 * Resolves once the plane answers again. Whoever gets no answer waits for this and asks again: so a page that
 * was opened while the plane was down is complete soon after the plane is up.
 * @returns {Promise<void>}
 */
export function planeBack() {
  returning ??= look().finally(() => {
    returning = null;
    tellAway(false);
  });
  return returning;
}

/**
 * Do something again once the plane answers, if the error is that it did not.
 * @param {unknown} error
 * @param {() => unknown} again  which looks whether it is still wanted
 */
export function onceBack(error, again) {
  if (unanswered(error)) planeBack().then(() => void again());
}

async function look() {
  for (let pause = FIRST_LOOK; ; pause = Math.min(1.5 * pause, LONGEST_LOOK)) {
    await new Promise((done) => setTimeout(done, pause * (0.75 + Math.random() / 2)));
    try {
      const answer = await fetch(`${BASE}/version`, { cache: "no-store" });
      if (answer.ok) return;
    } catch {
      // it is still away
    }
    tellAway(true);
  }
}

/** @param {boolean} now */
function tellAway(now) {
  if (away === now) return;
  away = now;
  for (const tell of [...listeners]) tell(now);
}

/**
 * For the frame: told when the plane is found away, and when it is back.
 * @param {(away: boolean) => void} tell
 * @returns {() => void} to listen no more
 */
export function onAway(tell) {
  listeners.add(tell);
  tell(away);
  return () => void listeners.delete(tell);
}

// --- one question, one answer --------------------------------------------------------------------------

const MOST_TRIES = 10; // of a request that changes nothing
const LONGEST_RETRY = 10; // seconds

/**
 * The address of a call; parameters that are null, undefined or "" are left out.
 * @param {string} path
 * @param {Params} [params]
 */
export function address(path, params) {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(params || {})) {
    if (value !== null && value !== undefined && value !== "") query.set(name, String(value));
  }
  const text = query.toString();
  return BASE + path + (text ? `?${text}` : "");
}

/**
 * @param {string} path
 * @param {Params} [params]
 * @param {Omit<RequestInit, "headers"> & {headers?: Record<string, string>}} [init]
 * @returns {Promise<Response>} a success
 */
async function ask(path, params, init = {}) {
  const sent = token;
  /** @type {Record<string, string>} */
  const headers = { Accept: "application/json", ...init.headers };
  if (sent) headers.Authorization = `Bearer ${sent}`;
  /** @type {Response} */
  let answer;
  try {
    answer = await fetch(address(path, params), { ...init, headers, cache: "no-store" });
  } catch (error) {
    if (init.signal?.aborted) throw error;
    throw new Problem(0, { title: "The plane does not answer; check that it runs." });
  }
  if (answer.ok) return answer;
  const problem = await problemOf(answer);
  if (answer.status === 401 && sent && sent === token) refused();
  throw problem;
}

/** @param {Response} answer */
async function problemOf(answer) {
  const said = await answer.json().catch(() => ({ title: `The plane answered ${answer.status}.` }));
  const problem = new Problem(answer.status, said);
  problem.retryAfter = Number(answer.headers.get("Retry-After")) || problem.retryAfter;
  return problem;
}

/**
 * Send a request that changes nothing. A token has few places for what costs the plane much, and all tabs of a
 * user share them: a request that finds no place (429) is sent again after the time that the plane asks for.
 * @param {string} path
 * @param {Params} [params]
 * @param {{headers?: Record<string, string>}} [init]
 */
async function read(path, params, init) {
  for (let tries = 1; ; tries++) {
    try {
      return await ask(path, params, init);
    } catch (error) {
      if (!(error instanceof Problem) || error.status !== 429 || tries >= MOST_TRIES) throw error;
      const pause = 1000 * Math.min(error.retryAfter, LONGEST_RETRY);
      await new Promise((done) => setTimeout(done, pause * (1 + Math.random() / 2)));
    }
  }
}

/** @param {Response} answer */
async function parsed(answer) {
  const text = await answer.text();
  return text ? JSON.parse(text) : null;
}

/**
 * @param {string} path below /api/v1
 * @param {Params} [params]
 * @returns {Promise<any>} the parsed JSON
 */
export async function get(path, params) {
  return parsed(await read(path, params));
}

/**
 * @param {string} path
 * @param {Params} [params]
 * @returns {Promise<{text: string, headers: Headers}>}
 */
export async function getText(path, params) {
  const answer = await read(path, params, { headers: { Accept: "text/plain, */*" } });
  return { text: await answer.text(), headers: answer.headers };
}

/**
 * @param {string} method
 * @param {string} path
 * @param {unknown} body
 * @param {Record<string, string>} [headers]
 */
async function send(method, path, body, headers = {}) {
  if (body === undefined) return parsed(await ask(path, undefined, { method, headers }));
  const all = { "Content-Type": "application/json", ...headers };
  return parsed(await ask(path, undefined, { method, headers: all, body: JSON.stringify(body) }));
}

/**
 * @param {string} path
 * @param {unknown} [body] sent as JSON
 * @param {Record<string, string>} [headers] such as Idempotency-Key
 * @returns {Promise<any>}
 */
export async function post(path, body, headers) {
  return send("POST", path, body, headers);
}

/**
 * @param {string} path
 * @param {unknown} [body]
 * @returns {Promise<any>}
 */
export async function put(path, body) {
  return send("PUT", path, body);
}

/**
 * @param {string} path
 * @returns {Promise<any>}
 */
export async function del(path) {
  return send("DELETE", path, undefined);
}

/**
 * Send text as it is: `postText("/plan", yaml, "application/yaml")`.
 * @param {string} path
 * @param {string} text
 * @param {string} type
 * @param {Record<string, string>} [headers] such as Idempotency-Key
 * @returns {Promise<any>}
 */
export async function postText(path, text, type, headers = {}) {
  const all = { "Content-Type": type, ...headers };
  return parsed(await ask(path, undefined, { method: "POST", headers: all, body: text }));
}

/**
 * Fetch with the token and hand it to the browser as a file.
 * @param {string} path
 * @param {Params} params
 * @param {string} name of the file
 * @param {string} [accept]
 */
export async function download(path, params, name, accept = "*/*") {
  const answer = await ask(path, params, { headers: { Accept: accept } });
  const link = document.createElement("a");
  link.href = URL.createObjectURL(await answer.blob());
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}

// --- streams -------------------------------------------------------------------------------------------

const FIRST_PAUSE = 1_500; // ms before the first try to come back
const LONGEST_PAUSE = 30_000;
const SILENCE = 90_000; // ms without a byte after which a connection counts as dead; the plane sends more often
const HIDDEN = 60_000; // ms in the background after which a tab closes its connection

/**
 * Server-sent events, with the token and Last-Event-ID. A named event is given as parsed JSON to the function
 * of its name; an unnamed one as text to `message`, with its id. A stream that breaks is opened again, soon
 * at first, then after longer and longer pauses. A browser has six connections to a plane for all its tabs, so a
 * tab in the background closes its connection and opens it again when it is shown.
 *
 * `on.open()` at each connection; `on.closed(problem)` when one has closed, before the next try; a refusal that
 * a retry would not change (403, 404, 422) ends the stream, with `final` as the second argument.
 * `on.lost()` means that events were missed: load again.
 * @param {string} path
 * @param {Params | null | undefined} params
 * @param {Record<string, ((data: any, idOrFinal?: any) => void) | undefined>} on
 * @returns {{close(): void}}
 */
export function stream(path, params, on) {
  let last = "";
  let over = false;
  let pause = FIRST_PAUSE;
  let wait = 0;
  let hide = 0;
  /** @type {AbortController | null} */
  let current = null;

  /** @param {string} kind @param {string} text @param {string} id */
  const tell = (kind, text, id) => {
    if (id) last = id;
    const hear = on[kind];
    if (hear && !over) hear(kind === "message" ? text : JSON.parse(text || "null"), id);
  };

  const connect = async () => {
    const mine = new AbortController();
    current = mine;
    /** @type {Problem | null} */
    let problem = null;
    try {
      /** @type {Record<string, string>} */
      const headers = { Accept: "text/event-stream" };
      if (last) headers["Last-Event-ID"] = last;
      const answer = await ask(path, params || {}, { headers, signal: mine.signal });
      on.open?.(null);
      await readEvents(answer, mine, tell, () => (pause = FIRST_PAUSE));
    } catch (error) {
      const broke = { title: "The connection to the plane was lost." };
      problem = error instanceof Problem ? error : mine.signal.aborted ? null : new Problem(0, broke);
    }
    if (over || current !== mine) return;
    current = null;
    const final = problem !== null && [401, 403, 404, 405, 422].includes(problem.status);
    on.closed?.(problem, final);
    if (final) return close();
    if (document.hidden) return; // `seen` comes back to it
    const planned = (wait = setTimeout(connect, pause * (0.75 + Math.random() / 2)));
    pause = Math.min(2 * pause, LONGEST_PAUSE);
    onceBack(problem, () => {
      if (over || current || wait !== planned) return;
      clearTimeout(wait);
      connect();
    });
  };

  const seen = () => {
    clearTimeout(hide);
    if (document.hidden) {
      hide = setTimeout(() => current?.abort(), HIDDEN);
    } else if (!current && !over) {
      clearTimeout(wait);
      connect();
    }
  };

  const close = () => {
    over = true;
    clearTimeout(wait);
    clearTimeout(hide);
    document.removeEventListener("visibilitychange", seen);
    current?.abort();
  };

  document.addEventListener("visibilitychange", seen);
  connect();
  return { close };
}

/**
 * Read events until the connection ends, or nothing was heard for too long.
 * @param {Response} answer
 * @param {AbortController} control
 * @param {(kind: string, text: string, id: string) => void} tell
 * @param {() => void} alive
 */
async function readEvents(answer, control, tell, alive) {
  const reader = /** @type {ReadableStream<Uint8Array>} */ (answer.body).getReader();
  const decoder = new TextDecoder();
  const fields = { kind: "", id: "", data: /** @type {string[]} */ ([]) };
  let rest = "";
  let watchdog = 0;
  try {
    for (;;) {
      watchdog = setTimeout(() => control.abort(), SILENCE);
      const { value, done } = await reader.read();
      clearTimeout(watchdog);
      if (done) return;
      alive();
      const lines = (rest + decoder.decode(value, { stream: true })).split("\n");
      rest = lines.pop() || "";
      for (const line of lines) take(line.endsWith("\r") ? line.slice(0, -1) : line, fields, tell);
    }
  } finally {
    clearTimeout(watchdog);
    reader.cancel().catch(() => {});
  }
}

/**
 * One line of a stream, as the HTML standard reads it.
 * @param {string} line
 * @param {{kind: string, id: string, data: string[]}} fields what was read of the present event
 * @param {(kind: string, text: string, id: string) => void} tell
 */
function take(line, fields, tell) {
  if (line === "") {
    if (fields.data.length) tell(fields.kind || "message", fields.data.join("\n"), fields.id);
    fields.kind = fields.id = "";
    fields.data = [];
    return;
  }
  const colon = line.indexOf(":");
  if (colon === 0) return; // a comment: it keeps the connection alive
  const name = colon < 0 ? line : line.slice(0, colon);
  const value = colon < 0 ? "" : line.slice(colon + (line[colon + 1] === " " ? 2 : 1));
  if (name === "data") fields.data.push(value);
  else if (name === "event") fields.kind = value;
  else if (name === "id") fields.id = value;
}

// --- pace ----------------------------------------------------------------------------------------------

/**
 * A function that may be called often and runs `load` at most once per `ms`, never two at a time; of several
 * calls while it has to wait the last one wins.
 * @template {unknown[]} A
 * @param {(...args: A) => unknown} load
 * @param {number} [ms]
 * @returns {((...args: A) => void) & {cancel(): void}}
 */
export function paced(load, ms = 1000) {
  let free = 0; // when it may run again
  let busy = false;
  let timer = 0;
  /** @type {A | null} */
  let asked = null;

  const run = async () => {
    timer = 0;
    const args = asked;
    if (!args || busy) return;
    asked = null;
    busy = true;
    free = Date.now() + ms;
    try {
      await load(...args);
    } finally {
      busy = false;
      if (asked) plan();
    }
  };
  const plan = () => {
    if (!timer && !busy) timer = setTimeout(run, Math.max(0, free - Date.now()));
  };
  /** @param {A} args */
  const ask = (...args) => {
    asked = args;
    plan();
  };
  ask.cancel = () => {
    clearTimeout(timer);
    timer = 0;
    asked = null;
  };
  return ask;
}
