// What a certificate says of the circuit: beside the graph, over it, and edge by edge.
//
// 1. readCertificate: texts, circuits to lay over the graph, figures by edge.
// 2. showCertificate: its lines, while nothing is selected. showOverlaid: how the circuit that is
//    shown compares with the one that is laid over it.
// 3. chances: how often an edge came back, for tables, details and pointing.

function readCertificate(data, graph) {
  if (!data) return null;
  return {
    ...data, overlays: data.circuits.map((one) => readTruth(one, graph)),
    back: data.came_back ? decodeFloats(data.came_back) : null,
    likely: data.probability ? decodeFloats(data.probability) : null,
  };
}

function showCertificate(app) {
  const { certificate } = app.model;
  const into = byId("certificate");
  into.hidden = !certificate || app.state.selected >= 0 || app.state.edge >= 0;
  if (into.hidden) return;
  const { judged: [fresh, pairs, search], of, notes, meaning } = certificate;
  const judged = `Judged on ${plural(fresh, "fresh pair")}; searched again by ${search} on `
    + `${plural(pairs, "pair")}.`;
  const quiet = (texts) => texts.filter(Boolean)
    .map((text) => element("p", { class: "quiet", text }));
  const lines = certificate.rows.flatMap(([name, said, figure, asked, found]) => [
    element("h3", { text: `${name}: ` }, element("span", { class: said, text: said })),
    ...(said === "missing" ? [] : [element("p", { text: `${figure}; asked: ${asked}` })]),
    ...quiet([found]),
  ]);
  into.replaceChildren(
    element("h2", { text: `Certificate: ${certificate.verdict}` }),
    ...quiet([of.join(": "), certifiedText(app), judged, ...notes.map((note) => `${note}.`)]),
    ...lines,
    ...(meaning ? [element("h3", { text: "Its edges" })] : []), ...quiet([meaning]),
  );
}

/** What was certified, and whether that is what is shown. */
function certifiedText(app) {
  const { overlays: [certified] } = app.model.certificate;
  const [{ edges }] = app.scene.panels;
  const { hits } = againstTruth(edges, certified);
  const same = hits === certified.size && hits === edges.length;
  const other = same ? "" : `, not of the ${plural(edges.length, "edge")} that are shown now`;
  return `Of ${plural(certified.size, "edge")}${other}.`;
}

function showOverlaid(app) {
  const { against, colouring, panels } = app.scene;
  const into = byId("overlaid");
  into.textContent = "";
  if (colouring !== "overlay") return;
  writeLines(into, panels.map((panel, i) => {
    const { hits, misses, wrong } = againstTruth(panel.edges, against);
    if (!i) Object.assign(into.dataset, { hits, misses, extra: wrong });
    const of = panels.length > 1 ? `${panel.result.name}: ` : "";
    const all = hits + misses + wrong;
    return `${of}${hits} also in ${against.name}, ${misses} only there, ${wrong} only here; `
      + `overlap (Jaccard) ${decimal(all ? hits / all : null)}`;
  }));
}

/** Of an edge [word, figure]: how often it came back, and its probability where there is one. */
function chances({ certificate }, edge) {
  const percent = (part) => (Number.isNaN(part) ? "–" : `${Math.round(100 * part)}%`);
  const figures = { "came back": certificate?.back, "certified probability": certificate?.likely };
  return Object.entries(figures).filter(([, all]) => all)
    .map(([word, all]) => [word, percent(all[edge])]);
}

function chanceHeads(model) {
  return chances(model, 0).map(([word]) => word);
}

function chanceCells(model, edge) {
  return chances(model, edge).map(([, text]) => element("td", { class: "number", text }));
}
