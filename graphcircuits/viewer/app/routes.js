// How edges run: around boxes, whatever the graph.
//
// 1. A link is an edge and one component that it arrives at; a reader that serves a group of heads
//    gives one link for each head.
// 2. Between two rows lies a band. A link leaves its writer upwards, bends in the band above it,
//    runs straight up one channel between two columns, bends in the band below its reader, and
//    arrives from below. Bends stay inside their band and channels hold no box, so no box is ever
//    crossed. Where the column of one of its ends is empty in between, it goes straight up there.
// 3. Of the channels next to its two ends a link takes the one with the least sideways movement,
//    and of equals the emptier one.
// 4. Inside a channel links get tracks, so that those that share a stretch lie side by side. Few
//    links have a track each; of many, those of one writer and slot share one.
// 5. Channels and bands grow with what runs through them.

const HEAD = 9; // room for the head of an arrow below a reader
const TRACK = 5; // between two tracks, where there is room
const CHANNEL = 26;
const WIDEST_CHANNEL = 110;
const OWN_TRACKS = 320; // as many links have a track each
const STEP = 4096; // links between two chances to stop for a frame
const NEXT = -2;
const COLUMN = -1;

/** Links of some edges: typed arrays, and by edge the first link and how many. */
function makeLinks(graph, edges) {
  const count = edges.length;
  const links = {
    count,
    edge: new Uint32Array(count), writer: new Int32Array(count), component: new Int32Array(count),
    slot: new Uint8Array(count), ofEdge: new Int32Array(graph.nEdges).fill(-1),
  };
  edges.forEach((edge, link) => {
    const reader = graph.edgeReader[edge];
    links.ofEdge[edge] = link;
    links.edge[link] = edge;
    links.writer[link] = edge - graph.offsets[reader];
    links.component[link] = graph.readerPlace[reader];
    links.slot[link] = graph.readerSlot[reader];
  });
  return links;
}

/** Layout and routes of links, in steps: a generator, since many links take longer than a frame.
 *
 * `aspect` is the shape of the window, width by height: where it is wide, channels are too. */
function* routeLinks(graph, arranged, links, aspect) {
  const at = placesOf(graph, arranged);
  const narrow = new Float64Array(arranged.columns + 1).fill(CHANNEL);
  const low = new Float64Array(arranged.rows.length).fill(40);
  const rough = place(arranged, narrow, low);
  const routes = {
    ...at, shared: links.count > OWN_TRACKS,
    from: new Int16Array(links.count), to: new Int16Array(links.count),
    way: new Int16Array(links.count), bundle: new Int32Array(links.count),
    start: new Float32Array(links.count), track: new Float32Array(links.count),
    end: new Float32Array(links.count),
  };
  yield* chooseWays(rough, links, routes);
  const tracks = giveTracks(rough, routes.bundles);
  const bands = bandHeights(arranged, links, routes);
  yield;
  const room = filling(arranged, tracks.channels, bands, aspect);
  const layout = place(arranged, room.channels, room.bands);
  yield* setTracks(layout, links, routes, tracks);
  if (routes.shared) yield* sharePorts(layout, links, routes);
  else spreadPorts(layout, links, routes);
  for (let link = 0; link < links.count; link++) {
    settle(layout, links, routes, link);
    if (link % STEP === STEP - 1) yield;
  }
  return { layout, routes };
}

/** By component: its cell, row and column; -1 for the column of a bar and the row of the unused. */
function placesOf(graph, arranged) {
  const cells = new Array(graph.nPlaces).fill(null);
  const row = new Int16Array(graph.nPlaces).fill(-1);
  const column = new Int16Array(graph.nPlaces).fill(-1);
  for (const cell of arranged.rows.flatMap((one) => one.cells)) {
    cells[cell.component] = cell;
    row[cell.component] = cell.row;
    column[cell.component] = cell.column;
  }
  return { cells, row, column };
}

/** Per link its rows, its way and its bundle.
 *
 * The way is NEXT to the next row, COLUMN straight up a column, or the number of a channel. Links
 * that share a track are a bundle: those of one writer and slot in one channel, or each alone. */
function* chooseWays(layout, links, routes) {
  const load = new Float64Array(layout.columns + 1);
  const width = layout.columns + 1;
  const known = routes.shared ? new Int32Array(routes.cells.length * 4 * width).fill(-1) : null;
  routes.bundles = [];
  for (let link = 0; link < links.count; link++) {
    const [writer, reader] = [links.writer[link], links.component[link]];
    routes.from[link] = routes.row[writer];
    routes.to[link] = routes.row[reader];
    routes.bundle[link] = -1;
    const way = wayOf(layout, routes, writer, reader, load);
    routes.way[link] = way;
    if (way >= 0) {
      const key = (writer * 4 + links.slot[link]) * width + way;
      let bundle = known ? known[key] : -1;
      if (bundle < 0) {
        bundle = routes.bundles.length;
        routes.bundles.push({ way, from: routes.from[link], to: 0, pull: 0, links: 0 });
        load[way] += 1;
        if (known) known[key] = bundle;
      }
      const own = routes.bundles[bundle];
      own.to = Math.max(own.to, routes.to[link]);
      own.pull += routes.column[writer] + routes.column[reader];
      own.links += 1;
      routes.bundle[link] = bundle;
    }
    if (link % STEP === STEP - 1) yield;
  }
}

function wayOf(layout, routes, writer, reader, load) {
  const [low, high] = [routes.row[writer], routes.row[reader]];
  if (high === low + 1) return NEXT;
  const [from, to] = [routes.column[writer], routes.column[reader]];
  if (columnIsClear(layout, from, low, high) || columnIsClear(layout, to, low, high)) return COLUMN;
  if (from < 0 && to < 0) return layout.columns; // from input to logits: outside, on the right
  let best = -1;
  let least = Infinity;
  for (let side = 0; side < 4; side++) { // left and right of the writer, then of the reader
    const column = side < 2 ? from : to;
    if (column < 0) continue;
    const channel = column + (side % 2);
    const x = layout.channelX[channel];
    let cost = 0.5 * load[channel];
    if (from >= 0) cost += Math.abs(x - layout.columnX[from]);
    if (to >= 0) cost += Math.abs(x - layout.columnX[to]);
    if (cost < least - 1e-9) [best, least] = [channel, cost];
  }
  return best;
}

function columnIsClear(layout, column, low, high) {
  return column >= 0 && layout.clear[column][high] === layout.clear[column][low + 1];
}

/** Tracks by channel: bundles whose stretches do not meet share one; ordered by where they pull. */
function giveTracks(layout, bundles) {
  const channels = new Float64Array(layout.columns + 1);
  const track = new Int32Array(bundles.length);
  const counts = new Int32Array(layout.columns + 1);
  for (let channel = 0; channel <= layout.columns; channel++) {
    const inside = [];
    bundles.forEach((bundle, i) => { if (bundle.way === channel) inside.push(i); });
    inside.sort((a, b) => bundles[a].from - bundles[b].from
      || bundles[b].to - bundles[a].to || a - b);
    const ends = [];
    const pulls = [];
    for (const i of inside) {
      const bundle = bundles[i];
      let free = ends.findIndex((end) => end <= bundle.from);
      if (free < 0) {
        free = ends.length;
        pulls.push({ sum: 0, links: 0, free });
      }
      ends[free] = bundle.to;
      pulls[free].sum += bundle.pull;
      pulls[free].links += bundle.links;
      track[i] = free;
    }
    const position = [];
    pulls.sort((a, b) => a.sum / a.links - b.sum / b.links || a.free - b.free);
    pulls.forEach((pull, i) => { position[pull.free] = i; });
    for (const i of inside) track[i] = position[track[i]];
    counts[channel] = ends.length;
    const wanted = 14 + (ends.length + 1) * (ends.length > 12 ? 3 : TRACK);
    channels[channel] = Math.min(WIDEST_CHANNEL, Math.max(CHANNEL, wanted));
  }
  return { channels, track, counts };
}

/** The widths of channels and heights of bands, grown where the window has room for them. */
function filling(arranged, channels, bands, aspect) {
  const { margin } = arranged;
  const sum = (numbers) => numbers.reduce((all, one) => all + one, 0);
  const width = sum(channels) + sum(arranged.columnWidth) + margin.left + margin.right;
  const inner = sum(bands.slice(0, -1)) + sum(arranged.rows.map((row) => row.height));
  const height = inner + margin.top + margin.bottom;
  const wider = Math.max(0, 0.92 * aspect * height - width) / channels.length;
  const higher = Math.max(0, (0.92 * width) / aspect - height) / (bands.length - 1);
  const roomy = Math.max(76, Math.min(150, 620 / arranged.columns));
  return {
    channels: channels.map((own) => Math.max(own, Math.min(own + wider, roomy))),
    bands: bands.map((own) => own + Math.min(higher, 36)),
  };
}

/** Higher where more bends cross. */
function bandHeights(arranged, links, routes) {
  const rows = arranged.rows.length;
  const bends = new Float64Array(rows);
  for (let link = 0; link < links.count; link++) {
    if (routes.way[link] !== COLUMN) bends[routes.to[link] - 1] += 1;
  }
  for (const bundle of routes.bundles) bends[bundle.from] += 1;
  const least = rows > 24 ? 20 : 34; // a deep graph must still fit a window
  const most = Math.min(92, Math.max(36, 1000 / rows));
  return bends.map((count) => Math.min(most, least + 2.4 * Math.sqrt(count) + 0.35 * count));
}

function* setTracks(layout, links, routes, tracks) {
  for (let link = 0; link < links.count; link++) {
    const channel = routes.way[link];
    if (channel < 0) continue;
    const count = tracks.counts[channel];
    const step = Math.min(TRACK, (layout.channels[channel] - 12) / (count + 1));
    const position = tracks.track[routes.bundle[link]] - (count - 1) / 2;
    routes.track[link] = layout.channelX[channel] + position * step;
    if (link % STEP === STEP - 1) yield;
  }
}

function middleOf(cell) {
  return cell.x + cell.w / 2;
}

/** The middle of a reader's slot, and the room it has. */
function portOf(cell, slot) {
  if (slot === PLAIN) return [middleOf(cell), cell.w - 22];
  const part = (cell.w - 8) / 3;
  return [middleOf(cell) + (slot - 1) * part, part - 6];
}

/** Of many links, those of a slot arrive at one point, and those of a writer leave at four. */
function* sharePorts(layout, links, routes) {
  for (let link = 0; link < links.count; link++) {
    const slot = links.slot[link];
    routes.end[link] = portOf(routes.cells[links.component[link]], slot)[0];
    routes.start[link] = middleOf(routes.cells[links.writer[link]]) + (slot - 1.5) * 4;
    if (link % STEP === STEP - 1) yield;
  }
}

/** Few links start and end side by side, in an order that keeps neighbours from crossing. */
function spreadPorts(layout, links, routes) {
  const { cells } = routes;
  const from = (link, here, there) => (
    routes.way[link] >= 0 ? routes.track[link]
      : routes.column[there] < 0 ? middleOf(cells[here]) : middleOf(cells[there]));
  const ends = groupedBy(links.count, (link) => links.component[link] * 4 + links.slot[link]);
  for (const group of ends.values()) {
    const component = links.component[group[0]];
    const [middle, room] = portOf(cells[component], links.slot[group[0]]);
    spread(group, (link) => from(link, component, links.writer[link]), middle, room, routes.end);
  }
  for (const [writer, group] of groupedBy(links.count, (link) => links.writer[link])) {
    const cell = cells[writer];
    const towards = (link) => from(link, writer, links.component[link]);
    spread(group, towards, middleOf(cell), cell.w - 14, routes.start);
    straighten(group, routes, cell);
  }
}

function spread(group, seen, middle, room, into) {
  const seenAt = new Map(group.map((link) => [link, seen(link)]));
  group.sort((a, b) => seenAt.get(a) - seenAt.get(b) || a - b);
  const step = Math.min(7, room / Math.max(1, group.length - 1));
  group.forEach((link, i) => { into[link] = middle + (i - (group.length - 1) / 2) * step; });
}

/** Where a link would end just beside where it starts, all starts move so that it runs straight. */
function straighten(group, routes, cell) {
  const near = group.filter((link) => routes.way[link] < 0
    && routes.column[cell.component] >= 0 && Math.abs(routes.end[link] - routes.start[link]) < 24);
  for (const link of near.sort((a, b) => a - b)) {
    const shift = routes.end[link] - routes.start[link];
    const inside = group.every((other) => {
      const moved = routes.start[other] + shift;
      return moved > cell.x + 5 && moved < cell.x + cell.w - 5;
    });
    if (!inside) continue;
    for (const other of group) routes.start[other] += shift;
    return;
  }
}

function groupedBy(count, key) {
  const groups = new Map();
  for (let link = 0; link < count; link++) {
    const own = key(link);
    if (groups.has(own)) groups.get(own).push(link);
    else groups.set(own, [link]);
  }
  return groups;
}

/** Ends on a bar stand right above or below the rest of the link; straight ways get their x. */
function settle(layout, links, routes, link) {
  const [writer, reader] = [links.writer[link], links.component[link]];
  const [fromBar, toBar] = [routes.column[writer] < 0, routes.column[reader] < 0];
  const way = routes.way[link];
  if (way === COLUMN) {
    const own = columnIsClear(layout, routes.column[writer], routes.from[link], routes.to[link]);
    routes.track[link] = own ? routes.start[link] : routes.end[link];
  } else if (way === NEXT) {
    if (fromBar && toBar) routes.end[link] = layout.width / 2;
    routes.track[link] = fromBar ? routes.end[link] : routes.start[link];
  }
  if (fromBar) routes.start[link] = routes.track[link];
  if (toBar) routes.end[link] = routes.track[link];
}

/** The two bends of a link: [x1, y1, x2, y2] leaving, then arriving; one where rows are next. */
function bendsOf(layout, routes, link) {
  const { rows } = layout;
  const [from, to] = [routes.from[link], routes.to[link]];
  const [start, track, end] = [routes.start[link], routes.track[link], routes.end[link]];
  const top = (number) => rows[number].y;
  const under = (number) => rows[number].y + rows[number].height + HEAD;
  if (to === from + 1) return [[start, top(from), end, under(to)]];
  return [[start, top(from), track, under(from + 1)], [track, top(to - 1), end, under(to)]];
}

/** Points along a link from its writer to its reader, for tests and for distances. */
function pointsOf(layout, routes, link) {
  const points = [];
  for (const [x1, y1, x2, y2] of bendsOf(layout, routes, link)) {
    const steps = Math.abs(x1 - x2) < 0.01 ? 1 : 8;
    for (let i = 0; i <= steps; i++) {
      const t = i / steps;
      points.push([x1 + (x2 - x1) * across(t), y1 + (y2 - y1) * along(t)]);
    }
  }
  const last = layout.rows[routes.to[link]];
  points.push([routes.end[link], last.y + last.height]);
  return points;
}

// A bend is a cubic with upright ends and both handles at half height.
function across(t) {
  return t * t * (3 - 2 * t);
}

function along(t) {
  return t * (1.5 - 1.5 * t + t * t);
}

/** A function that gives the x of a link at height y, NaN where it is not there. */
function crossing(layout, routes, y) {
  const { rows } = layout;
  const top = Float64Array.from(rows, (row) => row.y);
  const bottom = Float64Array.from(rows, (row) => row.y + row.height);
  const { from, to, start, track, end } = routes;
  // All bends of a band have the same shape, and y lies in one band at most.
  const under = bottom.map((own) => own + HEAD);
  const band = rows.findIndex((_, i) => i + 1 < rows.length && y <= top[i] && y >= under[i + 1]);
  const height = band < 0 ? 0 : (top[band] - y) / (top[band] - under[band + 1]);
  const part = across(solveAlong(height));
  return (link) => {
    const [low, high] = [from[link], to[link]];
    if (y > top[low] || y < bottom[high]) return NaN;
    if (low === band) {
      const next = high === band + 1 ? end[link] : track[link];
      return start[link] + (next - start[link]) * part;
    }
    if (high - 1 === band) return track[link] + (end[link] - track[link]) * part;
    return y < under[high] ? end[link] : track[link];
  };
}

function solveAlong(part) {
  let [low, high] = [0, 1];
  for (let i = 0; i < 12; i++) {
    const t = (low + high) / 2;
    if (along(t) < part) low = t;
    else high = t;
  }
  return (low + high) / 2;
}
