/**
 * What must happen before anything else is loaded; a plain script.
 *
 * The theme: as the system has it, light or dark. It is set before the first paint, so that a dark page never
 * flashes white while it loads; the switch in the menu writes the same setting.
 *
 * Files that do not come: the plane may go down while a page loads. The page is loaded again once the plane
 * answers.
 */
(() => {
  const chosen = localStorage.getItem("dovetail.theme");
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;

  const PAUSE = 2_000; // ms between two looks whether the plane answers
  let waits = false;

  async function look() {
    try {
      if ((await fetch("/api/v1/version", { cache: "no-store" })).ok) return location.reload();
    } catch {
      // it is still down
    }
    setTimeout(look, PAUSE);
  }

  /** @param {Event} event */
  function failed({ target }) {
    if (waits || !(target instanceof HTMLScriptElement || target instanceof HTMLLinkElement)) return;
    waits = true;
    setTimeout(look, PAUSE);
  }

  addEventListener("error", failed, true); // errors of elements do not bubble
})();
