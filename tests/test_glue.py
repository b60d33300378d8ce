"""glue.py: the protocol. Batches, the published settings, starts, best models, kills, mistakes."""

import json
import math
import random
import shutil
import signal
import tempfile
import zipfile
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import glue
from conftest import assert_same_weights, be_edited, kill, rows_of, start_process, words_of
from glue import LabelledPairs, classify, predict, token_ids_of
from model import BertConfig, BertForClassification, BertForMaskedLM, load_config, save_run
from model_helpers import TINIER, randomise, toy_tokenizer
from support import glue_files, glue_results, labelled, training
from support.commands import UserError, run_command, say_once
from support.glue_files import FORMATS, SUBMISSION, Examples, read_task
from support.runs import write_records
from support.tokenizer import CLS, PAD, SEP

CPU = torch.device("cpu")
TRAIN_ROWS, OTHER_ROWS = 144, 24  # of every task

# Chang table 5 (WNLI: the released code): epochs, batch size, learning rate, where a task starts
TABLE_5 = """
    cola   3   32   3e-4  None
    sst-2  3   32   3e-4  None
    mrpc   3   32   3e-4  mnli
    sts-b  10  32   3e-4  mnli
    qqp    4   128  3e-4  None
    mnli   4   128  3e-4  None
    qnli   3   32   1e-4  None
    rte    10  32   3e-4  mnli
    wnli   5   32   3e-4  None
"""
TABLE_5 = {
    name: (int(epochs), int(batch_size), float(lr), start)
    for name, epochs, batch_size, lr, start in rows_of(TABLE_5)
}


# --- A small model, small tasks -------------------------------------------------------------------


@pytest.fixture(scope="module")
def tokenizer():
    return toy_tokenizer(5_000, 2_000)


def small_config(tokenizer):
    sizes = {**TINIER, "layers": 1}
    return BertConfig("composite", tokenizer.get_vocab_size(), max_length=160, **sizes)


def use_small_tasks(patch):
    """From now on, the toy tasks have few rows."""
    small = Path(tempfile.mkdtemp()) / "glue.zip"
    with zipfile.ZipFile(glue_files.TOY_TASKS) as tasks, zipfile.ZipFile(small, "w") as archive:
        for name in tasks.namelist():
            rows = TRAIN_ROWS if "train" in name else OTHER_ROWS
            header = "CoLA/test" in name or "CoLA" not in name
            lines = tasks.read(name).decode().split("\n")[: rows + header]
            archive.writestr(name, "\n".join(lines) + "\n")
    patch.setattr(glue_files, "TOY_TASKS", small)


@pytest.fixture(scope="module", autouse=True)
def small_tasks():
    with pytest.MonkeyPatch.context() as patch:
        use_small_tasks(patch)
        yield


@pytest.fixture(scope="module")
def on_cpu(tmp_path_factory):
    """Options: the toy tasks. All tests share their files."""
    return ["--device cpu --data_dir toy --cache_dir", tmp_path_factory.mktemp("cache")]


def write_run(folder, tokenizer, seed=0):
    """Write an untrained run."""
    torch.manual_seed(seed)
    save_run(folder, BertForMaskedLM(small_config(tokenizer)), tokenizer)
    return folder


@pytest.fixture
def run(tokenizer, tmp_path):
    return write_run(tmp_path / "run", tokenizer)


def call(*words):
    """Call glue.py."""
    glue.main(words_of(*words))


def results(run, name="glue"):
    """{file: record} of a run's results, without what differs between two equal runs."""
    records = {}
    for path in sorted((run / name).glob("*.json")):
        record = json.loads(path.read_text("utf-8"))
        records[path.name] = (record["settings"], record["result"])
    return records


def random_pairs(tokenizer, count=40):
    """LabelledPairs of 1 to 12 words in each sentence; the labels alternate."""
    rng = random.Random(0)
    texts = [rng.choices(["the dog", "cats"], k=rng.randint(1, 6)) for _ in range(2 * count)]
    texts = [" ".join(words) for words in texts]
    labels = [row % 2 for row in range(count)]
    return LabelledPairs(Examples(texts[:count], texts[count:], labels), tokenizer, 64)


@torch.no_grad()
def balance(model, data):
    """Give a classifier random weights with which its answers are of every kind."""
    randomise(model, 1.0)
    rows = token_ids_of(data, range(20), CPU)
    model.classifier.bias -= classify(model, rows).mean(dim=0)  # the mean of the scores becomes 0


# --- Batches and answers --------------------------------------------------------------------------


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


def test_random_batches_hold_every_sequence_once_except_a_remainder_that_changes():
    left_out = []
    for epoch in range(2):
        batches = labelled.draw_epoch(100, 3, epoch, 16)
        assert batches.shape == (6, 16)
        assert len(np.unique(batches)) == 96
        left_out.append(set(range(100)) - set(batches.ravel().tolist()))
    assert left_out[0] != left_out[1]

    # fewer sequences than a batch are repeated to fill it
    (batch,) = labelled.draw_epoch(3, 0, 5, 8)
    assert np.bincount(batch).tolist() in ([3, 3, 2], [3, 2, 3], [2, 3, 3])


def test_a_row_is_cls_a_sep_b_sep_with_the_type_1_for_b_and_the_longer_sentence_is_cut(tokenizer):
    anna, tom = (tokenizer.token_to_id(word) for word in ("▁anna", "▁tom"))
    pairs = Examples(["anna", "anna " * 9], ["tom"] * 2, [0, 1])
    rows = token_ids_of(LabelledPairs(pairs, tokenizer, 8), [0, 1], CPU)

    # what the model gets
    ids, mask, types = classify(lambda *given: given, rows)
    assert ids.tolist() == [
        [CLS, anna, SEP, tom, SEP, PAD, PAD, PAD],
        [CLS, anna, anna, anna, anna, SEP, tom, SEP],
    ]
    assert types.tolist() == [[0, 0, 0, 1, 1, 0, 0, 0], [0, 0, 0, 0, 0, 0, 1, 1]]
    assert mask.tolist() == [[True] * 5 + [False] * 3, [True] * 8]


@pytest.mark.parametrize("num_labels", [3, 1])
@torch.no_grad()
def test_predictions_are_those_of_each_row_alone(tokenizer, num_labels):
    data = random_pairs(tokenizer, 21)
    model = BertForClassification(small_config(tokenizer), num_labels).eval()
    balance(model, data)
    predicted = predict(model, data, CPU, torch.float32, batch_size=4)
    expected = []
    for row in range(21):
        alone = classify(model.eval(), token_ids_of(data, [row], CPU))[0]
        expected.append(alone.argmax().item() if num_labels > 1 else alone[0].item())
    assert len(set(expected)) > 1
    np.testing.assert_allclose(predicted, expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("is_training", [True, False])
def test_answers_leave_a_model_in_the_mode_in_which_it_was(tokenizer, is_training):
    model = BertForClassification(small_config(tokenizer), 2).train(is_training)
    predict(model, random_pairs(tokenizer, 3), CPU, torch.float32)
    assert all(module.training == is_training for module in model.modules())


def test_answers_that_are_not_finite_give_no_result(tokenizer):
    model = BertForClassification(small_config(tokenizer), 2)
    model.classifier.bias.data[0] = math.nan
    with pytest.raises(UserError, match="--lr"):
        predict(model, random_pairs(tokenizer, 3), CPU, torch.float32)


def test_the_loss_is_the_mean_of_minus_log_p_or_of_squared_errors():
    logits = torch.tensor([[1.0, 2.0, 0.5], [0.0, -1.0, 3.0]])
    log_p = logits.log_softmax(dim=1)
    expected = -(log_p[0, 2] + log_p[1, 0]) / 2
    loss = glue.task_loss(logits, torch.tensor([2, 0]))
    assert loss.item() == pytest.approx(expected.item(), rel=1e-6)

    numbers = torch.tensor([[1.0], [4.5]])
    assert glue.task_loss(numbers, torch.tensor([3.0, 5.0])).item() == (2.0**2 + 0.5**2) / 2


# --- The published settings -----------------------------------------------------------------------


def test_metrics_and_seeds_are_the_published_ones():
    metrics = {name: " ".join(task.metrics) for name, task in glue.TASKS.items()}
    assert (metrics.pop("cola"), metrics.pop("sts-b")) == ("matthews", "pearson spearman")
    assert metrics.pop("mrpc") == metrics.pop("qqp") == "accuracy f1"
    assert set(metrics.values()) == {"accuracy"}
    assert (glue.LR_OF_SMALL, glue.LR_OF_BASE) == (3e-4, 1e-4)  # small, base
    assert glue.SEEDS == (42, 97, 834, 622, 329, 75, 213, 101, 123, 57)


class Notes:
    """What glue.py does while a test is running; each is noted for the job (task, seed)."""

    def __init__(self, patch):
        self.job = None
        self.encoders = {}  # {job: the weights it starts from}
        self.models = {}  # {job: its model}
        self.steps = {}  # {job: [options of the two groups of AdamW]}, one entry per step
        make_classifier, step = glue.make_classifier, torch.optim.AdamW.step

        def note_start(config, num_labels, encoder, settings):
            self.job = (settings["task"], settings["seed"])
            self.encoders[self.job] = {name: x.clone() for name, x in encoder.items()}
            self.models[self.job] = make_classifier(config, num_labels, encoder, settings)
            return self.models[self.job]

        def note_step(optimizer, *arguments):
            groups = [{**group, "params": None} for group in optimizer.param_groups]
            self.steps.setdefault(self.job, []).append(groups)
            return step(optimizer, *arguments)

        patch.setattr(glue, "make_classifier", note_start)
        patch.setattr(torch.optim.AdamW, "step", note_step)


@pytest.fixture(scope="module")
def published(tokenizer, on_cpu, tmp_path_factory):
    """All tasks with the published settings, seed 42: (the run, Notes)."""
    run = write_run(tmp_path_factory.mktemp("published") / "run", tokenizer)
    settings = {"variant": "composite", "seed": 0, "steps": 1}
    write_records(run / "log.jsonl", [{"settings": settings, "code": {}}, {"step": 1}])
    with pytest.MonkeyPatch.context() as patch:
        notes = Notes(patch)
        call("finetune", run, *on_cpu, "--dtype fp32 --seeds 42")
    return run, notes


@pytest.mark.parametrize("name", TABLE_5)
def test_fine_tuning_uses_the_published_settings(published, name):
    epochs, batch_size, lr, start = TABLE_5[name]
    run, notes = published
    job = (name, 42)
    steps = epochs * (TRAIN_ROWS // batch_size)

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
    settings, _ = results(run)[f"{name}-seed42.json"]
    assert (settings["batch_size"], str(settings["start"])) == (batch_size, start)
    assert (settings["seq_len"], settings["changed"]) == (128, [])


@pytest.mark.parametrize("option, lr", [("--seeds 42", 3e-5), ("--lr 2e-5", 2e-5)])
def test_an_imported_model_is_fine_tuned_with_the_rate_of_bert(option, lr, run):
    """It has no log."""
    args = glue.parse_arguments(words_of("finetune", run, "--task sst-2", option))
    splits = {"train": Examples(["a"] * 200, None, [0] * 200)}
    settings = glue.settings_for("sst-2", splits, run, args, torch.float32)
    assert settings["lr"] == lr
    assert settings["changed"] == (["lr"] if lr == 2e-5 else [])


def test_sequences_are_not_longer_than_in_pre_training_and_a_line_says_so(run, capsys):
    say_once.cache_clear()
    longest = load_config(run).max_length
    args = glue.parse_arguments(words_of("finetune", run, f"--seq_len {longest + 1}"))
    splits = {"train": Examples(["a"] * 200, None, [0] * 200)}
    assert glue.settings_for("sst-2", splits, run, args, torch.float32)["seq_len"] == longest
    assert f"--seq_len is {longest}, the length in pre-training" in capsys.readouterr().out


def test_a_renamed_weight_of_the_encoder_is_refused_and_does_not_stay_random(tokenizer):
    config = small_config(tokenizer)
    weights = BertForMaskedLM(config).state_dict()
    settings = {"seed": 42, "dropout": 0.1}
    model = glue.make_classifier(config, 2, weights, settings)
    name = "bert.layers.0.mixer.query.weight"
    assert torch.equal(model.state_dict()[name], weights[name])
    weights["bert.layers.0.mixer.queries.weight"] = weights.pop(name)
    with pytest.raises(UserError, match="query.weight"):
        glue.make_classifier(config, 2, weights, settings)


def test_a_score_is_the_mean_of_the_metrics_and_of_the_splits(monkeypatch):
    """F1 is 2 TP / (2 TP + FP + FN): here 2 / 3 in both. Equal answers for all rows are noted."""
    monkeypatch.setattr(glue, "predict", lambda model, data, *arguments: np.array(data.answers))
    first = SimpleNamespace(answers=[1, 0, 0, 0], examples=Examples(None, None, [1, 1, 0, 0]))
    second = SimpleNamespace(answers=[1, 1], examples=Examples(None, None, [0, 1]))
    dev = {"first": first, "second": second}
    result, answers = glue.evaluate(None, dev, ("accuracy", "f1"), CPU, torch.float32)
    f1 = 100 * 2 / 3
    expected = {"accuracy": 75, "f1": f1, "score": (75 + f1) / 2}
    assert result["scores"]["first"] == pytest.approx(expected)
    assert result["score"] == pytest.approx((75 + f1 + 50 + f1) / 4)
    assert result["constant_prediction"]
    assert answers["first"].tolist() == [[1, 1], [1, 0], [0, 0], [0, 0]]  # labels, predictions


# --- Starts, best models, the submission ----------------------------------------------------------


def test_tasks_start_from_mnli_of_their_seed_and_the_best_seed_of_each_split_predicts(
    run, on_cpu, tokenizer, monkeypatch
):
    """Scores are made up: seed 97 is the best, except on MNLI's matched half.

    The first weight of a classifier is its seed. A prediction is this weight, and the rows.
    """
    made_up = {"dev": (50, 60), "dev_matched": (60, 50), "dev_mismatched": (50, 70)}
    notes = Notes(monkeypatch)
    score = glue.evaluate

    def make_up(model, dev, *arguments):
        result, answers = score(model, dev, *arguments)
        model.classifier.bias.data[0] = notes.job[1]
        for split in result["scores"]:
            result["scores"][split]["score"] = made_up[split][[42, 97].index(notes.job[1])]
        return result, answers

    monkeypatch.setattr(glue, "evaluate", make_up)
    call("finetune", run, *on_cpu, "--dtype fp32 --epochs 2 --lr 0.01 --seeds 42 97")

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

    # the eleven files: each has the answers of its best seed for the rows of its split
    def made_up_answers(model, data, *arguments):
        return model.classifier.bias[0].item(), data.examples.a

    written = {}
    monkeypatch.setattr(glue, "predict", made_up_answers)
    monkeypatch.setattr(glue_results, "write_zip", lambda path, answers: written.update(answers))
    call("predict", run, *on_cpu)
    folder = glue.task_files(SimpleNamespace(data_dir=Path("toy"), cache_dir=on_cpu[1]))
    assert len(SUBMISSION) == 11
    for file, (name, split, _) in SUBMISSION.items():
        best = 42 if file in ("MNLI-m.tsv", "AX.tsv") else 97
        assert written[file] == (best, read_task(FORMATS[name], folder, split).a), file


# --- Kills, several processes, other settings -----------------------------------------------------


def be_glue(*words):
    """A process: python glue.py WORDS, which saves after every fourth step."""
    use_small_tasks(pytest.MonkeyPatch())
    training.SAVE_EVERY = 4
    run_command(lambda: call(*words))


def test_killed_at_random_it_ends_with_the_results_and_weights_of_an_uninterrupted_run(
    run, on_cpu, tmp_path
):
    """SIGKILL and SIGTERM in turn."""
    uninterrupted = shutil.copytree(run, tmp_path / "uninterrupted")
    options = [*on_cpu, "--seeds 42 97 --task mnli rte --epochs 8"]
    call("finetune", uninterrupted, *options)
    codes = []
    for number in [signal.SIGKILL, signal.SIGTERM] * 2:
        process = start_process(be_glue, "finetune", run, *options)
        # the first one is killed as soon as there is something to continue
        pause = 0.3 if codes else 0.0
        codes.append(kill(process, number, lambda: list(run.glob("glue/running-*/*.pt")), pause))
    assert codes[0] == -signal.SIGKILL and 1 not in codes

    call("finetune", run, *options)
    assert results(run) == results(uninterrupted)
    texts = [path.read_text() for path in run.glob("glue/*.json")]
    assert sum(text.count("made_by") for text in texts) > len(texts)  # it was continued
    weights = list((uninterrupted / "glue").glob("*.pt"))
    assert len(weights) == 3  # both of MNLI, the best of RTE
    for path in weights:
        assert_same_weights(run / "glue" / path.name, path)


def test_two_commands_with_different_seeds_on_one_run_leave_all_results(run, on_cpu):
    processes = []
    for seeds in ("42 97", "834 622"):
        options = f"--task mnli rte --epochs 1 --seeds {seeds}"
        processes.append(start_process(be_glue, "finetune", run, *on_cpu, options))
    for process in processes:
        process.join(60)
        assert process.exitcode == 0
    files = [f"{task}-seed{seed}.json" for task in ("mnli", "rte") for seed in (42, 97, 834, 622)]
    assert set(results(run)) == set(files)


def test_a_result_that_another_command_has_made_meanwhile_stays_and_no_lock_is_left(published):
    out = published[0] / "glue"
    before = results(published[0])
    settings, _ = before["cola-seed42.json"]
    glue.make_result(None, out, settings, {"train": None}, trainer_of=None)
    assert results(published[0]) == before
    assert not list(out.glob("running-*"))


OTHER_CODE = {"glue.py": {"glue.py": "other"}}


@pytest.mark.parametrize(
    "change",
    ["--seeds 42 --lr 0.5", "--seeds 97 --dtype bf16", "another model.pt", "other code"],
)
def test_results_of_other_settings_code_or_models_are_in_a_folder_of_their_own(
    published, on_cpu, tokenizer, tmp_path, run_program, monkeypatch, change
):
    run = shutil.copytree(published[0], tmp_path / "glue-run")  # a run, not its results
    before = results(run)
    options = ["--seeds 97"]
    if change == "another model.pt":
        write_run(run, tokenizer, seed=5)
    elif change == "other code":
        be_edited(monkeypatch, OTHER_CODE)
    else:
        options = [change]

    # in one line, and found again
    options = ["finetune", run, *on_cpu, "--task cola --dtype fp32", *options]
    out = run_program(glue.main, *options).out
    reason = {"another model.pt": "model is", "other code": "glue.py has changed since"}
    assert reason.get(change, "cola ") in out and f"{run}/glue: {run}/glue-2" in out
    assert "0 results are missing" in run_program(glue.main, *options).out
    assert results(run) == before and len(results(run, "glue-2")) == 1

    # Which results count? Those of the model; of these, those of most tasks.
    outcome = run_program(glue.main, "table", run)
    assert ("WNLI" in outcome.out) is (change != "another model.pt")
    outcome = run_program(glue.main, "predict", run, *on_cpu)
    assert outcome.code == (change == "another model.pt")
    assert ("glue.py has changed since" in outcome.out) is (change == "other code")


def test_a_task_does_not_start_from_mnli_that_other_code_has_trained(
    published, on_cpu, tmp_path, refused, monkeypatch
):
    run = shutil.copytree(published[0], tmp_path / "run")
    for path in run.glob("glue/rte*"):
        path.unlink()
    options = ["finetune", run, *on_cpu, "--dtype fp32 --seeds 42 --task"]
    with monkeypatch.context() as patch:
        be_edited(patch, OTHER_CODE)
        assert "add mnli" in refused(glue.main, *options, "rte")
        call(*options, "mnli", "rte")
    call(*options, "rte")
    assert len(results(run)) == len(TABLE_5) and len(results(run, "glue-2")) == 2


def test_rte_starts_from_the_pre_trained_model_if_it_is_asked_for_and_is_marked(
    run, on_cpu, run_program
):
    options = "--task rte --epochs 1 --seeds 42 --dtype fp32 --start pretrained"
    assert run_program(glue.main, "finetune", run, *on_cpu, options).code == 0
    settings, _ = results(run)["rte-seed42.json"]
    assert settings["start"] is None and set(settings["changed"]) == {"epochs", "start"}


@pytest.mark.parametrize(
    "line, words",
    [
        ("table RUN --compare run fixed", "no run of fixed"),
        ("table RUN --compare run run", "run is given twice"),
    ],
)
def test_a_user_s_mistake_in_a_table_is_one_line(published, refused, line, words):
    assert words in refused(glue.main, line, RUN=published[0])


def test_the_weights_of_the_best_result_of_each_split_stay(tmp_path):
    for seed, matched, mismatched in ((1, 70, 60), (2, 60, 70), (3, 50, 50)):
        scores = {"dev_matched": {"score": matched}, "dev_mismatched": {"score": mismatched}}
        record = {"settings": {"seed": seed}, "result": {"scores": scores}}
        path = glue_results.path_of(tmp_path, "mnli", seed)
        path.write_text(json.dumps(record), "utf-8")
        path.with_suffix(".pt").touch()
    glue_results.remove_worse_weights(tmp_path, "mnli")
    kept = sorted(path.name for path in tmp_path.glob("*.pt"))
    assert kept == ["mnli-seed1.pt", "mnli-seed2.pt"]


def test_fine_tuned_weights_that_are_not_finite_are_refused(tmp_path):
    torch.save({"a": torch.tensor(float("nan"))}, tmp_path / "mnli-seed1.pt")
    with pytest.raises(UserError, match="not finite"):
        glue_results.load_weights(tmp_path, "mnli", 1)


def test_answers_to_the_development_examples_are_kept_and_a_submission_of_some_tasks_is_made(
    published, on_cpu, tmp_path
):
    run = shutil.copytree(published[0], tmp_path / "run")
    _, result = results(run)["mnli-seed42.json"]
    lines = rows_of((run / "glue/mnli-seed42.tsv").read_text("utf-8"))
    assert lines[0] == ["split", "label", "prediction"]
    for split, scores in result["scores"].items():
        right = [label == prediction for name, label, prediction in lines[1:] if name == split]
        assert len(right) == OTHER_ROWS and 100 * np.mean(right) == scores["accuracy"]

    call("predict", run, *on_cpu, "--task mnli")
    names = zipfile.ZipFile(run / "glue/submission.zip").namelist()
    assert sorted(names) == ["AX.tsv", "MNLI-m.tsv", "MNLI-mm.tsv"]


def test_a_command_that_fails_at_its_first_step_leaves_no_folder(run, on_cpu, monkeypatch):
    monkeypatch.setattr(glue, "task_loss", None)
    with pytest.raises(TypeError):
        call("finetune", run, *on_cpu, "--task cola --seeds 42")
    assert not (run / "glue").exists()
