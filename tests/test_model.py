"""model.py: shapes, the masked-LM head, the classifier, bad configurations, a run's folder, filling in blanks."""

import json
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace

import model as model_module
import pretrain
from attention import VARIANTS
from model import BertConfig, BertForClassification, BertForMaskedLM, fill_in, load_file, load_run, save_file, save_run

ROOT = Path(__file__).parent.parent
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "cat", "dogs", "was", "were", "tired", "."]


def small_model(variant="composite", **overrides):
    torch.manual_seed(1)
    sizes = dict(layers=2, hidden_size=32, ffn_size=48, heads=4, embedding_size=16, max_length=24)
    return BertForMaskedLM(BertConfig(variant=variant, vocab_size=len(WORDS), **sizes | overrides)).eval()


def word_tokenizer():
    tokenizer = Tokenizer(WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = Whitespace()
    tokenizer.add_special_tokens(WORDS[:5])
    return tokenizer


@pytest.fixture
def run(tmp_path):
    save_run(tmp_path, small_model(), word_tokenizer())
    return tmp_path


@pytest.mark.parametrize("variant", VARIANTS)
def test_logits_have_one_score_for_every_token_and_vocabulary_item(variant):
    ids = torch.randint(5, len(WORDS), (3, 9))
    assert small_model(variant)(ids).shape == (3, 9, len(WORDS))


def test_masked_logits_are_the_rows_of_the_full_logits_where_a_label_stands():
    model = small_model().double()
    ids = torch.randint(5, len(WORDS), (3, 9), generator=torch.Generator().manual_seed(0))
    labels = torch.full_like(ids, -100)
    labels[0, 2], labels[2, 8], labels[2, 0] = 5, 6, 7
    logits, targets = model.masked_logits(ids, labels)
    full = model(ids)
    assert torch.allclose(logits, torch.stack([full[0, 2], full[2, 0], full[2, 8]]), atol=1e-12, rtol=0)
    assert targets.tolist() == [5, 7, 6]


def test_loss_is_the_mean_negative_log_probability_of_the_masked_tokens():
    model = small_model().double()
    ids = torch.arange(5, 11)[None]  # (1, 6)
    labels = torch.tensor([[-100, 8, -100, -100, 5, -100]])
    log_p = model(ids).log_softmax(-1)
    expected = -(log_p[0, 1, 8] + log_p[0, 4, 5]) / 2
    assert abs(model.loss(ids, labels) - expected) < 1e-12


def test_loss_without_any_masked_token_is_zero_and_not_nan():
    ids = torch.arange(5, 11)[None]
    assert small_model().loss(ids, torch.full_like(ids, -100)).item() == 0


def test_decoder_is_tied_to_the_token_embeddings():
    model = small_model()
    ids = torch.arange(5, 11)[None]
    before = model(ids)[..., 3]
    with torch.no_grad():
        model.bert.embeddings.token.weight[3] = 0  # token 3 is not in the input, so only the decoder can notice
    assert torch.allclose(model(ids)[..., 3], model.bias[3].expand(1, 6), atol=1e-7)
    assert not torch.allclose(before, model(ids)[..., 3])


def test_token_types_matter_and_default_to_zero():
    model, ids = small_model(), torch.arange(5, 11)[None]
    assert torch.equal(model(ids), model(ids, token_type_ids=torch.zeros_like(ids)))
    assert not torch.allclose(model(ids), model(ids, token_type_ids=torch.ones_like(ids)))


def test_embeddings_are_the_normalised_sum_projected_to_the_hidden_size():
    model = small_model("absolute").double()
    e = model.bert.embeddings
    ids, types = torch.tensor([[7, 5, 9]]), torch.tensor([[0, 0, 1]])
    for i in range(3):
        total = e.token.weight[ids[0, i]] + e.token_type.weight[types[0, i]] + e.position.weight[i]
        normal = (total - total.mean()) / (total.var(unbiased=False) + 1e-12).sqrt()
        expected = e.projection.weight @ (normal * e.norm.weight + e.norm.bias) + e.projection.bias
        assert torch.allclose(e(ids, types)[0, i], expected, atol=1e-12, rtol=0)


def test_layer_is_post_norm_with_exact_gelu():
    layer = small_model().double().bert.layers[0]
    x, mask = torch.randn(2, 5, 32, dtype=torch.float64), torch.ones(2, 5, dtype=torch.bool)

    def norm(x):
        return (x - x.mean(-1, keepdim=True)) / (x.var(-1, unbiased=False, keepdim=True) + 1e-12).sqrt()

    middle = norm(x + layer.mixer(x, mask))
    inner = layer.ffn[0](middle)
    gelu = inner * 0.5 * (1 + torch.erf(inner / 2**0.5))
    assert torch.allclose(layer(x, mask), norm(middle + layer.ffn[2](gelu)), atol=1e-10, rtol=0)


def test_classifier_reads_the_first_token_through_the_pooler():
    model = BertForClassification(small_model().config, labels=3).double().eval()
    ids = torch.randint(5, len(WORDS), (2, 7))
    first = model.bert(ids)[:, 0]
    pooled = torch.tanh(first @ model.pooler.weight.T + model.pooler.bias)
    assert torch.allclose(model(ids), pooled @ model.classifier.weight.T + model.classifier.bias, atol=1e-12, rtol=0)


def test_initial_weights_have_the_published_spread():
    model = BertForMaskedLM(BertConfig.from_size("tiny", vocab_size=2000))
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            assert (parameter == 0).all(), name
        elif "norm" in name:
            assert (parameter == 1).all(), name
        elif not name.endswith((".dynamic", ".fixed")):  # one standard error of a deviation is sigma / sqrt(2n): allow five
            sigma = parameter.std().item()
            assert abs(sigma - 0.02) < 5 * 0.02 / (2 * parameter.numel()) ** 0.5, name
    assert (model.bert.layers[0].mixer.fixed == 0).all()


@pytest.mark.parametrize(
    "wrong, words",
    [
        (dict(variant="nonsense"), "composite-conv-qkv"),  # the line lists the variants
        (dict(kernel_size=16), "odd"),
        (dict(heads=5), "5 heads"),
        (dict(heads=0), "heads"),
        (dict(window="wrap"), "clip"),
        (dict(dropout=1.0), "dropout"),
        (dict(layers="2"), "layers"),
        (dict(depth=3), "depth"),
    ],
)
def test_config_refuses_in_one_line(wrong, words):
    with pytest.raises(ValueError, match=words) as error:
        BertConfig.from_size("tiny", **dict(variant="composite", vocab_size=100) | wrong)
    assert "\n" not in str(error.value)


def test_unknown_size_is_answered_with_the_sizes():
    with pytest.raises(ValueError, match="tiny, small, base"):
        BertConfig.from_size("large")


def test_sequence_longer_than_the_positions_is_refused_in_one_line():
    with pytest.raises(ValueError, match="25 tokens .* 24 positions"):
        small_model("absolute")(torch.full((1, 25), 5))


def test_run_folder_gives_back_the_same_model_and_tokenizer(run):
    model, tokenizer = load_run(run)
    ids = torch.arange(5, 11)[None]
    assert torch.equal(model(ids), small_model()(ids)) and not model.training
    assert tokenizer.encode("the cat [MASK] tired").ids == [5, 6, 4, 10]


def test_a_compiled_model_is_saved_under_the_plain_names(tmp_path):
    model, ids = small_model(), torch.arange(5, 11)[None]
    model.bert.compile(backend="eager")
    save_run(tmp_path, model, word_tokenizer())
    assert torch.allclose(load_run(tmp_path)[0](ids), model(ids), atol=1e-6)
    assert set(torch.load(tmp_path / "model.pt", weights_only=True)) == set(small_model().state_dict())


def test_a_failed_write_leaves_the_last_file_whole(tmp_path, monkeypatch):
    path = tmp_path / "model.pt"
    save_file({"step": torch.tensor(1)}, path)

    def full_disk(value, file):
        file.write(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(model_module.torch, "save", full_disk)
    with pytest.raises(OSError, match="No space left"):
        save_file({"step": torch.tensor(2)}, path)
    assert load_file(path)["step"] == 1 and [file.name for file in tmp_path.iterdir()] == ["model.pt"]


class Hostile:
    """Unpickled carelessly, this would write a file."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return Path.write_text, (Path(self.path), "executed")


def test_hostile_checkpoint_executes_nothing(run):
    torch.save({"weights": Hostile(str(run / "trace"))}, run / "model.pt")
    with pytest.raises(ValueError, match="model.pt is damaged"):
        load_run(run)
    (run / "model.pt").write_bytes(pickle.dumps(Hostile(str(run / "trace")), protocol=2))
    with pytest.raises(ValueError, match="model.pt is damaged"):
        load_run(run)
    assert not (run / "trace").exists()


def break_nothing_there(run):
    for file in run.iterdir():
        file.unlink()


def break_truncated_weights(run):
    whole = (run / "model.pt").read_bytes()
    (run / "model.pt").write_bytes(whole[: len(whole) // 2])


def break_weights_missing(run):
    (run / "model.pt").unlink()


def break_weights_of_another_variant(run):
    torch.save(small_model("conv-qk").state_dict(), run / "model.pt")


def break_weights_of_another_vocabulary(run):
    state = small_model().state_dict()
    torch.save(state | {"bias": torch.zeros(99)}, run / "model.pt")


def break_weights_of_another_kind(run):
    torch.save([1, 2, 3], run / "model.pt")


def break_config_not_json(run):
    (run / "config.json").write_text("{", encoding="utf-8")


def break_config_of_another_program(run):
    (run / "config.json").write_text('{"model_type": "bert"}', encoding="utf-8")


def break_config_of_another_vocabulary(run):
    config = json.loads((run / "config.json").read_text(encoding="utf-8"))
    (run / "config.json").write_text(json.dumps(config | {"vocab_size": 99}), encoding="utf-8")


def break_config_describing_a_giant(run):
    config = json.loads((run / "config.json").read_text(encoding="utf-8"))
    (run / "config.json").write_text(json.dumps(config | {"hidden_size": 10**9}), encoding="utf-8")


def break_config_nested_too_deep(run):
    (run / "config.json").write_text("[" * 100_000, encoding="utf-8")


def break_tokenizer_without_a_mask(run):
    text = (run / "tokenizer.json").read_text(encoding="utf-8")
    (run / "tokenizer.json").write_text(text.replace("[MASK]", "[BLANK]"), encoding="utf-8")


def break_tokenizer(run):
    (run / "tokenizer.json").write_text("{}", encoding="utf-8")


def break_tokenizer_of_another_run(run):
    tokenizer = word_tokenizer()
    tokenizer.add_tokens(["more"])
    tokenizer.save(str(run / "tokenizer.json"))


@pytest.mark.parametrize("breaking", [value for name, value in sorted(globals().items()) if name.startswith("break_")])
def test_broken_run_is_refused_in_one_line_that_names_it(run, breaking):
    breaking(run)
    with pytest.raises(ValueError, match=run.name) as error:
        load_run(run)
    assert "\n" not in str(error.value)


def test_fill_in_ranks_the_words_by_the_model_s_own_probabilities(run):
    model, tokenizer = load_run(run)
    [[*words]] = fill_in(model, tokenizer, "the cat [MASK] tired", best=len(WORDS))
    p = model(torch.tensor([[2, 5, 6, 4, 10, 11, 3]])).softmax(-1)[0, 3]
    for word, probability in words:
        assert probability == pytest.approx(p[WORDS.index(word)].item(), abs=1e-6)
    assert [probability for _, probability in words] == pytest.approx(sorted(p.tolist(), reverse=True), abs=1e-6)


def test_fill_in_ends_a_text_that_has_no_end(run):
    model, tokenizer = load_run(run)
    answers = [fill_in(model, tokenizer, "the cat [MASK] tired" + end) for end in ("", ".", " . ")]
    assert answers[0] == answers[1] == answers[2]


def test_fill_in_answers_every_blank_in_order(run):
    assert len(fill_in(*load_run(run), "[MASK] cat [MASK] tired")) == 2


@pytest.mark.parametrize("text, words", [("the cat", "no blank"), ("[MASK] " + "cat " * 40, "takes 24")])
def test_fill_in_refuses_a_text_without_blanks_or_too_long(run, text, words):
    with pytest.raises(ValueError, match=words):
        fill_in(*load_run(run), text)


def test_fill_in_reads_a_text_with_bytes_that_are_no_text(run):
    assert fill_in(*load_run(run), "the \udcff [MASK]")


def test_command_line_fills_in_and_ends_a_wrong_run_in_one_line(run):
    def call(folder):
        arguments = [sys.executable, ROOT / "model.py", folder, "the cat [MASK] tired"]
        return subprocess.run(arguments, capture_output=True, text=True, encoding="utf-8")

    good, bad = call(run), call(run / "absent")
    assert good.returncode == 0 and good.stdout.startswith("[MASK] 1:") and good.stdout.count("%") == 5
    assert bad.returncode != 0 and "is not a run" in bad.stderr and bad.stderr.count("\n") == 1


@pytest.mark.parametrize("share", [0.0, 0.15, 1.0])
@pytest.mark.parametrize("capacity", [1, 64, 200])
def test_places_at_a_fixed_capacity_are_the_first_ones_to_predict_and_then_nothing(share, capacity):
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(5, 50, (150,), generator=generator)
    labels[torch.rand(150, generator=generator) >= share] = -100
    places, targets = model_module.masked_places(labels, capacity)
    expected = [place for place in range(150) if labels[place] != -100][:capacity]
    assert places.shape == targets.shape == (capacity,)
    assert places.tolist() == expected + [0] * (capacity - len(expected))
    assert targets.tolist() == labels[expected].tolist() + [-100] * (capacity - len(expected))


def test_the_loss_at_a_fixed_capacity_is_the_same_in_value_and_gradient():
    """The capacity at which a GPU runs holds every masked token: six standard deviations more than their mean."""
    torch.manual_seed(0)
    config = BertConfig("composite", 50, layers=1, hidden_size=16, ffn_size=32, heads=2, embedding_size=16, dropout=0.0)
    network = BertForMaskedLM(config).double()
    ids = torch.randint(5, 50, (8, 24))
    labels = ids.masked_fill(torch.rand(8, 24) >= 0.15, -100)
    weights = list(network.parameters())
    one = network.loss(ids, labels)
    other = network.loss(ids, labels, capacity=pretrain.mask_capacity(ids.numel()))
    torch.testing.assert_close(other, one, atol=1e-12, rtol=0)
    for a, b in zip(torch.autograd.grad(one, weights), torch.autograd.grad(other, weights)):
        torch.testing.assert_close(b, a, atol=1e-12, rtol=0)
