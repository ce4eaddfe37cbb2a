// What the pens draw: colours, edges with their heads, boxes with their names.
//
// 1. THEMES and COLOURINGS say what colours mean; every class differs by dash or shape as well.
// 2. Painter draws a panel on a canvas in short steps: boxes, then links from the strongest to the
//    weakest, each laid beneath what is there.
// 3. drawBox and drawGround draw the rest.

const THEMES = {
  light: {
    background: "#ffffff", ink: "#1b1b21", muted: "#5d5d68", faint: "#c4c6ce", plain: "#56565e",
    box: "#ffffff", line: "#50505b", mlp: "#f4f1e8", bar: "#e9edf3", stripe: "#f6f7f9",
    accent: "#6a3fc0",
  },
  dark: {
    background: "#15161a", ink: "#eeeef3", muted: "#a9a9b6", faint: "#4b4d57", plain: "#b9b9c4",
    box: "#23252b", line: "#a3a3b1", mlp: "#302d25", bar: "#2a2f38", stripe: "#1b1c21",
    accent: "#c3a6ff",
  },
};
const BLUE = "#0173b2";
const ORANGE = "#d55e00";
// The same hues for a dark ground, where they would sink otherwise.
const LIGHTER = {
  [BLUE]: "#56b4e9", [ORANGE]: "#ff8f4d", "#de8f05": "#f2b13d", "#029e73": "#34c99a",
  "#cc78bc": "#e6a3d6",
};
const COLOURINGS = {
  kind: [
    { colour: BLUE, dash: "solid", label: "query", shape: 0 },
    { colour: "#de8f05", dash: "solid", label: "key", shape: 1 },
    { colour: "#029e73", dash: "solid", label: "value", shape: 2 },
    { colour: null, dash: "solid", label: "into an MLP or the logits", shape: 3 },
  ],
  truth: [
    { colour: BLUE, dash: "solid", label: "hit", shape: null },
    { colour: ORANGE, dash: "dashed", label: "miss", shape: null },
    { colour: "#cc78bc", dash: "dotted", label: "false alarm", shape: null },
  ],
  overlay: [
    { colour: BLUE, dash: "solid", label: "in both", shape: null },
    { colour: ORANGE, dash: "dashed", label: "only in the overlay", shape: null },
    { colour: "#cc78bc", dash: "dotted", label: "not in the overlay", shape: null },
  ],
  difference: [
    { colour: null, dash: "solid", label: "in both", shape: null },
    { colour: BLUE, dash: "dashed", label: "only left", shape: null },
    { colour: ORANGE, dash: "dotted", label: "only right", shape: null },
  ],
};
const LEVELS = 24; // widths and opacities are told apart in so many steps
const BATCH = 24; // links in one stroke

/** How to stroke a dash at a width: longer where it is wider, dots as round caps. */
function dashing(dash, width) {
  if (dash === "dashed") return { dash: [Math.max(6, 2.4 * width), Math.max(3.5, 1.4 * width)] };
  if (dash === "dotted") return { dash: [0.01, Math.max(3.4, 1.9 * width)], cap: "round" };
  return {};
}

function colourOf(colouring, group, theme) {
  const { colour } = COLOURINGS[colouring][group];
  if (colour === null) return THEMES[theme].plain;
  return theme === "dark" ? LIGHTER[colour] : colour;
}

/** Width and opacity at a strength, thinner where there are many links.
 *
 * Where colours compare, weak edges matter as much: they stay visible. */
function weight(strength, count, colouring, theme) {
  const level = Math.round(strength * LEVELS) / LEVELS;
  const [thin, thick, pale] = count <= 80 ? [1.2, 4, 0.65]
    : count <= 400 ? [0.8, 3.4, 0.36] : count <= 2500 ? [0.45, 3, 0.16] : [0.4, 2.4, 0.1];
  const seen = colouring === "kind" ? pale : Math.max(pale, 0.85 - 0.15 * Math.log10(1 + count));
  const least = theme === "dark" ? Math.min(1, 1.35 * seen) : seen;
  return {
    width: thin + (thick - thin) * level ** 1.4,
    alpha: least + (1 - least) * level ** 1.2,
    level,
  };
}

/** The opacity where it says how often an edge came back, else the given one. */
function faded(alpha, { back }, edge) {
  return back ? 0.15 + 0.85 * back[edge] : alpha;
}

/** Traces a link; where its bundle already reaches row `covered`, only what is new. */
function traceLink(pen, layout, routes, link, covered = -1) {
  const { rows } = layout;
  const [from, to] = [routes.from[link], routes.to[link]];
  const [start, track, end] = [routes.start[link], routes.track[link], routes.end[link]];
  const last = rows[to].y + rows[to].height;
  if (to === from + 1) {
    pen.move(start, rows[from].y);
    pen.bend(start, rows[from].y, end, last + HEAD);
  } else {
    if (covered < 0) {
      const under = rows[from + 1].y + rows[from + 1].height + HEAD;
      pen.move(start, rows[from].y);
      pen.bend(start, rows[from].y, track, under);
    } else {
      pen.move(track, rows[Math.min(covered, to - 1)].y);
    }
    if (covered < to - 1) pen.line(track, rows[to - 1].y);
    pen.bend(track, rows[to - 1].y, end, last + HEAD);
  }
  pen.line(end, last + 0.7 * HEAD);
}

/** The head at a reader: a circle for queries, a square for keys, a triangle for values. */
function traceHead(pen, slot, x, bottom, size) {
  const middle = bottom + 1 + size;
  if (slot === 0) {
    pen.circle(x, middle, size);
  } else if (slot === 1) {
    const half = 0.9 * size;
    pen.move(x - half, middle - half);
    pen.line(x + half, middle - half);
    pen.line(x + half, middle + half);
    pen.line(x - half, middle + half);
    pen.close();
  } else if (slot === 2) {
    pen.move(x, bottom + 0.5);
    pen.line(x + 1.25 * size, bottom + 2.3 * size);
    pen.line(x - 1.25 * size, bottom + 2.3 * size);
    pen.close();
  } else {
    pen.move(x, bottom);
    pen.line(x + 1.1 * size, bottom + 2.6 * size);
    pen.line(x, bottom + 1.8 * size);
    pen.line(x - 1.1 * size, bottom + 2.6 * size);
    pen.close();
  }
}

function headSize(width) {
  return Math.min(4, 2.1 + 0.45 * width);
}

function drawHead(pen, scene, link, width) {
  const { layout, routes, links } = scene;
  const row = layout.rows[routes.to[link]];
  traceHead(pen, links.slot[link], routes.end[link], row.y + row.height, headSize(width));
}

/** Links whole, in one style: for highlights and for SVG. */
function drawLinks(pen, scene, links, style) {
  pen.begin();
  for (const link of links) traceLink(pen, scene.layout, scene.routes, link);
  pen.stroke({ ...style, dash: [], ...dashing(style.dash, style.width) });
  pen.begin();
  for (const link of links) drawHead(pen, scene, link, style.width);
  pen.fill({ colour: style.colour, alpha: Math.max(style.alpha ?? 1, 0.5) });
}

/** The style of a link in a panel of the scene. */
function styleOf(scene, panel, link, theme) {
  const edge = scene.links.edge[link];
  const group = panel.group[edge];
  const { width, alpha } = weight(panel.strength[edge], panel.shown.length, scene.colouring, theme);
  const dash = COLOURINGS[scene.colouring][group].dash;
  const colour = colourOf(scene.colouring, group, theme);
  return { colour, width, alpha: faded(alpha, panel, edge), dash };
}

class Painter {
  constructor(scene, panel, theme) {
    Object.assign(this, { scene, panel, theme, next: 0, nextBox: 0 });
    this.covered = new Int16Array(scene.routes.bundles.length * 4).fill(-1);
    this.heads = new Set();
  }

  get done() {
    return this.next >= this.panel.shown.length && this.nextBox >= this.scene.cells.length;
  }

  /** Draws some boxes, or one batch of equally heavy links. */
  step(pen) {
    const { cells } = this.scene;
    pen.beneath(this.nextBox >= cells.length);
    if (this.nextBox < cells.length) {
      const some = cells.slice(this.nextBox, this.nextBox + BATCH);
      for (const cell of some) drawBox(pen, cell, THEMES[this.theme]);
      this.nextBox += BATCH;
    } else this.stepLinks(pen);
  }

  stepLinks(pen) {
    const { shown, group, strength } = this.panel;
    const { links } = this.scene;
    const batch = [[], [], [], []];
    const first = links.edge[shown[this.next]];
    const { colouring } = this.scene;
    const heaviest = weight(strength[first], shown.length, colouring, this.theme);
    const { width, level } = heaviest;
    const alpha = faded(heaviest.alpha, this.panel, first);
    for (let taken = 0; taken < BATCH && this.next < shown.length; taken++, this.next++) {
      const edge = links.edge[shown[this.next]];
      if (Math.round(strength[edge] * LEVELS) / LEVELS !== level) break;
      if (faded(alpha, this.panel, edge) !== alpha) break;
      batch[group[edge]].push(shown[this.next]);
    }
    batch.forEach((inside, own) => {
      if (inside.length) this.paint(pen, inside, own, width, alpha);
    });
  }

  paint(pen, inside, group, width, alpha) {
    const { layout, routes } = this.scene;
    const colour = colourOf(this.scene.colouring, group, this.theme);
    const dash = COLOURINGS[this.scene.colouring][group].dash;
    const heads = inside.filter((link) => this.newHead(link, group));
    if (heads.length) {
      pen.begin();
      for (const link of heads) drawHead(pen, this.scene, link, width);
      pen.fill({ colour, alpha: Math.max(alpha, 0.5) });
    }
    pen.begin();
    for (const link of inside) {
      const key = routes.bundle[link] * 4 + group; // negative for a link without a bundle
      traceLink(pen, layout, routes, link, key < 0 ? -1 : this.covered[key]);
      if (key >= 0) this.covered[key] = Math.max(this.covered[key], routes.to[link] - 1);
    }
    pen.stroke({ colour, width, alpha, ...dashing(dash, width) });
  }

  newHead(link, group) {
    const { links, routes } = this.scene;
    const port = (links.component[link] * 4 + links.slot[link]) * 4 + group;
    const key = port * 65536 + (Math.round(2 * routes.end[link]) & 65535);
    if (this.heads.has(key)) return false;
    this.heads.add(key);
    return true;
  }
}

function drawBoxes(pen, layout, theme, only = null) {
  const colours = THEMES[theme];
  for (const cell of cellsOf(layout)) {
    if (!only || only.has(cell.component)) drawBox(pen, cell, colours);
  }
}

function drawBox(pen, cell, colours) {
  const { x, y, w, h } = cell;
  if (cell.component < 0) {
    pen.box(x, y, w, h, h / 2, { stroke: colours.faint, dash: [2, 2], fill: colours.background });
    pen.text(cell.name, x + w / 2, y + h / 2 + 4, { font: NOTE_FONT, colour: colours.muted });
    return;
  }
  const bar = cell.column < 0;
  const mlp = !bar && cell.name.startsWith("m");
  const fill = bar ? colours.bar : mlp ? colours.mlp : cell.heads ? colours.stripe : colours.box;
  pen.open({ "data-component": cell.name }, cell.note ? `${cell.name}: ${cell.note}` : cell.name);
  pen.box(x, y, w, h, mlp ? 3 : 7, { fill, stroke: colours.line, line: 1.1 });
  const top = y + (h - BOX_HEIGHT - LINE * cell.lines.length) / 2;
  pen.text(cell.name, x + w / 2, top + 19.5, { font: NAME_FONT, colour: colours.ink });
  cell.lines.forEach((line, i) => {
    pen.text(line, x + w / 2, top + 33 + LINE * i, { font: NOTE_FONT, colour: colours.muted });
  });
  pen.shut();
}

function drawRing(pen, cell, colour, line) {
  pen.box(cell.x - 3, cell.y - 3, cell.w + 6, cell.h + 6, 9, { stroke: colour, line });
}

/** Behind everything: a stripe per layer, its name on the left, folded layers as thin lines, and
 * lines from the keys and values of a group to its heads, which are no edges. */
function drawGround(pen, layout, theme) {
  const colours = THEMES[theme];
  const label = { font: GUTTER_FONT, colour: colours.muted, align: "right" };
  const layers = new Map();
  for (const row of layout.rows.slice(1, -1)) {
    const own = layers.get(row.layer) ?? { top: Infinity, bottom: -Infinity };
    own.top = Math.min(own.top, row.y);
    own.bottom = Math.max(own.bottom, row.y + row.height);
    layers.set(row.layer, own);
  }
  for (const [layer, { top, bottom }] of layers) {
    const y = (top + bottom) / 2 + 4;
    pen.box(-12, top - 8, layout.width + 24, bottom - top + 16, 10, { fill: colours.stripe });
    pen.text(layerText({ layer }), -GUTTER, y, label);
  }
  for (const fold of layout.folds) {
    pen.begin();
    pen.move(-12, fold.y);
    pen.line(layout.width + 12, fold.y);
    pen.stroke({ colour: colours.faint, width: 1, dash: [2, 3] });
    pen.text(foldText(fold), -GUTTER, fold.y + 4, label);
  }
  for (const row of layout.rows) {
    for (const cell of row.cells) if (cell.heads) drawShared(pen, layout, cell, colours.faint);
  }
}

/** From a group's box up to those of its heads that are in use. */
function drawShared(pen, layout, group, colour) {
  const [first, count] = group.heads;
  const [start, top] = [group.x + group.w / 2, group.y];
  pen.begin();
  for (const head of layout.rows[group.row + 1].cells) {
    if (head.component < first || head.component >= first + count) continue;
    pen.move(start, top);
    pen.bend(start, top, head.x + head.w / 2, head.y + head.h);
  }
  pen.stroke({ colour, width: 2.2 });
}
