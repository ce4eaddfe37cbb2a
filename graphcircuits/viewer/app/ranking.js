// Results: their numbers, their ranking, and the edges that a size admits.
//
// 1. Numbers come as base64 of little-endian float32, sets of edges as bitmaps.
// 2. rankEdges: descending score, ties by edge order, as Result.ranking() in Python.
// 3. admittedEdges: the best k, or the proposed circuit, on request without what lies on no path.
// 4. strengths: how heavy an edge is drawn, from 0 to 1, half by rank and half by score.

function decodeBytes(base64) {
  const text = atob(base64);
  const bytes = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i++) bytes[i] = text.charCodeAt(i);
  return bytes;
}

function decodeFloats(base64) {
  const bytes = decodeBytes(base64);
  const view = new DataView(bytes.buffer);
  const numbers = new Float32Array(bytes.length / 4);
  for (let i = 0; i < numbers.length; i++) numbers[i] = view.getFloat32(4 * i, true);
  return numbers;
}

/** One byte per edge, 1 for those of the set: edge i is bit i % 8 of byte i / 8. */
function decodeBitmap(base64, count) {
  const bytes = decodeBytes(base64);
  const mask = new Uint8Array(count);
  for (let i = 0; i < count; i++) mask[i] = (bytes[i >> 3] >> (i & 7)) & 1;
  return mask;
}

/** Edges from the largest score to the smallest, ties by edge order. */
function rankEdges(scores) {
  const count = scores.length;
  const order = new Uint32Array(count);
  if (count >= 2 ** 21) {
    for (let i = 0; i < count; i++) order[i] = i;
    return order.sort((a, b) => scores[b] - scores[a] || a - b);
  }
  // A float's bits and the edge number make one whole number below 2^53, which sorts natively.
  const bits = new Uint32Array(scores.buffer);
  const keys = new Float64Array(count);
  for (let i = 0; i < count; i++) {
    const own = scores[i] === 0 ? 0 : bits[i]; // 0 and -0 are a tie
    const ascending = own & 0x80000000 ? ~own >>> 0 : (own | 0x80000000) >>> 0;
    keys[i] = (0xffffffff - ascending) * 2 ** 21 + i;
  }
  keys.sort();
  for (let i = 0; i < count; i++) order[i] = keys[i] % 2 ** 21;
  return order;
}

function inverse(order, count) {
  const places = new Int32Array(count).fill(-1);
  for (let i = 0; i < order.length; i++) places[order[i]] = i;
  return places;
}

/** A result as the page uses it; `places` is an edge's place in the ranking, from 0. */
function makeResult(data, graph) {
  const scores = decodeFloats(data.scores);
  const order = rankEdges(scores);
  return {
    name: data.name, subject: data.subject, task: data.task, method: data.method,
    notes: data.notes ?? [], curve: data.curve, chosen: data.chosen,
    scores, order, places: inverse(order, graph.nEdges),
    probabilities: data.probabilities ? decodeFloats(data.probabilities) : null,
    chosenBest: data.chosen_best ?? null,
    chosenEdges: data.chosen_edges ? decodeBitmap(data.chosen_edges, graph.nEdges) : null,
  };
}

/** A circuit without scores, as a result that admits all of its edges. */
function bareResult(name, mask, graph) {
  const order = new Uint32Array(mask.reduce((sum, one) => sum + one, 0));
  let place = 0;
  mask.forEach((one, edge) => { if (one) order[place++] = edge; });
  return {
    name, subject: "", task: "", method: "", notes: [], curve: null, chosen: null,
    scores: null, order, places: inverse(order, graph.nEdges),
    probabilities: null, chosenEdges: null, chosenBest: null,
  };
}

function proposedSize(result) {
  if (!result.chosenEdges) return result.chosen;
  return result.chosenEdges.reduce((sum, one) => sum + one, 0);
}

/** Edges in rank order: { edges, loose }, where loose counts those on no path to the logits. */
function admittedEdges(graph, result, choice) {
  let edges = result.order.subarray(0, choice.edges);
  if (choice.proposed && result.chosenEdges) {
    edges = result.order.filter((edge) => result.chosenEdges[edge]);
  }
  const useful = onPaths(graph, edges);
  const kept = edges.filter((edge) => useful[edge]);
  return { edges: choice.prune ? kept : edges, loose: edges.length - kept.length };
}

/** One byte per edge: 1 where it lies on a path from input to logits inside the given edges. */
function onPaths(graph, edges) {
  const useful = new Uint8Array(graph.nEdges);
  const reached = new Uint8Array(graph.nComponents);
  const leads = new Uint8Array(graph.nComponents);
  const inside = new Uint8Array(graph.nEdges); // edge order is an order of the computation
  for (const edge of edges) inside[edge] = 1;
  reached[0] = 1;
  for (let edge = 0; edge < graph.nEdges; edge++) {
    const reader = graph.edgeReader[edge];
    if (!inside[edge] || !reached[edge - graph.offsets[reader]]) continue;
    const first = graph.servedFirst[reader];
    for (let i = 0; i < graph.servedCount[reader]; i++) reached[first + i] = 1;
  }
  leads[graph.logits] = 1;
  for (let edge = graph.nEdges - 1; edge >= 0; edge--) {
    const reader = graph.edgeReader[edge];
    const writer = edge - graph.offsets[reader];
    if (!inside[edge] || !reached[writer]) continue;
    const first = graph.servedFirst[reader];
    let any = 0;
    for (let j = 0; j < graph.servedCount[reader]; j++) any |= leads[first + j];
    if (any) useful[edge] = leads[writer] = 1;
  }
  return useful;
}

/** By place in `edges`, which are in rank order: equal scores are equally strong. */
function strengths(result, edges) {
  const count = edges.length;
  const strong = new Float32Array(count);
  if (!result.scores || !count) return strong.fill(0.45);
  const scores = result.scores;
  const low = scores[edges[count - 1]];
  const high = scores[edges[Math.floor(0.05 * count)]]; // a few huge scores must not hide the rest
  let tie = 0;
  for (let i = 0; i < count; i++) {
    const score = scores[edges[i]];
    if (score !== scores[edges[tie]]) tie = i;
    const byRank = 1 - tie / count;
    const byScore = high > low ? Math.min(1, (score - low) / (high - low)) : byRank;
    strong[i] = 0.5 * byRank + 0.5 * byScore;
  }
  return strong;
}
