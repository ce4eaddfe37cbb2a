// Faithfulness beside the slider: as text, and as a small plot of the stored curve.

const PLOT = { width: 150, height: 44, left: 6, right: 6, top: 5, bottom: 5 };

function showFaithfulness(app) {
  const { panels } = app.scene;
  const into = byId("faithfulness");
  const found = panels.map((panel) => faithfulnessText(app, panel));
  const alike = new Set(found.map((one) => `${one.value} ${one.text}`)).size === 1;
  into.replaceChildren(...(alike ? found.slice(0, 1) : found).map((one, i) => element("span", {},
    ...(one.value === null ? [] : [element("strong", { text: one.value.toFixed(2) })]),
    element("span", { text: alike ? "" : `${panels[i].result.name}: ` }, one.text,
      ...(one.how === "none" ? [" ", element("code", { text: one.command })] : [])))));
  into.dataset.value = found[0].value ?? "";
  into.dataset.how = found[0].how;
  const results = panels.map((panel) => panel.result);
  const now = panels.map((panel, i) => ({ size: sizeOf(app, panel), value: found[i].value }));
  drawCurve(byId("curve"), results, now);
}

/** How many edges were admitted, before those on no path were left out: they change nothing. */
function sizeOf(app, panel) {
  if (app.state.proposed && panel.result.chosenBest !== null) return panel.result.chosenBest;
  return panel.edges.length + (app.state.prune ? panel.loose : 0);
}

function faithfulnessText(app, panel) {
  const { curve, chosenEdges, chosenBest } = panel.result;
  const size = sizeOf(app, panel);
  if (app.state.proposed && chosenEdges && chosenBest === null) {
    const text = "faithfulness not measured: the proposed circuit is not the best edges alone";
    return { value: null, how: "none", text, command: "" };
  }
  const found = faithfulnessAt(curve, size);
  const pairs = curve ? ` on ${plural(curve.pairs, "pair")}` : "";
  const kept = `of the ${curve?.by} kept, `;
  const texts = {
    measured: () => `${kept}measured at ${plural(size, "edge")}${pairs}`,
    between: () => `${kept}between ${found.from} and ${found.to} measured edges${pairs}`,
    outside: () => "faithfulness not measured here, only from "
      + `${found.from} to ${plural(found.to, "edge")}`,
    none: () => "faithfulness not measured; it is by",
  };
  return { ...found, text: texts[found.how](), command: "graphcircuits localize --html" };
}

/** Curves of the results, and where each of them is now. */
function drawCurve(svg, results, now) {
  const curves = results.map((result) => result.curve).filter((curve) => curve?.sizes.length);
  svg.replaceChildren();
  svg.classList.toggle("none", !curves.length);
  if (!curves.length) return;
  const sizes = [...now.map(({ size }) => size), ...curves.flatMap((curve) => curve.sizes)];
  const largest = Math.log1p(Math.max(...sizes));
  const values = curves.flatMap((curve) => curve.faithfulness);
  const [low, high] = [Math.min(0, ...values), Math.max(1, ...values)];
  const [wide, tall] = [PLOT.width - PLOT.left - PLOT.right, PLOT.height - PLOT.top - PLOT.bottom];
  const place = (value) => Number(value.toFixed(1));
  const x = (count) => place(PLOT.left + (Math.log1p(count) / largest) * wide);
  const y = (part) => place(PLOT.top + (1 - (part - low) / (high - low)) * tall);
  const add = (tag, attributes) => svg.append(svgElement(tag, attributes));
  for (const level of [0, 1]) {
    add("path", { class: "level", d: `M${PLOT.left} ${y(level)}H${PLOT.width - PLOT.right}` });
  }
  curves.forEach((curve, i) => {
    const points = curve.sizes.map((count, j) => `${x(count)} ${y(curve.faithfulness[j])}`);
    add("path", { class: `curve curve-${i}`, d: `M${points.join("L")}` });
  });
  for (const { size, value } of now) {
    const ends = `${PLOT.top - 4}V${PLOT.height - PLOT.bottom + 4}`;
    add("path", { class: "now", d: `M${x(size)} ${ends}` });
    if (value !== null) add("circle", { class: "now", cx: x(size), cy: y(value), r: 3.2 });
  }
}
