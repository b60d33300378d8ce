"use strict";
// What the page draws, and what it does when a reader types, clicks, or moves over a matrix.

const data = JSON.parse(document.getElementById("data").textContent);
// A run has its weights, and the page computes the rest; or it has the numbers of one sentence.
const isLive = data.runs.every((run) => run.weights);
const models = isLive ? data.runs.map(readModel) : [];
const CIVIDIS = [[0, 34, 78], [26, 56, 111], [67, 78, 108], [97, 101, 111], [125, 124, 120],
  [155, 148, 118], [188, 174, 108], [222, 201, 88], [254, 232, 56]]; // as .scale in page.html
const SMALLEST_SQUARE = 11; // pixels, so that the letters next to it can be read
const LARGEST_SQUARE = 32;
const SCORES = 110; // pixels between the lowest and the highest score
const WEIGHTS = 70; // pixels of a weight of 1
const LABEL = 18; // pixels of the number at the end of a bar
const CONTENT = "q_i.k_j/sqrt(d)"; // in the equation of a variant that does not change it
const MOST_WORDS = 1000; // of a larger vocabulary, the words are not listed

// Everything that a reader can choose. For each run, `opened` is {layer, h}, counted from 0, of the
// head that is shown, null before one is known, and `kept` the token that was clicked or reached by
// keyboard, null before; `hovered` is {run, i, j} under the mouse over a matrix, or null; `off` are
// the names of the terms that are switched off; `used` is the run that the arrow keys move in.
const state = { opened: [null, null], kept: [null, null], hovered: null, off: new Set(), used: 0 };
let runs = [];
let panels = [];

// ---- Small helpers

function make(name, text = "", parent = null, className = "") {
  const element = document.createElement(name);
  element.textContent = text;
  if (className) element.className = className;
  if (parent) parent.append(element);
  return element;
}

// One of several things to choose: a radio button.
function makeChoice(parent, id, name, text, checked, choose) {
  const label = make("label", "", parent, "choice");
  const input = make("input", "", label);
  input.type = "radio";
  input.id = id;
  input.name = name;
  input.checked = checked;
  input.addEventListener("change", choose);
  make("span", text, label).dir = "auto";
}

// A token in quotation marks; the two invisible marks keep right-to-left letters inside them.
function quoted(token) {
  return `“\u2068${token}\u2069”`;
}

function digits(x, count) {
  const text = x.toFixed(count);
  return Number(text) === 0 ? text.replace("-", "") : text.replace("-", "−");
}

function fourDigits(x) {
  return digits(x, 4);
}

function percent(p) {
  return `${digits(100 * p, 1)} %`;
}

function signed(r) {
  return r > 0 ? `+${r}` : `${r}`.replace("-", "−");
}

// "q_i.w_r/sqrt(d) + beta_r" -> "q_i·w_r/√d + β_r"; a term may have no equation
function pretty(equation) {
  return (equation ?? "").replace(/sqrt\((\w)\)/g, "√$1").replaceAll("sqrt", "√")
    .replaceAll("beta", "β").replace(/(?<=[\w)])\.(?=[\w(])/g, "·");
}

// Whether two runs share their tokens: then a token chosen in one is chosen in both.
function isLinked(a, b) {
  return a === b || JSON.stringify(runs[a].tokens) === JSON.stringify(runs[b].tokens);
}

// The token whose row a run shows: at first a blank, or the last word of a left-to-right model.
function chosenToken(r) {
  const hovered = state.hovered;
  if (hovered && isLinked(r, hovered.run)) return hovered.i;
  const { tokens, causal } = runs[r];
  const blank = tokens.indexOf("[MASK]");
  const first = causal ? tokens.length - 2 : Math.max(blank, 1);
  return Math.min(state.kept[r] ?? first, tokens.length - 1);
}

function keep(r, i) {
  state.hovered = null;
  runs.forEach((_, other) => {
    if (isLinked(r, other)) state.kept[other] = i;
  });
  render();
}

// The mouse moves much more often than it reaches another token.
function hover(hovered) {
  if (JSON.stringify(hovered) === JSON.stringify(state.hovered)) return;
  state.hovered = hovered;
  render();
}

// ---- The answers of the models

// The best words at each blank, a row for each model; under them those of the model with all terms,
// if one is off. In a left-to-right model: the best words after the query.
function showAnswers() {
  const box = document.getElementById("answers");
  box.replaceChildren();
  if (runs.some((run) => run.can_answer && !run.causal && !Object.keys(run.answers).length)) {
    make("p", "Write [MASK] for a word, and the models fill it in.", box, "soft");
  }
  for (const word of new Set(runs.flatMap((run) => run.unknown))) {
    const names = runs.filter((run) => run.unknown.includes(word)).map((run) => run.name);
    const text = `${quoted(word)} is unknown to ${names.join(" and ")}: the answer may mean little.`;
    make("p", text, box, "soft");
  }
  const table = make("table", "", box);
  runs.forEach((run, r) => {
    const tokens = run.causal ? [chosenToken(r)] : Object.keys(run.answers);
    tokens.filter((token) => run.answers[token]).forEach((token, n) => {
      let place = run.causal ? `after ${quoted(run.tokens[token])}` : "[MASK]";
      if (tokens.length > 1) place += ` ${n + 1}`;
      addWords(table, run.name, place, run.answers[token]);
      if (run.before) addWords(table, "", "with all terms", run.before[token], "before");
    });
  });
}

function addWords(table, name, place, words, className = "") {
  const row = make("tr", "", table, className);
  make("th", name, row).scope = "row";
  make("td", place, row, "place");
  for (const [word, probability] of words) {
    const cell = make("td", `${word} ${percent(probability)}`, row);
    cell.title = digits(probability, 9);
    make("i", "", cell).style.width = `${90 * probability}%`;
  }
}

// ---- All heads

// The heads of all layers, to choose one of them.
function makeHeads(box, run, r) {
  const table = box.querySelector("table");
  const widest = Math.max(...run.layers.map((layer) => layer.heads.length));
  const titles = make("tr", "", table);
  make("th", "", titles);
  for (let h = 1; h <= widest; h++) make("th", `head ${h}`, titles);
  run.layers.forEach((layer, l) => {
    const row = make("tr", "", table);
    make("th", `layer ${l + 1}`, row);
    layer.heads.forEach((head, h) => {
      const cell = make("td", "", row);
      const id = `head-${r}-${l}-${h}`;
      makeChoice(cell, id, `head-${r}`, "", false, () => openHead(r, { layer: l, h }));
      cell.querySelector("input").setAttribute("aria-label", `layer ${l + 1}, head ${h + 1}`);
      const frame = cell.querySelector("span");
      frame.append(pictureOf(head.weights, 1));
      make("small", "", frame, "moved");
      make("small", "", frame, "changed");
    });
  });
}

// Of each head: is it open, what do its position terms move, and what does it change in the answer?
function markHeads(r) {
  const run = runs[r];
  const i = chosenToken(r);
  const { layer, h } = openedHead(r);
  for (const place of placesOf(run)) {
    const head = run.layers[place.layer].heads[place.h];
    const input = document.getElementById(`head-${r}-${place.layer}-${place.h}`);
    input.checked = place.layer === layer && place.h === h;
    const frame = input.nextSibling;
    fillShare(frame.querySelector(".moved"), head.kernel ? head.moved[i] : null);
    fillShare(frame.querySelector(".changed"), run.effects ? changeOf(run, place) : null);
  }
}

// A number from 0 to 1, and a bar behind it.
function fillShare(element, share) {
  element.hidden = share === null;
  element.textContent = share === null ? "" : digits(share, 2);
  element.style.setProperty("--share", `${100 * (share ?? 0)}%`);
}

function placesOf(run) {
  return run.layers.flatMap(({ heads }, layer) => heads.map((_, h) => ({ layer, h })));
}

// How much of the answer changes at most, if one term of a head is switched off.
function changeOf(run, { layer, h }) {
  return Math.max(...run.effects[layer][h].map((effect) => effect.change));
}

// The head of a run that is open; before it is known, one in which positions move much.
function openedHead(r) {
  if (state.opened[r]) return state.opened[r];
  const i = chosenToken(r);
  const moved = ({ layer, h }) => runs[r].layers[layer].heads[h].moved[i];
  return largest(placesOf(runs[r]), moved);
}

function largest(things, measure) {
  return things.reduce((best, thing) => measure(thing) > measure(best) ? thing : best, things[0]);
}

function openHead(r, place) {
  state.opened[r] = place;
  state.used = r;
  render();
  scrollToQuery(r);
}

// The next head, or the one before: from the last one of a layer to the first one of the next.
function step(r, by) {
  const places = placesOf(runs[r]);
  const { layer, h } = openedHead(r);
  const now = places.findIndex((place) => place.layer === layer && place.h === h);
  openHead(r, places[(now + by + places.length) % places.length]);
}

// Switch off each term in each head alone, and note what this changes in the answer. This takes a
// fraction of a second for a small model, so the page is shown before, and it is done in parts: if
// the sentence changes meanwhile, the rest is left out.
let measured = 0;
async function measureEffects() {
  measured += 1;
  const mine = measured;
  for (const run of runs.filter((run) => run.probabilities)) {
    const effects = run.layers.map(() => []);
    for (const { layer, h } of placesOf(run)) {
      await new Promise((resolve) => setTimeout(resolve));
      if (mine !== measured) return;
      effects[layer][h] = effectsOf(run, layer, h);
    }
    run.effects = effects;
  }

  // At the opening of the page: the head that matters most for the answer.
  runs.forEach((run, r) => {
    if (run.effects) state.opened[r] ??= largest(placesOf(run), (place) => changeOf(run, place));
  });
  render();
  runs.forEach((_, r) => scrollToQuery(r));
  document.body.dataset.measured = "yes";
}

// ---- The terms of one query

// What the answer becomes if a term is switched off in the open head alone.
function showEffects(box, run, { layer, h }) {
  box.replaceChildren();
  if (!run.probabilities) return;
  if (!run.effects) {
    make("span", "Computing what each term of this head changes …", box);
    return;
  }
  const [[word, p]] = bestWords(run.probabilities, run);
  make("span", "Without one term in this head alone (all other heads keep it), " +
    `${quoted(word)} ${percent(p)} becomes:`, box);
  for (const { name, words } of run.effects[layer][h]) {
    const [[first, share], [second, rest]] = words;
    const text = `without ${name}: ${first} ${percent(share)}, ${second} ${percent(rest)}`;
    make("span", text, box, "effect");
  }
}

// The strips of bars for query i: {sign, name, symbol, values, kind}. A term that is switched off,
// or adds nothing to the score, has no values.
function stripsOf(run, head, i) {
  if (head.kind === "convolution") {
    return [{ sign: "", name: "weight", symbol: "of token j in z_i", values: head.weights[i],
      kind: "weight" }];
  }

  // a left-to-right query sees only itself and what is before it
  const seen = (row) => run.causal ? row.slice(0, i + 1) : row;
  const strips = [];
  const addTerm = (name, symbol, values) => {
    const off = run.off.has(name);
    strips.push({ sign: strips.length ? "+" : "", name, isTerm: true,
      symbol: off ? "switched off" : pretty(symbol), values: off ? [] : values });
  };
  addTerm("content", run.equation.includes(CONTENT) ? CONTENT : "", seen(head.content[i]));
  for (const name of new Set([...run.term_names, ...head.terms.map((term) => term.name)])) {
    const numbers = [...head.terms.keys()].filter((n) => head.terms[n].name === name);
    for (const n of numbers) addTerm(name, head.terms[n].equation, seen(head.positions[n][i]));
    if (!numbers.length) addTerm(name, "not a term of the score", []);
  }
  strips.push({ sign: "=", name: "sum", symbol: "a_ij", values: seen(head.sum[i]) });
  strips.push({ sign: "→", name: "softmax", symbol: "p_ij", values: head.weights[i],
    kind: "weight" });
  return strips;
}

// One number as a bar from the line of 0, which is `zero` pixels above the bottom of the cell.
function addBar(cell, value, pixels, zero, kind) {
  const height = Math.abs(value) * pixels;
  make("em", "", cell).style.bottom = `${zero}px`;
  const bar = make("i", "", cell, kind ?? (value < 0 ? "minus" : "plus"));
  bar.style.height = `${height}px`;
  bar.style.bottom = `${value < 0 ? zero - height : zero}px`;
  const label = make("b", digits(value, 2), cell);
  label.style.bottom = `${value < 0 ? zero - height - LABEL : zero + height + 1}px`;
  cell.title = digits(value, 9);
}

// A strip is as high as its own numbers need. All strips of scores have the same `pixels` per unit.
function addStrip(body, strip, pixels, r, i, j) {
  const row = make("tr", "", body, strip.name);
  const highest = Math.max(0, ...strip.values);
  const lowest = Math.min(0, ...strip.values);
  const zero = -lowest * pixels + (lowest < 0 ? LABEL : 1);
  row.classList.toggle("off", strip.values.length === 0);
  row.style.height = `${Math.max(44, zero + highest * pixels + LABEL + 4)}px`;

  const header = make("th", "", row);
  header.scope = "row";
  make("span", strip.sign, header, "sign");
  const box = make("span", "", header, "box");
  if (isLive && strip.isTerm) addSwitch(box, r, strip.name);
  // a long name may be broken after "_"
  make("span", strip.name.replaceAll("_", "_\u200b"), header, "name");
  make("small", strip.symbol, header);
  runs[r].tokens.forEach((_, key) => {
    const cell = make("td", "", row);
    cell.classList.toggle("chosen", key === i || key === j);
    if (key < strip.values.length) addBar(cell, strip.values[key], pixels, zero, strip.kind);
  });
}

function addSwitch(box, r, name) {
  const input = make("input", "", box);
  input.type = "checkbox";
  input.id = `switch-${r}-${name}`;
  input.checked = !state.off.has(name);
  input.setAttribute("aria-label", `${name}, in all layers and heads`);
  input.title = "on or off, in all layers and heads";
  input.addEventListener("change", () => {
    if (input.checked) state.off.delete(name);
    else state.off.add(name);
    update();
  });
}

function showTerms(figure, r, head, i, j) {
  const run = runs[r];
  let caption = `Query i = ${i}, ${quoted(run.tokens[i])}: `;
  if (head.kind === "attention") {
    caption += "what each term adds to the score of each key j below.";
    if (isLive) caption += " Uncheck a box to switch its term off in all heads.";
  } else {
    const outside = 1 - head.weights[i].reduce((sum, weight) => sum + weight, 0);
    caption += `the weights of the convolution. ${fourDigits(outside)} of the kernel falls ` +
      "beyond the ends of the sentence, where it meets no token.";
  }
  figure.querySelector("figcaption").textContent = caption;

  // the strips, all scores on one scale
  const strips = stripsOf(run, head, i);
  const scores = strips.filter((strip) => !strip.kind).flatMap((strip) => strip.values);
  const range = Math.max(0, ...scores) - Math.min(0, ...scores);
  const table = figure.querySelector("table");
  table.setAttribute("aria-label", caption);
  table.style.setProperty("--tokens", run.tokens.length);
  const body = document.createElement("tbody");
  for (const strip of strips) {
    const pixels = strip.kind ? WEIGHTS : SCORES / Math.max(range, 1e-9);
    addStrip(body, strip, pixels, r, i, j);
  }

  // the words, of which one is the query, and the offsets
  const words = make("tr", "", body, "words");
  const header = make("th", "click the query i", words);
  header.scope = "row";
  make("small", "r = j − i", header);
  run.tokens.forEach((token, key) => {
    const cell = make("td", "", words);
    cell.classList.toggle("chosen", key === i || key === j);
    makeChoice(cell, `token-${r}-${key}`, `token-${r}`, token, key === i, () => keep(r, key));
    make("small", signed(key - i), cell);
  });
  table.replaceChildren(body);
}

// ---- The matrices

// The colour [red, green, blue] of a share from 0 to 1, between the two nearest of the scale.
function colourOf(share) {
  const place = Math.min(Math.max(share, 0), 1) * (CIVIDIS.length - 1);
  const before = Math.min(Math.floor(place), CIVIDIS.length - 2);
  return CIVIDIS[before].map((value, channel) =>
    value + (place - before) * (CIVIDIS[before + 1][channel] - value));
}

// A matrix as a picture of N x N dots, one per weight.
function pictureOf(matrix, top) {
  const picture = document.createElement("canvas");
  picture.width = picture.height = matrix.length;
  const context = picture.getContext("2d");
  const dots = context.createImageData(matrix.length, matrix.length);
  matrix.flat().forEach((weight, n) => dots.data.set([...colourOf(weight / top), 255], 4 * n));
  context.putImageData(dots, 0, 0);
  return picture;
}

// One square per weight, the tokens at its sides, and a frame around row i.
// `canvas.geometry` says where the squares are, for the mouse.
function drawMatrix(canvas, tokens, matrix, top, i, j) {
  const N = tokens.length;
  const context = canvas.getContext("2d");
  const style = getComputedStyle(canvas);

  // sizes in pixels: squares as large as the space allows, letters that fit next to them
  const height = SMALLEST_SQUARE;
  context.font = `bold ${height}px ${style.fontFamily}`;
  const widest = Math.max(...tokens.map((token) => context.measureText(token).width));
  const margin = Math.min(90, Math.ceil(widest)) + 8;
  const space = canvas.parentElement.clientWidth - margin - 2;
  const square = Math.min(LARGEST_SQUARE, Math.max(SMALLEST_SQUARE, Math.floor(space / N)));
  const side = margin + N * square + 2;
  canvas.geometry = { margin, square };

  // a screen may have several dots per pixel
  const dots = window.devicePixelRatio || 1;
  canvas.width = canvas.height = Math.round(side * dots);
  canvas.style.width = canvas.style.height = `${side}px`;
  context.scale(dots, dots);

  // the squares: each dot of the picture becomes one
  context.imageSmoothingEnabled = false;
  context.drawImage(pictureOf(matrix, top), margin, margin, N * square, N * square);

  // the tokens: queries on the left, keys above
  context.fillStyle = style.color;
  context.textAlign = "right";
  context.textBaseline = "middle";
  tokens.forEach((token, n) => {
    context.font = `${n === i ? "bold " : ""}${height}px ${style.fontFamily}`;
    context.fillText(token, margin - 5, margin + (n + 0.5) * square, 90);
    context.font = `${n === j ? "bold " : ""}${height}px ${style.fontFamily}`;
    context.save();
    context.translate(margin + (n + 0.5) * square, margin - 5);
    context.rotate(Math.PI / 2);
    context.fillText(token, 0, 0, 90);
    context.restore();
  });

  // the frame, dark and light, so that it is visible on every colour
  for (const [colour, width] of [["#000000", 4], ["#ffffff", 2]]) {
    context.strokeStyle = colour;
    context.lineWidth = width;
    context.strokeRect(margin, margin + i * square, N * square, square);
  }
}

// The query and the key under the mouse; null next to the matrix.
function tokenAt(canvas, event, r) {
  const { margin, square } = canvas.geometry;
  const box = canvas.getBoundingClientRect();
  const i = Math.floor((event.clientY - box.top - margin) / square);
  const j = Math.floor((event.clientX - box.left - margin) / square);
  const N = runs[r].tokens.length;
  return i >= 0 && j >= 0 && i < N && j < N ? { run: r, i, j } : null;
}

// Draw one figure of a run, with the colours from 0 to `top`.
function showMatrix(figure, title, tokens, matrix, top, i, j) {
  figure.querySelector("figcaption").textContent = title;
  figure.querySelector(".largest").textContent = top === 1 ? "1" : fourDigits(top);
  const canvas = figure.querySelector("canvas");
  canvas.setAttribute("aria-label", `${title}. A matrix of ${tokens.length} queries by ` +
    `${tokens.length} keys. The table above has the numbers of the chosen row.`);
  drawMatrix(canvas, tokens, matrix, top, i, j);
}

// All matrices that are shown have the same colours, so that they can be compared.
function largestWeight(heads) {
  if (document.getElementById("full").checked) return 1;
  const rows = heads.flatMap((head) => head ? [...head.weights, ...(head.kernel ?? [])] : []);
  return Math.max(...rows.map((row) => Math.max(...row)));
}

// ---- The kernels

// columns: {title, note, kind}, kind is "text", "score" or "weight". rows: one value per column.
// marked: the number of a row.
function fillTable(figure, caption, columns, rows, marked) {
  figure.querySelector("figcaption").textContent = caption;
  const table = figure.querySelector("table");
  table.setAttribute("aria-label", caption);
  table.replaceChildren();
  const head = make("tr", "", make("thead", "", table));
  for (const { title, note } of columns) {
    const cell = make("th", title, head);
    cell.scope = "col";
    if (note) make("small", note, cell);
  }

  // the largest score and the largest weight, for the bars
  const most = { score: 1e-9, weight: 1e-9 };
  rows.forEach((row) => row.forEach((value, c) => {
    const kind = columns[c].kind;
    if (kind !== "text") most[kind] = Math.max(most[kind], Math.abs(value));
  }));

  const body = make("tbody", "", table);
  rows.forEach((row, n) => {
    const line = make("tr", "", body, n === marked ? "marked" : "");
    row.forEach((value, c) => {
      const kind = columns[c].kind;
      const cell = make(c === 0 ? "th" : "td", kind === "text" ? value : fourDigits(value), line);
      if (c === 0) cell.scope = "row";
      if (kind !== "text") addUnderline(cell, kind, value / most[kind]);
    });
  });
}

// A bar under a number: a weight from the left, a score from the middle. share: -1 to 1.
function addUnderline(cell, kind, share) {
  const bar = make("i", "", cell);
  const width = Math.abs(share) * (kind === "weight" ? 100 : 50);
  const left = kind === "weight" ? 0 : share < 0 ? 50 - width : 50;
  const sign = share < 0 ? "minus" : "plus";
  bar.style.left = `${left}%`;
  bar.style.width = `${width}%`;
  bar.style.background = `var(--${kind === "weight" ? "weight" : sign})`;
}

// The biases of the head, and those that token i makes, with their softmax, the kernels.
function showKernels(figure, run, head, i) {
  figure.hidden = head.terms.length === 0;
  if (!head.terms.length) return;

  // The biases of all terms have the same K, as a rule; a longer one makes the table longer.
  const biases = head.terms.map((term) => term.bias.length === 1 ? term.bias[0] : term.bias[i]);
  const K = Math.max(...biases.map((bias) => bias.length));
  const reach = (K - 1) / 2;
  // the K columns of a convolution stand for r = -2 reach to 0 in a left-to-right model
  const shift = run.causal && head.kind === "convolution" ? reach : 0;
  const columns = [{ title: "r", kind: "text" }];
  const captions = [];
  head.terms.forEach((term) => {
    columns.push({ title: term.name, note: pretty(term.equation), kind: "score" });
    columns.push({ title: "softmax", note: "over r", kind: "weight" });
    captions.push(aboutKernel(term, run.tokens[i]));
  });

  // Offsets beyond the window get the first or the last number of a clipped bias.
  const isClipped = (term) => run.beyond === "clip" && term.has_window;
  const rows = [];
  for (let r = -reach; r <= reach; r++) {
    let label = signed(r - shift);
    const isEnd = reach > 0 && Math.abs(r) === reach;
    if (isEnd && head.terms.every(isClipped)) label = (r < 0 ? "≤ " : "≥ ") + label;
    // The softmax is over the bias's own K numbers: beyond them, it is 0 even if the score is not.
    const numbers = head.terms.flatMap((term, n) => [
      numberAt(biases[n], r, isClipped(term) ? "clip" : "zero"),
      numberAt(softmax(biases[n]), r, "zero"),
    ]);
    rows.push([label, ...numbers]);
  }
  if (head.dilation > 1) captions.push(`One step of r is ${head.dilation} tokens.`);
  fillTable(figure, `Biases, and kernels (softmax). ${captions.join(" ")}`, columns, rows,
    reach + shift);
}

function aboutKernel(term, token) {
  if (term.bias.length === 1) return `${term.name}: the same for all tokens.`;
  if (term.belongs_to === "key") {
    return `${term.name}: made by ${quoted(token)} as a key; here r = i − j, the offset of ` +
      "the query as seen from the key.";
  }
  return `${term.name}: made by ${quoted(token)}.`;
}

// ---- Runs

function renderRun(r, head, top) {
  const run = runs[r];
  const find = (selector) => panels[r].querySelector(selector);
  const i = chosenToken(r);
  const j = state.hovered && isLinked(r, state.hovered.run) ? state.hovered.j : null;

  // a model without heads
  find(".content").hidden = !head;
  find(".missing").hidden = Boolean(head);
  if (!head) {
    find(".missing").textContent = `Nothing to show. ${run.layers[0].notes.join(" ")}`;
    return;
  }

  // the heads, and the terms of one of them
  markHeads(r);
  const place = openedHead(r);
  const which = `Layer ${place.layer + 1}, head ${place.h + 1}`;
  find(".which").textContent = which;
  showEffects(find(".effects"), run, place);
  showTerms(find(".terms"), r, head, i, j);

  // the matrices
  const isAttention = head.kind === "attention";
  let title = "Convolution as a matrix: row i is the kernel, moved to token i";
  if (isAttention) title = head.kernel ? "Attention: content and positions" : "Attention: content";
  showMatrix(find(".attention"), title, run.tokens, head.weights, top, i, j);
  find(".kernel").hidden = !head.kernel;
  if (head.kernel) {
    const names = head.terms.map((term) => term.name).join(" + ");
    showMatrix(find(".kernel"), `Kernel alone: ${names}`, run.tokens, head.kernel, top, i, j);
  }
  showKernels(find(".kernels"), run, head, i);

  // what they do not show
  const notes = [...run.layers[place.layer].notes];
  if (isAttention && !head.kernel) {
    notes.unshift("No position term is added to the content term, so there is no kernel to show.");
  }
  find(".notes").replaceChildren(...notes.map((note) => make("p", note)));

  // a box that scrolls can be scrolled with the arrow keys
  for (const box of panels[r].querySelectorAll(".scroll")) {
    box.tabIndex = box.scrollWidth > box.clientWidth ? 0 : -1;
  }
}

// The tables are made again each time; what had the focus of the keyboard gets it back.
function render() {
  const focused = document.activeElement.id;
  const heads = runs.map((run, r) => {
    const place = openedHead(r);
    return place && run.layers[place.layer].heads[place.h];
  });
  const top = largestWeight(heads);
  showAnswers();
  runs.forEach((_, r) => renderRun(r, heads[r], top));
  if (focused) document.getElementById(focused)?.focus();
}

// The parts of a run that do not change with the layer, the head and the token.
function makePanel(run, r) {
  const panel = document.getElementById("run").content.cloneNode(true).firstElementChild;
  panel.querySelector("h2").textContent = run.name;
  const variant = run.name === run.variant ? "" : `${run.variant}:  `;
  make("small", variant + pretty(run.equation), panel.querySelector("h2"));
  panel.querySelector(".previous").addEventListener("click", () => step(r, -1));
  panel.querySelector(".next").addEventListener("click", () => step(r, 1));
  for (const canvas of panel.querySelectorAll("canvas")) {
    canvas.addEventListener("pointermove", (event) => hover(tokenAt(canvas, event, r)));
    canvas.addEventListener("pointerleave", () => hover(null));
    canvas.addEventListener("click", (event) => {
      const token = tokenAt(canvas, event, r);
      if (token) keep(r, token.i);
    });
  }
  makeHeads(panel.querySelector(".heads"), run, r);
  document.getElementById("runs").append(panel);
  return panel;
}

// Show other numbers: those of the file, or of a sentence that was typed.
function show(numbers) {
  const focused = document.activeElement.id;
  runs = numbers;
  state.hovered = null;
  document.getElementById("runs").replaceChildren();
  panels = runs.map(makePanel);
  const longest = Math.max(...runs.map((run) => run.tokens.length));
  document.body.style.setProperty("--matrix", `${longest * SMALLEST_SQUARE + 100}px`);
  render();
  if (focused) document.getElementById(focused)?.focus();
  runs.forEach((_, r) => scrollToQuery(r));
}

// Where not all tokens have space: the query and the key of its largest weight are in view.
function scrollToQuery(r) {
  const box = panels[r].querySelector(".terms .scroll");
  const { layer, h } = openedHead(r) ?? {};
  if (layer === undefined || box.scrollWidth <= box.clientWidth) return;
  const i = chosenToken(r);
  const weights = runs[r].layers[layer].heads[h].weights[i];
  const key = largest([...weights.keys()], (j) => weights[j]);

  // the middle between them, in what the names of the terms leave free
  const name = box.querySelector("th").offsetWidth;
  const cell = box.querySelector("td").offsetWidth;
  box.scrollLeft = ((i + key + 1) * cell - (box.clientWidth - name)) / 2;
}

// ---- The sentence that is typed

const sentence = document.getElementById("sentence");
let timer = 0;
let took = 0; // milliseconds that the last sentence took

// Compute what is typed and show it. A mistake is one line, and what is below it is old.
function update() {
  const start = performance.now();
  let error = "";
  try {
    show(models.map((model) => {
      const run = compute(model, sentence.value, state.off);
      const isChanged = ["content", ...model.term_names].some((name) => state.off.has(name));
      if (isChanged) run.before = compute(model, sentence.value).answers;
      return run;
    }));
    measureEffects();
  } catch (problem) {
    if (!(problem instanceof RangeError)) throw problem;
    error = problem.message;
  }
  document.getElementById("error").textContent = error;
  document.getElementById("error").hidden = !error;
  document.getElementById("runs").classList.toggle("old", Boolean(error));
  took = performance.now() - start;
}

// The sentences to try, and the words of a small language: each is a button.
function offerWords() {
  document.getElementById("offers").hidden = false;
  document.getElementById("task").hidden = models.every((model) => model.causal);
  for (const text of data.sentences) {
    make("button", text, document.getElementById("examples")).addEventListener("click", () => {
      sentence.value = text;
      update();
    });
  }
  const { vocabulary, unseen } = models[0];
  const words = vocabulary.map(([piece]) => piece)
    .filter((piece, id) => /^▁\p{L}/u.test(piece) && !unseen.includes(id))
    .map((piece) => piece.slice(1)).sort();
  document.getElementById("words").hidden = vocabulary.length > MOST_WORDS;
  if (vocabulary.length > MOST_WORDS) return;
  document.getElementById("count").textContent = `The ${words.length} words that the models know`;
  for (const word of ["[MASK]", ...words]) {
    make("button", word, document.getElementById("list")).addEventListener("click", () => {
      const { value, selectionStart, selectionEnd } = sentence;
      const before = value.slice(0, selectionStart).trimEnd();
      const after = value.slice(selectionEnd).trimStart();
      sentence.value = [before, word, after].filter(Boolean).join(" ");
      const end = before.length + word.length + (before ? 1 : 0);
      sentence.setSelectionRange(end, end);
      update();
    });
  }
}

// The arrow keys go from head to head, where they mean nothing else.
document.addEventListener("keydown", (event) => {
  const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
  const means = event.target.closest("#sentence, .scroll");
  if (!by || means || event.ctrlKey || event.altKey || event.metaKey) return;
  event.preventDefault();
  step(state.used, by);
  const { layer, h } = openedHead(state.used);
  document.getElementById(`head-${state.used}-${layer}-${h}`).focus();
});

sentence.value = data.sentences[0];
if (isLive) {
  sentence.readOnly = false;
  offerWords();
  // keys that come while a large model computes are answered together
  sentence.addEventListener("input", () => {
    clearTimeout(timer);
    timer = setTimeout(update, took > 200 ? took : 0);
  });
  update();
} else {
  document.title += `: ${data.sentences[0]}`;
  show(data.runs.map(readNumbers));
}
document.getElementById("full").addEventListener("change", render);
window.addEventListener("resize", render);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", render);
