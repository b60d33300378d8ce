"""model.py: embeddings, layer, head, loss, classifier, parameters, configurations, and a run."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import model as model_module
from attention import mixer_of_layer
from helpers import assert_near
from model import (
    SIZES,
    BertConfig,
    BertForClassification,
    BertForMaskedLM,
    Layer,
    fill_in,
    load_config,
    load_run,
    masked_lm_loss,
    parameter_count,
)
from model_helpers import (
    SMALL,
    WORDS,
    every_word_once,
    random_model,
    randomise,
    small_config,
    small_model,
    word_tokenizer,
    write_run,
)
from support.commands import UserError
from support.tokenizer import SPECIAL_TOKENS, ids_of, train_tokenizer, unknown_words
from support.weights import take


def normalised(x):
    """LayerNorm with weight 1 and bias 0, written out."""
    mean = x.mean(-1, keepdim=True)
    variance = x.var(-1, unbiased=False, keepdim=True)
    return (x - mean) / (variance + 1e-12).sqrt()


def exact_gelu(x):
    return x * 0.5 * (1 + torch.erf(x / 2**0.5))


def loss_of(model, input_ids, labels, size=None):
    """The loss of a batch, as a training step computes it."""
    return model.loss(input_ids, None, labels, count=(labels != -100).sum(), M=size)


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
        assert_near(result[0, i], expected)


def test_only_a_model_with_positions_has_a_longest_sequence():
    ids = torch.full((1, 25), 5)
    assert small_model("composite")(ids).shape == (1, 25, len(WORDS))
    with pytest.raises(RuntimeError, match="25.* must match .*24"):
        small_model("absolute")(ids)


def test_layer_is_post_norm_with_exact_gelu():
    layer = small_model().double().bert.layers[0]
    x = torch.randn(2, 5, 32, dtype=torch.float64)
    attention_mask = torch.ones(2, 5, dtype=torch.bool)

    middle = normalised(x + layer.mixer(x, attention_mask))
    inner = exact_gelu(layer.ffn[0](middle))
    expected = normalised(middle + layer.ffn[2](inner))
    assert_near(layer(x, attention_mask), expected, 1e-10)


# --- A parameter that all layers share ------------------------------------------------------------


def test_all_layers_of_deberta_share_one_table_that_is_counted_once():
    """The same Parameter, not only equal numbers."""
    model = small_model("deberta", kernel_size=5, layers=3)
    first, *others = [layer.mixer.P for layer in model.bert.layers]
    assert others and all(table is first for table in others)
    assert parameter_count(model) == parameter_count(small_model("none", layers=3)) + 5 * 32


# --- What reaches the encoder ---------------------------------------------------------------------


@pytest.mark.parametrize("model_class", [BertForMaskedLM, BertForClassification])
def test_token_types_reach_the_encoder(model_class):
    arguments = [3] if model_class is BertForClassification else []
    model = randomise(model_class(small_config(dropout=0.0), *arguments), 0.5).double()
    ids = every_word_once()
    types = torch.tensor([[0, 0, 1, 1, 0, 0]])
    assert (model(ids) - model(ids, None, types)).abs().max() > 1e-3


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
    layer = Layer(small_config(dropout=0.3), mixer_of_layer(small_config(), 0)).double().train()
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


def test_a_layer_drops_numbers_of_its_mixer_and_of_its_ffn_and_nothing_else():
    torch.manual_seed(0)
    x, numbers = torch.randn(2, 3, 200, 32, dtype=torch.float64)
    zeros = torch.zeros_like(x)
    assert_dropped(dropping_layer(numbers, zeros)(zeros, None), numbers, 0.3)
    assert_dropped(dropping_layer(zeros, numbers)(zeros, None), numbers, 0.3)
    assert torch.equal(dropping_layer(zeros, zeros)(x, None), x)


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


def test_head_is_a_linear_layer_gelu_layer_norm_and_the_token_embeddings_again():
    model = small_model().double()
    nn.init.normal_(model.bias)
    x = 3 * torch.randn(3, 32, dtype=torch.float64)
    inner = exact_gelu(x @ model.transform.weight.T + model.transform.bias)
    decoder = model.bert.embeddings.token.weight
    assert_near(model.lm_head(x), normalised(inner) @ decoder.T + model.bias)


def test_logits_are_float32_under_bf16():
    with torch.autocast("cpu", torch.bfloat16):
        assert small_model()(every_word_once()).dtype == torch.float32


@pytest.mark.parametrize("size", [None, 5, 64])
def test_loss_is_the_mean_negative_log_probability_of_the_masked_tokens(size):
    """On a GPU the number of hidden states is fixed, and larger than that of the masked tokens."""
    model = randomise(small_model().double(), 0.3)
    input_ids = torch.tensor([[2, 5, 6, 7], [2, 8, 9, 10]])
    labels = torch.tensor([[8, -100, -100, -100], [-100, -100, 5, 11]])
    log_p = model(input_ids).log_softmax(-1)
    expected = -(log_p[0, 0, 8] + log_p[1, 2, 5] + log_p[1, 3, 11]) / 3
    assert abs(loss_of(model, input_ids, labels, size) - expected) < 1e-12


def test_masked_lm_loss_is_the_cross_entropy_of_torch_times_the_share_of_the_part():
    """Here 4 of the 10 masked tokens of a batch."""
    logits = torch.randn(6, len(WORDS), dtype=torch.float64)
    targets = torch.tensor([5, -100, 7, 8, -100, 11])
    assert_near(masked_lm_loss(logits, targets, 10), 0.4 * F.cross_entropy(logits, targets))


def test_the_loss_of_logits_without_any_masked_token_is_zero_and_not_nan():
    logits = torch.randn(3, len(WORDS), requires_grad=True)
    loss = masked_lm_loss(logits, torch.full((3,), -100), 10)
    loss.backward()
    assert loss == 0 and logits.grad.eq(0).all()


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
    assert_near(scores, pooled @ model.classifier.weight.T + model.classifier.bias)


# --- Parameters and configurations ----------------------------------------------------------------


def test_small_and_base_have_the_shapes_of_the_paper():
    """Chang et al. 2021, table 4: layers, C, hidden size of the FFN, H, E."""
    assert tuple(SIZES["small"].values()) == (12, 256, 1024, 4, 128)
    assert tuple(SIZES["base"].values()) == (12, 768, 3072, 12, 768)


def test_a_config_has_what_its_variant_uses():
    assert small_config("composite").kernel_size == 17
    assert small_config("convbert").kernel_size == 9
    assert small_config("absolute", kernel_size=5).kernel_size is None
    assert small_config("composite", kernel_size=5).kernel_size == 5
    assert small_config("none", beyond="zero").beyond == "clip"


def test_a_config_of_an_unknown_variant_is_refused_in_one_line():
    with pytest.raises(UserError, match="^unknown variant 'compsite'; the variants are: none, abs"):
        BertConfig.from_size("tiny", "compsite")


# --- Fill in the blank ----------------------------------------------------------------------------


def test_fill_in_ranks_the_words_for_each_blank_by_the_model_s_own_probabilities():
    model = small_model()
    # all words
    answers = fill_in(model, word_tokenizer(), "[MASK] cat [MASK] tired", best=len(WORDS))

    input_ids = torch.tensor([[2, 4, 6, 4, 10, 11, 3]])  # with a full stop before [SEP]
    for answer, p in zip(answers, model(input_ids).softmax(-1)[0, [1, 3]], strict=True):
        for word, probability in answer:
            assert probability == pytest.approx(p[WORDS.index(word)].item(), abs=1e-6)
        probabilities = [probability for _, probability in answer]
        assert probabilities == pytest.approx(sorted(p.tolist(), reverse=True), abs=1e-6)


@pytest.mark.parametrize(
    "text, unknown",
    [
        ("The cat saw the [MASK].", []),
        ("The dot saw the [MASK], dot.", ["dot", ","]),  # every letter is known, the word is not
        ("zebra? [MASK] zebra", ["zebra", "?"]),
        ("the cat.\u201d saw", [".\u201d"]),
        ("the cat\u200b saw", []),  # a space of no width is no mark
        ("the cat\u200e saw", ["\\u200e"]),
        ("the cat .", [" ."]),  # the full stop is known, the space before it is not
        ("the cafe\u0301", []),
    ],
)
def test_unknown_are_words_and_marks_with_a_piece_that_the_text_of_training_does_not_have(
    text, unknown
):
    sample = ["the cat saw the dogs. the dogs saw the cat to and fro in the caf\u00e9."]
    tokenizer = train_tokenizer(sample, 60)
    learned = ids_of(tokenizer, sample[0])
    unseen = set(range(len(SPECIAL_TOKENS), tokenizer.get_vocab_size())).difference(learned)
    assert unknown_words(tokenizer, text, unseen) == unknown


# --- A run on disk --------------------------------------------------------------------------------


@pytest.fixture
def run(tmp_path):
    """The folder of a run, whose model has no positions after the 24th."""
    write_run(tmp_path / "run", "absolute")
    return tmp_path / "run"


@pytest.mark.parametrize("variant", ["none", "composite", "lightconv-hybrid"])
def test_a_run_gives_back_the_same_model_and_tokenizer(variant, tmp_path):
    saved = write_run(tmp_path, variant)
    model, tokenizer = load_run(tmp_path)
    assert load_config(tmp_path) == saved.config
    assert torch.equal(model(every_word_once()), saved(every_word_once()))
    assert tokenizer.encode("the cat [MASK] tired").ids == [5, 6, 4, 10]


def test_the_command_line_answers_each_blank_and_says_if_the_run_is_unfinished(run, run_program):
    settings = '{"variant": "composite", "steps": 5}'
    begin = f'{{"settings": {settings}, "code": {{}}, "unseen": [10]}}'  # tired
    (run / "log.jsonl").write_text(f'{begin}\n{{"step": 3}}\n')
    outcome = run_program(model_module.main, run, "[MASK] zebra [MASK] tired")
    unfinished, unknown, unseen, *blanks = outcome.out.splitlines()
    assert outcome.code == 0 and len(blanks) == 2
    assert "not finished: step 3 of 5" in unfinished
    assert '"zebra" is unknown' in unknown and '"tired" is unknown' in unseen


def test_with_the_weights_of_fixed_and_a_table_of_zeros_composite_computes_what_fixed_does():
    """So a run that begins with another one's weights (--init) begins where that one ended."""
    fixed = random_model("fixed")
    composite = random_model("composite")
    take(composite, fixed.state_dict(), "the run of fixed")
    for layer in composite.bert.layers:
        nn.init.zeros_(layer.mixer.terms["dynamic"].w)
    ids = every_word_once()
    assert_near(composite.bert(ids), fixed.bert(ids))
