"use strict";
const spoken = (s) => {
  for (const [unit, size] of [["d", 86400], ["h", 3600], ["min", 60]])
    if (s >= (unit === "d" ? 2 : 1) * size) return (s / size).toPrecision(3) + " " + unit;
  return (+s.toPrecision(3)) + " s";
};
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
