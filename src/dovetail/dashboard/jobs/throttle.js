// Limits how often one page asks the plane: one request at a time, and at most one a second. Several sources
// may want fresh data at once (a change notice, a timer, a click). Each request has a name; a request that is
// queued already is not queued again. A hidden page sends no requests.

/**
 * @typedef {object} Throttle
 * @property {(name: string, load: () => Promise<unknown>) => void} ask  queue a request, once for each name
 * @property {() => void} close
 */

const APART = 1_050; // ms: a second, and what a timer may be early

/**
 * @param {number} [ms] between the beginnings of two requests
 * @param {boolean} [asked] the page has just sent a request of its own
 * @returns {Throttle}
 */
export function throttle(ms = APART, asked = false) {
  /** @type {Map<string, () => Promise<unknown>>} */
  const waiting = new Map();
  let last = asked ? performance.now() : -Infinity;
  let timer = 0;
  let busy = false;
  let closed = false;

  function arm() {
    if (timer || busy || closed || document.hidden || !waiting.size) return;
    timer = window.setTimeout(run, Math.max(0, last + ms - performance.now()));
  }

  async function run() {
    timer = 0;
    const next = waiting.entries().next().value;
    if (!next || closed) return;
    waiting.delete(next[0]);
    last = performance.now();
    busy = true;
    try {
      await next[1]();
    } finally {
      busy = false;
      arm();
    }
  }

  document.addEventListener("visibilitychange", arm);
  return {
    ask(name, load) {
      waiting.set(name, load);
      arm();
    },
    close() {
      closed = true;
      window.clearTimeout(timer);
      document.removeEventListener("visibilitychange", arm);
    },
  };
}
