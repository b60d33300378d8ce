"""glue.py: the protocol. Batches, the published settings, starts, best models, kills, mistakes."""

import json
import math
import multiprocessing
import os
import random
import shutil
import signal
import time
import zipfile
from dataclasses import replace

import numpy as np
import pytest
import torch

import glue
import model as model_file
from data import CLS, PAD, SEP, train_tokenizer
from glue import LabelledPairs, classify, predict
from model import BertConfig, BertForClassification, BertForMaskedLM, save_run
from support.commands import run_command
from support.glue_format import FORMATS, Examples, read_task, write_split
from support.glue_metrics import METRICS
from support.glue_submission import SUBMISSION
from toy import glue as toy_glue
from toy import language

CPU = torch.device("cpu")
SHAPE = {"layers": 1, "hidden_size": 16, "ffn_size": 32, "heads": 2, "embedding_size": 16}
TRAIN_ROWS, OTHER_ROWS = 200, 24  # of every task

# [C] table 5 (WNLI: the released code): epochs, batch size, learning rate, and where a task starts
TABLE_5 = {
    "cola": (3, 32, 3e-4, None),
    "sst-2": (3, 32, 3e-4, None),
    "mrpc": (3, 32, 3e-4, "mnli"),
    "sts-b": (10, 32, 3e-4, "mnli"),
    "qqp": (4, 128, 3e-4, None),
    "mnli": (4, 128, 3e-4, None),
    "qnli": (3, 32, 1e-4, None),
    "rte": (10, 32, 3e-4, "mnli"),
    "wnli": (5, 32, 3e-4, None),
}


# --- A small model, small tasks -------------------------------------------------------------------


@pytest.fixture(scope="session")
def tokenizer():
    """The tokenizer of a small part of the toy language."""
    sample = []
    for document in language.documents(0, 5000):
        sample += [language.spell(sentence) for sentence in document]
    return train_tokenizer(sample, 2000, log=lambda line: None)


def small_config(tokenizer):
    return BertConfig("composite", tokenizer.get_vocab_size(), max_length=160, **SHAPE)


def use_small_tasks(patch):
    """From now on, the toy tasks have few rows."""
    small = {}
    for name, splits in toy_glue.GLUE_ROWS.items():
        small[name] = {**dict.fromkeys(splits, OTHER_ROWS), "train": TRAIN_ROWS}
    patch.setattr(toy_glue, "GLUE_ROWS", small)


@pytest.fixture(scope="module", autouse=True)
def small_tasks():
    with pytest.MonkeyPatch.context() as patch:
        use_small_tasks(patch)
        yield


@pytest.fixture(scope="session")
def on_cpu(tmp_path_factory):
    """Options: the toy tasks on the CPU. All tests share the files of the tasks."""
    cache = tmp_path_factory.mktemp("cache")
    return ["--data_dir", "toy", "--cache_dir", cache, "--device", "cpu"]


@pytest.fixture(scope="session")
def untrained(tokenizer, tmp_path_factory):
    """The folder of an untrained run."""
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("untrained") / "run"
    folder.mkdir()
    save_run(folder, BertForMaskedLM(small_config(tokenizer)), tokenizer)
    return folder


@pytest.fixture
def run(untrained, tmp_path):
    """A copy of it."""
    return shutil.copytree(untrained, tmp_path / "run")


def call(*words):
    """Call glue.py."""
    glue.main([str(word) for word in words])


def results(run, name="glue"):
    """The records of a run's results, without what differs between two equal runs."""
    records = []
    for line in (run / name / "results.jsonl").read_text(encoding="utf-8").splitlines():
        record = json.loads(line)
        del record["seconds"], record["made_by"]
        records.append(record)
    return sorted(records, key=lambda record: (record["task"], record["seed"]))


def weights_in(folder):
    """{file: state_dict} of all fine-tuned models that are kept in a folder."""
    paths = folder.glob("*.pt")
    return {path.name: torch.load(path, weights_only=True)["weights"] for path in paths}


def assert_equal_weights(one, other):
    assert one.keys() == other.keys()
    for name in one:
        assert torch.equal(one[name], other[name]), name


def labelled(tokenizer, name, a, b, labels, seq_len=64):
    """LabelledPairs of these sentences."""
    examples = Examples(FORMATS[name], "train", a, b, labels, None, False, ())
    return LabelledPairs(examples, tokenizer, seq_len)


def random_pairs(tokenizer, count=40, name="mrpc"):
    """LabelledPairs of 1 to 12 words each; the labels alternate."""
    rng = random.Random(0)

    def texts():
        return [
            " ".join(rng.choices(["the dog", "cats"], k=rng.randint(1, 6))) for _ in range(count)
        ]

    return labelled(tokenizer, name, texts(), texts(), [row % 2 for row in range(count)])


@torch.no_grad()
def randomise(model, data):
    """Draw the weights again, so that a classifier gives answers of every kind."""
    for weight in model.parameters():
        torch.nn.init.normal_(weight)

    # the mean of the scores becomes 0
    rows = torch.from_numpy(data.rows(range(20)))
    model.classifier.bias -= classify(model, rows).mean(dim=0)


# --- Batches and answers --------------------------------------------------------------------------


def test_a_batch_is_a_function_of_seed_and_step_and_an_epoch_holds_each_row_once(tokenizer):
    """43 rows in batches of 8: an epoch has 5 batches and leaves out 3 rows, others each time."""
    data = random_pairs(tokenizer, 43)
    batches = [data.batch_indices(7, step, 8).tolist() for step in range(10)]
    for epoch in (batches[:5], batches[5:]):
        assert len(set(sum(epoch, []))) == 40
    assert batches[:5] != batches[5:]
    assert data.batch_indices(8, 0, 8).tolist() != batches[0]

    again = random_pairs(tokenizer, 43)
    for step in (9, 3, 7, 0):
        assert again.batch_indices(7, step, 8).tolist() == batches[step]
        assert torch.equal(again.batch(7, step, 8), data.batch(7, step, 8))


def test_batches_are_random_although_length_tells_the_label(tokenizer):
    """The short half of the rows has label 0, the long half label 1.

    In random batches of B rows the mean label has the variance p (1 - p) / B, here 0.25 / 8.
    Sorted batches have 8 times as much. Over 500 batches the standard deviation of a variance is
    6 %: 25 % is four of these.
    """
    data = random_pairs(tokenizer, 400)
    labels = data.lengths > np.median(data.lengths)  # (rows,)
    means = [labels[data.batch_indices(0, step, 8)].mean() for step in range(500)]
    assert np.var(means) == pytest.approx(np.var(labels) / 8, rel=0.25)


def test_a_row_is_cls_a_sep_b_sep_and_the_longer_sentence_is_cut(tokenizer):
    words = ["▁anna", "▁tom", "▁ruth"]
    anna, tom, ruth = (tokenizer.token_to_id(word) for word in words)
    pairs = labelled(tokenizer, "rte", ["anna", "ruth [SEP]"], ["tom", "tom"], [0, 1])
    ids = pairs.rows([0, 1])
    assert ids[0].tolist()[:5] == [CLS, anna, SEP, tom, SEP]
    assert (ids == SEP).sum(axis=1).tolist() == [2, 2]  # "[SEP]" in a text is text
    assert pairs.lengths.tolist() == (ids != PAD).sum(axis=1).tolist()

    single = labelled(tokenizer, "sst-2", ["anna"], None, [1])
    assert single.rows([0]).ravel().tolist()[:4] == [CLS, anna, SEP, PAD]

    cut = labelled(tokenizer, "rte", ["anna " * 9], ["tom ruth"], [0], seq_len=8)
    assert cut.rows([0]).tolist() == [[CLS, anna, anna, anna, SEP, tom, ruth, SEP]]


def test_token_types_are_1_for_the_second_sentence_and_the_mask_leaves_padding_out():
    batch = torch.tensor([[CLS, 9, 9, SEP, 8, SEP], [CLS, 9, SEP, PAD, PAD, PAD]])
    mask, types = classify(lambda ids, mask, types: (mask, types), batch)
    assert types.tolist() == [[0, 0, 0, 0, 1, 1], [0] * 6]
    assert mask.int().tolist() == [[1] * 6, [1, 1, 1, 0, 0, 0]]


@pytest.mark.parametrize("name, num_labels", [("mnli", 3), ("sts-b", 1)])
@torch.no_grad()
def test_predictions_are_those_of_each_row_alone(tokenizer, name, num_labels):
    data = random_pairs(tokenizer, 21, name)
    torch.manual_seed(0)
    model = BertForClassification(small_config(tokenizer), num_labels).eval()
    randomise(model, data)
    predicted = predict(model, data, CPU, torch.float32, batch_size=4)
    expected = []
    for row in range(21):
        alone = classify(model.eval(), torch.from_numpy(data.rows([row])))[0]
        expected.append(alone.argmax().item() if num_labels > 1 else alone[0].item())
    assert len(set(expected)) > 1
    np.testing.assert_allclose(predicted, expected, atol=1e-5, rtol=0)


def test_the_loss_is_the_mean_of_minus_log_p_or_of_squared_errors():
    logits = torch.tensor([[1.0, 2.0, 0.5], [0.0, -1.0, 3.0]], dtype=torch.float64)
    expected = 0.0
    for row, target in zip(logits.tolist(), [2, 0], strict=True):
        total = sum(math.exp(number) for number in row)
        expected -= math.log(math.exp(row[target]) / total) / 2
    assert glue.task_loss(logits, torch.tensor([2, 0])).item() == pytest.approx(expected)

    numbers = torch.tensor([[1.0], [4.5]])
    assert glue.task_loss(numbers, torch.tensor([3.0, 5.0])).item() == (2.0**2 + 0.5**2) / 2


# --- The published settings -----------------------------------------------------------------------


def test_the_published_settings_are_those_of_table_5():
    found = {}
    for name, task in glue.TASKS.items():
        lr = task.lr or glue.LEARNING_RATES["small"]
        found[name] = (task.epochs, task.batch_size, lr, task.start)
    assert found == TABLE_5
    assert {"tiny": 3e-4, "small": 3e-4, "base": 1e-4} == glue.LEARNING_RATES
    for size in glue.LEARNING_RATES:
        assert glue.size_of(BertConfig.from_size(size, "composite", 300)) == size

    metrics = {name: " ".join(task.metrics) for name, task in glue.TASKS.items()}
    assert (metrics.pop("cola"), metrics.pop("sts-b")) == ("matthews", "pearson spearman")
    assert metrics.pop("mrpc") == metrics.pop("qqp") == "accuracy f1"
    assert set(metrics.values()) == {"accuracy"}
    assert glue.SEEDS == (42, 97, 834, 622, 329, 75, 213, 101, 123, 57)


class Notes:
    """What glue.py does while a test is running; each is noted for the job (task, seed)."""

    def __init__(self, patch):
        self.job = None
        self.encoders = {}  # {job: the weights it starts from}
        self.models = {}  # {job: its model}
        self.steps = {}  # {job: [options of the two groups of AdamW]}, one entry per step
        self.batches = {}  # {job: [arguments of batch_indices]}
        self.dropout = {}  # {job: [arguments of step_seed]} of the dropout
        make_classifier, step = glue.make_classifier, torch.optim.AdamW.step
        batch_indices, step_seed = LabelledPairs.batch_indices, glue.step_seed

        def note_start(config, num_labels, encoder, settings):
            self.job = (settings["task"], settings["seed"])
            self.encoders[self.job] = {name: x.clone() for name, x in encoder.items()}
            self.models[self.job] = make_classifier(config, num_labels, encoder, settings)
            return self.models[self.job]

        def note_step(optimizer, *arguments):
            groups = [{**group, "params": None} for group in optimizer.param_groups]
            self.steps.setdefault(self.job, []).append(groups)
            return step(optimizer, *arguments)

        def note_batch(data, *key):
            self.batches.setdefault(self.job, []).append(key)
            return batch_indices(data, *key)

        def note_seed(*key):
            if "dropout" in key:
                self.dropout.setdefault(self.job, []).append(key)
            return step_seed(*key)

        patch.setattr(glue, "make_classifier", note_start)
        patch.setattr(torch.optim.AdamW, "step", note_step)
        patch.setattr(LabelledPairs, "batch_indices", note_batch)
        patch.setattr(glue, "step_seed", note_seed)


@pytest.fixture(scope="module")
def published(small_tasks, untrained, on_cpu, tmp_path_factory):
    """All tasks with the published settings, seed 42: (the run, Notes).

    So few steps give constant answers. So the weights are drawn again before they are scored, but
    not those of WNLI.
    """
    run = shutil.copytree(untrained, tmp_path_factory.mktemp("published") / "run")
    evaluate = glue.evaluate

    def randomise_and_evaluate(model, dev, *arguments):
        if notes.job[0] != "wnli":
            randomise(model, next(iter(dev.values())))
        return evaluate(model, dev, *arguments)

    with pytest.MonkeyPatch.context() as patch:
        notes = Notes(patch)
        patch.setattr(glue, "evaluate", randomise_and_evaluate)
        call("finetune", run, *on_cpu, "--dtype", "fp32", "--seeds", 42)
    return run, notes


@pytest.mark.parametrize("name", TABLE_5)
def test_fine_tuning_uses_the_published_settings(published, name):
    epochs, batch_size, lr, _ = TABLE_5[name]
    notes = published[1]
    job = (name, 42)
    steps = epochs * (TRAIN_ROWS // batch_size)
    assert notes.batches[job] == [(42, step, batch_size) for step in range(steps)]
    assert notes.dropout[job] == [(42, step, "dropout") for step in range(steps)]

    # the learning rate rises over a tenth of the steps, then it falls linearly to 0
    warm_up = math.ceil(steps / 10)
    for step, groups in enumerate(notes.steps[job]):
        share = min((step + 1) / warm_up, (steps - step) / max(1, steps - warm_up))
        for group in groups:
            assert group["lr"] == pytest.approx(lr * share, rel=1e-9)
            assert (group["betas"], group["eps"]) == ((0.9, 0.999), 1e-6)
            assert group["weight_decay"] == 0
    assert len(notes.steps[job]) == steps

    dropouts = [x for x in notes.models[job].modules() if isinstance(x, torch.nn.Dropout)]
    assert dropouts and {dropout.p for dropout in dropouts} == {0.1}
    [record] = [each for each in results(published[0]) if each["task"] == name]
    assert record["settings"]["seq_len"] == 128
    assert not record["settings"].get("changed")


def test_a_model_of_bert_base_s_shape_gets_its_learning_rate(run, on_cpu, monkeypatch):
    monkeypatch.setitem(model_file.SIZES, "base", SHAPE)
    call("finetune", run, *on_cpu, "--task", "cola", "--seeds", 42)
    assert results(run)[0]["settings"]["lr"] == 1e-4


def test_results_are_the_metrics_of_the_last_model_on_the_development_rows(
    published, tokenizer, on_cpu
):
    run, notes = published
    formats = glue.formats_of("toy")
    [folder] = on_cpu[3].glob("toy-glue-*/")
    constant = []
    for record in results(run):
        task = record["settings"]["task"]
        scores = record["result"]["scores"]
        ranges = []
        for split in scores:
            examples = read_task(formats[task], folder, split)
            data = LabelledPairs(examples, tokenizer, 128)
            answers = predict(notes.models[task, 42], data, CPU, torch.float32)
            ranges.append(np.ptp(answers))
            values = []
            for name in glue.TASKS[task].metrics:
                values.append(100 * METRICS[name](answers, np.array(examples.labels)))
                assert scores[split][name] == pytest.approx(values[-1], abs=1e-9)
            assert scores[split]["score"] == pytest.approx(np.mean(values), abs=1e-9)
        mean = np.mean([scores[split]["score"] for split in scores])
        assert record["result"]["score"] == pytest.approx(mean, abs=1e-9)

        # the same answer for all rows of a split is marked
        constant.append(min(ranges) < 1e-3)
        assert record["result"]["constant_prediction"] == constant[-1]
    assert any(constant) and not all(constant)


def test_a_word_that_tells_the_label_is_learnt(run, tmp_path, monkeypatch):
    """From files in GLUE's own format."""
    task = replace(FORMATS["sst-2"], rows={"train": 64, "dev": 64})
    monkeypatch.setitem(FORMATS, "sst-2", task)
    rows = []
    for number in range(64):
        label = number % 2
        rows.append({"sentence": f"the {['dog', 'cat'][label]} slept.", "label": str(label)})
    for split in task.rows:
        write_split(tmp_path, task, split, rows)
    options = ["--epochs", 30, "--lr", 0.01, "--device", "cpu"]
    call("finetune", run, "--data_dir", tmp_path, "--task", "sst-2", "--seeds", 42, *options)
    [record] = results(run)
    assert record["result"]["score"] == 100
    assert not record["result"]["constant_prediction"]


# --- Starts, best models, the submission ----------------------------------------------------------


def test_tasks_start_from_mnli_of_their_seed_and_the_best_seed_of_each_split_predicts(
    run, on_cpu, tokenizer, monkeypatch
):
    """Weights and scores are made up: seed 97 is the best, except on MNLI's matched half."""
    made_up = {"dev": (50, 60), "dev_matched": (60, 50), "dev_mismatched": (50, 70)}
    notes = Notes(monkeypatch)
    evaluate = glue.evaluate

    def make_up(model, dev, *arguments):
        randomise(model, next(iter(dev.values())))
        result = evaluate(model, dev, *arguments)
        for split in result["scores"]:
            result["scores"][split]["score"] = made_up[split][[42, 97].index(notes.job[1])]
        return result

    monkeypatch.setattr(glue, "evaluate", make_up)
    options = ["--dtype", "fp32", "--epochs", 2, "--lr", 0.01]
    call("finetune", run, *on_cpu, *options, "--seeds", 42, 97)

    # where they started; from MNLI they also have the pooler
    pretrained = torch.load(run / "model.pt", weights_only=True)
    for (name, seed), encoder in notes.encoders.items():
        expected = pretrained
        if TABLE_5[name][3] == "mnli":
            expected = notes.models["mnli", seed].state_dict()
            assert "pooler.weight" in encoder
        for key, weight in encoder.items():
            assert torch.equal(weight, expected[key]), (name, key)
    assert len(notes.encoders) == 18

    # the eleven files, their header line, and the answers of the best seeds as words
    call("predict", run, *on_cpu)
    with zipfile.ZipFile(run / "glue" / "submission.zip") as archive:
        files = {name: archive.read(name).decode() for name in archive.namelist()}
    names = "CoLA SST-2 MRPC STS-B MNLI-m MNLI-mm QNLI QQP RTE WNLI AX"
    assert " ".join(files) == " ".join(f"{name}.tsv" for name in names.split())
    formats = glue.formats_of("toy")
    [folder] = on_cpu[3].glob("toy-glue-*/")
    for file, (name, split) in SUBMISSION.items():
        data = LabelledPairs(read_task(formats[name], folder, split), tokenizer, 128)
        expected = []
        for seed in (42, 97):
            lines = ["index\tprediction"]
            answers = predict(notes.models[name, seed], data, CPU, torch.float32)
            for index, answer in enumerate(answers):
                if name == "sts-b":
                    word = f"{min(max(answer, 0), 5):.3f}"
                else:
                    word = FORMATS[name].classes[int(answer)]
                lines.append(f"{index}\t{word}")
            expected.append("\n".join(lines) + "\n")
        best = 0 if file in ("MNLI-m.tsv", "AX.tsv") else 1
        assert files[file] == expected[best], file
        assert expected[0] != expected[1]


# --- Kills, two at once, other settings -----------------------------------------------------------


def be_glue(words):
    """A process: python glue.py WORDS, which saves after every fourth step."""
    use_small_tasks(pytest.MonkeyPatch())
    glue.SAVE_EVERY = 4
    run_command("glue.py", glue.main, [str(word) for word in words])


def start(*words):
    """Start be_glue(words): a fork of a server that has imported the project once."""
    forks = multiprocessing.get_context("forkserver")
    forks.set_forkserver_preload(["glue", "pytest"])
    process = forks.Process(target=be_glue, args=(words,), daemon=True)
    process.start()
    return process


@pytest.mark.skipif(os.name == "nt", reason="Windows has no SIGKILL to send")
def test_killed_at_random_it_ends_with_the_results_and_weights_of_an_uninterrupted_run(
    run, on_cpu, tmp_path
):
    """SIGKILL and SIGTERM in turn. An uninterrupted run takes longer than 0.6 s."""
    uninterrupted = shutil.copytree(run, tmp_path / "uninterrupted")
    options = [*on_cpu, "--seeds", 42, 97, "--task", "mnli", "rte", "cola", "--epochs", 8]
    call("finetune", uninterrupted, *options)
    start("--help").join()  # the server has started
    rng = random.Random(0)
    codes = []
    for number in [signal.SIGKILL, signal.SIGTERM] * 3:
        process = start("finetune", run, *options)
        process.join(rng.uniform(0.1, 0.6))
        # the first one is killed when there is something to continue
        while not codes and process.is_alive() and not list(run.glob("glue/running-*/*.pt")):
            time.sleep(0.01)
        if process.is_alive():
            os.kill(process.pid, number)
        process.join(60)
        codes.append(process.exitcode)
    ends = {-signal.SIGKILL, 128 + signal.SIGTERM, -signal.SIGTERM, 0}
    assert set(codes) <= ends and codes[0] == -signal.SIGKILL

    call("finetune", run, *options)
    assert results(run) == results(uninterrupted)
    assert len(results(run)) == 6
    expected = weights_in(uninterrupted / "glue")
    found = weights_in(run / "glue")
    assert found.keys() == expected.keys() and len(found) >= 4
    for file in expected:
        assert_equal_weights(found[file], expected[file])
    assert not list((run / "glue").glob("running-*"))


@pytest.mark.skipif(os.name == "nt", reason="Windows has no forks")
def test_two_commands_with_different_seeds_on_one_run_leave_every_result_once(run, on_cpu):
    options = [*on_cpu, "--task", "mnli", "rte", "cola", "--epochs", 2]
    processes = [start("finetune", run, *options, "--seeds", *s) for s in ((42, 97), (834, 622))]
    for process in processes:
        process.join(60)
        assert process.exitcode == 0
    found = [(record["settings"]["task"], record["settings"]["seed"]) for record in results(run)]
    assert len(found) == 12
    assert set(found) == {(t, s) for t in ("mnli", "rte", "cola") for s in (42, 97, 834, 622)}


def error_of(run_program, *words):
    """The one line in which glue.py says what is wrong."""
    outcome = run_program(glue.main, *words)
    assert outcome.code == 2
    assert "Traceback" not in outcome.error
    lines = [line for line in outcome.error.splitlines() if line.startswith("glue.py")]
    assert len(lines) == 1 and outcome.error.endswith(lines[0] + "\n")
    return lines[0]


@pytest.mark.parametrize(
    "change",
    [
        ["--seeds", 97, "--epochs", 1],
        ["--seeds", 42, "--lr", 0.5],
        ["--seeds", 97, "--dtype", "bf16"],
        "another model.pt",
    ],
)
def test_results_with_other_settings_or_of_another_model_are_refused_and_never_mixed(
    published, on_cpu, tokenizer, tmp_path, run_program, change
):
    run = shutil.copytree(published[0], tmp_path / "run")
    before = results(run)
    options = ["finetune", run, *on_cpu, "--task", "cola", "--dtype", "fp32"]
    if change == "another model.pt":
        torch.manual_seed(5)
        save_run(run, BertForMaskedLM(small_config(tokenizer)), tokenizer)
        change = ["--seeds", 97]
        error_of(run_program, "table", run)
    error_of(run_program, *options, *change)
    assert results(run) == before

    # another name is the way out
    call(*options, *change, "--name", "other")
    assert len(results(run, "other")) == 1


def test_a_cut_file_of_weights_is_refused(run, on_cpu, run_program):
    """The encoder from which RTE starts, then the pre-trained model."""
    options = [*on_cpu, "--seeds", 42, "--epochs", 1]
    call("finetune", run, *options, "--task", "mnli")
    for path, task in ((run / "glue" / "mnli-seed42.pt", "rte"), (run / "model.pt", "cola")):
        path.write_bytes(path.read_bytes()[:-100])
        assert str(path) in error_of(run_program, "finetune", run, *options, "--task", task)


@pytest.mark.parametrize(
    "words",
    [
        ["finetune", "no-run"],
        ["finetune", "RUN", "--task", "snli"],
        ["finetune", "RUN", "--data_dir", "no-files"],
        ["finetune", "RUN", "--device", "tpu"],
        ["finetune", "RUN", "--lr", "0"],
        ["finetune", "RUN", "--epochs", "x"],
        ["finetune", "RUN", "--seq_len", "4"],
        ["finetune", "RUN", "--seeds", "0"],
        ["table", "RUN", "--name", "nothing-there"],
        ["table", "RUN", "--compare", "composite", "fixed"],
        ["table", "RUN", "--published"],  # its results are those of the toy tasks
        ["predict", "RUN", "--data_dir", "no-files"],
        ["download", "all", "--data_dir", "toy"],
    ],
)
def test_a_user_s_mistake_is_one_line(published, run_program, words):
    error_of(run_program, *[published[0] if word == "RUN" else word for word in words])
