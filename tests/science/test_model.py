"""model.py: configurations, embeddings, layer, head, loss, classifier, and filling in blanks."""

import subprocess
import sys

import pytest
import torch
from tokenizers.pre_tokenizers import Punctuation, Sequence, WhitespaceSplit
from torch import nn
from torch.nn import functional as F

import model as model_module
from attention import VARIANTS, Deberta, SelfAttention, Variant, make_mixer
from conftest import ROOT
from data import train_tokenizer
from helpers import assert_near, put_stand_ins, randomise
from model import (
    MOST_LAYERS,
    SIZES,
    BertConfig,
    BertForClassification,
    BertForMaskedLM,
    Layer,
    fill_in,
    first_masked_indices,
    load_run,
    masked_indices,
    masked_lm_loss,
    parameter_count,
    readable_piece,
    save_run,
    unknown_words,
)
from model_helpers import SMALL, WORDS, every_word_once, small_config, small_model, word_tokenizer
from pretrain import make_optimizer, predictions_at_most
from support.runs import load_weights


@pytest.fixture(autouse=True)
def mixers_of_references(monkeypatch):
    """These tests are about model.py: the functions of attention.py are plain references."""
    put_stand_ins(monkeypatch)


def assert_close(actual, expected, tolerance=1e-12):
    assert_near(actual, expected, tolerance)


def normalised(x):
    """LayerNorm with weight 1 and bias 0, written out."""
    mean = x.mean(-1, keepdim=True)
    variance = x.var(-1, unbiased=False, keepdim=True)
    return (x - mean) / (variance + 1e-12).sqrt()


def exact_gelu(x):
    return x * 0.5 * (1 + torch.erf(x / 2**0.5))


def loss_of(model, input_ids, labels, **options):
    """The loss of a batch, as a training step computes it."""
    hidden = model.bert(input_ids)
    logits, targets = model.masked_logits(hidden, labels, **options)
    return masked_lm_loss(logits, targets)


# --- Shapes ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("variant", VARIANTS)
def test_logits_have_one_score_for_every_token_and_vocabulary_item(variant):
    input_ids = torch.randint(5, len(WORDS), (3, 9))
    assert small_model(variant)(input_ids).shape == (3, 9, len(WORDS))


@pytest.mark.parametrize("variant", VARIANTS)
def test_encoder_gives_one_hidden_state_per_token_that_ignores_the_padding(variant):
    model = small_model(variant).double()
    input_ids = torch.randint(5, len(WORDS), (2, 9), generator=torch.Generator().manual_seed(0))
    attention_mask = torch.ones(2, 9, dtype=torch.bool)
    attention_mask[1, 6:] = False

    hidden = model.bert(input_ids, attention_mask)
    assert hidden.shape == (2, 9, SMALL["hidden_size"])

    # other tokens at the padding change nothing at the real tokens
    changed = input_ids.masked_fill(~attention_mask, 0)
    assert_close(model.bert(changed, attention_mask)[attention_mask], hidden[attention_mask])


# --- Embeddings and layer -------------------------------------------------------------------------


@pytest.mark.parametrize("embedding_size", [16, SMALL["hidden_size"]])
def test_embeddings_are_the_normalised_sum_projected_to_the_hidden_size(embedding_size):
    model = small_model("absolute", embedding_size=embedding_size).double()
    embeddings = model.bert.embeddings
    input_ids = torch.tensor([[7, 5, 9]])
    types = torch.tensor([[0, 0, 1]])
    result = embeddings(input_ids, types)

    for i in range(3):
        token = embeddings.token.weight[input_ids[0, i]]
        token_type = embeddings.token_type.weight[types[0, i]]
        total = token + token_type + embeddings.position.weight[i]
        expected = normalised(total) * embeddings.norm.weight + embeddings.norm.bias
        if embedding_size != SMALL["hidden_size"]:
            projection = embeddings.projection
            expected = projection.weight @ expected + projection.bias
        assert_close(result[0, i], expected)


def test_only_absolute_variants_have_positions_and_a_projection_needs_two_sizes():
    for variant in VARIANTS:
        embeddings = small_model(variant).bert.embeddings
        assert (embeddings.position is not None) == VARIANTS[variant].absolute
        assert isinstance(embeddings.projection, nn.Linear)
    equal = small_model(embedding_size=SMALL["hidden_size"]).bert.embeddings
    assert not list(equal.projection.parameters())


def test_token_types_matter_and_default_to_zero():
    model = small_model()
    input_ids = every_word_once()
    default = model(input_ids)
    assert torch.equal(default, model(input_ids, token_type_ids=torch.zeros_like(input_ids)))
    ones = torch.ones_like(input_ids)
    assert not torch.allclose(default, model(input_ids, token_type_ids=ones))


def test_attention_mask_defaults_to_all_tokens():
    model = small_model()
    input_ids = every_word_once()
    everywhere = torch.ones_like(input_ids, dtype=torch.bool)
    assert torch.equal(model(input_ids), model(input_ids, everywhere))


def test_sequence_longer_than_the_positions_is_refused_in_one_line():
    with pytest.raises(ValueError, match="25 tokens .* 24 positions") as error:
        small_model("absolute")(torch.full((1, 25), 5))
    assert "\n" not in str(error.value)


def test_sequence_of_any_length_is_taken_by_a_model_without_positions():
    assert small_model("composite")(torch.full((1, 25), 5)).shape == (1, 25, len(WORDS))


def test_layer_is_post_norm_with_exact_gelu():
    layer = small_model().double().bert.layers[0]
    x = torch.randn(2, 5, 32, dtype=torch.float64)
    attention_mask = torch.ones(2, 5, dtype=torch.bool)

    middle = normalised(x + layer.mixer(x, attention_mask))
    inner = exact_gelu(layer.ffn[0](middle))
    expected = normalised(middle + layer.ffn[2](inner))
    assert_close(layer(x, attention_mask), expected, 1e-10)


# --- A parameter that all layers share ------------------------------------------------------------


def tables_of_deberta(bert):
    return [layer.mixer.P for layer in bert.layers]


def assert_shared(bert):
    """All layers have the same Parameter, not only equal numbers."""
    first, *others = tables_of_deberta(bert)
    assert others and all(table is first for table in others)


def test_all_layers_of_deberta_share_one_table_that_is_counted_once():
    model = small_model("deberta", kernel_size=5, layers=3)
    assert_shared(model.bert)
    assert parameter_count(model) == parameter_count(small_model("none", layers=3)) + 5 * 32

    # every layer gives it a gradient
    model = randomise(model.double(), std=0.3)
    loss_of(model, every_word_once(), every_word_once()).backward()
    whole = model.bert.layers[0].mixer.P.grad.clone()
    model.zero_grad()
    for layer in model.bert.layers[1:]:
        layer.mixer.P = nn.Parameter(layer.mixer.P.detach().clone())
    loss_of(model, every_word_once(), every_word_once()).backward()
    tables = tables_of_deberta(model.bert)
    assert all(table.grad.abs().max() > 1e-9 for table in tables)
    assert_close(sum(table.grad for table in tables), whole, 1e-12)


def test_a_saved_run_of_deberta_loads_with_its_table_still_shared(tmp_path):
    model = small_model("deberta", layers=3)
    save_run(tmp_path, model, word_tokenizer())
    loaded, _ = load_run(tmp_path)
    assert_shared(loaded.bert)
    assert parameter_count(loaded) == parameter_count(model)
    assert torch.equal(loaded(every_word_once()), model(every_word_once()))


def test_fine_tuning_from_deberta_keeps_its_table_shared():
    """As glue.py does: the encoder's weights are loaded into a classifier, which then learns."""
    encoder = {f"bert.{name}": x for name, x in small_model("deberta").bert.state_dict().items()}
    model = BertForClassification(small_config("deberta"), num_labels=2)
    load_weights(model, encoder, "the encoder", strict=False)
    assert_shared(model.bert)
    assert torch.equal(model.bert.layers[1].mixer.P, encoder["bert.layers.0.mixer.P"])

    optimizer = make_optimizer(model, 0.01)
    model(every_word_once()).sum().backward()
    optimizer.step()
    assert_shared(model.bert)
    assert not torch.equal(model.bert.layers[1].mixer.P, encoder["bert.layers.0.mixer.P"])


def test_a_hybrid_of_deberta_shares_between_the_layers_that_have_a_table(monkeypatch):
    variant = Variant("", mixer=Deberta, hybrid=True)
    monkeypatch.setitem(VARIANTS, "deberta-hybrid", variant)
    mixers = [layer.mixer for layer in small_model("deberta-hybrid", layers=3).bert.layers]
    assert mixers[0].P is mixers[1].P
    assert type(mixers[2]) is SelfAttention

    # the first of them need not be the first layer
    model = small_model("deberta-hybrid", layers=3, attention_layer=1)
    mixers = [layer.mixer for layer in model.bert.layers]
    assert type(mixers[0]) is SelfAttention
    assert mixers[1].P is mixers[2].P


# --- What reaches the encoder ---------------------------------------------------------------------


def masked_lm():
    return small_model()


def classifier():
    return BertForClassification(small_config(), num_labels=3).eval()


def arguments_of_encoder(model, *given):
    """Call a model, and return what its encoder was called with: (ids, mask, types)."""
    calls = []
    encoder = model.bert.forward

    def note(input_ids, attention_mask=None, token_type_ids=None):
        calls.append((input_ids, attention_mask, token_type_ids))
        return encoder(input_ids, attention_mask, token_type_ids)

    model.bert.forward = note
    model(*given)
    return calls[0]


@pytest.mark.parametrize("make_model", [masked_lm, classifier])
def test_the_padding_mask_reaches_the_encoder(make_model):
    input_ids = every_word_once()
    mask = torch.tensor([[True, True, True, True, False, False]])
    _, found, _ = arguments_of_encoder(make_model(), input_ids, mask)
    assert found is mask


@pytest.mark.parametrize("make_model", [masked_lm, classifier])
def test_the_token_types_reach_the_encoder(make_model):
    input_ids = every_word_once()
    mask = torch.ones_like(input_ids, dtype=torch.bool)
    types = torch.tensor([[0, 0, 0, 1, 1, 1]])
    _, _, found = arguments_of_encoder(make_model(), input_ids, mask, types)
    assert found is types


def test_every_layer_gets_the_padding_mask():
    model = small_model()
    found = []
    for layer in model.bert.layers:

        def note(x, attention_mask):
            found.append(attention_mask)
            return x

        layer.mixer.forward = note
    mask = torch.tensor([[True, True, True, True, False, False]])
    model(every_word_once(), mask)
    assert len(found) == len(model.bert.layers)
    assert all(one is mask for one in found)


# --- Dropout --------------------------------------------------------------------------------------


def assert_dropped(got, without, dropout):
    """Each number is 0 with probability `dropout`, and otherwise scaled up by 1 / (1 - dropout)."""
    is_zero = got == 0
    scaled = without / (1 - dropout)
    assert_near(got[~is_zero], scaled[~is_zero], 1e-12)
    share = is_zero.double().mean().item()
    deviation = (dropout * (1 - dropout) / got.numel()) ** 0.5
    assert abs(share - dropout) < 5 * deviation, f"a share of {share:.3f} is dropped"


class Given(nn.Module):
    """Stands in for a part of a layer: it returns the same numbers for any input."""

    def __init__(self, x):
        super().__init__()
        self.x = x

    def forward(self, *arguments):
        return self.x


def dropping_layer(mixed, fed):
    """A layer whose mixer and FFN give these numbers, and whose LayerNorms change nothing."""
    layer = Layer(small_config(dropout=0.3), make_mixer(small_config(), 0)).double().train()
    layer.mixer = Given(mixed)
    layer.ffn = Given(fed)
    layer.mixer_norm = nn.Identity()
    layer.ffn_norm = nn.Identity()
    return layer


def test_embeddings_have_dropout_between_their_layer_norm_and_their_projection():
    torch.manual_seed(0)
    embeddings = BertForMaskedLM(small_config(dropout=0.3)).double().bert.embeddings
    projected = []
    embeddings.projection.register_forward_pre_hook(lambda _, inputs: projected.extend(inputs))

    input_ids = torch.randint(5, len(WORDS), (20, 24))
    types = torch.zeros_like(input_ids)
    embeddings.eval()(input_ids, types)
    embeddings.train()(input_ids, types)
    without, dropped = projected
    assert_dropped(dropped, without, 0.3)


def test_a_layer_drops_numbers_of_its_mixer_and_of_nothing_else():
    torch.manual_seed(0)
    x, mixed = torch.randn(2, 3, 200, 32, dtype=torch.float64)
    layer = dropping_layer(mixed, torch.zeros_like(x))
    added = layer(torch.zeros_like(x), None)
    assert_dropped(added, mixed, 0.3)
    unmixed = dropping_layer(torch.zeros_like(x), torch.zeros_like(x))
    assert torch.equal(unmixed(x, None), x)


def test_a_layer_drops_numbers_of_its_ffn_and_of_nothing_else():
    torch.manual_seed(0)
    x, fed = torch.randn(2, 3, 200, 32, dtype=torch.float64)
    layer = dropping_layer(torch.zeros_like(x), fed)
    assert_dropped(layer(torch.zeros_like(x), None), fed, 0.3)


def test_the_classifier_drops_numbers_of_the_pooled_token():
    torch.manual_seed(0)
    model = BertForClassification(small_config(dropout=0.3), num_labels=3).double()
    hidden = torch.randn(200, 2, 32, dtype=torch.float64)
    model.bert = Given(hidden)
    model.classifier = nn.Identity()
    input_ids = torch.zeros(200, 2, dtype=torch.long)
    without = model.eval()(input_ids)
    assert_dropped(model.train()(input_ids), without, 0.3)


# --- The masked-LM head ---------------------------------------------------------------------------


def test_the_activation_of_the_head_is_the_exact_gelu():
    """Far from 0, where GELU is neither linear nor ReLU nor its tanh approximation."""
    model = small_model(embedding_size=SMALL["hidden_size"]).double()
    model.transform = nn.Identity()
    model.norm = nn.Identity()
    x = torch.linspace(-3, 3, 5 * 32, dtype=torch.float64).view(5, 32)
    decoder = model.bert.embeddings.token.weight
    assert_close(model.head(x), exact_gelu(x) @ decoder.T + model.bias)


def test_all_layer_norms_have_berts_eps():
    """1e-12, and not torch's 1e-5: in the embeddings, in every layer and in the head."""
    model = small_model("absolute")
    norms = [module for module in model.modules() if isinstance(module, nn.LayerNorm)]
    assert len(norms) == 1 + 2 * len(model.bert.layers) + 1
    assert [norm.eps for norm in norms] == [1e-12] * len(norms)


def test_the_layer_norm_of_the_head_keeps_small_differences():
    """With numbers around 1e-5, an eps of 1e-5 in place of 1e-12 would make them 0."""
    model = small_model(embedding_size=SMALL["hidden_size"]).double()
    model.transform = nn.Identity()
    x = torch.randn(3, 32, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) * 1e-5
    decoder = model.bert.embeddings.token.weight
    assert_close(model.head(x), normalised(exact_gelu(x)) @ decoder.T + model.bias)


def test_head_is_a_linear_map_gelu_layer_norm_and_the_token_embeddings_again():
    model = small_model().double()
    nn.init.normal_(model.bias)
    x = torch.randn(3, 32, dtype=torch.float64)
    inner = exact_gelu(x @ model.transform.weight.T + model.transform.bias)
    decoder = model.bert.embeddings.token.weight
    assert_close(model.head(x), normalised(inner) @ decoder.T + model.bias)


def test_decoder_is_tied_to_the_token_embeddings():
    model = small_model()
    input_ids = every_word_once()
    before = model(input_ids)[..., 3]
    with torch.no_grad():
        # token 3 is not in the input, so only the decoder can notice
        model.bert.embeddings.token.weight[3] = 0
    after = model(input_ids)[..., 3]
    assert torch.allclose(after, model.bias[3].expand(1, 6), atol=1e-7)
    assert not torch.allclose(before, after)


def test_the_token_embeddings_learn_from_the_decoder_too():
    """Token 3 is not in the input: its gradient can only come from the decoder."""
    model = small_model()
    model(every_word_once())[..., 3].sum().backward()
    assert model.bert.embeddings.token.weight.grad[3].ne(0).all()


def test_logits_are_float32_under_bf16():
    with torch.autocast("cpu", torch.bfloat16):
        assert small_model()(every_word_once()).dtype == torch.float32


def test_masked_logits_are_the_rows_of_the_full_logits_at_the_labels():
    model = small_model().double()
    input_ids = torch.randint(5, len(WORDS), (3, 9), generator=torch.Generator().manual_seed(0))
    labels = torch.full_like(input_ids, -100)
    labels[0, 2] = 5
    labels[2, 8] = 6
    labels[2, 0] = 7
    logits, targets = model.masked_logits(model.bert(input_ids), labels)
    full = model(input_ids)
    assert_close(logits, torch.stack([full[0, 2], full[2, 0], full[2, 8]]))
    assert targets.tolist() == [5, 7, 6]


@pytest.mark.parametrize("options", [{}, {"pad_to_multiple_of": 64}, {"max_predictions": 5}])
def test_loss_is_the_mean_negative_log_probability_of_the_masked_tokens(options):
    model = small_model().double()
    input_ids = every_word_once()  # (1, 6)
    labels = torch.tensor([[-100, 8, -100, -100, 5, -100]])
    log_p = model(input_ids).log_softmax(-1)
    expected = -(log_p[0, 1, 8] + log_p[0, 4, 5]) / 2
    assert abs(loss_of(model, input_ids, labels, **options) - expected) < 1e-12


@pytest.mark.parametrize("options", [{}, {"pad_to_multiple_of": 64}, {"max_predictions": 5}])
def test_loss_without_any_masked_token_is_zero_and_not_nan(options):
    input_ids = every_word_once()
    labels = torch.full_like(input_ids, -100)
    assert loss_of(small_model(), input_ids, labels, **options).item() == 0


def test_masked_lm_loss_is_the_cross_entropy_of_torch():
    logits = torch.randn(6, len(WORDS), dtype=torch.float64)
    targets = torch.tensor([5, -100, 7, 8, -100, 11])
    assert_close(masked_lm_loss(logits, targets), F.cross_entropy(logits, targets))


# --- The indices of the masked tokens -------------------------------------------------------------


def random_labels(share):
    """(150,) labels, -100 except for a share of them; and the list of the indices of these."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(5, 50, (150,), generator=generator)
    labels[torch.rand(150, generator=generator) >= share] = -100
    return labels, [i for i in range(150) if labels[i] != -100]


@pytest.mark.parametrize("share", [0.0, 0.15, 1.0])
@pytest.mark.parametrize("multiple", [1, 8, 64])
def test_masked_indices_are_all_of_them_rounded_up_with_ignored_rows(share, multiple):
    labels, masked = random_labels(share)
    indices, targets = masked_indices(labels, multiple)
    spare = len(indices) - len(masked)
    assert len(indices) % multiple == 0 and 0 <= spare < multiple
    assert indices.tolist() == masked + [0] * spare
    assert targets.tolist() == labels[masked].tolist() + [-100] * spare


def test_first_masked_indices_of_the_example_in_its_docstring():
    labels = torch.tensor([-100, 7, -100, -100, 9])
    indices, targets = first_masked_indices(labels, 3)
    assert indices.tolist() == [1, 4, 0]
    assert targets.tolist() == [7, 9, -100]


@pytest.mark.parametrize("share", [0.0, 0.15, 1.0])
@pytest.mark.parametrize("max_predictions", [1, 64, 200])
def test_first_masked_indices_are_the_first_ones_and_then_ignored_rows(share, max_predictions):
    labels, masked = random_labels(share)
    expected = masked[:max_predictions]
    spare = max_predictions - len(expected)
    indices, targets = first_masked_indices(labels, max_predictions)
    assert indices.shape == targets.shape == (max_predictions,)
    assert indices.tolist() == expected + [0] * spare
    assert targets.tolist() == labels[expected].tolist() + [-100] * spare


def test_loss_with_max_predictions_is_the_same_in_value_and_gradient():
    """max_predictions of a GPU holds every masked token: their mean and six deviations more."""
    torch.manual_seed(0)
    model = small_model(vocab_size=50, layers=1, dropout=0.0).double()
    input_ids = torch.randint(5, 50, (8, 24))
    labels = input_ids.masked_fill(torch.rand(8, 24) >= 0.15, -100)

    counted = loss_of(model, input_ids, labels)
    fixed = loss_of(
        model, input_ids, labels, max_predictions=predictions_at_most(input_ids.numel())
    )
    assert_close(fixed, counted)

    weights = list(model.parameters())
    expected = torch.autograd.grad(counted, weights)
    gradients = torch.autograd.grad(fixed, weights)
    for gradient, expected_gradient in zip(gradients, expected, strict=True):
        assert_close(gradient, expected_gradient)


# --- The classifier -------------------------------------------------------------------------------


def test_classifier_reads_the_first_token_through_the_pooler():
    model = BertForClassification(small_config(), num_labels=3).double().eval()
    nn.init.normal_(model.pooler.bias)
    nn.init.normal_(model.classifier.bias)
    input_ids = torch.randint(5, len(WORDS), (2, 7))
    first = model.bert(input_ids)[:, 0]
    pooled = torch.tanh(first @ model.pooler.weight.T + model.pooler.bias)
    scores = model(input_ids)
    assert scores.shape == (2, 3)
    assert_close(scores, pooled @ model.classifier.weight.T + model.classifier.bias)


# --- Parameters -----------------------------------------------------------------------------------


def test_parameter_count_leaves_out_what_is_not_trained_and_counts_shared_ones_once():
    model = small_model()
    count = parameter_count(model)
    assert count == sum(parameter.numel() for parameter in model.parameters())
    model.again = model.bert.embeddings.token
    assert parameter_count(model) == count
    model.bias.requires_grad_(False)
    assert parameter_count(model) == count - len(WORDS)


# --- Configurations -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "wrong, words",
    [
        (dict(variant="nonsense"), "composite-conv-qkv"),  # the line lists the variants
        (dict(kernel_size=16), "odd"),
        (dict(kernel_size=-17), "kernel_size"),
        (dict(kernel_size=17.0), "kernel_size"),
        (dict(variant="none", kernel_size=17), "none has no kernel"),
        (dict(heads=5), "5 heads"),
        (dict(heads=0), "heads"),
        (dict(beyond="wrap"), "clip"),
        (dict(dropout=1.0), "dropout"),
        (dict(dropout=-0.1), "dropout"),
        (dict(dropout="0.1"), "dropout"),
        (dict(layers="2"), "layers"),
        (dict(layers=True), "layers"),
        (dict(layers=MOST_LAYERS + 1), f"layers must be a whole number, 1 to {MOST_LAYERS}, not"),
        (dict(ffn_size=2**31), "ffn_size must be a whole number, 1 to 2147483647, not"),
        (dict(dropout=float("nan")), "dropout"),
        (dict(dropout=False), "dropout"),
        (dict(max_length=24, kernel_size=49), "too large: with 47, a kernel reaches every token"),
        (dict(vocab_size=0), "vocab_size"),
        (dict(depth=3), "depth"),
        (dict(attention_layer=2), "hybrid"),
        (dict(variant="dilated-hybrid", attention_layer=5), "4 layers"),
        (dict(variant="dilated-hybrid", attention_layer=0), "attention_layer"),
    ],
)
def test_config_refuses_in_one_line(wrong, words):
    values = {"variant": "composite", "vocab_size": 100, **wrong}
    with pytest.raises(ValueError, match=words) as error:
        BertConfig.from_size("tiny", **values)
    assert "\n" not in str(error.value)


def test_config_takes_the_largest_useful_kernel_and_the_default_one_for_any_length():
    assert small_config(max_length=24, kernel_size=47).kernel_size == 47
    assert small_config(max_length=8).kernel_size == 17
    assert small_config(layers=MOST_LAYERS).layers == MOST_LAYERS


def test_unknown_size_is_answered_with_the_sizes():
    with pytest.raises(ValueError, match="tiny, small, base"):
        BertConfig.from_size("large")


def test_small_and_base_have_the_shapes_of_the_paper():
    assert SIZES["small"] == {
        "layers": 12,
        "hidden_size": 256,
        "ffn_size": 1024,
        "heads": 4,
        "embedding_size": 128,
    }
    assert SIZES["base"] == {
        "layers": 12,
        "hidden_size": 768,
        "ffn_size": 3072,
        "heads": 12,
        "embedding_size": 768,
    }


def test_config_fills_in_the_kernel_of_the_variant():
    assert small_config("composite").kernel_size == 17
    assert small_config("convbert").kernel_size == 9
    assert small_config("none").kernel_size is None
    assert small_config("absolute").kernel_size is None
    assert small_config("composite", kernel_size=5).kernel_size == 5


def test_config_fills_in_the_last_layer_of_a_hybrid():
    assert small_config("lightconv-hybrid").attention_layer == SMALL["layers"]
    assert small_config("lightconv-hybrid", attention_layer=1).attention_layer == 1
    assert small_config("lightconv").attention_layer is None


# --- Fill in the blank ----------------------------------------------------------------------------


def test_fill_in_ranks_the_words_by_the_model_s_own_probabilities():
    model = small_model()
    tokenizer = word_tokenizer()
    # more words than there are: all of them
    answers = fill_in(model, tokenizer, "the cat [MASK] tired", best=len(WORDS) + 5)
    assert len(answers) == 1 and len(answers[0]) == len(WORDS)

    input_ids = torch.tensor([[2, 5, 6, 4, 10, 11, 3]])  # with a full stop before [SEP]
    p = model(input_ids).softmax(-1)[0, 3]
    for word, probability in answers[0]:
        assert probability == pytest.approx(p[WORDS.index(word)].item(), abs=1e-6)
    probabilities = [probability for _, probability in answers[0]]
    assert probabilities == pytest.approx(sorted(p.tolist(), reverse=True), abs=1e-6)


def test_fill_in_ends_a_text_that_has_no_end():
    model = small_model()
    tokenizer = word_tokenizer()
    without = fill_in(model, tokenizer, "the cat [MASK] tired")
    assert without == fill_in(model, tokenizer, "the cat [MASK] tired.")
    assert without == fill_in(model, tokenizer, "the cat [MASK] tired . ")


@pytest.mark.parametrize("end", ["?", "!", "[SEP]"])
def test_fill_in_adds_no_full_stop_after_another_end(end):
    """With a full stop after the end, the answers are others.

    The tokenizer makes a token of each mark: one token "?." would not show that "." was added.
    """
    tokenizer = word_tokenizer()
    tokenizer.pre_tokenizer = Sequence([WhitespaceSplit(), Punctuation()])
    model = small_model()
    text = "the cat [MASK] tired " + end
    assert fill_in(model, tokenizer, text) != fill_in(model, tokenizer, text + ".")


def test_fill_in_answers_every_blank_in_order():
    model = small_model()
    tokenizer = word_tokenizer()
    answers = fill_in(model, tokenizer, "[MASK] cat [MASK] tired", best=len(WORDS))
    assert len(answers) == 2

    p = model(torch.tensor([[2, 4, 6, 4, 10, 11, 3]])).softmax(-1)[0]
    for answer, position in zip(answers, (1, 3), strict=True):
        word, probability = answer[0]
        assert word == WORDS[p[position].argmax()]
        assert probability == pytest.approx(p[position].max().item(), abs=1e-6)


@pytest.mark.parametrize(
    "text, words", [("the cat", "no blank"), ("[MASK] " + "cat " * 40, "takes 24")]
)
def test_fill_in_refuses_a_text_without_blanks_or_too_long(text, words):
    with pytest.raises(ValueError, match=words) as error:
        fill_in(small_model(), word_tokenizer(), text)
    assert "\n" not in str(error.value)


def test_fill_in_takes_as_many_tokens_as_the_model():
    """[CLS], [MASK], 20 words, a full stop and [SEP] are 24."""
    assert fill_in(small_model(), word_tokenizer(), "[MASK] " + "cat " * 20)
    with pytest.raises(ValueError, match="has 25 tokens, the model takes 24"):
        fill_in(small_model(), word_tokenizer(), "[MASK] " + "cat " * 21)


def test_fill_in_reads_a_text_with_bytes_that_are_no_text():
    assert fill_in(small_model(), word_tokenizer(), "the \udcff [MASK]")


def test_unknown_words_are_those_without_a_token_of_their_own():
    tokenizer = word_tokenizer()
    assert unknown_words(tokenizer, "the cat [MASK] tired.") == []
    assert unknown_words(tokenizer, "the zebra [MASK] very tired") == ["zebra", "very"]
    assert unknown_words(tokenizer, "zebra [MASK] zebra") == ["zebra"]


def test_unknown_words_are_also_those_that_are_only_spelled():
    """The vocabulary has every letter of "dot", but the word itself is not in it."""
    text = ["the cat saw the dogs. the dogs saw the cat to and fro."]
    tokenizer = train_tokenizer(text, 60, ignore)
    ids = tokenizer.encode("dot", add_special_tokens=False).ids
    assert len(ids) > 1 and tokenizer.token_to_id("[UNK]") not in ids
    assert unknown_words(tokenizer, "The dot saw the [MASK], the cat.") == ["dot"]


def test_a_word_of_one_letter_is_not_spelled():
    tokenizer = train_tokenizer(["a cat saw a dog. a dog saw a cat."] * 5, 60, ignore)
    assert tokenizer.encode("a", add_special_tokens=False).tokens == ["\u2581a"]
    assert unknown_words(tokenizer, "a [MASK] saw a cat.") == []


def test_a_piece_is_shown_without_the_mark_of_its_space():
    tokenizer = train_tokenizer(["the cat saw the dogs to and fro."] * 5, 30, ignore)
    space = tokenizer.token_to_id("\u2581")
    assert readable_piece(tokenizer, space) == "(space)"
    assert readable_piece(tokenizer, tokenizer.token_to_id("\u2581the")) == "the"


def ignore(line):
    """A log that prints nothing."""


@pytest.fixture
def run(tmp_path):
    """The folder of a run."""
    save_run(tmp_path, small_model(), word_tokenizer())
    return tmp_path


def test_command_line_fills_in(run, run_program):
    code, out, error = run_program(model_module.main, run, "[MASK] cat [MASK] tired")
    lines = out.splitlines()
    assert code == 0 and not error
    assert [line[:9] for line in lines] == ["[MASK] 1:", "[MASK] 2:"]
    assert [line.count("%") for line in lines] == [5, 5]


def test_command_line_names_unknown_words(run, run_program):
    code, out, _ = run_program(model_module.main, run, "the zebra [MASK] tired")
    lines = out.splitlines()
    assert code == 0 and len(lines) == 2
    assert lines[0].startswith('"zebra" is unknown') and lines[1].startswith("[MASK] 1:")


def test_command_line_ends_a_wrong_run_in_one_line(run, run_program):
    code, out, error = run_program(model_module.main, run / "absent", "the [MASK]")
    assert code == 2 and not out
    assert error.startswith("model.py: ") and "is not a run" in error and error.count("\n") == 1


def test_program_fills_in(run):
    arguments = [sys.executable, ROOT / "model.py", run, "the cat [MASK] tired"]
    program = subprocess.run(arguments, capture_output=True, text=True, encoding="utf-8")
    assert program.returncode == 0, program.stderr
    assert program.stdout.startswith("[MASK] 1:") and program.stdout.count("%") == 5
