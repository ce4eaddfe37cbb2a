// The strongest paths through a component, from input to logits inside the admitted edges.
//
// 1. Between two components counts the best of their edges, so a path is a list of components.
// 2. A path is as good as its weakest edge, by rank; of equals the next weakest decides, and of
//    paths that agree on all edges of the shorter one, the shorter is better. That order stays when
//    both paths are extended by the same edge, so the best few up to a component are extensions of
//    the best few up to those before it.
// 3. The best few from the input to the component and from it to the logits are joined.

/** The best edge per pair of components: by component, a list of { other, edge, place }. */
function hopsOf(graph, edges, places, backwards) {
  const best = new Map();
  for (const edge of edges) {
    const reader = graph.edgeReader[edge];
    const writer = edge - graph.offsets[reader];
    for (let i = 0; i < graph.servedCount[reader]; i++) {
      const component = graph.servedFirst[reader] + i;
      const key = writer * graph.nComponents + component;
      const known = best.get(key);
      if (known === undefined || places[edge] < places[known]) best.set(key, edge);
    }
  }
  const hops = Array.from({ length: graph.nComponents }, () => []);
  for (const [key, edge] of best) {
    const [writer, component] = [Math.floor(key / graph.nComponents), key % graph.nComponents];
    if (backwards) hops[writer].push({ other: component, edge, place: places[edge] });
    else hops[component].push({ other: writer, edge, place: places[edge] });
  }
  return hops;
}

/** Negative where path a is better: `weak` lists the places of its edges from the worst. */
function comparePaths(a, b) {
  const shared = Math.min(a.weak.length, b.weak.length);
  for (let i = 0; i < shared; i++) if (a.weak[i] !== b.weak[i]) return a.weak[i] - b.weak[i];
  return a.weak.length - b.weak.length;
}

function extended(path, hop, component) {
  const weak = path.weak.slice();
  let at = weak.length;
  while (at > 0 && weak[at - 1] < hop.place) at -= 1;
  weak.splice(at, 0, hop.place);
  return { weak, components: [...path.components, component], edges: [...path.edges, hop.edge] };
}

/** Per component up to `stop`, the best `count` paths from `start`, in the order given. */
function bestPaths(hops, start, order, count, stop) {
  const found = new Array(hops.length).fill(null);
  found[start] = [{ weak: [], components: [start], edges: [] }];
  for (const component of order) {
    if (component === start) continue;
    const list = [];
    for (const hop of hops[component]) {
      for (const path of found[hop.other] ?? []) {
        const worst = Math.max(path.weak[0] ?? -1, hop.place);
        if (list.length === count && worst > list[count - 1].weak[0]) break;
        list.push(extended(path, hop, component));
        list.sort(comparePaths);
        if (list.length > count) list.pop();
      }
    }
    found[component] = list;
    if (component === stop) break;
  }
  return found[stop] ?? [];
}

/** The best `count` paths through a component: { components, edges, weak }.
 *
 * Among the first edges in rank order, once they hold as many paths, there are the best of all: a
 * path with a later edge is worse. So few of the edges are looked at. */
function strongestPaths(graph, edges, places, component, count = 5) {
  for (let first = 256; ; first *= 4) {
    const found = pathsInside(graph, edges.subarray(0, first), places, component, count);
    if (found.length === count || first >= edges.length) return found;
  }
}

function pathsInside(graph, edges, places, component, count) {
  const upward = Array.from({ length: graph.nComponents }, (_, i) => i);
  const downward = upward.slice().reverse();
  const before = component === 0 ? [{ weak: [], components: [0], edges: [] }]
    : bestPaths(hopsOf(graph, edges, places, false), 0, upward, count, component);
  if (!before.length) return [];
  const after = component === graph.logits ? [{ weak: [], components: [component], edges: [] }]
    : bestPaths(hopsOf(graph, edges, places, true), graph.logits, downward, count, component);
  const whole = [];
  for (const low of before) {
    for (const high of after) {
      const weak = [...low.weak, ...high.weak].sort((a, b) => b - a);
      const components = [...low.components, ...high.components.slice(0, -1).reverse()];
      whole.push({ weak, components, edges: [...low.edges, ...high.edges.slice().reverse()] });
    }
  }
  return whole.sort(comparePaths).slice(0, count);
}
