"use strict";
// A second BERT: what kernels.py, attention.py and model.py compute, for one sentence, in plain
// JavaScript. Names and letters are those of the Python files. From top to bottom: what torch has;
// a bias and its matrix; attention, its terms, a layer of it; embeddings, layers and the head that
// predicts words; the answers, and what changes them; reading what lab/explore.py has packed.
//
// A matrix (N, C) is a list of N rows, one for each token, and a row is a list of C numbers. In
// training, dropout and batches make this longer: here there are none.

// ---- What torch has

function dot(a, b) {
  let sum = 0;
  for (let c = 0; c < a.length; c++) sum += a[c] * b[c];
  return sum;
}

// (N, C) + (N, C)
function add(x, y) {
  return x.map((row, i) => row.map((number, c) => number + y[i][c]));
}

// x @ table: (N, d) (d, K) -> (N, K)
function product(x, table) {
  return x.map((row) => {
    const sums = new Array(table[0].length).fill(0);
    row.forEach((factor, c) => table[c].forEach((number, column) => {
      sums[column] += factor * number;
    }));
    return sums;
  });
}

// (N, K) -> (K, N)
function transpose(x) {
  return Array.from(x[0], (_, column) => x.map((row) => row[column]));
}

// nn.Linear, x W^T + b: (N, C) -> (N, the rows of W)
function linear(x, weights, name) {
  const W = weights[`${name}.weight`];
  const b = weights[`${name}.bias`];
  return x.map((row) => b.map((bias, n) => bias + dot(W[n], row)));
}

// nn.LayerNorm: each row gets mean 0 and variance 1, then a weight and a bias per channel. (N, C)
function layerNorm(x, weights, name) {
  const weight = weights[`${name}.weight`];
  const bias = weights[`${name}.bias`];
  return x.map((row) => {
    const mean = row.reduce((sum, number) => sum + number, 0) / row.length;
    const variance = row.reduce((sum, number) => sum + (number - mean) ** 2, 0) / row.length;
    const deviation = Math.sqrt(variance + 1e-12);
    return row.map((number, c) => (number - mean) / deviation * weight[c] + bias[c]);
  });
}

// gelu(x) is x times the probability that a normal random number is below x. The series of this
// probability has only positive terms, so no digits are lost.
function gelu(x) {
  if (Math.abs(x) > 8) return Math.max(x, 0);
  let term = x;
  let sum = x;
  for (let n = 3; Math.abs(term) > 1e-12 * Math.abs(sum); n += 2) {
    term *= x * x / n;
    sum += term;
  }
  return x * (0.5 + sum * Math.exp(-x * x / 2) / Math.sqrt(2 * Math.PI));
}

// p_j = exp(a_j) / sum of all exp(a). Subtracting the largest score changes nothing in the result,
// but keeps exp from becoming infinite.
function softmax(scores) {
  const largest = scores.reduce((most, score) => Math.max(most, score), -Infinity);
  const exponentials = Array.from(scores, (score) => Math.exp(score - largest));
  const total = exponentials.reduce((sum, number) => sum + number, 0);
  return exponentials.map((number) => number / total);
}

// ---- kernels.py: from a bias to its matrix

// The number of a bias (K,) at offset r, which is in column r + reach. Beyond the window it is the
// first or the last number ("clip"), or 0 ("zero").
function numberAt(bias, r, beyond) {
  const reach = (bias.length - 1) / 2;
  if (Math.abs(r) <= reach) return bias[r + reach];
  if (beyond === "zero") return 0;
  return r < 0 ? bias[0] : bias[2 * reach];
}

// matrix[i, j] = bias[i, j - i]: (N, K), or (1, K) if all tokens have the same, -> (N, N)
function biasMatrix(bias, N, beyond) {
  const tokens = [...Array(N).keys()];
  return tokens.map((i) => tokens.map((j) =>
    numberAt(bias.length === 1 ? bias[0] : bias[i], j - i, beyond)));
}

// ---- attention.py: attention in general, for one head

//     a_ij = q_i . k_j / sqrt(d) + query_bias[i, j - i] + key_bias[j, i - j]
//     p_ij = softmax over j of a_ij
//
// content: q_i . k_j / sqrt(d), (N, N). terms: what else is added to the score, each with its bias
// (N, K) or (1, K). Returns all that the page shows of a head: matrices (N, N), and `moved` (N,).
function attentionWeights(content, terms, { beyond, causal }) {
  const N = content.length;
  const positions = terms.map((term) => termMatrix(term, N, beyond)); // (N, N) each
  const sum = positions.reduce(add, content);
  const weights = softmaxOfRows(sum, causal);

  // what the offsets do alone, as the kernel of a convolution does
  const kernel = positions.length ? softmaxOfRows(positions.reduce(add), causal) : null;

  // of each query, the share of its weights that is elsewhere without the position terms
  const moved = softmaxOfRows(content, causal).map((row, i) => difference(row, weights[i]));
  return { kind: "attention", content, terms, positions, sum, weights, kernel, moved };
}

// What a term adds to the scores, (N, N). The bias of a key is read at i - j, the offset of the
// query as seen from the key: row j of its matrix belongs to key j.
function termMatrix(term, N, beyond) {
  const matrix = biasMatrix(term.bias, N, beyond);
  return term.belongs_to === "key" ? transpose(matrix) : matrix;
}

// The softmax of each row (N, N); in a left-to-right model, without the keys after the query.
function softmaxOfRows(scores, causal) {
  return scores.map((row, i) =>
    softmax(row.map((score, j) => causal && j > i ? -Infinity : score)));
}

// The share of the weights p that must move to make them q, from 0 to 1.
function difference(p, q) {
  return p.reduce((sum, number, n) => sum + Math.abs(number - q[n]), 0) / 2;
}

// sum_j p_ij s_(j-i): what a value table (d, K) adds to z. p: (N, N). Returns (N, d).
function relativeValues(p, table, beyond) {
  return p.map((row, i) => table.map((s) =>
    row.reduce((sum, weight, j) => sum + weight * numberAt(s, j - i, beyond), 0)));
}

// ---- attention.py: a term, and SelfAttention, which adds them up

// The bias that a term makes in head h. All terms that the page knows have this form:
//
//     bias_i = static + x_i . table       static (K,), table (d, K); x: q, or k for a term of keys
//
//     fixed          beta_r                      static is beta, there is no table
//     dynamic        q_i . w_r / sqrt(d)         table is w / sqrt(d)
//     key_dynamic    k_j . u_(i-j) / sqrt(d)     table is u / sqrt(d), x is k
//
// x: (N, d). Returns (N, K), or (1, K) without a table.
function biasOf(term, h, x) {
  if (!term.table) return [columnsOf(term, term.static[h], x.length)];
  const table = term.table[h].map((row) => columnsOf(term, row, x.length)); // (d, K)
  const fixed = columnsOf(term, term.static[h], x.length); // (K,)
  return product(x, table).map((row) => row.map((number, column) => number + fixed[column]));
}

// A term without a window has a number for each r of the longest sentence: the 2N - 1 in the middle
// are those of this one.
function columnsOf(term, row, N) {
  if (term.has_window) return row;
  const extra = (row.length - (2 * N - 1)) / 2;
  return row.slice(extra, row.length - extra);
}

// (N, C) -> H matrices (N, d)
function splitHeads(x, H) {
  const d = x[0].length / H;
  return Array.from({ length: H }, (_, h) => x.map((row) => row.slice(h * d, (h + 1) * d)));
}

// H matrices (N, d) -> (N, C)
function mergeHeads(z) {
  return z[0].map((_, i) => Float32Array.from(z.flatMap((head) => [...head[i]])));
}

// The mixer of a layer: {y (N, C), heads: what attentionWeights returns of each}.
// isOff(name, layer, h): whether a term, or the content, adds nothing in this head.
function selfAttention(x, model, layer, isOff) {
  const { weights, H, beyond } = model;
  const name = `bert.layers.${layer}.mixer`;
  const q = splitHeads(linear(x, weights, `${name}.query`), H); // (N, C) -> H of (N, d)
  const k = splitHeads(linear(x, weights, `${name}.key`), H);
  const v = splitHeads(linear(x, weights, `${name}.value`), H);
  const root = Math.sqrt(q[0][0].length);

  const heads = [];
  const z = [];
  for (let h = 0; h < H; h++) {
    // content: q_i . k_j / sqrt(d), (N, d) (N, d)^T -> (N, N)
    const content = q[h].map((query) => k[h].map((key) =>
      isOff("content", layer, h) ? 0 : dot(query, key) / root));

    // the terms of the score, each with its bias, made from the queries or the keys
    const terms = model.terms[layer].filter((term) => !isOff(term.name, layer, h));
    const ofScore = terms.filter((term) => !term.values)
      .map((term) => ({ ...term, bias: biasOf(term, h, term.belongs_to === "key" ? k[h] : q[h]) }));
    heads.push(attentionWeights(content, ofScore, model));

    // z_i = sum_j p_ij (v_j + s_(j-i))
    const p = heads[h].weights;
    z.push(terms.filter((term) => term.values)
      .reduce((sum, term) => add(sum, relativeValues(p, term.values, beyond)), product(p, v[h])));
  }
  return { heads, y: linear(mergeHeads(z), weights, `${name}.output`) };
}

// ---- model.py: embeddings, layers, the head that predicts words

// projection(LayerNorm(token_i + type_0 [+ position_i])): ids (N,) -> (N, C)
function embeddings(ids, weights) {
  const name = "bert.embeddings";
  let x = ids.map((id) => weights[`${name}.token.weight`][id]); // (N, E)
  x = add(x, ids.map(() => weights[`${name}.token_type.weight`][0]));
  if (weights[`${name}.position.weight`]) x = add(x, weights[`${name}.position.weight`]);
  x = layerNorm(x, weights, `${name}.norm`);
  return weights[`${name}.projection.weight`] ? linear(x, weights, `${name}.projection`) : x;
}

// x = LayerNorm(x + mixer(x));  x = LayerNorm(x + W2 gelu(W1 x)): (N, C) -> (N, C)
function layerOf(x, model, layer, isOff) {
  const { weights } = model;
  const name = `bert.layers.${layer}`;
  const { heads, y } = selfAttention(x, model, layer, isOff);
  x = layerNorm(add(x, y), weights, `${name}.mixer_norm`);
  const inner = linear(x, weights, `${name}.ffn.0`).map((row) => row.map(gelu)); // (N, ffn_size)
  x = layerNorm(add(x, linear(inner, weights, `${name}.ffn.2`)), weights, `${name}.ffn_norm`);
  return { heads, x };
}

// The layers from number `first` on: the hidden states x (N, C), and of each layer its input and
// its heads.
function bert(x, model, isOff, first = 0) {
  const layers = [];
  for (let layer = first; layer < model.terms.length; layer++) {
    const { heads, x: next } = layerOf(x, model, layer, isOff);
    layers.push({ input: x, heads, notes: model.notes });
    x = next;
  }
  return { x, layers };
}

// The probability of each word of the vocabulary, (V,), from the hidden state of a token (C,).
function lmHead(hidden, { weights }) {
  const transformed = linear([hidden], weights, "transform").map((row) => row.map(gelu)); // (1, E)
  const [x] = layerNorm(transformed, weights, "norm"); // (E,)
  const words = weights["bert.embeddings.token.weight"]; // (V, E)
  return softmax(Array.from(weights.bias, (bias, word) => bias + dot(words[word], x)));
}

// ---- model.py: filling in the blanks, and what changes the answer

// The five most likely words: [[word, probability], ...]
function bestWords(probabilities, { vocabulary }) {
  const best = [...probabilities.entries()].sort((a, b) => b[1] - a[1]).slice(0, 5);
  return best.map(([id, p]) => [vocabulary[id][0].replaceAll("▁", " ").trim() || "(space)", p]);
}

// The tokens that are answered: the blanks; of a left-to-right model all, with what comes next.
function answeredTokens(ids, { vocabulary, causal, can_answer }) {
  if (!can_answer) return [];
  const tokens = [...ids.keys()];
  return causal ? tokens : tokens.filter((i) => vocabulary[ids[i]][0] === "[MASK]");
}

// What the model makes of a sentence: its tokens, the heads of all layers, and
// `answers`, {token: best words}. off: a Set of names of terms that add nothing in all heads.
function compute(model, sentence, off = new Set()) {
  const isOff = (name) => off.has(name);
  const { ids, tokens, unknown } = tokenise(model, sentence);
  const { x, layers } = bert(embeddings(ids, model.weights), model, isOff);

  const answered = answeredTokens(ids, model);
  const answers = {};
  for (const i of answered) answers[i] = bestWords(lmHead(x[i], model), model);

  // the token whose answer the page asks about: the first blank, or the last word
  const asked = model.causal ? tokens.length - 2 : answered[0];
  const probabilities = answered.length ? lmHead(x[asked], model) : null;
  return { ...model, ids, tokens, unknown, layers, off, answers, asked, probabilities };
}

// What happens to the answer if a term is switched off in ONE head: for each term
// {name, change, words}. change is the share of the probabilities that moves to other words.
// Below this layer nothing changes, so the model is computed from there on.
function effectsOf(run, layer, h) {
  const names = ["content", ...new Set(run.terms[layer].map((term) => term.name))];
  return names.filter((name) => !run.off.has(name)).map((name) => {
    const isOff = (other, l, head) =>
      run.off.has(other) || (other === name && l === layer && head === h);
    const { x } = bert(run.layers[layer].input, run, isOff, layer);
    const probabilities = lmHead(x[run.asked], run);
    const change = difference(run.probabilities, probabilities);
    return { name, change, words: bestWords(probabilities, run) };
  });
}

// ---- What lab/explore.py has packed

// All float16 numbers: 1 bit of sign, 5 of the exponent, 10 of the fraction.
const HALF = Float32Array.from({ length: 1 << 16 }, (_, bits) => {
  const sign = bits >> 15 ? -1 : 1;
  const exponent = (bits >> 10) & 31;
  const fraction = (bits & 1023) / 1024;
  return exponent ? sign * (1 + fraction) * 2 ** (exponent - 15) : sign * fraction * 2 ** -14;
});

// base64 text of float32 ("<f4") or float16 ("<f2") numbers -> a list of numbers, of rows, or of
// matrices, as `shape` says
function unpack(packed) {
  const text = atob(packed["<f4"] ?? packed["<f2"]);
  const bytes = new Uint8Array(text.length);
  for (let n = 0; n < bytes.length; n++) bytes[n] = text.charCodeAt(n);
  if (packed["<f4"]) return inShape(new Float32Array(bytes.buffer), packed.shape);
  const halves = new Float32Array(new Uint16Array(bytes.buffer)); // their bits, as whole numbers
  return inShape(halves.map((bits) => HALF[bits]), packed.shape);
}

// (n,) -> shape
function inShape(numbers, [length, ...shape]) {
  if (!shape.length) return numbers;
  const size = numbers.length / length;
  return Array.from({ length }, (_, n) =>
    inShape(numbers.subarray(n * size, (n + 1) * size), shape));
}

// A model whose numbers are unpacked, once.
function readModel(packed) {
  const weights = {};
  for (const [name, weight] of Object.entries(packed.weights)) weights[name] = unpack(weight);
  const terms = packed.terms.map((layer) => layer.map((term) => ({
    ...term,
    static: term.static && unpack(term.static), // (H, K)
    table: term.table && unpack(term.table), // (H, d, K)
    values: term.values && unpack(term.values), // (d, K)
  })));
  return { ...packed, ...readVocabulary(packed), weights, terms };
}

// ---- A model that the page cannot compute: Python has computed the numbers of one sentence

function readNumbers(run) {
  const layers = run.layers.map(({ heads, notes }) => ({
    notes,
    heads: heads.map((head) => {
      const terms = head.terms.map((term) => ({ ...term, bias: inDoubles(unpack(term.bias)) }));
      if (head.kind === "convolution") return convolutionWeights(terms, head.dilation, run);
      return attentionWeights(inDoubles(unpack(head.content)), terms, run);
    }),
  }));
  return { ...run, layers, off: new Set() };
}

// The same numbers in lists whose sums are not rounded to float32. (N, K)
function inDoubles(x) {
  return x.map((row) => Array.from(row));
}

// A convolution as a matrix: weight p_r of token i is at j = i + r * dilation. Weights beyond the
// ends of the sentence meet no token, so a row may sum to less than 1. In a left-to-right model, the
// columns of a kernel stand for r = -2 reach to 0.
function convolutionWeights(terms, dilation, { tokens, causal }) {
  const [{ bias }] = terms; // (N, K) or (1, K)
  const weights = tokens.map((_, i) => {
    const kernel = softmax(bias.length === 1 ? bias[0] : bias[i]); // (K,)
    const first = causal ? 1 - kernel.length : (1 - kernel.length) / 2;
    const row = new Array(tokens.length).fill(0);
    kernel.forEach((weight, column) => {
      const j = i + (first + column) * dilation;
      if (j >= 0 && j < row.length) row[j] = weight;
    });
    return row;
  });
  const moved = weights.map(() => 0);
  return { kind: "convolution", dilation, terms, positions: [], weights, kernel: null, moved };
}
