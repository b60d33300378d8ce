"""The files of lab/attacks.py: what is attacked, how it is damaged, and how it is compared."""

import hashlib
import itertools
import json
import os
import re
import shutil
from collections import Counter
from functools import cached_property, wraps
from pathlib import Path
from typing import NamedTuple

import torch

from data import prepare_corpus
from lab.attack_tools import AtCall, Usual, kill_me, run, usual_run
from model import BertConfig, BertForMaskedLM, save_run
from support.files import load_checkpoint
from support.glue_format import FORMATS, write_split
from toy.language import documents, spell

VOCABULARY = 200
SEQ_LEN = 24
TASKS = ["mnli", "rte"]  # rte starts from mnli's encoder
SENTENCE = "the dog [MASK] tired"

# of each GLUE file
ROWS_FOR_TRAINING = 24
OTHER_ROWS = 8

# fmt: off
# a pre-training of about a second, with three checkpoints
MACHINE = ["--device", "cpu", "--dtype", "fp32"]
PRETRAINING = [
    "--steps", 12, "--batch_size", 4, "--seq_len", SEQ_LEN, "--vocab_size", VOCABULARY,
    "--save_every", 4, "--eval_every", 6, *MACHINE,
]
# two seeds of three steps each
FINE_TUNING = ["--seeds", 2, "--epochs", 1, "--batch_size", 8, "--allow_partial", *MACHINE]
# fmt: on


class PretrainedRun(NamedTuple):
    """A finished run of pretrain.py."""

    folder: Path
    cache: Path  # the folder with its prepared corpus
    usual: Usual  # of its pre-training


class FineTunedRun(NamedTuple):
    """A run with results of glue.py."""

    folder: Path
    usual: Usual  # of its fine-tuning


class PreparedCache(NamedTuple):
    """A cache with a prepared corpus."""

    folder: Path
    digest: str  # from digest_of_corpus
    usual: Usual  # of its preparation


class World:
    """A small text, GLUE files of a few rows, and what the programs make of them without attacks.

    Each part is made when it is first used.
    """

    def __init__(self, folder):
        self.folder = Path(folder)

    @cached_property
    def text(self):
        """A text of about 400 sentences."""
        path = self.folder / "text.txt"
        lines = []
        for document in documents(seed=0, sentences=400):
            lines += [spell(sentence) for sentence in document]
            lines.append("")
        path.write_text("\n".join(lines), encoding="utf-8")
        return path

    @cached_property
    def glue(self):
        """A folder with GLUE files of a few rows."""
        folder = self.folder / "glue_data"
        # the sentences of the text; after the last one comes the first one again
        lines = self.text.read_text(encoding="utf-8").split("\n")
        sentences = itertools.cycle(line for line in lines if line)

        # the rows of each file take the labels in turn
        for task in FORMATS.values():
            labels = task.classes or ("0.0", "2.5", "5.0")
            for split in task.rows:
                count = ROWS_FOR_TRAINING if split == "train" else OTHER_ROWS
                rows = []
                for number in range(count):
                    row = {name: next(sentences) for name in task.texts}
                    row[task.label] = labels[number % len(labels)]
                    rows.append(row)
                write_split(folder, task, split, rows)
        return folder

    def pretraining(self, cache, out):
        """The command line of pretrain.py for a run."""
        return ["--corpus", self.text, "--cache_dir", cache, "--out_dir", out, *PRETRAINING]

    def fine_tuning(self, run_folder, tasks):
        """The command line of glue.py for a run."""
        return ["finetune", run_folder, "--data_dir", self.glue, "--task", *tasks, *FINE_TUNING]

    @cached_property
    def pretrained(self):
        """A PretrainedRun. Its corpus was prepared by the same command."""
        folder = self.folder / "pretrained"
        cache = self.folder / "cache"
        usual = usual_run(self.folder, "pretrain.py", self.pretraining(cache, folder))
        return PretrainedRun(folder, cache, usual)

    @cached_property
    def cache(self):
        """The PreparedCache of the PretrainedRun.

        Its `usual` is measured while the same corpus is prepared again, in another folder.
        """
        usual = usual_run(self.folder, digest_of_corpus, [self.text, self.folder / "second_cache"])
        return PreparedCache(self.pretrained.cache, last_word(usual.outcome), usual)

    @cached_property
    def unfinished(self):
        """The folder of a run that was killed after a checkpoint."""
        folder = self.folder / "unfinished"
        arguments = self.pretraining(self.pretrained.cache, folder)

        # kill it after three quarters of its calls that change the disk
        number = 3 * self.pretrained.usual.calls // 4
        run(self.folder, "pretrain.py", arguments, AtCall(number, kill_me))
        if not (folder / "model.pt").exists():
            raise RuntimeError("pretrain.py wrote no checkpoint in three quarters of its work")
        return folder

    @cached_property
    def small(self):
        """The folder of a run with a model so small that its fine-tuning takes little time."""
        folder = self.folder / "small"
        usual_run(self.folder, make_small_run, [self.text, self.pretrained.cache, folder])
        return folder

    @cached_property
    def fine_tuned(self):
        """The FineTunedRun of the small run, with results of TASKS."""
        folder = clone(self.small, self.folder / "fine_tuned")
        usual = usual_run(self.folder, "glue.py", self.fine_tuning(folder, TASKS))
        return FineTunedRun(folder, usual)

    @cached_property
    def run_with_results(self):
        """The folder of a run of pretrain.py with results of all tasks, of one seed."""
        folder = clone(self.pretrained.folder, self.folder / "run_with_results")
        arguments = self.fine_tuning(folder, FORMATS) + ["--seeds", 1]
        usual_run(self.folder, "glue.py", arguments)
        return folder


def make_small_run(text, cache, folder):
    """Write a run with a model of one layer, which is not trained. Called in a victim."""
    # a config that fits the corpus
    corpus = prepare_corpus([text], cache, SEQ_LEN, VOCABULARY)
    config = BertConfig(
        variant="composite",
        vocab_size=corpus.vocab_size,
        layers=1,
        hidden_size=16,
        ffn_size=32,
        heads=2,
        embedding_size=16,
        max_length=SEQ_LEN,
    )

    # always the same weights
    folder.mkdir()
    torch.manual_seed(0)
    save_run(folder, BertForMaskedLM(config), corpus.tokenizer)
    return 0


def digest_of_corpus(text, cache):
    """Prepare a corpus, or read it from the cache; print a hash of all that training sees of it.

    Called in a victim.
    """
    corpus = prepare_corpus([text], cache, SEQ_LEN, VOCABULARY)
    digest = hashlib.sha256(corpus.tokenizer.to_str().encode())
    digest.update(repr([corpus.fingerprint, sorted(corpus.counts.items())]).encode())
    for array in (corpus.tokens, corpus.sentence_starts, corpus.first_sentences, corpus.held_out):
        digest.update(array.tobytes())
    print(digest.hexdigest())
    return 0


def last_word(outcome):
    """The last word that a program printed."""
    return outcome.out.split()[-1]


def clone(source, target):
    """Copy a folder: the Path of the copy.

    Its largest files, *.pt, are not copied: they get a second name (a hard link).
    """

    def copy(file, new):
        if file.endswith(".pt"):
            os.link(file, new)
        else:
            shutil.copy2(file, new)

    shutil.copytree(source, target, copy_function=copy)
    return Path(target)


def replace_file(path, content):
    """Replace the content of a file. Other hard links to the old file keep the old content."""
    path.unlink()
    path.write_bytes(content)


# --- Damages --------------------------------------------------------------------------------------


def flip_bit(random, content):
    """Flip one bit."""
    # Half of the flips are anywhere in the file. The others are in its first or last 4,096 bytes,
    # which hold the names and sizes of its parts.
    size = len(content)
    ranges = [(0, size), (0, size), (0, min(4096, size)), (max(size - 4096, 0), size)]
    first, last = random.choice(ranges)

    flipped = bytearray(content)
    flipped[random.randrange(first, last)] ^= 1 << random.randrange(8)
    return bytes(flipped)


def flip_bits(random, content):
    """Flip eight bits."""
    for _ in range(8):
        content = flip_bit(random, content)
    return content


def cut(random, content):
    """Leave out the end."""
    return content[: random.randrange(len(content))]


def empty(random, content):
    """Leave out everything."""
    return b""


def zero_range(random, content):
    """Write zeroes over a part."""
    first, last = sorted(random.choices(range(len(content) + 1), k=2))
    return content[:first] + bytes(last - first) + content[last:]


def add_bytes(random, content):
    """Add copies of its first bytes at the end."""
    return content + content[: random.randint(1, 16)]


def change_number(random, content):
    """Add 1 to a 16-bit number of an array, or subtract 1. The result looks possible."""
    numbers = pairs_of_bytes(content)
    i = random.randrange(len(numbers))
    value = int.from_bytes(numbers[i], "little") + random.choice((-1, 1))
    numbers[i] = (value % 2**16).to_bytes(2, "little")
    return b"".join(numbers)


def exchange_numbers(random, content):
    """Exchange two 16-bit numbers of an array."""
    numbers = pairs_of_bytes(content)
    i = random.randrange(len(numbers))
    j = random.randrange(len(numbers))
    numbers[i], numbers[j] = numbers[j], numbers[i]
    return b"".join(numbers)


def pairs_of_bytes(content):
    """The bytes in pairs: b"abcde" -> [b"ab", b"cd", b"e"]."""
    return [content[i : i + 2] for i in range(0, len(content), 2)]


def change_digit(random, content):
    """Replace a digit of a text by another digit."""
    return change_character(random, content, rb"[0-9]", b"0123456789")


def change_letter(random, content):
    """Replace a letter of a text by another letter."""
    return change_character(random, content, rb"[a-z]", b"abcdefghijklmnopqrstuvwxyz")


def change_character(random, content, pattern, characters):
    """Replace one character that matches the pattern by one of the characters."""
    positions = [match.start() for match in re.finditer(pattern, content)]
    if not positions:
        return content
    position = random.choice(positions)
    character = bytes([random.choice(characters)])
    return content[:position] + character + content[position + 1 :]


DAMAGES = (
    flip_bit,
    flip_bits,
    cut,
    empty,
    zero_range,
    add_bytes,
    change_number,
    exchange_numbers,
    change_digit,
    change_letter,
)


def damage_file(random, path, others):
    """Damage a file in a random way. Returns what was done, in words.

    others: files of the same folder; one of them may be copied over it.
    """
    content = path.read_bytes()
    path.unlink()

    # Damage its bytes, or put something else in its place. After "removed" there is nothing.
    damage = random.choice((*DAMAGES, "removed", "folder", "link", "copy"))
    if callable(damage):
        path.write_bytes(damage(random, content))
        return f"{path.name}: {damage.__name__}"
    if damage == "folder":
        path.mkdir()
    if damage == "link":
        path.symlink_to("nowhere")
    if damage == "copy":
        other = random.choice([other for other in others if other != path])
        path.write_bytes(other.read_bytes())
        return f"{path.name}: copy of {other.name}"
    return f"{path.name}: {damage}"


# --- Comparisons ----------------------------------------------------------------------------------


def differing_files(folder, other):
    """The names of the files that are not equal to the byte, or only in one of the folders."""
    names = set()
    for each in (folder, other):
        names |= {path.relative_to(each) for path in each.rglob("*") if path.is_file()}

    # a file that is missing has the content None
    differing = []
    for name in sorted(names):
        contents = []
        for path in (folder / name, other / name):
            contents.append(path.read_bytes() if path.is_file() else None)
        if contents[0] != contents[1]:
            differing.append(str(name))
    return differing


def leftovers(folder):
    """The names of the files that killed programs left and that a later start did not remove."""
    found = []
    for path in Path(folder).rglob("*"):
        if path.suffix in (".part", ".lock") or path.name.startswith(("tmp", "running-")):
            found.append(str(path.relative_to(folder)))
    return found


def damaged_is_different(compare):
    """Make a comparison return ["damaged files (...)"] if it cannot read a file."""

    @wraps(compare)
    def compare_or_say_so(folder, other):
        try:
            return compare(folder, other)
        except (ValueError, OSError, KeyError) as error:
            return [f"damaged files ({error})"]

    return compare_or_say_so


@damaged_is_different
def differences_of_runs(folder, other):
    """What differs between two runs of pretrain.py, apart from times: a list of names."""
    # these two files hold times
    timed = ("log.jsonl", "train_state.pt")
    differing = [name for name in differing_files(folder, other) if name not in timed]

    # compare the rest of them
    if json_lines(folder / "log.jsonl") != json_lines(other / "log.jsonl"):
        differing.append("log.jsonl")
    state = load_checkpoint(folder / "train_state.pt")
    other_state = load_checkpoint(other / "train_state.pt")
    if without_times(state) != without_times(other_state):
        differing.append("train_state.pt")
    return differing


def without_times(value):
    """A value without what differs from run to run: times, speeds and the state of the program."""
    if isinstance(value, dict):
        timed = ("seconds", "tokens_per_second", "made_by")
        return {key: without_times(item) for key, item in value.items() if key not in timed}
    if isinstance(value, list):
        return [without_times(item) for item in value]
    return value


def json_lines(path):
    """The records of a file of JSON lines, without times; [] if there is no file.

    A line that was only half written ends with a mark (support/json_lines.py). It is left out.
    """
    if not path.exists():
        return []
    records = []
    for line in path.read_text(encoding="utf-8").splitlines():
        if not line.endswith("(interrupted)"):
            records.append(without_times(json.loads(line)))
    return records


@damaged_is_different
def differences_of_results(folder, other):
    """What differs between the results of glue.py in two folders, apart from times and order."""
    differing = []
    for name in differing_files(folder, other):
        if name != "results.jsonl" and not name.startswith("submission"):
            differing.append(name)

    # every result is there, and equal
    if results_of(folder) != results_of(other):
        differing.append("results.jsonl")
    return differing + doubled_results(folder)


def results_of(folder):
    """{(task, seed): record} of a folder's results.jsonl, without times."""
    return {(each["task"], each["seed"]): each for each in json_lines(folder / "results.jsonl")}


def doubled_results(folder):
    """The results that have more than one line, as texts."""
    records = json_lines(folder / "results.jsonl")
    counts = Counter((record["task"], record["seed"]) for record in records)
    return [f"{task} seed {seed} twice" for (task, seed) in counts if counts[task, seed] > 1]


@damaged_is_different
def differences_of_shared_results(folder, reference):
    """What differs between the results of two processes and those of one.

    If two runs have equal scores, the one that finished first counts as the best. Two processes may
    finish in another order, so best-*.pt may hold another seed than in the reference. Then its
    result must be the one in results.jsonl, and its score must be the best.
    """
    differing = []
    for name in differences_of_results(folder, reference):
        is_best = name.startswith("best-") and (folder / name).is_file()
        if not (is_best and is_one_of_the_best(folder / name, results_of(folder))):
            differing.append(name)
    return differing


def is_one_of_the_best(path, records):
    """Whether the run in a best-*.pt has the best score of its task on one of the splits."""
    # its result is the one in results.jsonl
    best = load_checkpoint(path)
    task = best["task"]
    if records[task, best["seed"]]["result"] != best["result"]:
        return False

    # no other seed has a better one
    others = [record["result"] for (name, _), record in records.items() if name == task]
    for split, scores in best["result"]["scores"].items():
        best_score = max(other["scores"][split]["score"] for other in others)
        if scores["score"] == best_score:
            return True
    return False


def same_values(path, other):
    """0 if two checkpoints hold the same values, otherwise 1. Called in a victim."""
    return int(not equal_values(load_checkpoint(path), load_checkpoint(other)))


def equal_values(a, b):
    """Whether two values of checkpoints are equal to the bit."""
    # tensors: nan is equal to nan, and -0 is not equal to 0
    if isinstance(a, torch.Tensor):
        if not isinstance(b, torch.Tensor) or (a.dtype, a.shape) != (b.dtype, b.shape):
            return False
        return a.flatten().view(torch.uint8).equal(b.flatten().view(torch.uint8))
    if type(a) is not type(b):
        return False

    # dictionaries and lists of values, also in this order
    if isinstance(a, dict):
        return list(a) == list(b) and all(equal_values(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(equal_values, a, b))

    # a number, a text, None
    return repr(a) == repr(b)
