/**
 * Which theme: as the system has it, light or dark. A plain script that runs before the first paint, so that
 * nobody who chose dark is blinded on the way in; the switch in the menu writes the same place.
 */
(() => {
  const chosen = localStorage.getItem("dovetail.theme");
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
})();
