// Two pens with the same strokes: one draws on a canvas, one writes SVG.
//
// A path is begun, traced, and then stroked or filled; boxes and texts stand alone. What the SVG
// pen writes is escaped here, in one place.

class CanvasPen {
  constructor(context) {
    this.context = context;
  }

  begin() { this.context.beginPath(); }
  move(x, y) { this.context.moveTo(x, y); }
  line(x, y) { this.context.lineTo(x, y); }
  close() { this.context.closePath(); }

  /** An upright S from (x1, y1), where the pen is, to (x2, y2). */
  bend(x1, y1, x2, y2) {
    const middle = (y1 + y2) / 2;
    if (Math.abs(x1 - x2) < 0.01) this.context.lineTo(x2, y2);
    else this.context.bezierCurveTo(x1, middle, x2, middle, x2, y2);
  }

  circle(x, y, radius) {
    this.context.moveTo(x + radius, y);
    this.context.arc(x, y, radius, 0, 2 * Math.PI);
  }

  stroke({ colour, width, alpha = 1, dash = [], cap = "butt" }) {
    const context = this.context;
    context.strokeStyle = colour;
    context.lineWidth = width;
    context.globalAlpha = alpha;
    context.setLineDash(dash);
    context.lineCap = cap;
    context.stroke();
    context.globalAlpha = 1;
  }

  fill({ colour, alpha = 1 }) {
    this.context.fillStyle = colour;
    this.context.globalAlpha = alpha;
    this.context.fill();
    this.context.globalAlpha = 1;
  }

  box(x, y, width, height, radius, { fill, stroke, line = 1, dash = [] }) {
    this.context.beginPath();
    this.context.roundRect(x, y, width, height, radius);
    if (fill) this.fill({ colour: fill });
    if (stroke) this.stroke({ colour: stroke, width: line, dash });
  }

  text(text, x, y, { font, colour, align = "center" }) {
    this.context.font = font;
    this.context.fillStyle = colour;
    this.context.textAlign = align;
    this.context.fillText(text, x, y);
  }

  /** Whether what follows is laid beneath what is there. */
  beneath(yes) {
    this.context.globalCompositeOperation = yes ? "destination-over" : "source-over";
  }

  /** A group that a reader may point at; only SVG keeps it. */
  open() {}
  shut() {}

  /** What `draw` draws is moved by (x, y); in SVG it is a group with a title. */
  moved(x, y, title, draw) {
    this.context.save();
    this.context.translate(x, y);
    draw();
    this.context.restore();
  }
}

class SvgPen {
  constructor() {
    this.parts = [];
    this.trace = "";
  }

  begin() { this.trace = ""; }
  move(x, y) { this.trace += `M${this.number(x)} ${this.number(y)}`; }
  line(x, y) { this.trace += `L${this.number(x)} ${this.number(y)}`; }
  close() { this.trace += "Z"; }

  bend(x1, y1, x2, y2) {
    const middle = this.number((y1 + y2) / 2);
    if (Math.abs(x1 - x2) < 0.01) this.line(x2, y2);
    else this.trace += `C${[this.number(x1), middle, this.number(x2), middle].join(" ")} `
      + `${this.number(x2)} ${this.number(y2)}`;
  }

  circle(x, y, radius) {
    const [r, across] = [this.number(radius), this.number(2 * radius)];
    this.trace += `M${this.number(x - radius)} ${this.number(y)}`
      + `a${r} ${r} 0 1 0 ${across} 0a${r} ${r} 0 1 0 ${-across} 0Z`;
  }

  stroke({ colour, width, alpha = 1, dash = [], cap = "butt" }) {
    this.element("path", {
      d: this.trace, fill: "none", stroke: colour, "stroke-width": this.number(width),
      "stroke-opacity": alpha < 1 ? this.number(alpha) : null,
      "stroke-dasharray": dash.length ? dash.join(" ") : null,
      "stroke-linecap": cap === "butt" ? null : cap,
    });
  }

  fill({ colour, alpha = 1 }) {
    const opacity = alpha < 1 ? this.number(alpha) : null;
    this.element("path", { d: this.trace, fill: colour, "fill-opacity": opacity });
  }

  box(x, y, width, height, radius, { fill, stroke, line = 1, dash = [] }) {
    this.element("rect", {
      x: this.number(x), y: this.number(y), width: this.number(width), height: this.number(height),
      rx: radius, fill: fill ?? "none", stroke: stroke ?? null,
      "stroke-width": stroke ? line : null, "stroke-dasharray": dash.length ? dash.join(" ") : null,
    });
  }

  text(text, x, y, { font, colour, align = "center" }) {
    const [, weight, size] = /^(?:(\d+) )?([\d.]+)px/.exec(font);
    const anchor = { center: "middle", left: "start", right: "end" }[align];
    this.element("text", {
      x: this.number(x), y: this.number(y), fill: colour, "font-size": size,
      "font-weight": weight ?? null, "text-anchor": anchor,
    }, text);
  }

  /** What follows until `shut` carries these attributes and a title. */
  open(attributes, title) {
    this.parts.push(`<g${this.written(attributes)}><title>${this.escaped(title)}</title>`);
  }

  shut() { this.parts.push("</g>"); }

  moved(x, y, title, draw) {
    this.open({ transform: `translate(${this.number(x)} ${this.number(y)})` }, title);
    draw();
    this.shut();
  }

  element(name, attributes, text = null) {
    const inner = text === null ? "/>" : `>${this.escaped(text)}</${name}>`;
    this.parts.push(`<${name}${this.written(attributes)}${inner}`);
  }

  written(attributes) {
    return Object.entries(attributes).filter(([, value]) => value !== null)
      .map(([key, value]) => ` ${key}="${this.escaped(String(value))}"`).join("");
  }

  /** Also without the characters that XML cannot hold. */
  escaped(text) {
    return text.replace(/[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\u{10000}-\u{10ffff}]/gu, "\ufffd")
      .replace(/[&<>"']/g, (sign) => `&#${sign.charCodeAt(0)};`);
  }

  number(value) { return Math.round(value * 100) / 100; }

  page(width, height, background) {
    const box = [0, 0, width, height].map((value) => this.number(value));
    const ground = new SvgPen();
    ground.box(0, 0, width, height, 0, { fill: background });
    return `<svg xmlns="http://www.w3.org/2000/svg" viewBox="${box.join(" ")}" width="${box[2]}" `
      + `height="${box[3]}" font-family="${this.escaped(FONT)}">`
      + `${ground.parts.join("")}${this.parts.join("\n")}</svg>\n`;
  }
}
