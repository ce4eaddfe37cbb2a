// Controls: the slider and what stands beside it, and the mouse on the graph.
//
// 1. sliderSizes: up to 400 edges the slider's value is their number; beyond, its steps grow, so
//    that small circuits have as much room as large ones.
// 2. setUpControls connects every control to the state, syncControls writes the state back.
// 3. setUpPointer: drag moves, wheel and pinch zoom, a click selects, pointing tells.

function sliderSizes(all) {
  if (all <= 400) return Array.from({ length: all + 1 }, (_, i) => i);
  const sizes = [0];
  while (sizes.at(-1) < all) {
    const last = sizes.at(-1);
    sizes.push(Math.min(all, Math.max(last + 1, Math.round(last * 1.03))));
  }
  return sizes;
}

/** The step of the slider that is nearest to a number of edges. */
function sliderStep(sizes, edges) {
  const above = sizes.findIndex((size) => size >= edges);
  if (above <= 0) return Math.max(0, above);
  return sizes[above] - edges < edges - sizes[above - 1] ? above : above - 1;
}

function setUpControls(app) {
  const { model } = app;
  const all = model.graph.nEdges;
  app.sizes = sliderSizes(all);
  byId("edges").max = app.sizes.length - 1;
  byId("edges-number").max = all;
  byId("size-group").hidden = byId("faithfulness-group").hidden = model.bare;
  const size = (edges) => app.set({ edges: Math.min(all, Math.max(0, edges)), proposed: false });
  byId("edges").addEventListener("input", (event) => size(app.sizes[Number(event.target.value)]));
  byId("edges-number").addEventListener("input", ({ target }) => {
    if (target.value !== "" && target.validity.valid) size(Math.round(Number(target.value)));
  });
  byId("edges-number").addEventListener("change", () => syncControls(app));
  byId("proposed").addEventListener("click", () => propose(app));
  byId("prune").addEventListener("change", (event) => app.set({ prune: event.target.checked }));
  byId("colour").addEventListener("change", (event) => app.set({ colouring: event.target.value }));
  byId("fade-group").hidden = !model.certificate?.back;
  byId("fade").addEventListener("change", (event) => app.set({ fade: event.target.checked }));
  setUpCompare(app);
  byId("theme").addEventListener("click", () => {
    app.set({ theme: app.state.theme === "dark" ? "light" : "dark", ownTheme: true });
  });
  byId("zoom-in").addEventListener("click", () => zoomMiddle(app, 1.3));
  byId("zoom-out").addEventListener("click", () => zoomMiddle(app, 1 / 1.3));
  byId("zoom-fit").addEventListener("click", () => app.fit());
  byId("help-open").addEventListener("click", () => byId("help").showModal());
}

function setUpCompare(app) {
  const { results } = app.model;
  byId("compare").hidden = results.length < 2;
  const names = results.map((result, i) => (
    element("option", { value: i, text: result.name || `result ${i + 1}` })));
  byId("left").append(...names.map((option) => option.cloneNode(true)));
  byId("right").append(element("option", { value: -1, text: "none" }), ...names);
  const change = () => {
    const [left, right] = [Number(byId("left").value), Number(byId("right").value)];
    const colouring = fitting(app, right, app.state.colouring);
    app.set({ left, right, colouring });
    if (app.state.proposed) propose(app);
    app.setUpPanels();
  };
  byId("left").addEventListener("change", change);
  byId("right").addEventListener("change", change);
}

/** The colouring, or one that makes sense where it does not. */
function fitting(app, right, colouring) {
  if (colouring === "difference" && right < 0) return app.model.truth ? "truth" : "kind";
  return colouring;
}

/** Every result at the size that it proposes. */
function propose(app) {
  const edges = proposedSize(app.model.results[app.state.left]) ?? app.state.edges;
  app.set({ edges, proposed: true });
}

function zoomMiddle(app, factor) {
  app.look(zoomAt(app.view, factor, app.panels[0].width / 2, app.panels[0].height / 2));
}

function syncControls(app) {
  const { state, model, scene } = app;
  const slider = byId("edges");
  slider.value = sliderStep(app.sizes, state.edges);
  slider.setAttribute("aria-valuetext", plural(state.edges, "edge"));
  if (document.activeElement !== byId("edges-number") || byId("edges-number").value !== "") {
    byId("edges-number").value = state.edges;
  }
  const shown = scene.panels.map((panel) => panel.result);
  const alike = shown.every((one) => !one.chosenEdges && one.chosen === state.edges);
  byId("proposed").hidden = shown.every((one) => proposedSize(one) === null);
  byId("proposed").textContent = shown.length > 1 ? "proposed circuits" : "proposed circuit";
  byId("proposed").setAttribute("aria-pressed", String(state.proposed || alike));
  const sizes = shown.map((one) => (state.proposed && proposedSize(one)) || state.edges);
  const second = new Set(sizes).size > 1 ? `and ${sizes[1]} ` : "";
  byId("of-all").textContent = `${second}of ${model.graph.nEdges.toLocaleString("en")}`;
  byId("prune").checked = state.prune;
  byId("fade").checked = state.fade;
  const possible = [["kind", "query, key, value"]];
  if (model.truth) possible.push(["truth", ["truth", model.truth.name].filter(Boolean).join(": ")]);
  if (state.right >= 0) possible.push(["difference", "difference"]);
  model.certificate?.overlays.forEach(({ name, size }, i) => {
    possible.push([`overlay ${i}`, `overlay: ${name}, ${plural(size, "edge")}`]);
  });
  const options = possible.map(([value, text]) => element("option", { value, text }));
  byId("colour").replaceChildren(...options);
  byId("colour").value = state.colouring;
  byId("left").value = String(state.left);
  byId("right").value = String(state.right);
  const other = state.theme === "dark" ? "Light" : "Dark";
  byId("theme").textContent = other;
  byId("theme").setAttribute("aria-label", `${other} theme`);
  document.documentElement.dataset.theme = state.theme;
  scene.panels.forEach((panel, i) => {
    const text = panelText(app, panel);
    byId(`caption-${i}`).textContent = scene.panels.length > 1 ? text : "";
    byId(`graph-${i}`).setAttribute("aria-label", `Graph of ${text}`);
  });
}

/** What a panel shows: "eap-ig: 6 edges". */
function panelText(app, panel) {
  return `${panel.result.name || app.model.title}: ${plural(panel.edges.length, "edge")}`;
}

function setUpPointer(app, panel) {
  const { canvas } = panel;
  const held = new Map(); // pointers that are down
  let moved = 0;
  const at = (event) => {
    const box = canvas.getBoundingClientRect();
    return [event.clientX - box.left, event.clientY - box.top];
  };
  canvas.addEventListener("pointerdown", (event) => {
    canvas.setPointerCapture(event.pointerId);
    held.set(event.pointerId, at(event));
    moved = 0;
  });
  canvas.addEventListener("pointermove", (event) => {
    const [x, y] = at(event);
    const before = held.get(event.pointerId);
    if (!before) {
      app.point(panel, x, y);
      return;
    }
    held.set(event.pointerId, [x, y]);
    moved += Math.abs(x - before[0]) + Math.abs(y - before[1]);
    if (held.size === 2) {
      pinch(app, held, event.pointerId, before);
    } else if (moved > 3) {
      const { view } = app;
      app.look({ ...view, x: view.x + x - before[0], y: view.y + y - before[1], fitted: false });
    }
  });
  const release = (event) => {
    const was = held.delete(event.pointerId);
    if (was && event.type === "pointerup" && moved <= 3) app.click(panel, ...at(event));
  };
  canvas.addEventListener("pointerup", release);
  canvas.addEventListener("pointercancel", release);
  canvas.addEventListener("pointerleave", () => app.point(panel, null));
  canvas.addEventListener("wheel", (event) => {
    event.preventDefault();
    const factor = Math.exp(-event.deltaY * (event.ctrlKey ? 0.01 : 0.0015));
    app.look(zoomAt(app.view, factor, ...at(event)));
  }, { passive: false });
}

/** Two fingers: the point between them stays, their distance scales. */
function pinch(app, held, moving, before) {
  const [other] = [...held].filter(([id]) => id !== moving).map(([, point]) => point);
  const now = held.get(moving);
  const distance = (point) => Math.hypot(point[0] - other[0], point[1] - other[1]) || 1;
  const middle = [(now[0] + other[0]) / 2, (now[1] + other[1]) / 2];
  app.look(zoomAt(app.view, distance(now) / distance(before), ...middle));
}
