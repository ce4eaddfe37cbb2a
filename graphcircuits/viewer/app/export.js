// Pictures to keep: the whole graph of each panel as SVG or as PNG, drawn by the same code.
//
// A picture leaves the page, so it says by itself what it shows: the title and task on top, over
// each panel its result and size, and the legend below.

const TITLE_FONT = `600 16px ${FONT}`;
const EDGE = 16; // around the texts

function drawWhole(pen, app, panel) {
  const { scene } = app;
  const { theme } = app.state;
  drawGround(pen, scene.layout, theme);
  for (let i = panel.shown.length - 1; i >= 0; i--) {
    const link = panel.shown[i];
    const edge = scene.links.edge[link];
    const name = edgeName(scene.graph, edge);
    const score = panel.result.scores ? ` ${short(panel.result.scores[edge])}` : "";
    pen.open({ "data-edge": name }, name + score);
    drawLinks(pen, scene, [link], styleOf(scene, panel, link, theme));
    pen.shut();
  }
  drawBoxes(pen, scene.layout, theme);
}

/** Where things are in a saved picture: title, a text over each panel, panels, legend. */
function arrangePicture(app) {
  const { layout, panels } = app.scene;
  const { left, right, top, bottom } = layout.margin;
  const each = Math.max(360 / panels.length, layout.width + left + right);
  const width = each * panels.length;
  const lines = (text, font, height, across = width) => wrapped(text, font, across - 2 * EDGE)
    .map((line) => ({ line, font, height }));
  const about = app.model.text.join(" ");
  const head = [...lines(app.model.title, TITLE_FONT, 22), ...lines(about, NOTE_FONT, 15)];
  const names = panels.map((panel) => lines(exportText(app, panel), NAME_FONT, 18, each));
  const high = (some) => some.reduce((sum, one) => sum + one.height, 0);
  const panelsTop = EDGE + high(head) + 8 + Math.max(...names.map(high));
  const legendTop = panelsTop + top + layout.height + bottom;
  const keys = arrangeKeys(legendEntries(app), width);
  const height = legendTop + keys.at(-1).y + 12 + EDGE;
  return { width, height, each, head, names, panelsTop, legendTop, keys };
}

/** The entries of a legend side by side, in as many rows as they need. */
function arrangeKeys(entries, width) {
  let [x, y] = [EDGE, 0];
  return entries.map((entry) => {
    const wide = 26 + 6 + 1.15 * textWidth(entry.label, NOTE_FONT) + 16;
    if (x > EDGE && x + wide > width) [x, y] = [EDGE, y + 20];
    x += wide;
    return { ...entry, x: x - wide, y };
  });
}

/** What a panel shows, with how faithful it is where that was measured. */
function exportText(app, panel) {
  const { value } = faithfulnessText(app, panel);
  const by = panel.result.curve?.by;
  const faithful = value === null ? "" : `, keeps ${value.toFixed(2)} of the ${by}`;
  return app.model.bare ? "" : `${panelText(app, panel)}${faithful}`;
}

function drawPicture(pen, app, at) {
  const { layout, panels } = app.scene;
  const colours = THEMES[app.state.theme];
  const write = (lines, x, y) => lines.reduce((down, { line, font, height }) => {
    pen.text(line, x, down + 0.75 * height, { font, colour: colours.ink, align: "left" });
    return down + height;
  }, y);
  const below = write(at.head, EDGE, EDGE) + 8;
  panels.forEach((panel, i) => {
    write(at.names[i], EDGE + i * at.each, below);
    const x = i * at.each + (at.each - layout.width - layout.margin.right + layout.margin.left) / 2;
    pen.moved(x, at.panelsTop + layout.margin.top, panel.result.name || app.model.title, () => {
      drawWhole(pen, app, panel);
    });
  });
  for (const key of at.keys) {
    drawKey(pen, key, key.x, at.legendTop + key.y);
    const label = { font: NOTE_FONT, colour: colours.ink, align: "left" };
    pen.text(key.label, key.x + 32, at.legendTop + key.y + 10, label);
  }
}

function wholeSvg(app) {
  const at = arrangePicture(app);
  const pen = new SvgPen();
  drawPicture(pen, app, at);
  return pen.page(at.width, at.height, THEMES[app.state.theme].background);
}

/** Twice the size of the screen's, less where a canvas cannot be so large. */
function wholePng(app) {
  const at = arrangePicture(app);
  const { width, height } = at;
  const scale = Math.min(2, 16000 / width, 16000 / height, Math.sqrt(1.2e8 / (width * height)));
  const sides = { width: Math.ceil(width * scale), height: Math.ceil(height * scale) };
  const canvas = element("canvas", sides);
  const context = canvas.getContext("2d");
  context.fillStyle = THEMES[app.state.theme].background;
  context.fillRect(0, 0, canvas.width, canvas.height);
  context.scale(scale, scale);
  drawPicture(new CanvasPen(context), app, at);
  return new Promise((done) => { canvas.toBlob(done, "image/png"); });
}

function download(blob, name) {
  const link = element("a", { href: URL.createObjectURL(blob), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}

function fileName(app, suffix) {
  const plain = app.model.title.normalize("NFKD").replace(/[^A-Za-z0-9._-]+/g, "-");
  return `${plain.replace(/^[-.]+|-+$/g, "").slice(0, 60) || "circuit"}${suffix}`;
}

function setUpExport(app) {
  byId("save-svg").addEventListener("click", () => {
    download(new Blob([wholeSvg(app)], { type: "image/svg+xml" }), fileName(app, ".svg"));
  });
  byId("save-png").addEventListener("click", async () => {
    download(await wholePng(app), fileName(app, ".png"));
  });
}
