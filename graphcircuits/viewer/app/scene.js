// From what was asked for to what is drawn.
//
// 1. Every panel admits edges of its result; in the truth colouring it also shows those it missed.
// 2. Each shown edge gets a group, which decides colour and dash, and a strength.
// 3. One layout and one set of routes serve all panels, so that they can be compared by eye.

/** A generator that returns { layout, routes, links, cells, colouring, against, fade, panels }.
 *
 * The colouring "overlay 1" compares with the second circuit of the certificate, `against`.
 * A panel lists its links from the strongest. `aspect` is the shape of a panel on the screen. */
function* buildScene(model, state, aspect) {
  const { graph } = model;
  const [colouring, overlay] = state.colouring.split(" ");
  const against = colouring === "truth" ? model.truth : model.certificate?.overlays[overlay];
  const back = state.fade ? model.certificate.back : null;
  const panels = shownResults(model, state).map((result) => {
    const edges = state.proposed && result.chosen !== null ? result.chosen : state.edges;
    const found = admittedEdges(graph, result, { ...state, edges: model.bare ? Infinity : edges });
    return { result, back, ...found };
  });
  yield;
  const inside = new Uint8Array(graph.nEdges);
  for (const panel of panels) {
    classify(graph, panel, panels, { colouring, against }, inside);
    yield;
  }
  const all = panels[0].result.order.filter((edge) => inside[edge]);
  const links = makeLinks(graph, all);
  yield;
  const used = new Uint8Array(graph.nPlaces);
  used[0] = used[graph.logits] = 1;
  if (state.selected >= 0) used[state.selected] = 1;
  for (let link = 0; link < links.count; link++) {
    used[links.writer[link]] = used[links.component[link]] = 1;
  }
  const arranged = arrange(graph, used, model.notes);
  const { layout, routes } = yield* routeLinks(graph, arranged, links, aspect);
  for (const panel of panels) panel.shown = linksOf(links, panel);
  const cells = cellsOf(layout);
  return { graph, layout, routes, links, cells, colouring, against, fade: state.fade, panels };
}

function shownResults(model, state) {
  const left = model.results[state.left];
  const right = state.right >= 0 ? model.results[state.right] : null;
  return right ? [left, right] : [left];
}

/** Sets the panel's group and strength by edge, and the order it draws them in. */
function classify(graph, panel, panels, { colouring, against }, inside) {
  panel.group = new Uint8Array(graph.nEdges);
  panel.strength = new Float32Array(graph.nEdges);
  panel.admitted = new Uint8Array(graph.nEdges);
  panel.missed = [];
  const strong = strengths(panel.result, panel.edges);
  panel.edges.forEach((edge, place) => {
    panel.admitted[edge] = inside[edge] = 1;
    panel.strength[edge] = strong[place];
  });
  if (against) {
    panel.result.order.forEach((edge) => {
      if (!against.mask[edge] || panel.admitted[edge]) return;
      panel.missed.push(edge);
      panel.strength[edge] = 0.4;
      inside[edge] = 1;
    });
  }
  const other = panels.length > 1 ? panels[panel === panels[0] ? 1 : 0] : null;
  const others = new Uint8Array(graph.nEdges);
  if (colouring === "difference" && other) for (const edge of other.edges) others[edge] = 1;
  const alone = panel === panels[0] ? 1 : 2;
  for (const edge of panel.missed) panel.group[edge] = 1;
  for (const edge of panel.edges) {
    if (colouring === "kind") panel.group[edge] = slotOf(graph, edge);
    else if (against) panel.group[edge] = against.mask[edge] ? 0 : 2;
    else panel.group[edge] = others[edge] ? 0 : alone;
  }
  panel.visible = panel.admitted.slice();
  for (const edge of panel.missed) panel.visible[edge] = 1;
}

/** What the panel shows: missed edges on top, then admitted ones by rank.
 *
 * Where opacity says how often edges came back, those that did most often lie on top: edges may
 * share a line, which is as opaque as the first of them. */
function linksOf(links, panel) {
  const { back } = panel;
  const edges = [...panel.missed, ...panel.edges];
  if (back) edges.sort((a, b) => back[b] - back[a]);
  return Uint32Array.from(edges, (edge) => links.ofEdge[edge]);
}

/** Of some edges those that touch a component or group, in the order given: a head also has those
 * into the keys and values that it shares. */
function edgesOf(graph, edges, component) {
  const found = { in: [], out: [] };
  for (const edge of edges) {
    const reader = graph.edgeReader[edge];
    const first = graph.servedFirst[reader];
    const serves = component >= first && component < first + graph.servedCount[reader];
    if (edge - graph.offsets[reader] === component) found.out.push(edge);
    else if (serves || graph.readerPlace[reader] === component) found.in.push(edge);
  }
  return found;
}
