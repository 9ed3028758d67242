// Draws the charts in the colors of the page, and again when these change.
const {themes, charts} = JSON.parse(document.getElementById("data").textContent);
const dark = matchMedia("(prefers-color-scheme: dark)");
function draw() {
  for (const place of document.querySelectorAll(".chart")) {
    const spec = charts[place.dataset.chart];
    const many = Object.values(spec.datasets).some((rows) => rows.length > 3000);
    vegaEmbed(place, spec, {
      renderer: many ? "canvas" : "svg",
      config: themes[dark.matches ? "dark" : "light"],
      tooltip: {theme: dark.matches ? "dark" : "light"},
      actions: {export: true, source: false, compiled: false, editor: false},
      ast: true, // nothing is evaluated as a program, which the page forbids
    });
  }
}
dark.addEventListener("change", draw);
draw();
