// The page: data in, state, and what follows from a change of it.
//
// 1. readModel takes the JSON of the page apart.
// 2. A change of state marks what must be made anew; the next frame makes it, draws for a while,
//    and writes the texts. Words and tables wait until the strongest edges stand.
// 3. window.graphcircuits is what tests and the console can ask.

function readModel(data) {
  const graph = makeGraph(data.graph);
  const truth = readTruth(data.truth, graph);
  const bare = data.results.length === 0; // a circuit alone: it is what is drawn
  const none = new Uint8Array(graph.nEdges);
  const results = bare ? [bareResult(truth?.name ?? "", truth?.mask ?? none, graph)]
    : data.results.map((result) => makeResult(result, graph));
  return {
    graph, results, bare, truth: bare ? null : truth,
    certificate: readCertificate(data.certificate, graph),
    title: data.title ?? "", text: data.text ?? [],
    notes: data.component_notes ?? {}, roles: data.component_roles ?? {},
    prompts: data.prompts ?? [], start: data.start ?? {},
  };
}

function readTruth(data, graph) {
  if (!data) return null;
  const mask = decodeBitmap(data.edges, graph.nEdges);
  return { name: data.name, mask, size: mask.reduce((sum, one) => sum + one, 0) };
}

/** What is written beside the graph, in this order. */
const TEXTS = [
  syncControls, showFaithfulness, showStatus, showLegend,
  showOverlaid, showCertificate, showDetails, showPaths, showAttention, showTable,
];

class App {
  constructor(model) {
    this.model = model;
    const [first] = model.results;
    const two = model.results.length > 1;
    const wanted = model.start.edges ?? proposedSize(first) ?? 20;
    this.state = {
      // For results that propose no circuit; with `proposed` every other one has its own size.
      edges: Math.min(model.graph.nEdges, wanted),
      proposed: model.results.some((result) => proposedSize(result) !== null),
      prune: false, left: 0, right: two ? 1 : -1,
      colouring: model.truth ? "truth" : two ? "difference" : "kind",
      fade: false, selected: -1, edge: -1, prompt: 0, theme: preferredTheme(), ownTheme: false,
    };
    this.panels = [0, 1].map((number) => new Panel(byId(`graph-${number}`), number));
    this.view = { scale: 1, x: 0, y: 0, fitted: true };
    this.stale = { scene: true, texts: true, picture: true, marks: true };
    this.texts = []; // those that are still to be written
    this.nextShow = 0;
    this.pointed = null;
    this.marked = null;
    this.correlations = new Map();
    this.frames = new Frames((deadline) => this.frame(deadline));
    this.frames.onPainted = () => this.painted();
  }

  start() {
    byId("title").textContent = this.model.title;
    byId("about").textContent = this.model.text.join(" ");
    showRoles(this.model);
    setUpControls(this);
    setUpSearch(this);
    setUpExport(this);
    setUpKeys(this);
    for (const panel of this.panels) setUpPointer(this, panel);
    this.setUpPanels();
    new ResizeObserver(() => this.renew("picture")).observe(byId("panels"));
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
      if (!this.state.ownTheme) this.set({ theme: preferredTheme() });
    });
    this.setUpPrint();
    this.renew("scene");
  }

  /** Paper is white: the light theme is drawn at once, and the other comes back. */
  setUpPrint() {
    let before = null;
    addEventListener("beforeprint", () => {
      before = this.state.theme;
      this.set({ theme: "light" });
      this.frame(Infinity);
    });
    addEventListener("afterprint", () => this.set({ theme: before ?? this.state.theme }));
  }

  setUpPanels() {
    byId("graph-1").parentElement.hidden = this.state.right < 0;
    byId("panels").classList.toggle("two", this.state.right >= 0);
    this.renew("scene");
  }

  shown() {
    return this.panels.slice(0, this.state.right >= 0 ? 2 : 1);
  }

  // Changes

  set(changes) {
    Object.assign(this.state, changes);
    this.renew("scene");
  }

  renew(what) {
    const order = ["scene", "texts", "picture", "marks"]; // each makes the later ones stale
    for (const part of order.slice(order.indexOf(what))) this.stale[part] = true;
    this.frames.ask();
  }

  look(view) {
    this.view = view;
    this.renew("picture");
  }

  fit() {
    this.look({ ...this.view, fitted: true });
  }

  /** Selects a component by its number, and brings it into sight on request. */
  select(component, centre = false) {
    this.centred = centre ? component : -1;
    const known = this.scene?.routes.cells[component];
    Object.assign(this.state, { selected: component, edge: -1 });
    this.marked = null;
    // A component that was folded needs a place of its own.
    if (component >= 0 && !known) this.renew("scene");
    else this.renew(centre ? "picture" : "marks");
    this.stale.texts = true;
    const name = component >= 0 ? componentName(this.model.graph, component) : "";
    if (name) this.announce(`${name} selected${roleOf(this.model, name, ": ")}`);
  }

  selectEdge(edge) {
    Object.assign(this.state, { selected: -1, edge });
    this.stale.texts = true;
    this.centred = writerOf(this.model.graph, edge);
    this.renew("picture");
    this.announce(`${edgeName(this.model.graph, edge)} selected`);
  }

  clear() {
    this.marked = null;
    byId("tooltip").hidden = true;
    this.set({ selected: -1, edge: -1 });
  }

  /** Marks edges until it is called with null. */
  mark(edges) {
    this.marked = edges;
    this.renew("marks");
  }

  announce(text) {
    byId("announce").textContent = text;
  }

  correlation(one, other) {
    const key = `${this.model.results.indexOf(one)} ${this.model.results.indexOf(other)}`;
    if (!this.correlations.has(key)) this.correlations.set(key, rankCorrelation(one, other));
    return this.correlations.get(key);
  }

  // Pointing

  click(panel, x, y) {
    const found = hit(this.scene, this.scene.panels[panel.number], this.view, x, y);
    if (found?.component !== undefined) this.select(found.component);
    else if (found?.edge !== undefined) this.selectEdge(found.edge);
    else this.clear();
  }

  point(panel, x, y) {
    this.asked = x === null ? null : { panel, x, y };
    if (x === null) byId("tooltip").hidden = true;
    this.renew("marks");
  }

  /** What is under the pointer, found once a frame. */
  findPointed() {
    const { asked } = this;
    this.pointed = asked && this.scene.panels[asked.panel.number]
      ? hit(this.scene, this.scene.panels[asked.panel.number], this.view, asked.x, asked.y) : null;
    const tip = byId("tooltip");
    const text = this.pointed ? this.tipText(this.scene.panels[asked.panel.number]) : "";
    tip.hidden = !text;
    if (!text) return;
    tip.textContent = text;
    const canvas = asked.panel.canvas.getBoundingClientRect();
    const around = byId("panels").getBoundingClientRect();
    const left = canvas.left - around.left + asked.x + 14;
    tip.style.left = `${Math.max(4, Math.min(left, around.width - tip.offsetWidth - 8))}px`;
    tip.style.top = `${Math.max(4, canvas.top - around.top + asked.y - tip.offsetHeight - 10)}px`;
  }

  tipText(panel) {
    const { graph, notes } = this.model;
    const { component, edge, stub } = this.pointed;
    if (stub) return `unused in layer ${stub.layer}: ${stub.name}`;
    if (component !== undefined) {
      const name = componentName(graph, component);
      const noted = Object.hasOwn(notes, name) ? `${name}: ${notes[name]}` : name;
      return noted + roleOf(this.model, name, "\n");
    }
    const { result } = panel;
    if (!result.scores) return edgeName(graph, edge);
    const known = chances(this.model, edge).map((words) => words.join(" "));
    const facts = [`number ${result.places[edge] + 1}`, `score ${short(result.scores[edge])}`];
    const likely = result.probabilities?.[edge];
    if (likely !== undefined) facts.push(`${Math.round(100 * likely)}% likely`);
    return `${edgeName(graph, edge)}\n${[...facts, ...known].join(", ")}`;
  }

  /** What is drawn over the picture. */
  marks(panel) {
    const { selected, edge } = this.state;
    const { pointed } = this;
    const rings = selected >= 0 ? [selected] : [];
    if (this.marked) return { veil: 0.82, edges: this.marked, components: rings, rings };
    if (pointed?.edge !== undefined) {
      const veil = selected >= 0 || edge >= 0 ? 0.5 : 0.25;
      return { veil, edges: [pointed.edge], components: rings, rings };
    }
    if (pointed?.component !== undefined) rings.push(pointed.component);
    if (selected >= 0) {
      const { edges, missed } = this.scene.panels[panel.number];
      const touching = [edges, missed].map((list) => edgesOf(this.model.graph, list, selected));
      const marked = touching.flatMap((own) => [...own.in, ...own.out]);
      return { veil: 0.72, edges: marked, components: rings, rings };
    }
    if (edge >= 0) return { veil: 0.72, edges: [edge], components: rings, rings };
    return rings.length ? { veil: 0, edges: [], components: [], rings } : null;
  }

  // Frames

  frame(deadline) {
    if (this.stale.scene) {
      this.building = buildScene(this.model, { ...this.state }, this.aspect());
      this.stale.scene = false;
      document.documentElement.dataset.theme = this.state.theme;
    }
    if (this.building && !this.build(deadline)) return true;
    // Texts get frames of their own, once what they tell of can be seen.
    if (this.stale.texts) this.texts = [...TEXTS];
    this.stale.texts = false;
    const waiting = this.stale.picture || this.stale.marks || this.seen !== this.scene;
    if (this.texts.length && !waiting) {
      this.write(deadline);
      return true;
    }
    if (this.stale.picture) this.beginPictures();
    const done = this.shown().map((panel) => panel.advance(deadline)).every(Boolean);
    const grown = done ? this.unfinished : deadline > this.nextShow;
    if (this.stale.marks || grown) this.show(deadline);
    this.unfinished = !done;
    if (done) this.complete = performance.now();
    return !done || this.texts.length > 0;
  }

  /** Shows the pictures as far as they are; while they grow, a few times a second. */
  show(deadline) {
    if (this.stale.marks) this.findPointed();
    this.stale.marks = false;
    this.nextShow = deadline + 120;
    if (this.panels[0].begun) this.seen = this.scene;
    for (const panel of this.shown()) panel.show(this.view, this.state.theme, this.marks(panel));
  }

  /** Goes on with the next scene; true once it is there. */
  build(deadline) {
    for (let step = this.building.next(); ; step = this.building.next()) {
      if (step.done) {
        this.scene = step.value;
        this.building = null;
        this.newContent = true;
        return true;
      }
      if (performance.now() > deadline) return false;
    }
  }

  aspect() {
    const { clientWidth, clientHeight } = this.panels[0].canvas;
    return Math.max(1, clientWidth) / Math.max(1, clientHeight);
  }

  beginPictures() {
    for (const panel of this.shown()) panel.resize();
    const [{ width, height }] = this.panels;
    if (this.view.fitted) this.view = fitView(this.scene.layout, width, height);
    const cell = this.centred >= 0 ? this.scene.routes.cells[this.centred] : null;
    if (cell) this.view = centreOn(this.view, cell, width, height);
    this.centred = -1;
    for (const panel of this.shown()) {
      panel.begin(this.scene, this.view, this.state.theme, this.newContent);
    }
    this.newContent = false;
    this.stale.picture = false;
  }

  /** Writes texts until `deadline`, at least one of them. */
  write(deadline) {
    do this.texts.shift()(this); while (this.texts.length && performance.now() < deadline);
  }

  painted() {
    if (this.seen) this.firstPaint ??= performance.now();
  }
}

function preferredTheme() {
  return matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
}

/** Answers about what is on the screen, in coordinates of the layout. */
function surface(app) {
  const current = () => {
    if (app.stale.scene || app.building) app.frame(Infinity);
    return app.scene;
  };
  return {
    graph: app.model.graph,
    state: app.state,
    ranking: (result = 0) => Array.from(app.model.results[result].order),
    drawn: (number = 0) => {
      const scene = current();
      return Array.from(scene.panels[number].shown, (link) => ({
        edge: scene.links.edge[link], name: edgeName(scene.graph, scene.links.edge[link]),
        component: componentName(scene.graph, scene.links.component[link]),
        ...styleOf(scene, scene.panels[number], link, app.state.theme),
        route: pointsOf(scene.layout, scene.routes, link),
      }));
    },
    boxes: () => current().cells.map(({ name, x, y, w, h, component }) => (
      { name, x, y, width: w, height: h, folded: component < 0 })),
    paths: (name) => {
      const [panel] = current().panels;
      const component = findComponent(app.model.graph, name);
      return strongestPaths(app.model.graph, panel.edges, panel.result.places, component)
        .map((path) => path.components.map((one) => componentName(app.model.graph, one)));
    },
    view: () => ({ ...app.view }),
    set: (changes) => app.set(changes),
    select: (name) => app.select(findComponent(app.model.graph, name), true),
    svg: () => { current(); return wholeSvg(app); },
    frameTimes: app.frames.times,
    frameIntervals: app.frames.intervals,
    get idle() { return !app.frames.asked; },
    get firstPaint() { return app.firstPaint ?? null; },
    get complete() {
      return app.unfinished || app.building || app.stale.picture ? null : app.complete ?? null;
    },
  };
}

const app = new App(readModel(JSON.parse(byId("data").textContent)));
window.graphcircuits = surface(app);
app.start();
