// Frames: what is drawn when, and how long it took.
//
// 1. Every panel has a picture beneath the visible canvas. A new scene or view begins it anew:
//    boxes first, then links from the strongest to the weakest, laid beneath, as many as fit into
//    a frame's time; the next frame goes on.
// 2. While the view moves, the last whole picture is moved along until the new one is whole.
// 3. What is pointed at or selected is drawn on top each time, over a veil.
// 4. frameTimes has the main thread's time of each frame, from its start to after its painting.

const FRAME = 8; // milliseconds of drawing in a frame

class Panel {
  constructor(canvas, number) {
    this.canvas = canvas;
    this.number = number;
    this.front = canvas.getContext("2d");
    // Read back after each batch, so that its time counts where it arises.
    this.sheet = this.newSheet();
    this.whole = this.newSheet();
    this.wholeView = null;
    this.painter = null;
    this.width = this.height = 0;
  }

  newSheet() {
    const canvas = document.createElement("canvas");
    return { canvas, context: canvas.getContext("2d", { willReadFrequently: true }) };
  }

  resize() {
    const ratio = Math.min(2, window.devicePixelRatio || 1);
    const [width, height] = [this.canvas.clientWidth, this.canvas.clientHeight];
    if (width === this.width && height === this.height && ratio === this.ratio) return false;
    Object.assign(this, { width, height, ratio, wholeView: null });
    for (const canvas of [this.canvas, this.sheet.canvas, this.whole.canvas]) {
      canvas.width = Math.max(1, Math.round(width * ratio));
      canvas.height = Math.max(1, Math.round(height * ratio));
    }
    return true;
  }

  transform(context, view) {
    const scale = this.ratio * view.scale;
    context.setTransform(scale, 0, 0, scale, this.ratio * view.x, this.ratio * view.y);
  }

  /** Begins the picture anew, unless the last one is whole and would be the same. */
  begin(scene, view, theme, newContent) {
    if (newContent) this.wholeView = null;
    const old = this.wholeView;
    const same = old && old.scale === view.scale && old.x === view.x && old.y === view.y;
    if (same) {
      this.painter = null;
      return;
    }
    this.view = view;
    this.theme = theme;
    this.scene = scene;
    this.painter = new Painter(scene, scene.panels[this.number], theme);
    const { context, canvas } = this.sheet;
    context.setTransform(1, 0, 0, 1, 0, 0);
    context.globalCompositeOperation = "source-over";
    context.clearRect(0, 0, canvas.width, canvas.height);
    this.transform(context, view);
  }

  /** Whether some links stand, or all that there are. */
  get begun() {
    return this.painter === null || this.painter.next > 0;
  }

  /** Draws until `deadline`; true once all is drawn. */
  advance(deadline) {
    if (!this.painter) return true;
    const { context } = this.sheet;
    const pen = new CanvasPen(context);
    while (!this.painter.done && performance.now() < deadline) {
      this.painter.step(pen);
      context.getImageData(0, 0, 1, 1);
    }
    if (!this.painter.done) return false;
    [this.sheet, this.whole] = [this.whole, this.sheet];
    this.wholeView = this.view;
    this.painter = null;
    return true;
  }

  /** The visible canvas: ground, picture, and what is marked. */
  show(view, theme, marks) {
    const { front, canvas, ratio } = this;
    front.setTransform(1, 0, 0, 1, 0, 0);
    front.fillStyle = THEMES[theme].background;
    front.fillRect(0, 0, canvas.width, canvas.height);
    this.transform(front, view);
    const pen = new CanvasPen(front);
    drawGround(pen, this.scene.layout, theme);
    const picture = this.wholeView ? this.whole.canvas : this.sheet.canvas;
    const made = this.wholeView ?? this.view;
    const grown = view.scale / made.scale;
    front.setTransform(1, 0, 0, 1, 0, 0);
    front.drawImage(picture, ratio * (view.x - grown * made.x), ratio * (view.y - grown * made.y),
      picture.width * grown, picture.height * grown);
    if (!marks) return;
    front.globalAlpha = marks.veil;
    front.fillStyle = THEMES[theme].background;
    front.fillRect(0, 0, canvas.width, canvas.height);
    front.globalAlpha = 1;
    this.transform(front, view);
    drawMarks(pen, this.scene, this.scene.panels[this.number], marks, theme);
  }
}

/** Marked links over the veil, the boxes they touch, and rings around what is chosen. */
function drawMarks(pen, scene, panel, marks, theme) {
  const touched = new Set(marks.components);
  const alike = new Map(); // links by style, the weakest first
  for (const edge of [...marks.edges].reverse()) {
    const link = scene.links.ofEdge[edge];
    if (link < 0 || !panel.visible[edge]) continue;
    const style = styleOf(scene, panel, link, theme);
    const key = `${style.width} ${panel.group[edge]}`;
    const width = Math.max(1.3, style.width);
    if (!alike.has(key)) alike.set(key, { style: { ...style, alpha: 1, width }, links: [] });
    touched.add(scene.links.writer[link]).add(scene.links.component[link]);
    alike.get(key).links.push(link);
  }
  for (const { style, links } of alike.values()) drawLinks(pen, scene, links, style);
  drawBoxes(pen, scene.layout, theme, touched);
  for (const component of marks.rings) {
    const cell = scene.routes.cells[component];
    if (cell) drawRing(pen, cell, THEMES[theme].accent, 2.5);
  }
}

class Frames {
  constructor(work) {
    this.work = work; // called once a frame with a deadline; true asks for another frame
    this.times = [];
    this.intervals = [];
    this.asked = false;
    this.last = null;
    this.channel = new MessageChannel();
    this.channel.port1.onmessage = () => this.painted();
  }

  ask() {
    if (this.asked) return;
    this.asked = true;
    requestAnimationFrame(() => this.run());
  }

  run() {
    this.asked = false;
    this.started = performance.now();
    if (this.last !== null) this.intervals.push(this.started - this.last);
    const more = this.work(this.started + FRAME);
    this.last = more ? this.started : null;
    // A message that is sent now arrives when the frame has been painted.
    this.channel.port2.postMessage(null);
    if (more) this.ask();
  }

  painted() {
    this.times.push(performance.now() - this.started);
    this.onPainted?.();
  }
}
