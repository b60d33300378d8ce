"""lab.seq2seq by its command: a stopped run equals a whole one, and wrong inputs are named."""

import json
import os
import signal

import pytest
import torch

from conftest import log_of, needs_signals
from lab import seq2seq, translation

TOY = "--device cpu --variant dynamicconv --steps"


@pytest.fixture(autouse=True)
def few_pairs(monkeypatch):
    """The toy translation with 100 pairs to train on, and a small model."""
    sets = {name: pairs[:100] for name, pairs in translation.read_sets("toy", None).items()}
    monkeypatch.setattr(
        seq2seq,
        "read_sets",
        lambda data, cache: sets if data == "toy" else translation.read_sets(data, cache),
    )
    monkeypatch.setattr(translation, "HELD_OUT", 20)
    small = dict(layers=1, hidden_size=16, heads=2, embedding_size=16, ffn_size=16)
    monkeypatch.setattr(seq2seq, "TOY", (small, *seq2seq.TOY[1:]))


def files_of(folder):
    """What a run leaves, without times and machines."""
    weights = torch.load(folder / "model.pt", weights_only=True)
    results = json.loads((folder / "test.json").read_text())
    losses = [(line["step"], line["loss"]) for line in log_of(folder) if "loss" in line]
    return {name: x.tolist() for name, x in weights.items()}, results["dev"], losses


@needs_signals
def test_a_run_stopped_in_both_of_its_parts_equals_a_whole_one(run_program, monkeypatch, tmp_path):
    """Pre-training by spans, then training on 50 pairs."""
    options = f"{TOY} 4 --pretrain 4 --examples 50 --out_dir"
    run_program(seq2seq.main, options, tmp_path / "whole")

    steps = 0
    train_step = seq2seq.train_step

    def stopped(*arguments):
        nonlocal steps
        steps += 1
        train_step(*arguments)
        if steps in (2, 6):
            os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(seq2seq, "train_step", stopped)
    again = (options, tmp_path / "stopped")
    codes = [run_program(seq2seq.main, *again).code for _ in range(3)]
    assert codes == [143, 143, 0] and steps == 8

    name = "seq2seq-toy-dynamicconv-spans4"
    assert files_of(tmp_path / "stopped" / name) == files_of(tmp_path / "whole" / name)

    # a finished run is not trained again
    out = run_program(seq2seq.main, *again).out
    assert steps == 8 and out.count("finished before") == 2


@pytest.mark.parametrize("longer", ["source", "target"])
def test_a_batch_has_pairs_whose_two_texts_have_the_width_of_the_longer_one(longer):
    """Which pairs, and which widths: test_data.py. Of a pair, both texts begin with its number."""
    pairs = []
    for number in range(10, 500):
        pair = [number] + [5] * (number % 30), [number] + [5] * (number % 15)
        pairs.append(pair if longer == "source" else pair[::-1])
    batches = seq2seq.PairBatches(pairs, seq_len=30)  # a few texts are longer, and cut

    seen = set()
    for step, (indices, width) in enumerate(batches.batches.batches_of_epoch(16, 0, 0)):
        source, target = batches.batch(0, step, 16)
        assert source.shape == target.shape == (len(indices), width)
        assert torch.equal(source[:, 1], target[:, 1])
        seen.update(source[:, 1].tolist())
    assert seen == set(range(10, 500))


def test_a_trained_model_translates_a_text_that_is_not_too_long(run_program, refused, tmp_path):
    run_program(seq2seq.main, f"{TOY} 4 --out_dir", tmp_path)
    folder = tmp_path / "seq2seq-toy-dynamicconv"
    assert run_program(seq2seq.main, folder, "the dog scared anna").code == 0
    assert "the model (--seq_len) takes 64" in refused(seq2seq.main, folder, "the dog " * 40)


@pytest.mark.parametrize(
    "content, message",
    [
        ("a\tb\nc d\n", "line 2 is not `source TAB target`"),
        ("a\tb\n\nc\t \n", "line 3 is not `source TAB target`"),
        ("a\tb\na\tc\n", "has 1 different sources"),
        ("".join(f"{i}\tb\n" for i in range(60)) + "a " * 99 + "\tb\n", "a text has"),
    ],
)
def test_pairs_that_cannot_be_read_are_refused_in_one_line(refused, tmp_path, content, message):
    pytest.importorskip("sacrebleu")
    path = tmp_path / "pairs.tsv"
    path.write_text(content)
    assert message in refused(seq2seq.main, "--data", path)


# --- Pairs of one's own ---------------------------------------------------------------------------


def test_no_source_that_is_held_out_is_trained_on_with_another_target(tmp_path):
    """Each source has two targets, in different places of the file."""
    sources = [f"s{number}" for number in range(70)]
    lines = [f"{source}\t{target}" for target in "ab" for source in sources]
    path = tmp_path / "pairs.tsv"
    path.write_text("\n".join(lines))
    sets = translation.file_sets(path)
    found = {name: {source for source, _ in pairs} for name, pairs in sets.items()}
    assert {name: len(own) for name, own in found.items()} == {"train": 30, "dev": 20, "test": 20}
    assert set.union(*found.values()) == {*sources}
    assert sum(map(len, sets.values())) == 140


@pytest.mark.parametrize(
    "line, columns",
    [
        ('"He said ""no""."\t"c\td"', ['He said "no".', "c\td"]),
        ('"No," he said.\tc', ['"No," he said.', "c"]),
        ('a "b"\t5" c', ['a "b"', '5" c']),
    ],
)
def test_quotes_around_a_column_are_removed_as_csv_does_and_those_in_a_text_stay(line, columns):
    assert translation.columns_of(line) == columns


def test_bleu_counts_plain_text_with_the_default_or_a_named_tokenizer_and_says_which(
    run_program, refused, monkeypatch, tmp_path
):
    pytest.importorskip("sacrebleu")
    monkeypatch.setattr(seq2seq, "OTHERS", seq2seq.TOY)
    path = tmp_path / "pairs.tsv"
    path.write_text("".join(f"s{number} .\tt {number} .\n" for number in range(90)))
    options = f"--device cpu --variant none --steps 2 --data {path} --out_dir {tmp_path}"
    for name, tokenizer in (("test", "13a"), ("test-char", "char")):
        named = "" if name == "test" else "--bleu char"
        assert run_program(seq2seq.main, options, *named.split()).code == 0
        bleu = json.loads((tmp_path / f"seq2seq-pairs-none/{name}.json").read_text())["BLEU"]
        assert f"|tok:{tokenizer}|" in bleu["signature"]
    assert "--bleu nothing is none of" in refused(seq2seq.main, options, "--bleu nothing")
