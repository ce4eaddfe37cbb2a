// The panel beside the graph: what is known about the selected component or edge.
//
// 1. element builds markup from data; data is only ever text, never markup.
// 2. A component: its note, what it does, its edges in and out, missed ones too, its strongest
//    paths. An edge: its numbers.
// 3. With nothing selected: the notes of the results.

function byId(id) {
  return document.getElementById(id);
}

function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [key, value] of Object.entries(attributes)) {
    if (key === "text") made.textContent = value;
    else if (key === "click") made.addEventListener("click", value);
    else made.setAttribute(key, value);
  }
  made.append(...children);
  return made;
}

function svgElement(tag, attributes) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  return made;
}

function showDetails(app) {
  const { state } = app;
  const body = byId("details-body");
  body.replaceChildren();
  if (state.selected >= 0) showComponent(app, body);
  else if (state.edge >= 0) showEdge(app, body);
  else showNotes(app, body);
}

function showNotes(app, body) {
  const { model } = app;
  for (const panel of app.scene.panels) {
    const { result } = panel;
    const facts = [["subject", result.subject], ["task", result.task], ["method", result.method]];
    const list = element("dl");
    for (const [word, text] of facts.filter(([, given]) => given)) {
      list.append(element("dt", { text: word }), element("dd", { text }));
    }
    body.append(element("h2", { text: result.name || model.title }), list);
    for (const note of result.notes) body.append(element("p", { class: "quiet", text: note }));
  }
  const hint = "Select a component to see its edges, the strongest paths through it, "
    + "and a head's attention.";
  body.append(element("p", { class: "hint", text: hint }));
}

function showComponent(app, body) {
  const { graph, notes } = app.model;
  const name = componentName(graph, app.state.selected);
  body.append(element("h2", { text: name }));
  if (Object.hasOwn(notes, name)) body.append(element("p", { text: notes[name] }));
  if (roleOf(app.model, name)) body.append(element("p", { text: roleOf(app.model, name) }));
  const group = isGroup(graph, app.state.selected);
  if (group) body.append(element("p", { text: sharedText(graph, app.state.selected) }));
  const both = { in: new Set(), out: new Set() };
  for (const panel of app.scene.panels) {
    for (const list of [panel.edges, panel.missed]) {
      const own = edgesOf(graph, list, app.state.selected);
      for (const way of ["in", "out"]) for (const edge of own[way]) both[way].add(edge);
    }
  }
  for (const [way, title] of [["in", "Edges in"], ["out", "Edges out"]]) {
    const edges = [...both[way]];
    // The input has no edges in, the logits and groups none out.
    if (app.state.selected === (way === "in" ? 0 : graph.logits)) continue;
    if (group && way === "out") continue;
    body.append(element("h3", { text: `${title} (${edges.length.toLocaleString("en")})` }));
    if (edges.length) body.append(edgeTable(app, edges.slice(0, 25), way));
    if (edges.length > 25) {
      const text = `and ${plural(edges.length - 25, "weaker edge")}`;
      body.append(element("p", { class: "quiet", text }));
    }
  }
}

/** Who uses the keys and values of a group. */
function sharedText(graph, component) {
  const [first, count] = headsOf(graph, component);
  const names = Array.from({ length: count }, (_, i) => componentName(graph, first + i));
  return `Keys and values shared by ${names.join(", ")}.`;
}

/** Rank, edge, score and probability; pointing at a row marks the edge. */
function edgeTable(app, edges, way) {
  const { graph } = app.model;
  const results = app.scene.panels.map((panel) => panel.result);
  const { against, colouring } = app.scene;
  const missed = colouring === "overlay" ? `only in ${against.name}` : "missed";
  const named = results.length > 1;
  const heads = [
    "edge", ...results.flatMap((result) => scoreHeads(result, named)), ...chanceHeads(app.model),
  ];
  const table = element("table", { class: "edges" }, element("thead", {},
    element("tr", {}, ...heads.map((text) => element("th", { scope: "col", text })))));
  const rows = element("tbody");
  for (const edge of edges) {
    const reader = graph.edgeReader[edge];
    const other = way === "in" ? writerOf(graph, edge) : graph.readerPlace[reader];
    const [from, to] = edgeName(graph, edge).split("->");
    const ends = way === "in" ? `${from} → ${SLOTS[slotOf(graph, edge)] || to}` : `→ ${to}`;
    const found = app.scene.panels.some((panel) => panel.admitted[edge]);
    const label = found ? ends : `${ends} (${missed})`;
    const row = element("tr", {}, element("td", {}, element("button", {
      type: "button", class: "link", text: label, click: () => app.select(other),
    })), ...results.flatMap((result) => scoreCells(result, edge)), ...chanceCells(app.model, edge));
    row.addEventListener("pointerenter", () => app.mark([edge]));
    row.addEventListener("pointerleave", () => app.mark(null));
    rows.append(row);
  }
  table.append(rows);
  return table;
}

function scoreHeads(result, named) {
  if (!result.scores) return [];
  const of = named ? ` ${result.name}` : "";
  return [`rank${of}`, "score", ...(result.probabilities ? ["likely"] : [])];
}

function scoreCells(result, edge) {
  if (!result.scores) return [];
  const texts = [String(result.places[edge] + 1), short(result.scores[edge])];
  if (result.probabilities) texts.push(`${Math.round(100 * result.probabilities[edge])}%`);
  return texts.map((text) => element("td", { class: "number", text }));
}

function showPaths(app) {
  const { graph } = app.model;
  const into = byId("paths");
  const { panels } = app.scene;
  into.replaceChildren();
  if (app.state.selected < 0 || isGroup(graph, app.state.selected)) return;
  into.append(element("h3", { text: "Strongest paths" }));
  for (const panel of panels) {
    if (panels.length > 1) into.append(element("h4", { text: panel.result.name }));
    const paths = strongestPaths(graph, panel.edges, panel.result.places, app.state.selected);
    if (!paths.length) {
      const text = "No path of the shown edges leads from input through it to logits.";
      into.append(element("p", { class: "quiet", text }));
      continue;
    }
    const list = element("ol");
    for (const path of paths) list.append(pathItem(app, panel, path));
    into.append(list);
  }
}

function pathItem(app, panel, path) {
  const { graph } = app.model;
  const words = path.components.map((component, i) => {
    if (!i) return componentName(graph, component);
    const slot = SLOTS[slotOf(graph, path.edges[i - 1])];
    return ` → ${componentName(graph, component)}${slot ? `·${slot}` : ""}`;
  });
  const weakest = panel.result.scores ? `weakest edge: number ${path.weak[0] + 1}` : "";
  const names = path.components.map((component) => componentName(graph, component));
  const item = element("li", { "data-path": names.join(" ") }, element("button", {
    type: "button", class: "link", text: words.join(""), click: () => app.mark(path.edges),
  }), element("span", { class: "quiet", text: weakest }));
  item.addEventListener("pointerenter", () => app.mark(path.edges));
  item.addEventListener("pointerleave", () => app.mark(null));
  item.addEventListener("focusin", () => app.mark(path.edges));
  item.addEventListener("focusout", () => app.mark(null));
  return item;
}

function showEdge(app, body) {
  const { graph } = app.model;
  const { edge } = app.state;
  const list = element("dl");
  for (const { result, admitted } of app.scene.panels) {
    if (!result.scores) continue;
    const place = result.places[edge] + 1;
    const all = graph.nEdges.toLocaleString("en");
    const likely = result.probabilities?.[edge];
    const facts = [
      ["result", result.name], ["rank", `${place.toLocaleString("en")} of ${all}`],
      ["score", short(result.scores[edge])],
      ...(likely === undefined ? [] : [["probability", `${(100 * likely).toFixed(1)}%`]]),
      ["shown", admitted[edge] ? "yes" : "no"],
    ];
    for (const [word, text] of facts) {
      list.append(element("dt", { text: word }), element("dd", { text }));
    }
    if (!admitted[edge]) {
      list.append(element("dd", {}, element("button", {
        type: "button", text: `show the best ${place.toLocaleString("en")} edges`,
        click: () => app.set({ edges: place, proposed: false }),
      })));
    }
  }
  for (const [word, text] of chances(app.model, edge)) {
    list.append(element("dt", { text: word }), element("dd", { text }));
  }
  const ends = [writerOf(graph, edge), graph.readerPlace[graph.edgeReader[edge]]];
  body.append(element("h2", { text: edgeName(graph, edge) }), list, element("p", {},
    ...ends.map((component) => element("button", {
      type: "button", text: componentName(graph, component), click: () => app.select(component),
    }))));
}
