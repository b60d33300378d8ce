"use strict";
// The tokenizer, as in support/tokenizer.py, and model.with_end_mark: from a sentence to token ids.

const SPECIAL = /(\[(?:PAD|UNK|CLS|SEP|MASK)\])/;
const INVISIBLE = /[\u00ad\u200b\u2060\ufeff]/g;
const FORMS = /▁?(?:[\p{L}\p{M}]+|\p{N}+|[^\p{L}\p{M}\p{N}▁]+)|▁/gu;

// What is looked up in a vocabulary, [[piece, log-probability], ...]: piece -> {id, score}.
function readVocabulary({ vocabulary }) {
  return {
    pieces: new Map(vocabulary.map(([piece, score], id) => [piece, { id, score }])),
    lowest: vocabulary.reduce((least, [, score]) => Math.min(least, score), 0),
    longest_piece: vocabulary.reduce((most, [piece]) => Math.max(most, piece.length), 0),
  };
}

// {ids, tokens, unknown}: the tokens of [CLS] sentence [SEP], and the words that the model has not
// learned. A RangeError if there are too many.
function tokenise(model, sentence) {
  if (sentence.includes("[MASK]")) sentence = withEndMark(sentence, model);
  const ids = [model.pieces.get("[CLS]").id];
  const unknown = new Set();

  // special tokens stay as they are; every other part is normalised and split into forms
  sentence.split(SPECIAL).forEach((part, n) => {
    if (n % 2) {
      ids.push(model.pieces.get(part).id);
      return;
    }
    for (const form of formsOf(part, n === 0)) {
      const found = piecesOf(form, model);
      if (found.some((id) => isUnknown(id, model))) unknown.add(form.replace("▁", "") || "▁");
      ids.push(...found);
    }
  });
  ids.push(model.pieces.get("[SEP]").id);

  if (ids.length > model.longest) {
    throw new RangeError(`The sentence has ${ids.length} tokens, the page takes ${model.longest}.`);
  }
  const tokens = ids.map((id) => model.vocabulary[id][0].replaceAll("▁", "") || "_");
  return { ids, tokens, unknown: [...unknown] };
}

// The sentence, and a full stop if it has no end mark.
function withEndMark(sentence, { last_end }) {
  const text = sentence.trimEnd();
  return new RegExp(last_end, "u").test(text) || text.endsWith("[SEP]") ? text : `${text}.`;
}

// "The  dog's 2 km." -> "▁the" "▁dog" "'" "s" "▁2" "▁km" "."
// Without marks that nobody sees, one form per character (NFKC), lower case, single spaces, each of
// which belongs to the word after it; then sequences of letters, of digits, and of other symbols.
function formsOf(part, isFirst) {
  const letters = [...part.replace(INVISIBLE, "").normalize("NFKC")];
  const lower = letters.map((letter) => letter.toLowerCase()).join("");
  let text = lower.replace(/\p{White_Space}+/gu, " ").trimEnd().replaceAll(" ", "▁");
  if (isFirst && text && !text.startsWith("▁")) text = `▁${text}`;
  return text.match(FORMS) ?? [];
}

// The ids of the pieces of a form whose log-probabilities have the largest sum. best[n] is the best
// way to write its first n characters: {sum, start of the last piece, id}. A character that is no
// piece is unknown; several of them are one token.
function piecesOf(form, { pieces, lowest, longest_piece }) {
  const unknown = pieces.get("[UNK]").id;
  const letters = [...form];
  const best = [{ sum: 0 }];
  letters.forEach((_, start) => {
    for (let end = start + 1; end <= letters.length; end++) {
      const text = letters.slice(start, end).join("");
      if (text.length > longest_piece) break;
      let piece = pieces.get(text);
      if (!piece && end === start + 1) piece = { id: unknown, score: lowest - 10 };
      if (!piece) continue;
      const sum = best[start].sum + piece.score;
      if (!best[end] || sum > best[end].sum) best[end] = { sum, start, id: piece.id };
    }
  });

  // from the end back to the beginning
  const ids = [];
  for (let end = letters.length; end > 0; end = best[end].start) {
    const { id } = best[end];
    if (id !== unknown || id !== ids[0]) ids.unshift(id);
  }
  return ids;
}

// Whether a piece is [UNK] or did not occur in training.
function isUnknown(id, { vocabulary, unseen }) {
  return vocabulary[id][0] === "[UNK]" || unseen.includes(id);
}
