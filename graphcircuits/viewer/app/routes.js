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

/** Links of some edges: typed arrays, and by edge the first link and how many. */
function makeLinks(graph, edges) {
  let count = 0;
  for (const edge of edges) count += graph.servedCount[graph.edgeReader[edge]];
  const links = {
    count,
    edge: new Uint32Array(count), writer: new Int32Array(count), component: new Int32Array(count),
    slot: new Uint8Array(count), firstOf: new Int32Array(graph.nEdges).fill(-1),
  };
  let link = 0;
  for (const edge of edges) {
    const reader = graph.edgeReader[edge];
    links.firstOf[edge] = link;
    for (let i = 0; i < graph.servedCount[reader]; i++) {
      links.edge[link] = edge;
      links.writer[link] = edge - graph.offsets[reader];
      links.component[link] = graph.servedFirst[reader] + i;
      links.slot[link] = graph.readerSlot[reader];
      link += 1;
    }
  }
  return links;
}

/** Layout and routes of links. */
function routeLinks(graph, arranged, links) {
  const cells = cellsByComponent(graph, arranged);
  const wide = new Float64Array(arranged.columns + 1).fill(CHANNEL);
  const low = new Float64Array(arranged.rows.length).fill(40);
  const rough = place(arranged, wide, low);
  const ways = chooseChannels(graph, rough, links, cells);
  const bundles = makeBundles(graph, links, ways, cells);
  const tracks = giveTracks(rough, bundles);
  const layout = place(arranged, tracks.channels, bandHeights(arranged, links, bundles, cells));
  const routes = { ...ways, bundles, cells, bundle: bundles.of };
  routes.track = trackPositions(layout, links, ways, bundles, tracks);
  givePorts(graph, layout, links, routes);
  return { layout, routes };
}

function cellsByComponent(graph, arranged) {
  const cells = new Array(graph.nComponents).fill(null);
  for (const row of arranged.rows) {
    for (const cell of row.cells) if (cell.component >= 0) cells[cell.component] = cell;
  }
  return cells;
}

/** Per link: its rows, and its way: -2 straight to the next row, -1 by a column, or a channel. */
function chooseChannels(graph, layout, links, cells) {
  const from = new Int16Array(links.count);
  const to = new Int16Array(links.count);
  const way = new Int16Array(links.count);
  const load = new Float64Array(layout.columns + 1);
  const byWriter = new Map();
  for (let link = 0; link < links.count; link++) {
    const writer = cells[links.writer[link]];
    const reader = cells[links.component[link]];
    from[link] = writer.row;
    to[link] = reader.row;
    if (reader.row === writer.row + 1) {
      way[link] = -2;
    } else if (columnIsClear(layout, writer, writer.row, reader.row)
      || columnIsClear(layout, reader, writer.row, reader.row)) {
      way[link] = -1;
    } else {
      way[link] = bestChannel(layout, writer, reader, load);
      const key = links.count > OWN_TRACKS ? links.writer[link] * 8192 + way[link] : link + 0.5;
      if (!byWriter.has(key)) load[way[link]] += 1;
      byWriter.set(key, true);
    }
  }
  return { from, to, way };
}

function columnIsClear(layout, cell, low, high) {
  if (cell.column < 0) return false;
  const boxes = layout.clear[cell.column];
  return boxes[high] === boxes[low + 1];
}

function bestChannel(layout, writer, reader, load) {
  const sides = [];
  for (const cell of [writer, reader]) {
    if (cell.column >= 0) sides.push(cell.column, cell.column + 1);
  }
  if (!sides.length) return layout.columns; // from input to logits: outside, on the right
  let best = -1;
  let least = Infinity;
  for (const side of sides) {
    const x = layout.channelX[side];
    let cost = 0.5 * load[side];
    if (writer.column >= 0) cost += Math.abs(x - layout.columnX[writer.column]);
    if (reader.column >= 0) cost += Math.abs(x - layout.columnX[reader.column]);
    if (cost < least - 1e-9) [best, least] = [side, cost];
  }
  return best;
}

/** Links that share a track: all of one writer and slot in one channel, or each for itself. */
function makeBundles(graph, links, ways, cells) {
  const of = new Int32Array(links.count);
  const list = [];
  const known = new Map();
  const shared = links.count > OWN_TRACKS;
  for (let link = 0; link < links.count; link++) {
    const way = ways.way[link];
    const key = shared && way >= 0
      ? (links.writer[link] * 4 + links.slot[link]) * 8192 + way : -1 - link;
    let bundle = known.get(key);
    if (bundle === undefined) {
      bundle = list.length;
      known.set(key, bundle);
      list.push({ way, from: ways.from[link], to: ways.to[link], pull: 0, links: 0, first: link });
    }
    const own = list[bundle];
    own.to = Math.max(own.to, ways.to[link]);
    own.pull += cells[links.component[link]].column + cells[links.writer[link]].column;
    own.links += 1;
    of[link] = bundle;
  }
  return { of, list, shared };
}

/** Tracks by channel: bundles whose stretches do not meet share one; ordered by where they pull. */
function giveTracks(layout, bundles) {
  const channels = new Float64Array(layout.columns + 1);
  const track = new Int32Array(bundles.list.length);
  const counts = new Int32Array(layout.columns + 1);
  for (let channel = 0; channel <= layout.columns; channel++) {
    const inside = [];
    bundles.list.forEach((bundle, i) => { if (bundle.way === channel) inside.push(i); });
    inside.sort((a, b) => bundles.list[a].from - bundles.list[b].from
      || bundles.list[b].to - bundles.list[a].to || a - b);
    const ends = [];
    const pulls = [];
    for (const i of inside) {
      const bundle = bundles.list[i];
      let free = ends.findIndex((end) => end <= bundle.from);
      if (free < 0) free = ends.push(0) - 1;
      ends[free] = bundle.to;
      pulls[free] ??= { sum: 0, links: 0, free };
      pulls[free].sum += bundle.pull;
      pulls[free].links += bundle.links;
      track[i] = free;
    }
    const order = [...pulls].sort((a, b) => a.sum / a.links - b.sum / b.links || a.free - b.free);
    const place = [];
    order.forEach((pull, i) => { place[pull.free] = i; });
    for (const i of inside) track[i] = place[track[i]];
    counts[channel] = ends.length;
    const wanted = 14 + (ends.length + 1) * (ends.length > 12 ? 3 : TRACK);
    channels[channel] = Math.min(WIDEST_CHANNEL, Math.max(CHANNEL, wanted));
  }
  return { channels, track, counts };
}

/** Higher where more bends cross: counted per band. */
function bandHeights(arranged, links, bundles, cells) {
  const rows = arranged.rows.length;
  const bends = new Float64Array(rows);
  const seen = new Set();
  for (let link = 0; link < links.count; link++) {
    const bundle = bundles.list[bundles.of[link]];
    if (bundle.way === -1) continue;
    bends[cells[links.component[link]].row - 1] += 1;
    if (bundle.way >= 0 && !seen.has(bundles.of[link])) bends[bundle.from] += 1;
    seen.add(bundles.of[link]);
  }
  const most = rows > 16 ? 64 : 92;
  return bends.map((count) => Math.min(most, 34 + 2.4 * Math.sqrt(count) + 0.35 * count));
}

function trackPositions(layout, links, ways, bundles, tracks) {
  const x = new Float32Array(links.count);
  for (let link = 0; link < links.count; link++) {
    const channel = ways.way[link];
    if (channel < 0) continue;
    const count = tracks.counts[channel];
    const step = Math.min(TRACK, (layout.channels[channel] - 12) / (count + 1));
    const place = tracks.track[bundles.of[link]];
    x[link] = layout.channelX[channel] + (place - (count - 1) / 2) * step;
  }
  return x;
}

/** Where links start on top of their writer and end below their reader, in an order that keeps
 * neighbours from crossing; sets routes.start and routes.end, and the track of straight ones. */
function givePorts(graph, layout, links, routes) {
  const { cells } = routes;
  routes.start = new Float32Array(links.count);
  routes.end = new Float32Array(links.count);
  const middle = (component) => cells[component].x + cells[component].w / 2;
  const seenFrom = (link, here, there) => (
    routes.way[link] >= 0 ? routes.track[link]
      : cells[there].column < 0 ? middle(here) : middle(there));
  const ends = groupedBy(links.count, (link) => links.component[link] * 4 + links.slot[link]);
  for (const group of ends.values()) {
    const component = links.component[group[0]];
    const cell = cells[component];
    if (cell.column < 0) continue; // a bar is reached wherever the link comes from
    const slot = links.slot[group[0]];
    const part = slot === PLAIN ? cell.w - 16 : (cell.w - 8) / 3;
    const at = slot === PLAIN ? middle(component) : middle(component) + (slot - 1) * part;
    spread(group, routes, (link) => seenFrom(link, component, links.writer[link]), at, part - 6,
      routes.end);
  }
  const starts = groupedBy(links.count, (link) => links.writer[link]);
  for (const [writer, group] of starts) {
    const cell = cells[writer];
    if (cell.column < 0) continue;
    const target = (link) => seenFrom(link, writer, links.component[link]);
    spread(group, routes, target, middle(writer), cell.w - 14, routes.start);
  }
  for (let link = 0; link < links.count; link++) settleBars(layout, links, routes, link);
}

/** Positions around `at`, one per bundle, in the order of what each link is `seen` from. */
function spread(group, routes, seen, at, room, into) {
  const seenAt = new Map(group.map((link) => [link, seen(link)]));
  const shared = routes.bundles.shared;
  group.sort((a, b) => seenAt.get(a) - seenAt.get(b) || a - b);
  const keys = new Map();
  for (const link of group) {
    const key = shared ? Math.round(seenAt.get(link)) : link;
    if (!keys.has(key)) keys.set(key, keys.size);
  }
  const step = Math.min(7, room / Math.max(1, keys.size - 1));
  for (const link of group) {
    const key = shared ? Math.round(seenAt.get(link)) : link;
    into[link] = at + (keys.get(key) - (keys.size - 1) / 2) * step;
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
function settleBars(layout, links, routes, link) {
  const writer = routes.cells[links.writer[link]];
  const reader = routes.cells[links.component[link]];
  const way = routes.way[link];
  if (way === -1) {
    const ownColumn = columnIsClear(layout, writer, writer.row, reader.row);
    routes.track[link] = ownColumn ? routes.start[link] : routes.end[link];
  }
  if (way === -2) {
    if (writer.column < 0 && reader.column < 0) routes.end[link] = layout.width / 2;
    if (writer.column < 0) routes.start[link] = routes.end[link];
    if (reader.column < 0) routes.end[link] = routes.start[link];
    routes.track[link] = routes.start[link];
    return;
  }
  if (writer.column < 0) routes.start[link] = routes.track[link];
  if (reader.column < 0) routes.end[link] = routes.track[link];
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
  points.push([routes.end[link], layout.rows[routes.to[link]].y + layout.rows[routes.to[link]].height]);
  return points;
}

// A bend is a cubic with upright ends and both handles at half height.
function across(t) {
  return t * t * (3 - 2 * t);
}

function along(t) {
  return t * (1.5 - 1.5 * t + t * t);
}

/** The x of a link at height y, or NaN where it is not. */
function xAt(layout, routes, link, y) {
  const { rows } = layout;
  if (y > rows[routes.from[link]].y) return NaN;
  const last = rows[routes.to[link]];
  if (y < last.y + last.height) return NaN;
  const bends = bendsOf(layout, routes, link);
  for (const [x1, y1, x2, y2] of bends) {
    if (y <= y1 && y >= y2) return x1 + (x2 - x1) * across(solveAlong((y - y1) / (y2 - y1)));
  }
  return y < bends.at(-1)[3] ? routes.end[link] : routes.track[link];
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
