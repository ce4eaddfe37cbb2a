// Attention patterns of a head on the stored prompts.
//
// 1. A prompt holds one byte per layer, head, query and key, 255 for 1.
// 2. Each pattern is a canvas: a row per query, a column per key, tokens on both sides; dark means
//    much in the light theme, bright in the dark one. Pointing at a cell says its value.
// 3. Below it stands what the last position looks at. In a causal model that is the last one whose
//    output is scored. The strongest entry of all would name a sink: most heads have a position,
//    often the first, that many others look at when they have nothing to do.

const RAMPS = {
  light: [[255, 255, 255], [158, 202, 225], [8, 69, 148]],
  dark: [[27, 28, 33], [33, 113, 181], [222, 235, 247]],
};
const CELL = 22;

function rampColour(theme, value) {
  const stops = RAMPS[theme];
  const at = Math.min(1, Math.max(0, value)) * (stops.length - 1);
  const low = Math.min(stops.length - 2, Math.floor(at));
  const mixed = stops[low].map((c, i) => Math.round(c + (at - low) * (stops[low + 1][i] - c)));
  return `rgb(${mixed.join(" ")})`;
}

function shownToken(token) {
  const visible = token.replaceAll("\n", "↵").replaceAll("\t", "⇥").replaceAll(" ", "␣");
  return visible.length > 14 ? `${visible.slice(0, 13)}…` : visible;
}

/** [query][key] of a head, from 0 to 1. */
function patternOf(graph, bytes, length, component) {
  const head = layerOf(graph, component) * graph.heads + headOf(graph, component);
  const start = head * length * length;
  return Array.from({ length }, (_, query) => Array.from(
    bytes.subarray(start + query * length, start + (query + 1) * length), (byte) => byte / 255));
}

function drawPattern(canvas, tokens, pattern, theme) {
  const count = tokens.length;
  const cell = Math.max(9, Math.min(CELL, Math.floor(230 / count)));
  const font = `${Math.min(11, cell + 1)}px ${FONT}`;
  const label = Math.max(...tokens.map((token) => textWidth(shownToken(token), font))) + 8;
  const side = label + count * cell;
  const ratio = Math.min(2, window.devicePixelRatio || 1);
  canvas.width = (side + 2) * ratio;
  canvas.height = (side + 2) * ratio;
  canvas.style.width = `${side + 2}px`;
  canvas.style.height = `${side + 2}px`;
  const context = canvas.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  pattern.forEach((row, query) => row.forEach((value, key) => {
    context.fillStyle = rampColour(theme, value);
    context.fillRect(label + key * cell, label + query * cell, cell, cell);
  }));
  context.strokeStyle = THEMES[theme].faint;
  context.strokeRect(label - 0.5, label - 0.5, count * cell + 1, count * cell + 1);
  context.font = font;
  context.fillStyle = THEMES[theme].ink;
  tokens.forEach((token, i) => {
    context.textAlign = "right";
    context.fillText(shownToken(token), label - 5, label + (i + 0.5) * cell + 3.5);
    context.save();
    context.translate(label + (i + 0.5) * cell + 3.5, label - 5);
    context.rotate(-Math.PI / 2);
    context.textAlign = "left";
    context.fillText(shownToken(token), 0, 0);
    context.restore();
  });
  return { label, cell };
}

/** A figure with one pattern; what is pointed at is written below it. */
function patternFigure(title, tokens, pattern, theme, name) {
  const canvas = element("canvas", { role: "img", "aria-label": `Attention of ${name}, ${title}` });
  const { label, cell } = drawPattern(canvas, tokens, pattern, theme);
  const named = (place) => `${shownToken(tokens[place])} (${place})`;
  const say = ({ query, key, value }) => (
    `${named(query)} looks at ${named(key)}: ${value.toFixed(2)}`);
  const last = pattern.at(-1);
  const [first, second] = last.map((_, key) => key).sort((a, b) => last[b] - last[a] || a - b);
  const then = last[second] > 0 ? `, then at ${named(second)}: ${last[second].toFixed(2)}` : "";
  const most = `last position: ${say({ query: last.length - 1, key: first, value: last[first] })}`;
  const value = element("p", { class: "quiet value", text: most + then });
  canvas.addEventListener("pointermove", (event) => {
    const box = canvas.getBoundingClientRect();
    const query = Math.floor((event.clientY - box.top - label) / cell);
    const key = Math.floor((event.clientX - box.left - label) / cell);
    const found = pattern[query]?.[key];
    if (found !== undefined) value.textContent = say({ query, key, value: found });
  });
  const caption = element("figcaption", { text: title });
  return element("figure", { class: "pattern" }, caption, canvas, value);
}

function showAttention(app) {
  const into = byId("attention");
  const { graph, prompts } = app.model;
  const component = app.state.selected;
  into.replaceChildren();
  if (component < 0 || !isHead(graph, component)) return;
  into.append(element("h3", { text: "Attention" }));
  if (!prompts.length) {
    into.append(element("p", { class: "quiet", text: "No prompts are stored with this result." }));
    return;
  }
  const which = Math.min(app.state.prompt, prompts.length - 1);
  if (prompts.length > 1) {
    const select = element("select", { id: "prompt", "aria-label": "Prompt" });
    prompts.forEach((prompt, i) => select.append(element("option", {
      value: i, text: `prompt ${i + 1}${prompt.answer ? `: ${prompt.answer}` : ""}`,
    })));
    select.value = String(which);
    select.addEventListener("change", () => {
      app.state.prompt = Number(select.value);
      showAttention(app);
      byId("prompt").focus();
    });
    into.append(select);
  }
  const prompt = prompts[which];
  const name = componentName(graph, component);
  for (const [title, tokens, base64] of [
    ["clean prompt", prompt.clean, prompt.patterns],
    ["corrupted prompt", prompt.corrupted, prompt.patterns_corrupted],
  ]) {
    if (!base64 || !tokens) continue;
    const pattern = patternOf(graph, decodeBytes(base64), tokens.length, component);
    into.append(patternFigure(title, tokens, pattern, app.state.theme, name));
  }
}
