"use strict";
// The component graph, as graphcircuits/graph.py has it.
//
// 1. makeGraph derives writers, readers and the one edge order from four sizes. A component is a
//    writer, by its number, or the logits, whose number is nWriters. Heads that share keys and
//    values form a group: what reads these is the group, which has a number above all components.
// 2. Edges are numbered reader by reader and writer by writer: edge = offsets[reader] + writer.
// 3. Names are made when they are asked for, and parsed back to numbers.

const SLOTS = ["q", "k", "v", ""];
const PLAIN = 3; // the slot of what MLPs and logits read

function makeGraph(sizes) {
  const layers = sizes.n_layers;
  const heads = sizes.n_heads;
  const groups = sizes.n_kv_heads ?? heads;
  const nWriters = 1 + layers * (heads + 1);
  const nReaders = layers * (heads + 2 * groups + 1) + 1;
  const graph = {
    layers, heads, groups, nWriters, nReaders,
    parallel: Boolean(sizes.parallel),
    nComponents: nWriters + 1,
    nPlaces: nWriters + 1 + (groups === heads ? 0 : layers * groups), // components and groups
    logits: nWriters,
    offsets: new Int32Array(nReaders + 1),
    readerSlot: new Uint8Array(nReaders),
    readerLayer: new Int32Array(nReaders),
    servedFirst: new Int32Array(nReaders), // the components that compute from a reader: the first
    servedCount: new Int32Array(nReaders), // and how many, all heads of a group for its keys
    readerPlace: new Int32Array(nReaders), // where edges into a reader end: component or group
  };
  fillReaders(graph);
  graph.nEdges = graph.offsets[nReaders];
  graph.edgeReader = readerOfEdges(graph);
  return graph;
}

function fillReaders(graph) {
  const { layers, heads, groups } = graph;
  let reader = 0;
  let edge = 0;
  const add = (slot, layer, reads, first, count, place = first) => {
    graph.offsets[reader] = edge;
    graph.readerSlot[reader] = slot;
    graph.readerLayer[reader] = layer;
    graph.servedFirst[reader] = first;
    graph.servedCount[reader] = count;
    graph.readerPlace[reader] = place;
    reader += 1;
    edge += reads;
  };
  const perGroup = heads / groups;
  for (let layer = 0; layer < layers; layer++) {
    const first = 1 + layer * (heads + 1);
    for (let head = 0; head < heads; head++) add(0, layer, first, first + head, 1);
    for (const slot of [1, 2]) {
      for (let group = 0; group < groups; group++) {
        const head = first + group * perGroup;
        const place = perGroup === 1 ? head : graph.nComponents + layer * groups + group;
        add(slot, layer, first, head, perGroup, place);
      }
    }
    add(PLAIN, layer, graph.parallel ? first : first + heads, first + heads, 1);
  }
  add(PLAIN, layers, graph.nWriters, graph.logits, 1);
  graph.offsets[reader] = edge;
}

function readerOfEdges(graph) {
  const readers = new Int32Array(graph.nEdges);
  for (let reader = 0; reader < graph.nReaders; reader++) {
    readers.fill(reader, graph.offsets[reader], graph.offsets[reader + 1]);
  }
  return readers;
}

function writerOf(graph, edge) {
  return edge - graph.offsets[graph.edgeReader[edge]];
}

function slotOf(graph, edge) {
  return graph.readerSlot[graph.edgeReader[edge]];
}

/** -1 for the input, graph.layers for the logits. */
function layerOf(graph, component) {
  if (component === 0) return -1;
  if (component === graph.logits) return graph.layers;
  if (isGroup(graph, component)) return Math.floor(groupOf(graph, component) / graph.groups);
  return Math.floor((component - 1) / (graph.heads + 1));
}

/** Whether it is a group of heads that share keys and values. */
function isGroup(graph, component) {
  return component >= graph.nComponents;
}

/** The number of a group among those of all layers. */
function groupOf(graph, component) {
  return component - graph.nComponents;
}

/** The heads of a group: the first, and how many. */
function headsOf(graph, component) {
  const count = graph.heads / graph.groups;
  const group = groupOf(graph, component) % graph.groups;
  return [1 + layerOf(graph, component) * (graph.heads + 1) + group * count, count];
}

/** The number of a head in its layer; graph.heads for an MLP. */
function headOf(graph, component) {
  return (component - 1) % (graph.heads + 1);
}

function isHead(graph, component) {
  return component > 0 && component < graph.logits && headOf(graph, component) < graph.heads;
}

function componentName(graph, component) {
  if (component === 0) return "input";
  if (component === graph.logits) return "logits";
  const layer = layerOf(graph, component);
  if (isGroup(graph, component)) return `a${layer}.g${groupOf(graph, component) % graph.groups}`;
  const head = headOf(graph, component);
  return head < graph.heads ? `a${layer}.h${head}` : `m${layer}`;
}

function readerName(graph, reader) {
  const slot = graph.readerSlot[reader];
  const name = componentName(graph, graph.readerPlace[reader]);
  return slot === PLAIN ? name : `${name}<${SLOTS[slot]}>`;
}

function edgeName(graph, edge) {
  const reader = graph.edgeReader[edge];
  graph.readerNames ??= Array.from({ length: graph.nReaders }, (_, i) => readerName(graph, i));
  graph.writerNames ??= Array.from({ length: graph.nWriters }, (_, i) => componentName(graph, i));
  return `${graph.writerNames[edge - graph.offsets[reader]]}->${graph.readerNames[reader]}`;
}

/** The number of a named component or group, -1 where there is none. */
function findComponent(graph, name) {
  graph.componentNumbers ??= new Map(
    Array.from({ length: graph.nPlaces }, (_, i) => [componentName(graph, i), i]),
  );
  return graph.componentNumbers.get(name) ?? -1;
}
