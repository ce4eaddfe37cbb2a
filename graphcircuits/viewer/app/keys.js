// Keys: the page can be used without a mouse. In a field, keys are the field's own.

const ARROWS = { ArrowLeft: "left", ArrowRight: "right", ArrowUp: "up", ArrowDown: "down" };

function setUpKeys(app) {
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || byId("help").open) return;
    const { target } = event;
    if (event.key === "Escape") {
      app.clear();
      return;
    }
    if (target.matches("input, select, textarea")) return;
    const arrow = ARROWS[event.key];
    const free = target === document.body || target.matches("canvas[role=application]");
    if (arrow && free) walk(app, arrow);
    else if (!arrow && !press(app, event)) return;
    else if (arrow && !free) return;
    event.preventDefault();
  });
}

/** To the neighbour in a direction; first of all to the input. */
function walk(app, direction) {
  const from = app.state.selected;
  app.select(from < 0 ? 0 : neighbour(app.scene, from, direction), true);
}

/** True where the key meant something. */
function press(app, event) {
  const resize = (change) => {
    const edges = Math.min(app.model.graph.nEdges, Math.max(0, app.state.edges + change));
    if (!app.model.bare) app.set({ edges, proposed: false });
  };
  const actions = {
    "/": () => byId("search").focus(),
    "?": () => byId("help").showModal(),
    0: () => app.fit(),
    p: () => propose(app),
    "+": () => resize(1), "=": () => resize(1), "]": () => resize(1), "}": () => resize(10),
    "-": () => resize(-1), _: () => resize(-10), "[": () => resize(-1), "{": () => resize(-10),
  };
  const action = Object.hasOwn(actions, event.key) ? actions[event.key] : null;
  action?.();
  return action !== null;
}
