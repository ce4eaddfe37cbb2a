// What the numbers beside the picture say.
//
// 1. faithfulnessAt: read from the stored curve, measured or between two measured sizes.
// 2. againstTruth: hits, misses and false alarms, precision and recall.
// 3. difference: edges in both, only left, only right; overlap; rank correlation of all scores.

/** { value, how, from, to }; how is "measured", "between", "outside" or "none". */
function faithfulnessAt(curve, size) {
  if (!curve || !curve.sizes.length) return { value: null, how: "none" };
  const { sizes, faithfulness } = curve;
  const last = sizes.length - 1;
  if (size < sizes[0] || size > sizes[last]) {
    return { value: null, how: "outside", from: sizes[0], to: sizes[last] };
  }
  const after = sizes.findIndex((other) => other >= size);
  if (sizes[after] === size) return { value: faithfulness[after], how: "measured" };
  const [from, to] = [sizes[after - 1], sizes[after]];
  const part = (size - from) / (to - from);
  const value = faithfulness[after - 1] + part * (faithfulness[after] - faithfulness[after - 1]);
  return { value, how: "between", from, to };
}

function againstTruth(edges, truth) {
  let hits = 0;
  for (const edge of edges) hits += truth.mask[edge];
  const wrong = edges.length - hits;
  return {
    hits, misses: truth.size - hits, wrong,
    precision: edges.length ? hits / edges.length : null,
    recall: truth.size ? hits / truth.size : null,
  };
}

function difference(left, right, nEdges) {
  const inLeft = new Uint8Array(nEdges);
  for (const edge of left) inLeft[edge] = 1;
  let both = 0;
  for (const edge of right) both += inLeft[edge];
  const all = left.length + right.length - both;
  return {
    both, left: left.length - both, right: right.length - both, jaccard: all ? both / all : null,
  };
}

/** Spearman's: the correlation of ranks, ties at their mean; null where one ranks nothing. */
function rankCorrelation(one, other) {
  if (!one.scores || !other.scores) return null;
  const a = meanRanks(one);
  const b = meanRanks(other);
  const mean = (a.length - 1) / 2;
  let product = 0;
  let squareA = 0;
  let squareB = 0;
  for (let i = 0; i < a.length; i++) {
    product += (a[i] - mean) * (b[i] - mean);
    squareA += (a[i] - mean) ** 2;
    squareB += (b[i] - mean) ** 2;
  }
  return squareA && squareB ? product / Math.sqrt(squareA * squareB) : null;
}

function meanRanks(result) {
  const { order, scores } = result;
  const ranks = new Float64Array(order.length);
  for (let start = 0; start < order.length;) {
    let end = start + 1;
    while (end < order.length && scores[order[end]] === scores[order[start]]) end += 1;
    for (let i = start; i < end; i++) ranks[order[i]] = (start + end - 1) / 2;
    start = end;
  }
  return ranks;
}

/** Short text of a number: four digits that count. */
function short(value) {
  if (value === null || value === undefined) return "–";
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 1e6 || size < 1e-3) return value.toExponential(2);
  return String(Number(value.toPrecision(4)));
}

function plural(count, word) {
  return `${count.toLocaleString("en")} ${word}${count === 1 ? "" : "s"}`;
}
