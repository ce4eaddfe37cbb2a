// The same in words: a table of the best admitted edges, and the lines of text beside the graph.
//
// 1. showTable lists at most 100 edges with rank, ends, score, probability and what they are.
// 2. showStatus says whether the circuit is connected and how it compares.
// 3. showLegend says what colours, dashes and heads mean.

const LISTED = 100;

function showTable(app) {
  const { graph } = app.model;
  const { panels, colouring } = app.scene;
  const [{ result, edges, missed, group }] = panels;
  const listed = [...edges.subarray(0, LISTED), ...missed.slice(0, LISTED)].slice(0, LISTED);
  const told = { kind: [], truth: ["against the truth"], difference: ["in which"] }[colouring];
  const heads = ["edge", "writer", "reader", ...scoreHeads(result, panels.length > 1), ...told];
  const rows = listed.map((edge) => {
    const name = edgeName(graph, edge);
    const words = told.length ? [COLOURINGS[colouring][group[edge]].label] : [];
    return element("tr", {}, element("th", { scope: "row", text: name }),
      ...name.split("->").map((text) => element("td", { text })), ...scoreCells(result, edge),
      ...words.map((text) => element("td", { text })));
  });
  const all = edges.length + missed.length;
  const some = listed.length < all ? `The best ${listed.length} of ` : "";
  const caption = `${some}${plural(all, "edge")}`;
  byId("edge-table").replaceChildren(element("caption", { text: caption }), element("thead", {},
    element("tr", {}, ...heads.map((text) => element("th", { scope: "col", text })))),
  element("tbody", {}, ...rows));
  byId("list-summary").textContent = `Edges as a table: ${caption.toLowerCase()}`;
}

function showStatus(app) {
  const { model, scene } = app;
  const [first] = scene.panels;
  const connected = byId("connected");
  connected.dataset.connected = String(scene.panels.every((panel) => isJoined(panel, app)));
  writeLines(connected, scene.panels.map((panel) => connectedText(panel, app)));
  showCounts(app, scene.panels);
  const apart = byId("difference");
  apart.textContent = "";
  if (scene.panels.length < 2) return;
  const found = difference(first.edges, scene.panels[1].edges, model.graph.nEdges);
  const correlation = app.correlation(first.result, scene.panels[1].result);
  Object.assign(apart.dataset, {
    both: found.both, left: found.left, right: found.right,
    jaccard: found.jaccard ?? "", correlation: correlation ?? "",
  });
  apart.textContent = `${found.both} in both, ${found.left} only left, ${found.right} only right; `
    + `overlap (Jaccard) ${decimal(found.jaccard)}, rank correlation ${decimal(correlation)}`;
}

function isJoined(panel, app) {
  return app.state.prune ? panel.edges.length > 0 : panel.edges.length > panel.loose;
}

function connectedText(panel, app) {
  const of = app.scene.panels.length > 1 ? `${panel.result.name}: ` : "";
  if (!isJoined(panel, app)) {
    return `${of}Not connected: no path of these edges leads from input to logits.`;
  }
  const loose = app.state.prune ? `${plural(panel.loose, "loose edge")} left out`
    : `${plural(panel.loose, "edge")} on no path`;
  return `${of}Connected${panel.loose ? `, ${loose}.` : "."}`;
}

function showCounts(app, panels) {
  const { truth } = app.model;
  const counts = byId("counts");
  counts.textContent = "";
  if (!truth) return;
  const texts = panels.map((panel, i) => {
    const found = againstTruth(panel.edges, truth);
    const { hits, misses, wrong } = found;
    if (!i) Object.assign(counts.dataset, { hits, misses, false: wrong });
    const of = panels.length > 1 ? `${panel.result.name}: ` : "";
    return `${of}${plural(hits, "hit")}, ${misses} missed, ${plural(wrong, "false alarm")}; `
      + `precision ${decimal(found.precision)}, recall ${decimal(found.recall)}`;
  });
  writeLines(counts, texts);
}

function writeLines(into, lines) {
  into.replaceChildren(...lines.map((text) => element("span", { class: "line", text })));
}

function decimal(value) {
  return value === null ? "–" : value.toFixed(2);
}

function showLegend(app) {
  const { colouring } = app.scene;
  const { theme } = app.state;
  const items = COLOURINGS[colouring].map((own, group) => (
    legendItem(own.label, colourOf(colouring, group, theme), own.dash, own.shape)));
  if (colouring !== "kind") {
    for (const own of COLOURINGS.kind.slice(0, 3)) {
      items.push(legendItem(own.label, THEMES[theme].muted, null, own.shape));
    }
  }
  byId("legend").replaceChildren(...items);
}

/** A line as edges of this kind are drawn, and their head; only the head without a dash. */
function legendItem(label, colour, dash, shape) {
  const frame = { width: 26, height: 12, viewBox: "0 0 26 12", "aria-hidden": "true" };
  const svg = svgElement("svg", frame);
  if (dash) {
    svg.append(svgElement("path", {
      d: `M1 6H${shape === null ? 26 : 17}`, stroke: colour, "stroke-width": 2.4, fill: "none",
      "stroke-dasharray": { solid: "none", dashed: "6 4", dotted: "0.01 4.5" }[dash],
      "stroke-linecap": dash === "dotted" ? "round" : "butt",
    }));
  }
  if (shape !== null) {
    const pen = new SvgPen();
    pen.begin();
    traceHead(pen, shape, dash ? 20 : 13, 1, 4);
    svg.append(svgElement("path", { d: pen.trace, fill: colour }));
  }
  return element("span", { class: "item" }, svg, element("span", { text: label }));
}
