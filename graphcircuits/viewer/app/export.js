// Pictures to keep: the whole graph of each panel as SVG or as PNG, drawn by the same code.

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

function wholeSize(layout) {
  return {
    width: layout.width + MARGIN.left + MARGIN.right,
    height: layout.height + MARGIN.top + MARGIN.bottom,
  };
}

function wholeSvg(app) {
  const { width, height } = wholeSize(app.scene.layout);
  const pen = new SvgPen();
  app.scene.panels.forEach((panel, i) => {
    const name = panel.result.name || app.model.title;
    pen.open({ transform: `translate(${pen.number(i * width)} 0)` }, name);
    drawWhole(pen, app, panel);
    pen.shut();
  });
  const all = width * app.scene.panels.length;
  return pen.page(-MARGIN.left, -MARGIN.top, all, height, THEMES[app.state.theme].background);
}

/** Twice the size of the screen's, less where a canvas cannot be so large. */
function wholePng(app) {
  const { width, height } = wholeSize(app.scene.layout);
  const all = width * app.scene.panels.length;
  const scale = Math.min(2, 16000 / all, 16000 / height, Math.sqrt(1.2e8 / (all * height)));
  const sides = { width: Math.ceil(all * scale), height: Math.ceil(height * scale) };
  const canvas = element("canvas", sides);
  const context = canvas.getContext("2d");
  context.fillStyle = THEMES[app.state.theme].background;
  context.fillRect(0, 0, canvas.width, canvas.height);
  app.scene.panels.forEach((panel, i) => {
    context.setTransform(scale, 0, 0, scale, scale * (i * width + MARGIN.left), scale * MARGIN.top);
    drawWhole(new CanvasPen(context), app, panel);
  });
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
