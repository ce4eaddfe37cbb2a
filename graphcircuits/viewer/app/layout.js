// Where components stand.
//
// 1. Rows from the input at the bottom to the logits on top: per layer one of heads, one with the
//    MLP. Only components in use get a box. The unused of a layer are one small stub on the right,
//    and layers without any used are folded into a thin line. Heads that share keys and values
//    have a row below them for their groups, since edges into these are edges into the group.
// 2. All rows share one set of columns, so that the channels between columns run free from bottom
//    to top: boxes stay inside their column. Input and logits are bars over the whole width.
// 3. place gives coordinates, once it is known how wide channels and how high bands must be.

const FONT = 'system-ui, -apple-system, "Segoe UI", "Helvetica Neue", Arial, sans-serif';
const NAME_FONT = `600 13px ${FONT}`;
const NOTE_FONT = `11px ${FONT}`;
const GUTTER_FONT = `11px ${FONT}`;
const LINE = 14; // height of a line of a note
const BOX_HEIGHT = 30;
const BOX_WIDTH = 58;
const NOTE_WIDTH = 118; // notes wrap at this width
const FOLD_HEIGHT = 18;
const STUB_GAP = 22; // between the columns and the stubs
const STUB_HEIGHT = 20;
const GUTTER = 22; // between the names of layers and the columns

const measuring = document.createElement("canvas").getContext("2d");
const measured = new Map();

function textWidth(text, font) {
  const key = font + text;
  if (!measured.has(key)) {
    measuring.font = font;
    measured.set(key, measuring.measureText(text).width);
  }
  return measured.get(key);
}

/** Lines no wider than `width`, broken at spaces or after signs such as _, else inside a word. */
function wrapped(text, font, width) {
  const lines = [];
  let line = "";
  for (let word of text.trim().split(/(?<=[\s_.,:;/()-])/)) {
    if (textWidth((line + word).trimEnd(), font) <= width) {
      line += word;
      continue;
    }
    if (line) lines.push(line.trimEnd());
    while (textWidth(word, font) > width) {
      let cut = word.length - 1;
      while (cut > 1 && textWidth(word.slice(0, cut), font) > width) cut -= 1;
      lines.push(word.slice(0, cut));
      word = word.slice(cut);
    }
    line = word;
  }
  return [...lines, line.trim()].filter(Boolean);
}

/** Rows of cells with their columns; `used` is one byte per component. */
function arrange(graph, used, notes) {
  const rows = [{ layer: -1, cells: [makeCell(graph, 0, notes)] }];
  const folds = [];
  for (let layer = 0; layer < graph.layers; layer++) {
    const added = layerRows(graph, layer, used, notes);
    if (added.length) rows.push(...added);
    else if (folds.at(-1)?.above === rows.length) folds.at(-1).to = layer;
    else folds.push({ above: rows.length, from: layer, to: layer });
  }
  rows.push({ layer: graph.layers, cells: [makeCell(graph, graph.logits, notes)] });
  for (const row of rows) {
    row.height = Math.max(...row.cells.map((cell) => BOX_HEIGHT + LINE * cell.lines.length));
  }
  return { rows, folds, margin: margins(rows, folds), ...inColumns(rows) };
}

/** What is around the columns: names of layers on the left, stubs on the right. A picture that was
 * saved may be shown in another font, so there is room to spare. */
function margins(rows, folds) {
  const names = [...rows.slice(1, -1).map((row) => layerText(row)), ...folds.map(foldText)];
  const widest = Math.max(0, ...names.map((name) => textWidth(name, GUTTER_FONT)));
  const stubs = rows.map((row) => (row.stub ? STUB_GAP + row.stub.width : 0));
  return {
    left: GUTTER + 1.15 * widest + 10, right: Math.max(34, 12 + Math.max(...stubs)),
    top: 22, bottom: 22,
  };
}

function layerText({ layer }) {
  return `layer ${layer}`;
}

function foldText({ from, to }) {
  return from === to ? `layer ${from} unused` : `layers ${from}–${to} unused`;
}

function layerRows(graph, layer, used, notes) {
  const first = 1 + layer * (graph.heads + 1);
  const mlp = first + graph.heads;
  const cells = [];
  for (let head = first; head < mlp; head++) {
    if (used[head]) cells.push(makeCell(graph, head, notes));
  }
  const groups = [];
  for (let group = 0; group < graph.groups; group++) {
    const place = graph.nComponents + layer * graph.groups + group;
    if (used[place]) groups.push(makeCell(graph, place, notes));
  }
  const rows = [groups, cells].filter((row) => row.length).map((row) => ({ layer, cells: row }));
  if (used[mlp]) rows.push({ layer, cells: [makeCell(graph, mlp, notes)] });
  const unused = graph.heads - cells.length;
  if (rows.length && (unused || !used[mlp])) {
    const missing = [...(unused ? [`+${unused}`] : []), ...(used[mlp] ? [] : [`m${layer}`])];
    rows[0].stub = makeStub(layer, missing.join(" "));
  }
  return rows;
}

function makeCell(graph, component, notes) {
  const name = componentName(graph, component);
  const heads = isGroup(graph, component) ? headsOf(graph, component) : null;
  const note = heads ? "shared k, v" : Object.hasOwn(notes, name) ? String(notes[name]) : "";
  const lines = wrapped(note, NOTE_FONT, NOTE_WIDTH);
  const widths = lines.map((line) => textWidth(line, NOTE_FONT));
  const width = Math.max(BOX_WIDTH, textWidth(name, NAME_FONT) + 20, ...widths.map((w) => w + 16));
  return { component, name, note, lines, width, heads };
}

function makeStub(layer, label) {
  const width = textWidth(label, NOTE_FONT) + 14;
  return { component: -1, name: label, note: "", lines: [], width, layer };
}

/** Gives every cell its column; bars at the ends have none.
 *
 * Heads stand left and right of a middle column of MLPs, so that from one MLP to the next it is
 * straight up; where there is one head per row, all stand in one column. `clear` counts the boxes
 * of a column below a row. */
function inColumns(rows) {
  const inner = rows.slice(1, -1);
  const isMlp = (row) => row.cells[0].name.startsWith("m");
  const heads = inner.filter((row) => !isMlp(row));
  const most = Math.max(0, ...heads.map((row) => row.cells.length));
  const spine = most > 1 && heads.length < inner.length;
  const columns = Math.max(1, most + spine);
  const middle = Math.floor(columns / 2);
  const free = Array.from({ length: columns }, (_, i) => i).filter((i) => !spine || i !== middle);
  const columnWidth = new Float64Array(columns).fill(BOX_WIDTH);
  const clear = Array.from({ length: columns }, () => new Int32Array(rows.length + 1));
  rows.forEach((row, number) => {
    const bar = number === 0 || number === rows.length - 1;
    const own = spine && isMlp(row) ? [middle]
      : free.slice(Math.floor((free.length - row.cells.length) / 2));
    row.cells.forEach((cell, place) => {
      cell.row = number;
      cell.column = bar ? -1 : own[place];
      if (!bar) columnWidth[cell.column] = Math.max(columnWidth[cell.column], cell.width);
    });
    const held = new Set(row.cells.map((cell) => cell.column));
    for (let column = 0; column < columns; column++) {
      clear[column][number + 1] = clear[column][number] + held.has(column);
    }
  });
  return { columns, columnWidth, clear };
}

/** Coordinates. `channels` are the widths beside the columns, `bands` the heights above rows. */
function place(arranged, channels, bands) {
  const { rows, folds, columns, columnWidth } = arranged;
  const columnX = new Float64Array(columns); // middles
  const channelX = new Float64Array(columns + 1);
  let x = 0;
  for (let column = 0; column <= columns; column++) {
    channelX[column] = x + channels[column] / 2;
    x += channels[column];
    if (column === columns) break;
    columnX[column] = x + columnWidth[column] / 2;
    x += columnWidth[column];
  }
  // A bar has room for its label.
  const width = Math.max(x, ...[rows[0], rows.at(-1)].map((row) => row.cells[0].width));
  const placedFolds = folds.map((fold) => ({ ...fold, height: FOLD_HEIGHT }));
  let y = 0;
  for (let number = rows.length - 1; number >= 0; number--) {
    const row = rows[number];
    if (number < rows.length - 1) y += bands[number];
    const fold = placedFolds.find((one) => one.above === number + 1);
    if (fold) {
      fold.y = y - bands[number] / 2 + FOLD_HEIGHT / 2;
      y += FOLD_HEIGHT;
    }
    row.y = y;
    y += row.height;
    for (const cell of row.cells) placeCell(cell, row, columnX, width);
    if (row.stub) placeStub(row.stub, row, width);
  }
  return { ...arranged, folds: placedFolds, columnX, channelX, channels, width, height: y };
}

function placeCell(cell, row, columnX, width) {
  const bar = cell.column < 0;
  cell.w = bar ? width : cell.width;
  cell.h = row.height;
  cell.x = bar ? 0 : columnX[cell.column] - cell.w / 2;
  cell.y = row.y;
}

function placeStub(stub, row, width) {
  const y = row.y + row.height / 2 - STUB_HEIGHT / 2;
  Object.assign(stub, { x: width + STUB_GAP, y, w: stub.width, h: STUB_HEIGHT });
}

/** All boxes, those of components and stubs. */
function cellsOf(layout) {
  return layout.rows.flatMap((row) => (row.stub ? [...row.cells, row.stub] : row.cells));
}
