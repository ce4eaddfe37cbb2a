// Search: components by name and note, then edges by name, the better ones first.
//
// Edge names are made while looking and only until the list is full.

const MATCHES = 40;

function findMatches(app, query) {
  const { graph, notes } = app.model;
  const wanted = query.trim().toLowerCase().replaceAll("→", "->");
  if (!wanted) return [];
  const found = [];
  for (let component = 0; component < graph.nPlaces; component++) {
    const name = componentName(graph, component);
    const note = Object.hasOwn(notes, name) ? String(notes[name]) : "";
    const at = name.toLowerCase().indexOf(wanted);
    if (at < 0 && !note.toLowerCase().includes(wanted)) continue;
    const order = name.toLowerCase() === wanted ? 0 : at === 0 ? 1 : at > 0 ? 2 : 3;
    found.push({ component, order, text: name, note });
  }
  found.sort((a, b) => a.order - b.order || a.component - b.component);
  if (wanted.length > 1) {
    const { result } = app.scene.panels[0];
    for (const edge of result.order) {
      if (found.length >= MATCHES) break;
      const name = edgeName(graph, edge);
      if (name.toLowerCase().includes(wanted)) {
        const note = result.scores ? `number ${result.places[edge] + 1}` : "";
        found.push({ edge, text: name, note });
      }
    }
  }
  return found.slice(0, MATCHES);
}

function setUpSearch(app) {
  const input = byId("search");
  const list = byId("matches");
  let matches = [];
  let active = -1;
  const mark = (number) => {
    active = number;
    [...list.children].forEach((item, i) => {
      item.setAttribute("aria-selected", String(i === number));
    });
    if (number >= 0 && matches.length) {
      input.setAttribute("aria-activedescendant", `match-${number}`);
      list.children[number].scrollIntoView({ block: "nearest" });
    } else input.removeAttribute("aria-activedescendant");
  };
  const close = () => {
    list.hidden = true;
    input.setAttribute("aria-expanded", "false");
  };
  const take = (number) => {
    const match = matches[number];
    if (!match) return;
    close();
    if (match.edge === undefined) app.select(match.component, true);
    else app.selectEdge(match.edge);
  };
  const look = () => {
    matches = findMatches(app, input.value);
    list.replaceChildren(...matches.map((match, i) => {
      const item = element("li", { role: "option", id: `match-${i}`, "aria-selected": "false" },
        element("span", { text: match.text }),
        element("span", { class: "quiet", text: match.note }));
      item.addEventListener("pointerdown", (event) => { event.preventDefault(); take(i); });
      return item;
    }));
    list.hidden = !matches.length;
    input.setAttribute("aria-expanded", String(matches.length > 0));
    mark(matches.length ? 0 : -1);
    const count = matches.length === 1 ? "1 match" : `${matches.length} matches`;
    app.announce(input.value.trim() ? count : "");
  };
  input.addEventListener("input", look);
  input.addEventListener("focus", () => { if (input.value) look(); });
  input.addEventListener("blur", close);
  input.addEventListener("keydown", (event) => {
    if (event.key === "ArrowDown") mark(Math.min(matches.length - 1, active + 1));
    else if (event.key === "ArrowUp") mark(Math.max(0, active - 1));
    else if (event.key === "Enter") take(active);
    else if (event.key === "Escape") { input.value = ""; close(); input.blur(); }
    else return;
    event.preventDefault();
    event.stopPropagation();
  });
}
