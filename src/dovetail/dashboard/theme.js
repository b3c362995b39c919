/**
 * Which theme: as the system has it, light or dark. A plain script that runs before the first paint, so that
 * a dark page never flashes white while it loads; the switch in the menu writes the same setting.
 */
(() => {
  const chosen = localStorage.getItem("dovetail.theme");
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
})();
