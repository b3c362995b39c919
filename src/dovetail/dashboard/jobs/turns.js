// Requests of a page, one at a time and well apart. Many things may want a fresh answer at once (a change
// that was told, a clock, a click); each names what it wants, what is wanted twice is asked once, and the
// plane hears from one page at most once a second, however much happens. A page that nobody sees asks
// nothing.

/**
 * @typedef {object} Turns
 * @property {(name: string, load: () => Promise<unknown>) => void} ask  in its turn, once for each name
 * @property {() => void} close
 */

const APART = 1_050; // ms: a second, and what a timer may be early

/**
 * @param {number} [ms] between the beginnings of two requests
 * @param {boolean} [asked] the page has asked just now, before it took turns
 * @returns {Turns}
 */
export function turns(ms = APART, asked = false) {
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
