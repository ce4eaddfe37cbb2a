// The same in words: a table of the best admitted edges, and the lines of text beside the graph.
//
// 1. showTable lists at most 100 edges with rank, ends, score, probability and what they are.
// 2. showRoles lists what components do, where it is known.
// 3. showStatus says whether the circuit is connected and how it compares.
// 4. showLegend says what colours, dashes and heads mean.

const LISTED = 100;

function showTable(app) {
  const { graph } = app.model;
  const { panels, colouring, against } = app.scene;
  const [{ result, edges, missed, group }] = panels;
  const listed = [...edges.subarray(0, LISTED), ...missed.slice(0, LISTED)].slice(0, LISTED);
  const told = {
    kind: [], truth: ["against the truth"], difference: ["in which"],
    overlay: [`against ${against?.name}`],
  }[colouring];
  const heads = [
    "edge", "writer", "reader", ...scoreHeads(result, panels.length > 1), ...chanceHeads(app.model),
    ...told,
  ];
  const rows = listed.map((edge) => {
    const name = edgeName(graph, edge);
    const words = told.length ? [COLOURINGS[colouring][group[edge]].label] : [];
    return element("tr", {}, element("th", { scope: "row", text: name }),
      ...name.split("->").map((text) => element("td", { text })), ...scoreCells(result, edge),
      ...chanceCells(app.model, edge), ...words.map((text) => element("td", { text })));
  });
  const all = edges.length + missed.length;
  const some = listed.length < all ? `The best ${listed.length} of ` : "";
  const caption = `${some}${plural(all, "edge")}`;
  byId("edge-table").replaceChildren(element("caption", { text: caption }), element("thead", {},
    element("tr", {}, ...heads.map((text) => element("th", { scope: "col", text })))),
  element("tbody", {}, ...rows));
  byId("list-summary").textContent = `Edges as a table: ${caption.toLowerCase()}`;
}

/** What a component does, behind a sign; nothing where that is not known. */
function roleOf(model, name, sign = "") {
  return Object.hasOwn(model.roles, name) ? sign + model.roles[name] : "";
}

function showRoles(model) {
  byId("roles-open").hidden = !Object.keys(model.roles).length;
  byId("role-table").replaceChildren(...Object.entries(model.roles).map(([name, text]) => (
    element("tr", {}, element("th", { scope: "row", text: name }), element("td", { text })))));
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

/** What colours, dashes and heads mean: { label, colour, dash, shape }; heads have no dash. */
function legendEntries(app) {
  const { colouring, fade } = app.scene;
  const { theme } = app.state;
  const own = COLOURINGS[colouring].map((one, group) => (
    { ...one, colour: colourOf(colouring, group, theme) }));
  const label = "fainter: came back less often";
  if (fade) own.push({ colour: THEMES[theme].faint, dash: "solid", label, shape: null });
  if (colouring === "kind") return own;
  const heads = COLOURINGS.kind.slice(0, 3);
  return [...own, ...heads.map((one) => ({ ...one, colour: THEMES[theme].muted, dash: null }))];
}

function showLegend(app) {
  byId("legend").replaceChildren(...legendEntries(app).map((entry) => {
    const canvas = element("canvas", { "aria-hidden": "true", width: 52, height: 24 });
    const context = canvas.getContext("2d");
    context.scale(2, 2);
    drawKey(new CanvasPen(context), entry, 0, 0);
    return element("span", { class: "item" }, canvas, element("span", { text: entry.label }));
  }));
}

/** A line as edges of this kind are drawn, and their head, in a box of 26 by 12. */
function drawKey(pen, { colour, dash, shape }, x, y) {
  if (dash) {
    pen.begin();
    pen.move(x + 1, y + 6);
    pen.line(x + (shape === null ? 26 : 17), y + 6);
    pen.stroke({ colour, width: 2.4, ...dashing(dash, 2.4) });
  }
  if (shape === null) return;
  pen.begin();
  traceHead(pen, shape, x + (dash ? 20 : 13), y + 1, 4);
  pen.fill({ colour });
}
