"""lab/bench.py: what is counted, printed and recorded. How long anything takes is never tested."""

import functools
import json
import math
import os
import re

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from data import PAD, prepare_corpus
from lab import bench, measure, record
from model import BertConfig
from support import memory

CPU = torch.device("cpu")
FLOAT = torch.float32


@pytest.fixture
def benchmark(run_program):
    """benchmark("lengths", ...) runs the command line on the CPU: (exit code, output, error)."""

    def call(command, *arguments):
        return run_program("lab.bench", bench.main, command, "--device", "cpu", *arguments)

    return call


@pytest.fixture
def in_this_process(monkeypatch):
    """Measure memory in this process instead of a fresh one, which takes seconds to start."""

    def call(function, *arguments):
        return function(*arguments)

    monkeypatch.setattr(measure, "in_new_process", call)


def table(out, columns):
    """The rows of a printed table, as lists of strings. No cell has a blank in it."""
    lines = out.splitlines()
    header = "  ".join(column.cell(column.title) for column in columns)
    start = lines.index(header) + 1
    rows = []
    for line in lines[start:]:
        cells = line.split()
        if len(cells) != len(columns):
            break
        rows.append(cells)
    return rows


def printed(row, columns):
    """The cells of a row of the record, as they should be printed. null stands for nan."""
    cells = []
    for column in columns:
        value = row[column.key]
        if value is None:
            value = math.nan
        cells.append(format(value, column.format))
    return cells


def assert_record_has_what_is_printed(path, out, columns):
    content = json.loads(path.read_text(encoding="utf-8"))
    assert [printed(row, columns) for row in content["rows"]] == table(out, columns)
    assert content["rows"]
    for note in content["notes"]:
        assert note in out.splitlines()
    return content


# --- Measures -------------------------------------------------------------------------------------


def test_flops_of_a_depthwise_convolution_are_those_of_its_loops():
    """Each output is K products and sums; each gradient, of input and weight, is as many again."""
    length, channels, K = 20, 6, 5
    x = torch.randn(1, channels, length, 1, requires_grad=True)
    weight = torch.randn(channels, 1, K, 1, requires_grad=True)

    def run():
        F.conv2d(x, weight, padding=(2, 0), groups=channels).sum().backward()

    assert measure.count_flops(run) == 3 * 2 * length * channels * K


def die():
    os._exit(9)


def test_a_function_runs_in_a_process_of_its_own_and_gives_nan_if_that_is_killed():
    assert measure.in_new_process(os.getpid) != os.getpid()
    assert math.isnan(measure.in_new_process(die))


def fill_memory():
    raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes")


def fail():
    raise RuntimeError("another error")


def test_a_full_memory_of_a_new_process_gives_nan_and_another_error_is_raised():
    assert math.isnan(measure.in_new_process(fill_memory))
    with pytest.raises(RuntimeError, match="another error"):
        measure.in_new_process(fail)


def test_the_ratio_is_the_median_of_the_ratios_of_each_round():
    """In the second round the machine was ten times slower; the ratio does not notice it."""
    assert measure.median_ratio([2.0, 20.0, 2.0], [1.0, 10.0, 1.0]) == 2.0
    assert measure.median_ratio([2.0, 20.0, 6.0], [1.0, 10.0, 1.0]) == 2.0


def test_functions_take_turns():
    calls = []
    runs = {name: functools.partial(calls.append, name) for name in ("a", "b")}
    times = measure.take_turns(runs, CPU, rounds=3)
    assert calls == ["a", "b"] * 3
    assert list(times) == ["a", "b"]
    assert all(len(rounds) == 3 for rounds in times.values())


def test_the_peak_of_a_call_is_the_memory_that_it_needs_in_addition():
    """64 MiB of numbers; other threads of the process may need a little, too."""

    def run():
        return torch.ones(2**24).sum().item()

    result, peak = measure.peak_increase(run, CPU)
    assert result == 2**24
    assert math.isnan(peak) or 60 < peak < 200


def test_the_peak_is_nan_where_the_system_does_not_say_it(monkeypatch):
    for error in (OSError, TypeError, AttributeError):

        def fail(name, error=error):
            raise error

        monkeypatch.setattr(memory.ctypes, "CDLL", fail)
        result, peak = measure.peak_increase(lambda: 7, CPU)
        assert result == 7 and math.isnan(peak)


def test_the_peak_of_a_model_is_a_number_of_mib():
    config = BertConfig.from_size("tiny", "composite", vocab_size=300, max_length=16)
    peak = bench.model_peak(config, CPU, FLOAT)
    assert 50 < peak < 100_000 or (os.name == "nt" and math.isnan(peak))


# --- The record -----------------------------------------------------------------------------------


def test_a_record_says_what_was_run_and_names_no_folder(tmp_path):
    arguments = ["steps", "--corpus", "/home/ann/english.txt", "toy", "--cache_dir=/var/cache"]
    arguments += ["--out", str(tmp_path / "new" / "steps.json")]
    out = tmp_path / "new" / "steps.json"
    record.Record(arguments, {"size": "tiny"}, CPU, out)

    text = out.read_text(encoding="utf-8")
    content = json.loads(text)
    assert list(content) == [
        "command",
        "date",
        "device",
        "torch",
        "threads",
        "code",
        "settings",
        "rows",
        "notes",
    ]
    assert content["command"] == (
        "python -m lab.bench steps --corpus english.txt toy --cache_dir=cache --out steps.json"
    )
    assert content["settings"] == {"size": "tiny"}
    assert content["device"].startswith("cpu (")
    assert content["torch"] == torch.__version__
    assert content["threads"] == torch.get_num_threads()
    for secret in ("/home", "/var", str(tmp_path)):
        assert secret not in text


def test_a_record_is_written_after_every_row(tmp_path, capsys):
    """Memory that could not be measured is printed as nan; in JSON it is null."""
    columns = (record.Column("name", "name", 6, align="<"), record.Column("mib", "MiB", 8, ".1f"))
    out = tmp_path / "record.json"
    seen = []

    def rows():
        yield {"name": "a", "mib": math.nan}
        seen.append(json.loads(out.read_text(encoding="utf-8"))["rows"])
        yield {"name": "b", "mib": 2.25, "more": True}
        raise MemoryError

    results = record.Record([], {}, CPU, out)
    with pytest.raises(MemoryError):
        results.add_table(columns, rows())
    assert capsys.readouterr().out == (
        "name         MiB\n"
        "a            nan\n"
        "b            2.2\n"
    )  # fmt: skip
    assert seen == [[{"name": "a", "mib": None}]]
    content = json.loads(out.read_text(encoding="utf-8"))
    assert content["rows"] == [
        {"name": "a", "mib": None},
        {"name": "b", "mib": 2.25, "more": True},
    ]


# --- steps ----------------------------------------------------------------------------------------


def test_ratios_of_steps_are_times_divided_by_those_of_the_first_variant(monkeypatch):
    monkeypatch.setattr(measure, "in_new_process", lambda function, *arguments: 0.0)
    tokens = {"full": [9, 9, 9], "corpus": [10, 10, 10]}
    absolute = {"full": [2.0, 2.0, 2.0], "corpus": [1.0, 1.0, 1.0]}
    none = {"full": [1.0, 1.2, 8.0], "corpus": [4.0, 2.0, 40.0]}
    measured = {
        "absolute": bench.StepTimes(1.0, False, absolute, tokens),
        "none": bench.StepTimes(1.0, False, none, tokens),
    }
    _, row = bench.step_rows(measured, {"absolute": None, "none": None})

    # medians of 1, 1.2 and 8 seconds; of 10 / 4, 10 / 2 and 10 / 40 tokens per second
    assert (row["full_ms"], row["full_ratio"]) == (1200, 0.6)
    assert (row["corpus_tokens_per_second"], row["corpus_ratio"]) == (2.5, 4.0)


def test_the_note_about_steps_compares_full_rows_with_the_text(small_text, monkeypatch):
    """On average 20 real tokens; a step on full rows takes 5 seconds: 4 tokens per second.

    Making the three batches takes 3 of 6 seconds.
    """
    corpus = prepare_corpus([small_text.file], small_text.cache, 32, log=print)
    times = {"full": [5.0, 5.0, 50.0], "corpus": [2.0, 2.0, 2.0]}
    tokens = {"full": [99, 99, 99], "corpus": [10, 10, 40]}
    clock = iter([10.0, 13.0])
    monkeypatch.setattr(bench.time, "perf_counter", lambda: next(clock))
    note = bench.step_note(bench.StepTimes(1.0, False, times, tokens), corpus, 4)
    assert note.startswith("3 rounds, medians.") and "Full rows: 4 x 32 tokens." in note
    assert "has 20 real tokens on average" in note
    assert "absolute would train on 4 real tokens/s" in note
    assert "Making a batch takes 50.00 % of a step." in note


def small_setup(corpus):
    """A tiny model without positions, which trains on 4 rows of at most 32 tokens."""
    config = BertConfig.from_size("tiny", "none", vocab_size=corpus.vocab_size, max_length=32)
    settings = {"variant": "none", "seed": 0, "steps": 10, "warmup_steps": 1, "lr": 1e-3}
    settings |= {"weight_decay": 0.01, "batch_size": 4, "seq_len": 32}
    return bench.Setup(config, settings, CPU, FLOAT, compile=False)


def test_the_tokens_of_a_step_are_those_of_its_batch_alone(small_text):
    corpus = prepare_corpus([small_text.file], small_text.cache, 32, log=print)
    measured = bench.measure_steps({"none": small_setup(corpus)}, corpus, rounds=2)
    assert measured["none"].tokens["full"] == [4 * 32, 4 * 32]
    expected = [(corpus.batch(0, step, 4) != PAD).sum().item() for step in (1, 2)]
    assert measured["none"].tokens["corpus"] == expected


def test_full_rows_are_functions_of_seed_and_step_and_have_no_padding_and_no_marks():
    full = bench.FullRows(300, 16)
    first = full.batch(0, 1, 4)
    assert torch.equal(first, full.batch(0, 1, 4))
    assert torch.equal(first, bench.FullRows(300, 16).batch(0, 1, 4))
    assert not torch.equal(first, full.batch(0, 2, 4))
    assert not torch.equal(first, full.batch(1, 1, 4))
    assert first.shape == (4, 16) and first.dtype == torch.int64

    many = full.batch(0, 1, 40)
    assert many.min() >= 5 and many.max() < 300
    assert len(np.unique(many, axis=0)) == 40


def test_a_few_full_rows_fill_a_larger_batch():
    assert bench.FullRows(300, 16, count=1).batch(0, 0, 3).shape == (3, 16)


def steps(benchmark, small_text, *arguments):
    return benchmark(
        "steps",
        *("--corpus", small_text.file, "--cache_dir", small_text.cache),
        *("--batch_size", 4, "--seq_len", 32, "--dtype", "fp32", "--rounds", 2),
        *arguments,
    )


def test_steps_prints_a_row_for_absolute_and_each_variant_and_writes_no_run(
    benchmark, small_text, tmp_path, monkeypatch
):
    """Of absolute itself the ratios are 1; every row has a time, real tokens/s and a memory."""
    monkeypatch.setattr(measure, "in_new_process", lambda function, *arguments: 123.4)
    monkeypatch.chdir(tmp_path)
    code, out, error = steps(benchmark, small_text, "--variant", "composite", "--out", "steps.json")
    assert code == 0, error
    assert [path.name for path in tmp_path.iterdir()] == ["steps.json"]

    rows = table(out, bench.STEP_COLUMNS)
    assert [row[0] for row in rows] == ["absolute", "composite"]
    assert rows[0][2] == rows[0][4] == "1.00"
    for _, full_ms, full_ratio, tokens_per_second, corpus_ratio, first_step, peak in rows:
        for number in (full_ms, full_ratio, tokens_per_second, corpus_ratio):
            assert float(number.replace(",", "")) > 0
        assert float(first_step) >= 0
        assert peak == "123"

    content = assert_record_has_what_is_printed(tmp_path / "steps.json", out, bench.STEP_COLUMNS)
    assert content["settings"]["variants"] == ["absolute", "composite"]
    assert content["settings"]["corpus"] == [small_text.file.name]
    assert content["settings"]["compile"] is False
    assert str(small_text.file.parent) not in (tmp_path / "steps.json").read_text()
    assert len(content["notes"]) == 1
    assert [row["compiled"] for row in content["rows"]] == [False, False]


def test_the_peak_of_steps_is_a_number_of_mib(benchmark, small_text, in_this_process, tmp_path):
    code, out, error = steps(benchmark, small_text, "--variant", "absolute", "--rounds", 1)
    assert code == 0, error
    (row,) = table(out, bench.STEP_COLUMNS)
    assert row[-1] == "nan" or 50 < float(row[-1].replace(",", "")) < 100_000


def test_all_variants_train_on_the_same_batches_in_every_round(
    benchmark, small_text, in_this_process, monkeypatch
):
    """Noted: (variant, kind of batch, its ids) of every training step."""
    noted = []
    train_step = bench.train_step

    def note_and_train(trainer, source):
        settings = trainer.settings
        batch = source.batch(settings["seed"], trainer.step, settings["batch_size"])
        noted.append((settings["variant"], type(source).__name__, batch.tolist()))
        train_step(trainer, source)

    monkeypatch.setattr(bench, "train_step", note_and_train)
    monkeypatch.setattr(bench, "step_peak", lambda setup: 0.0)
    assert steps(benchmark, small_text, "--variant", "none").code == 0

    # the last 8 steps are timed: 2 rounds x 2 variants x 2 kinds of batches
    timed = noted[-8:]
    assert [(variant, kind) for variant, kind, _ in timed] == 2 * [
        ("absolute", "FullRows"),
        ("absolute", "Corpus"),
        ("none", "FullRows"),
        ("none", "Corpus"),
    ]
    batches = [batch for _, _, batch in timed]
    assert batches[0] == batches[2] and batches[1] == batches[3]
    assert batches[4] == batches[6] and batches[5] == batches[7]
    assert batches[0] != batches[4] and batches[1] != batches[5]


# --- padding --------------------------------------------------------------------------------------


def padding(benchmark, small_text, *arguments):
    return benchmark(
        "padding",
        *("--corpus", small_text.file, "--cache_dir", small_text.cache, "--variant", "none"),
        *("--batch_size", 4, "--seq_len", 32, "--dtype", "fp32", "--rounds", 3),
        *arguments,
    )


def test_padding_compares_four_ways_of_making_batches_and_records_them(
    benchmark, small_text, tmp_path
):
    out_file = tmp_path / "padding.json"
    code, out, error = padding(benchmark, small_text, "--out", out_file)
    assert code == 0, error
    rows = table(out, bench.PADDING_COLUMNS)
    assert [row[0] for row in rows] == ["padded", "random", "equal-pairs", "equal-tokens"]
    assert rows[0][2] == "1.00"
    content = assert_record_has_what_is_printed(out_file, out, bench.PADDING_COLUMNS)
    filled = [row["filled"] for row in content["rows"]]
    assert filled[0] < filled[1] <= 100
    assert len(content["notes"]) == 1


def test_the_speed_of_a_way_of_making_batches_is_its_real_tokens_by_its_seconds(
    benchmark, small_text, monkeypatch
):
    """With the same pairs, and a fourth of the seconds: 4 times the speed."""
    given = iter([4.0, 1.0, 1.0, 1.0] * 4)  # the first round warms up

    def seconds(run, device):
        run()
        return next(given)

    monkeypatch.setattr(measure, "seconds", seconds)
    code, out, error = padding(benchmark, small_text)
    assert code == 0, error
    padded, random, pairs, tokens = table(out, bench.PADDING_COLUMNS)
    per_step = [column.key for column in bench.PADDING_COLUMNS].index("tokens_per_step")
    assert float(padded[1].replace(",", "")) == pytest.approx(float(padded[per_step]) / 4, abs=0.6)
    assert padded[per_step] == random[per_step]
    assert random[2] == "4.00"
    speeds = [float(row[1].replace(",", "")) for row in (pairs, tokens)]
    ratio = float(re.search(r"([0-9.]+) times the speed of equal-pairs", out)[1])
    assert ratio == pytest.approx(speeds[1] / speeds[0], abs=0.05)


@pytest.fixture
def mixed_lengths(tmp_path):
    """A corpus of pairs of 2, 4, ..., 20 words."""
    lines = []
    for words in range(1, 11):
        lines += 8 * [" ".join(words * ["word"]) + "."] + [""]
    path = tmp_path / "mixed.txt"
    path.write_text("\n".join(lines), encoding="utf-8")
    return prepare_corpus([path], tmp_path / "cache", 32, log=print)


def test_the_tokens_of_batches_are_those_of_the_timed_steps(mixed_lengths):
    """Two steps are timed, after step 0, which warms up. Its batch has another width."""
    trainer, _ = bench.make_trainer(small_setup(mixed_lengths))
    source = bench.RandomBatches(mixed_lengths)
    (row,) = bench.measure_padding(trainer, {"random": source}, rounds=2)

    batches = [source.batch(0, step, 4) for step in (1, 2)]  # (4, N) each
    tokens = [(batch != PAD).sum().item() for batch in batches]
    positions = [batch.numel() for batch in batches]
    assert row["tokens_per_step"] == pytest.approx(np.mean(tokens), rel=1e-12)
    assert row["deviation"] == pytest.approx(np.std(tokens), rel=1e-12)
    assert row["filled"] == pytest.approx(100 * sum(tokens) / sum(positions), rel=1e-12)
    assert source.batch(0, 0, 4).shape != batches[-1].shape


def test_batches_padded_to_the_full_length_hold_the_same_pairs(mixed_lengths):
    narrow = bench.RandomBatches(mixed_lengths).batch(0, 1, 4)  # (4, N)
    wide = bench.PaddedBatches(mixed_lengths).batch(0, 1, 4)  # (4, 32)
    width = narrow.shape[1]
    assert wide.shape == (4, 32)
    assert torch.equal(wide[:, :width], narrow)
    assert (wide[:, width:] == PAD).all()


def test_sorted_batches_hold_each_pair_once_equally_many_and_of_similar_length(mixed_lengths):
    batches = bench.SortedBatches(mixed_lengths).epoch_batches(0, 0, 4)  # (batches, 4)
    drawn = bench.RandomBatches(mixed_lengths).epoch_batches(0, 0, 4)  # (batches, 4)
    assert batches.shape == drawn.shape
    assert sorted(batches.ravel()) == sorted(drawn.ravel())
    lengths = mixed_lengths.lengths
    assert np.ptp(lengths[batches], axis=1).mean() < np.ptp(lengths[drawn], axis=1).mean()


def test_padding_takes_one_variant(benchmark, small_text):
    code, _, error = padding(benchmark, small_text, "--variant", "none", "fixed")
    assert code == 2
    assert error.strip().endswith("unrecognized arguments: fixed")
    code, _, error = padding(benchmark, small_text, "--variant", "all")
    assert code == 2
    assert "argument --variant: invalid choice: 'all'" in error


# --- lengths --------------------------------------------------------------------------------------


def lengths_rows(names, lengths, rounds=1):
    return list(
        bench.measure_lengths(names, "tiny", CPU, FLOAT, lengths, rounds=rounds, dropout=0.0)
    )


def test_lengths_has_a_row_for_each_length_and_variant_with_the_flops_of_the_equations(
    in_this_process,
):
    rows = lengths_rows(["none", "dilated"], (8, 32))
    assert [(row["N"], row["variant"]) for row in rows] == [
        (8, "none"),
        (8, "dilated"),
        (32, "none"),
        (32, "dilated"),
    ]
    gflop = {(row["N"], row["variant"]): row["gflop"] for row in rows}
    ratios = [row["ratio"] for row in rows if row["variant"] == "none"]
    assert ratios == [1.0, 1.0]

    # forward and two gradients, per 1,000 tokens
    C, K = 128, 17
    for length in (8, 32):
        # dilated: C -> 2C and C -> C, and K weights per channel
        dilated = 3 * 2 * (3 * C * C + K * C) * 1000
        assert gflop[length, "dilated"] == pytest.approx(dilated / 1e9, rel=1e-12)

        # none: four projections, queries times keys, weights times values
        none = 3 * 2 * (4 * C * C + 2 * C * length) * 1000
        assert gflop[length, "none"] == pytest.approx(none / 1e9, rel=1e-12)


@pytest.mark.parametrize(
    "seconds, verdict",
    [
        ([1, 2, 1, 0.5, 1, 0.25], "dilated: faster than none from N = 16 on"),
        ([1, 0.5, 1, 2, 1, 2], "dilated: not faster than none"),
        # faster at 8 tokens, too, but not at 16
        ([1, 0.5, 1, 2, 1, 0.5], "dilated: faster than none from N = 32 on"),
    ],
)
def test_lengths_says_from_which_length_on_a_variant_is_faster(
    seconds, verdict, benchmark, monkeypatch
):
    """The times are given: of none and dilated at 8, 16 and 32 tokens."""
    given = iter(seconds)
    monkeypatch.setattr(measure, "seconds", lambda run, device: next(given))
    monkeypatch.setattr(measure, "in_new_process", lambda function, *arguments: 0.0)
    monkeypatch.setattr(bench, "doubled_lengths", lambda longest: [8, 16, 32])
    code, out, error = benchmark("lengths", "--variant", "dilated", "--rounds", 1)
    assert code == 0, error
    assert out.splitlines()[-1] == verdict


def test_the_ratio_of_the_rounds_decides_and_not_the_two_medians():
    """A machine that was busy in a whole round changes the medians, but not the ratio."""
    rows = [
        {"N": 8, "variant": "none", "ms": 2.0, "ratio": 1.0},
        {"N": 8, "variant": "dilated", "ms": 1.9, "ratio": 1.1},
    ]
    assert bench.crossover(rows, "dilated", "none") == "dilated: not faster than none"


def test_too_little_memory_for_mixers_of_a_length_is_one_line_and_the_rows_before_it_are_kept(
    benchmark, tmp_path, monkeypatch
):
    """RuntimeError is what torch raises if an allocation fails."""
    make_mixer_run = bench.make_mixer_run

    def run_up_to_64(config, B, N, device, dtype):
        if N > 64:
            raise RuntimeError("you tried to allocate too much\nand more")
        return make_mixer_run(config, B, N, device, dtype)

    monkeypatch.setattr(bench, "make_mixer_run", run_up_to_64)
    monkeypatch.setattr(measure, "in_new_process", lambda function, *arguments: 0.0)
    out_path = tmp_path / "lengths.json"
    arguments = ["--variant", "none", "--max_length", 128, "--rounds", 1, "--out", out_path]
    code, _, error = benchmark("lengths", *arguments)
    assert code == 2
    assert error == "lab.bench: N = 128 cannot be measured here: you tried to allocate too much\n"
    rows = json.loads(out_path.read_text(encoding="utf-8"))["rows"]
    assert [row["N"] for row in rows] == [64]


def test_a_cost_per_1000_tokens_is_the_median_over_the_rounds_and_its_ratio_that_of_each_round(
    monkeypatch,
):
    """Batches of 8 tokens. none: 4, 1 and 1 s; dilated: 2, 2 and 8 s, so 0.5, 2 and 8 times."""
    given = iter([4, 2, 1, 2, 1, 8])
    monkeypatch.setattr(measure, "seconds", lambda run, device: next(given))
    monkeypatch.setattr(measure, "in_new_process", lambda function, *arguments: 0.0)
    monkeypatch.setattr(measure, "peak_increase", lambda run, device: (run(), 3.0))
    names = ("none", "dilated")
    rows = bench.measure_lengths(names, "tiny", CPU, torch.float32, [8], 3, dropout=0.0)
    none, dilated = rows
    assert (none["ms"], none["ratio"]) == (1000 * 1 * 1000 / 8, 1)
    assert (dilated["ms"], dilated["ratio"]) == (1000 * 2 * 1000 / 8, 2)
    assert none["kib"] == dilated["kib"] == 3 * 1024 * 1000 / 8


def test_lengths_measures_the_mixer_of_the_fourth_layer(in_this_process, monkeypatch):
    """There, the convolution of `dilated` reaches farthest."""
    layers = []
    make_mixer = bench.make_mixer

    def note_and_make(config, layer):
        layers.append(layer)
        return make_mixer(config, layer)

    monkeypatch.setattr(bench, "make_mixer", note_and_make)
    lengths_rows(["none", "dilated"], [8])
    assert set(layers) == {3}


def test_lengths_are_doubled_up_to_the_longest():
    assert bench.doubled_lengths(64) == [64]
    assert bench.doubled_lengths(1000) == [64, 128, 256, 512]
    assert bench.doubled_lengths(8192)[-1] == 8192


@pytest.mark.parametrize(
    "names, chosen",
    [
        (["composite"], ["none", "composite"]),
        (["dilated", "none", "dilated"], ["none", "dilated"]),
        (["all"], ["none", "composite", "dilated"]),
    ],
)
def test_the_baseline_is_measured_first_and_nothing_twice(names, chosen):
    allowed = ["composite", "none", "dilated"]
    assert bench.chosen_variants(names, allowed, baseline="none") == chosen


# --- attention ------------------------------------------------------------------------------------


def test_attention_prints_and_records_a_line_for_each_method(benchmark, tmp_path):
    out_path = tmp_path / "attention.json"
    code, out, error = benchmark(
        "attention", "--max_length", 128, "--tokens", 128, "--out", out_path
    )
    assert code == 0, error
    rows = table(out, bench.ATTENTION_COLUMNS)
    assert [row[0] for row in rows] == ["64"] * 6 + ["128"] * 6
    assert [row[2] for row in rows[:6]] == [
        "plain",
        "gather",
        "reference",
        "band",
        "blocks",
        "fused",
    ]
    for row in rows:
        value_error, gradient_error = float(row[-2]), float(row[-1])
        assert value_error < 1e-5 and gradient_error < 1e-5
    assert rows[0][4] == rows[6][4] == "1.00"
    batch_sizes = [row[1] for row in rows]
    assert batch_sizes[:6] == 6 * ["2"]
    assert set(batch_sizes[6:]) == {"1"}

    content = assert_record_has_what_is_printed(out_path, out, bench.ATTENTION_COLUMNS)
    assert content["settings"]["dtype"] == "float32"


def test_the_ratio_of_a_method_is_its_time_by_that_of_plain_attention(monkeypatch):
    """plain takes 1, 2, 4, ... seconds in the nine rounds, gather three times as long."""
    seconds = []
    for number in range(9):
        seconds += [2.0**number, 3 * 2.0**number]
    given = iter(seconds)
    monkeypatch.setattr(measure, "seconds", lambda run, device: next(given))
    methods = {name: bench.METHODS[name] for name in ("plain", "gather")}
    plain, gather = bench.measure_attention(methods, [64], 64, CPU, torch.float32)
    assert (plain["ratio"], gather["ratio"]) == (1, 3)
    assert (plain["ms"], gather["ms"]) == (1000 * 16, 1000 * 48)


def test_an_eighth_of_every_sequence_is_padding():
    (_, _, _, mask, _), _ = bench.make_inputs(2, 64, CPU, FLOAT)
    assert mask.tolist() == 2 * [56 * [True] + 8 * [False]]


def test_bf16_has_larger_errors_which_are_measured_against_float64():
    rows = bench.measure_attention(bench.METHODS, [64], 64, CPU, torch.bfloat16)
    for row in rows:
        assert 1e-4 < row["value_error"] < 0.1
        assert 1e-4 < row["gradient_error"] < 0.1


# --- Errors ---------------------------------------------------------------------------------------


def last_line(error):
    return error.splitlines()[-1]


@pytest.mark.parametrize(
    "arguments, words",
    [
        (["attention", "--max_length", "63"], "--max_length must be 64 or more"),
        (["attention", "--tokens", "0"], "'0' is not a whole number above 0"),
        (["attention", "--device", "abacus"], "'abacus'"),
        (["attention", "--device", "meta"], "no device 'meta'"),
        (["attention", "--size", "tiny"], "--size"),
        (["lengths", "--max_length", "63"], "--max_length must be 64 or more"),
        (["lengths", "--variant", "dilated-hybrid"], "--variant 'dilated-hybrid'"),
        (["lengths", "--kernel_size", "9"], "--kernel_size"),
        (["steps", "--variant", "nonsense"], "composite"),
        (["steps", "--kernel_size", "8"], "kernel_size must be odd"),
        (["steps", "--size", "huge"], "tiny"),
        (["steps", "--corpus", "no-such-corpus"], "no-such-corpus"),
        (["steps", "--lengths"], "--lengths"),
        (["everything"], "everything"),
    ],
)
def test_what_cannot_be_measured_is_refused_in_one_line(
    benchmark, arguments, words, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    code, _, error = benchmark(*arguments)
    assert code == 2
    assert words in last_line(error)
    assert not list(tmp_path.iterdir())


def test_a_memory_error_without_a_message_is_named():
    def no_memory(*inputs):
        raise MemoryError

    with pytest.raises(ValueError, match="^N = 64 cannot be measured here: MemoryError$"):
        list(bench.measure_attention({"plain": no_memory}, [64], 64, CPU, FLOAT))


def test_too_little_memory_for_a_length_is_one_line_and_the_rows_before_it_are_kept(
    benchmark, tmp_path, monkeypatch
):
    """RuntimeError is what torch raises if an allocation fails."""
    plain = bench.plain

    def plain_up_to_64(query, *inputs):
        if query.shape[-2] > 64:
            raise RuntimeError("you tried to allocate too much\nand more")
        return plain(query, *inputs)

    monkeypatch.setattr(bench, "METHODS", {"plain": plain_up_to_64})
    out_path = tmp_path / "attention.json"
    arguments = ["--max_length", 128, "--tokens", 64, "--out", out_path]
    code, _, error = benchmark("attention", *arguments)
    assert code == 2
    assert error == ("lab.bench: N = 128 cannot be measured here: you tried to allocate too much\n")
    rows = json.loads(out_path.read_text(encoding="utf-8"))["rows"]
    assert [row["N"] for row in rows] == [64]


def test_without_a_compiler_compile_is_refused_in_one_line(benchmark, monkeypatch):
    def no_compiler(*arguments):
        raise RuntimeError("no compiler")

    monkeypatch.setattr(torch, "compile", lambda function, **options: no_compiler)
    code, _, error = benchmark("attention", "--compile", "--tokens", 64)
    assert code == 2
    assert error == "lab.bench: N = 64 cannot be measured here: no compiler\n"


def test_an_output_that_cannot_be_written_fails_before_anything_is_measured(
    benchmark, tmp_path, monkeypatch
):
    monkeypatch.setattr(bench, "measure_attention", None)
    (tmp_path / "file").write_text("", encoding="utf-8")
    code, _, error = benchmark("attention", "--out", tmp_path / "file" / "record.json")
    assert code == 2
    assert error.startswith("lab.bench: ") and error.count("\n") == 1


def test_an_earlier_record_is_kept_until_a_new_row_is_measured(tmp_path):
    out = tmp_path / "record.json"
    out.write_text("an earlier record", encoding="utf-8")
    results = record.Record(["steps"], {}, CPU, out)
    assert out.read_text(encoding="utf-8") == "an earlier record"
    results.add_note("a note")
    assert json.loads(out.read_text(encoding="utf-8"))["notes"] == ["a note"]
