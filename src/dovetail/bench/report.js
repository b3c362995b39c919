"use strict";
// The rules of dashboard/format.js, in short.
const parts = (s, large, one, small, other) => {
  const units = Math.round(s / small), whole = Math.floor(units * small / large), rest = units - whole * large / small;
  return `${whole.toLocaleString("en-GB")} ${one}` + (rest ? ` ${rest} ${other}` : "");
};
const spoken = (s) =>
  s > 0 && s < 0.1 ? (Math.round(1000 * s) ? `${Math.round(1000 * s)} ms` : "<1 ms")
    : s < 9.95 ? `${Math.round(10 * s) / 10} s` : s < 59.5 ? `${Math.round(s)} s`
      : s < 600 ? parts(s, 60, "min", 1, "s") : s < 3570 ? `${Math.round(s / 60)} min`
        : s < 86370 ? parts(s, 3600, "h", 60, "min") : parts(s, 86400, "d", 3600, "h");
const said = { time: spoken, span: spoken, share: (v) => (100 * v).toFixed(1) + " %",
  count: (v) => v.toLocaleString("en", { maximumFractionDigits: v < 10 ? 1 : 0 }) };
const hidden = new Set();
for (const figure of document.querySelectorAll("figure.chart")) {
  const svg = figure.querySelector("svg"), cross = figure.querySelector(".cross");
  const reading = figure.querySelector(".reading");
  const data = JSON.parse(figure.querySelector("script").textContent);
  const [low, high, left, right] = data.x, [xKind, yKind] = data.kind.split("|");
  svg.addEventListener("pointermove", (event) => {
    const box = svg.getBoundingClientRect();
    const place = (event.clientX - box.left) / box.width * svg.viewBox.baseVal.width;
    const share = Math.min(Math.max((place - left) / (right - left), 0), 1);
    const x = data.log ? low * (high / low) ** share : low + share * (high - low);
    const at = left + share * (right - left);
    cross.removeAttribute("hidden");
    cross.setAttribute("transform", `translate(${at} 0)`);
    const told = data.points.map((points, i) => {
      if (hidden.has(i) || !points.length) return null;
      let a = 0, b = points.length;
      while (a < b) { const m = (a + b) >> 1; if (points[m][0] <= x) a = m + 1; else b = m; }
      return data.names[i] + " " + said[yKind](a ? points[a - 1][1] : data.log ? 0 : points[0][1]);
    });
    reading.textContent = "at " + said[xKind](x) + ":  " + told.filter((t) => t).join("   ");
  });
  svg.addEventListener("pointerleave", () => { cross.setAttribute("hidden", ""); reading.textContent = ""; });
}
for (const button of document.querySelectorAll(".legend button")) {
  button.addEventListener("click", () => {
    const number = +button.dataset.series, show = hidden.has(number);
    if (show) hidden.delete(number); else hidden.add(number);
    button.setAttribute("aria-pressed", String(show));
    for (const line of document.querySelectorAll(`path[data-series="${number}"]`)) line.classList.toggle("off", !show);
  });
}
