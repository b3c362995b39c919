/**
 * The frame around the pages: the current address (hash routes), the navigation, the account's menu. A page is
 * loaded on the first visit; its module exports a component of the name in the table below.
 */

import { h, render } from "preact";
import { onAway, planeBack } from "./api.js";
import { ago, when } from "./format.js";
import { Button, html, Loading, Note, Page, Select } from "./components.js";
import { useEffect, useLayoutEffect, useRef, useState } from "./components.js";
import { may, planeNow, resume, useSession } from "./session.js";
import { SignInPage } from "./pages/signin.js";

/** @typedef {{path: string[], query: URLSearchParams}} Route */

// By the first word of the path, with or without a second word: the module of the page, and its component.
// The second word is given to the page as `id`.
/** @type {Record<string, {load: () => Promise<any>, name: string}>} */
const PAGES = {
  "cluster": { load: () => import("./pages/cluster.js"), name: "ClusterPage" },
  "jobs": { load: () => import("./pages/jobs.js"), name: "JobsPage" },
  "jobs/": { load: () => import("./pages/job.js"), name: "JobPage" },
  "submit": { load: () => import("./pages/submit.js"), name: "SubmitPage" },
  "history": { load: () => import("./pages/history.js"), name: "HistoryPage" },
  "lab": { load: () => import("./pages/lab.js"), name: "LabPage" },
  "lab/": { load: () => import("./pages/lab.js"), name: "LabPage" },
};

// --- the address ---------------------------------------------------------------------------------------

/** @returns {Route} */
function route() {
  const [path, query = ""] = location.hash.replace(/^#\/?/, "").split("?", 2);
  return { path: path.split("/").filter(Boolean).map(plain), query: new URLSearchParams(query) };
}

/** @param {string} word of an address, which may have been typed by hand */
function plain(word) {
  try {
    return decodeURIComponent(word);
  } catch {
    return word;
  }
}

/**
 * Navigate: `go("#/jobs/k3v9q2")`; `replace` adds no entry to the browser's history, for filters.
 * @param {string} hash
 * @param {{replace?: boolean}} [how]
 */
export function go(hash, { replace = false } = {}) {
  const target = hash.startsWith("#") ? hash : `#${hash}`;
  if (target === location.hash) return;
  if (replace) {
    history.replaceState(null, "", target);
    dispatchEvent(new HashChangeEvent("hashchange"));
  } else {
    location.hash = target;
  }
}

/**
 * The current address: `path` by its words, `query` as URLSearchParams.
 * @returns {Route}
 */
export function useRoute() {
  const [now, set] = useState(route);
  useLayoutEffect(() => { // before the browser paints, so that no change is missed
    const tell = () => set(route());
    addEventListener("hashchange", tell);
    return () => removeEventListener("hashchange", tell);
  }, []);
  return now;
}

/**
 * Put choices of the current page into its address; "" takes one out. Others stay.
 * @param {Record<string, string>} choices
 */
export function choose(choices) {
  const { path, query } = route();
  for (const [name, value] of Object.entries(choices)) {
    if (value) query.set(name, value);
    else query.delete(name);
  }
  go(`#/${path.map(encodeURIComponent).join("/")}${query.size ? `?${query}` : ""}`, { replace: true });
}

// --- the frame -----------------------------------------------------------------------------------------

/** @type {Map<string, any>} */
const loaded = new Map();

/** @param {{path: string[]}} props */
function Current({ path }) {
  const key = path.length > 1 ? `${path[0]}/` : path[0] || "cluster";
  const page = PAGES[key];
  const [, setTurn] = useState(0);
  const [problem, setProblem] = useState("");
  useEffect(() => {
    if (!page || loaded.has(key)) return undefined;
    setProblem("");
    let gone = false;
    page.load().then(
      (module) => {
        loaded.set(key, module[page.name]);
        setTurn((turn) => turn + 1);
      },
      async () => {
        if (gone) return;
        setProblem("This page could not be loaded; check that the plane runs.");
        await planeBack();
        if (!gone) location.reload(); // a browser does not ask twice for a module that it did not get
      },
    );
    return () => void (gone = true);
  }, [key]);
  if (!page) {
    return html`<${Page} title="No such page"><p><a href="#/cluster">Go to the cluster</a></p><//>`;
  }
  const Component = loaded.get(key);
  if (Component) return h(Component, { key: path.join("/"), id: path[1] });
  return problem ? html`<${Note} kind="error">${problem}<//>` : html`<${Loading} />`;
}

const LINKS = [
  ["cluster", "Cluster"], ["jobs", "Jobs"], ["submit", "Submit"], ["history", "History"], ["lab", "Lab"],
];

/** @param {{path: string[], me: import("./session.js").Me}} props */
function Navigation({ path, me }) {
  const here = path[0] || "cluster";
  const links = LINKS.filter(([key]) => key !== "submit" || may(me, "user"));
  return html`<nav aria-label="Pages">
    <ul>
      ${links.map(([key, label]) => html`<li key=${key}>
        <a href=${`#/${key}`} aria-current=${here === key ? "page" : undefined}>${label}</a>
      </li>`)}
    </ul>
  </nav>`;
}

/** @type {[string, string][]} */
const THEMES = [["system", "System"], ["light", "Light"], ["dark", "Dark"]];

/** The switch between light and dark; the choice is stored on this device. */
export function Theme() {
  const [theme, set] = useState(document.documentElement.dataset.theme || "system");
  /** @param {string} chosen */
  const choose = (chosen) => {
    set(chosen);
    if (chosen === "system") {
      localStorage.removeItem("dovetail.theme");
      delete document.documentElement.dataset.theme;
    } else {
      localStorage.setItem("dovetail.theme", chosen);
      document.documentElement.dataset.theme = chosen;
    }
  };
  return html`<${Select} label="Theme" value=${theme} options=${THEMES} onChange=${choose} />`;
}

/** @param {{me: import("./session.js").Me}} props */
function Account({ me }) {
  const box = useRef(/** @type {HTMLDetailsElement | null} */ (null));
  useEffect(() => {
    /** @param {Event} event */
    const close = (event) => {
      const menu = box.current;
      if (!menu?.open) return;
      const escaped = event instanceof KeyboardEvent && event.key === "Escape";
      const outside = event.type === "pointerdown" && !menu.contains(/** @type {Node} */ (event.target));
      if (escaped) menu.querySelector("summary")?.focus();
      if (escaped || outside) menu.open = false;
    };
    document.addEventListener("pointerdown", close);
    document.addEventListener("keydown", close);
    return () => {
      document.removeEventListener("pointerdown", close);
      document.removeEventListener("keydown", close);
    };
  }, []);
  const ends = me.token?.expires_at;
  const plane = [me.version, me.virtual && "virtual", me.scale !== 1 && `time x ${me.scale}`];
  return html`<details class="menu" ref=${box}>
    <summary>
      <span class="visually-hidden">Account</span>
      <span class="menu-name">${me.user}</span>
      <span class="muted phone-hide">${me.role}</span>
    </summary>
    <div class="menu-body stack">
      <dl class="facts">
        <dt>User</dt><dd>${me.user}</dd>
        <dt>Role</dt><dd>${me.role}</dd>
        ${me.tenant && html`<dt>Tenant</dt><dd>${me.tenant}</dd>`}
        ${ends && html`<dt>Token expires</dt><dd title=${when(ends)}>${ago(ends, planeNow())}</dd>`}
        <dt>Plane</dt><dd>${plane.filter(Boolean).join(", ")}</dd>
      </dl>
      <${Theme} />
    </div>
  </details>`;
}

/** Told at the top of every page, as long as the plane does not answer. */
function Away() {
  const [away, setAway] = useState(false);
  useLayoutEffect(() => onAway(setAway), []);
  if (!away) return null;
  return html`<div class="away" role="status">
    The plane does not answer. This page goes on by itself as soon as it does.
  </div>`;
}

function App() {
  const { me, loading, problem, signOut } = useSession();
  const { path } = useRoute();
  if (loading && problem) {
    return html`<main class="bare stack"><${Note} kind="error">${problem}<//>
      <${Loading} what="Waiting for the plane" /></main>`;
  }
  if (loading) return html`<main class="bare"><${Loading} /></main>`;
  if (!me) return html`<main class="bare"><${SignInPage} /></main>`;
  /** @param {MouseEvent} event */
  const skip = (event) => {
    event.preventDefault();
    document.querySelector("main")?.focus();
  };
  return html`<a class="skip" href="#main" onClick=${skip}>Skip to content</a>
    <header class="top">
      <a class="brand" href="#/cluster"><img src="/page/icon.svg" alt="" width="22" height="22" />Dovetail</a>
      <${Navigation} path=${path} me=${me} />
      <div class="row"><${Account} me=${me} /><${Button} onClick=${() => signOut()}>Sign out<//></div>
    </header>
    <${Away} />
    <main id="main" tabindex="-1"><${Current} path=${path} /></main>`;
}

resume(); // first of all: it wipes a token from the address
addEventListener("hashchange", () => {
  if (location.hash.startsWith("#token=")) resume(); // a link was followed while the page was open
});
render(html`<${App} />`, /** @type {HTMLElement} */ (document.getElementById("app")));
