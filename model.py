"""BERT: embeddings, the post-norm encoder, the masked-LM head and the classifier.

    python model.py RUN "the cat that chased the dogs [MASK] tired"

fills in the blanks with a pre-trained model. RUN is a folder that pretrain.py wrote.

Architecture: Devlin et al. 2019, with the factorised embedding of ELECTRA-small (Clark et al. 2020)
if the embedding size E differs from the hidden size C. The mixers, which let the tokens see each
other, are in attention.py. The letters B, N, C, H, d and K are those of attention.py. V is the
vocabulary size, M the number of tokens to predict.

[C] is Chang, Xu, Xu, Tu 2021.
"""

import support.quiet_start  # noqa: F401 (first: Ctrl-C ends the imports below quietly)

# isort: split
import argparse
import re
from dataclasses import asdict, dataclass, fields

import torch
from torch import nn
from torch.nn import functional as F

from attention import VARIANTS, Mixer, initialise_linear, make_mixers
from kernels import BEYOND
from support.commands import LARGEST_INT, UserError, run_command, valid_text
from support.runs import load_weights, read_config, read_tokenizer, read_weights, write_run

# small and base: [C] table 4. tiny is what the CPU of a laptop trains in minutes.
SIZES = {
    "tiny": dict(layers=4, hidden_size=128, ffn_size=512, heads=4, embedding_size=128),
    "small": dict(layers=12, hidden_size=256, ffn_size=1024, heads=4, embedding_size=128),
    "base": dict(layers=12, hidden_size=768, ffn_size=3072, heads=12, embedding_size=768),
}
IGNORED = -100  # the label of a token that is not predicted, as in torch's cross_entropy
MOST_LAYERS = 200  # with a wrong number in a config.json, making the model could take hours


# --- Configuration --------------------------------------------------------------------------------


@dataclass(frozen=True)
class BertConfig:
    """Everything that defines a model. Raises UserError if the numbers do not fit.

    What a single mixer needs, such as an even number of heads, is checked when the mixer is made.
    """

    variant: str  # a name in attention.VARIANTS
    vocab_size: int  # V
    layers: int
    hidden_size: int  # C
    ffn_size: int  # hidden size of the feed-forward network of a layer
    heads: int  # H
    embedding_size: int  # E
    max_length: int = 128  # longest sequence; absolute positions have no vectors beyond it
    kernel_size: int | None = None  # K, odd; None: the variant's own (17 for most)
    # What a term with a window adds to the score of a key beyond its reach: the end weight of the
    # row ("clip") or 0 ("zero"). Convolutions ignore it: beyond their reach, the weight is 0.
    beyond: str = "clip"
    # dropout of embeddings, hidden states, attention probabilities, the kernels of ConvBERT,
    # LightConv and DynamicConv, and what the classifier reads
    dropout: float = 0.1
    # which layer of a hybrid is self-attention, counted from 1; None: the last layer
    attention_layer: int | None = None

    def __post_init__(self):
        if self.variant not in VARIANTS:
            names = ", ".join(VARIANTS)
            raise UserError(f"unknown variant {self.variant!r}; the variants are: {names}")
        self.fill_in_defaults()
        self.check_numbers()
        self.check_kernel()
        self.check_attention_layer()

    def fill_in_defaults(self):
        """Replace None by the variant's own value."""
        # A frozen dataclass forbids self.x = ...; object.__setattr__ bypasses this. It is used only
        # here.
        variant = VARIANTS[self.variant]
        if self.kernel_size is None and variant.has_kernel:
            object.__setattr__(self, "kernel_size", variant.kernel_size)
        if self.attention_layer is None and variant.hybrid:
            object.__setattr__(self, "attention_layer", self.layers)

    def check_numbers(self):
        """UserError if a size is not a whole number in its range, or if sizes do not fit."""
        # Check the fields of type int, and those of type int | None unless their value is None.
        for field in fields(self):
            value = getattr(self, field.name)
            optional = field.type == int | None
            is_number = field.type is int or (optional and value is not None)
            most = LARGEST_INT
            if field.name == "layers":
                most = MOST_LAYERS
            if is_number and (type(value) is not int or not 1 <= value <= most):
                raise UserError(f"{field.name} must be a whole number, 1 to {most}, not {value!r}")

        if self.hidden_size % self.heads:
            raise UserError(
                f"hidden_size {self.hidden_size} cannot be divided into {self.heads} heads"
            )
        if type(self.dropout) not in (int, float) or not 0 <= self.dropout < 1:
            raise UserError(f"dropout must be in [0, 1), not {self.dropout!r}")

    def check_kernel(self):
        """UserError if kernel_size or beyond cannot be used.

        A variant without rows of K weights ignores beyond.
        """
        variant = VARIANTS[self.variant]

        if self.kernel_size is not None and not variant.has_kernel:
            raise UserError(f"{self.variant} has no kernel, so it takes no kernel_size")
        if self.kernel_size is not None and self.kernel_size % 2 == 0:
            raise UserError(
                "kernel_size must be odd (k tokens to each side, and the token itself), "
                f"not {self.kernel_size}"
            )

        # In a sequence of N tokens, 2N - 1 weights reach every token. The variant's own K is
        # allowed even if it is larger; otherwise a small max_length would forbid the default.
        longest = max(2 * self.max_length - 1, variant.kernel_size)
        if self.kernel_size is not None and self.kernel_size > longest:
            raise UserError(
                f"kernel_size {self.kernel_size} is too large: with {longest}, a kernel reaches "
                "every token"
            )
        if self.beyond not in BEYOND:
            raise UserError(f"beyond must be one of {', '.join(BEYOND)}, not {self.beyond!r}")

    def check_attention_layer(self):
        """UserError if the variant is not a hybrid, or if the model has no such layer."""
        if self.attention_layer is None:
            return

        if not VARIANTS[self.variant].hybrid:
            raise UserError(
                f"attention_layer is for the hybrid variants; {self.variant} is not one of them"
            )
        if self.attention_layer > self.layers:
            raise UserError(
                f"attention_layer {self.attention_layer} is beyond the model's {self.layers} layers"
            )

    @classmethod
    def from_size(cls, size, variant="composite", vocab_size=30004, **overrides):
        """The config of "tiny", "small" or "base".

        overrides: further fields. They also replace those that the size sets, such as layers=2.
        """
        if size not in SIZES:
            raise UserError(f"unknown size {size!r}; the sizes are: {', '.join(SIZES)}")
        known = {field.name for field in fields(cls)}
        for name in overrides:
            if name not in known:
                raise ValueError(f"BertConfig has no field {name}")
        return cls(variant=variant, vocab_size=vocab_size, **{**SIZES[size], **overrides})


# --- The encoder ----------------------------------------------------------------------------------


class Embeddings(nn.Module):
    """x_i = W LayerNorm(token_i + type_i [+ position_i]), with dropout after the LayerNorm.

    The sum has width E; W: E -> C exists only if E != C. Only the variants marked `absolute` have
    positions.
    """

    def __init__(self, config):
        super().__init__()
        E = config.embedding_size
        C = config.hidden_size
        self.max_length = config.max_length

        # what is added up
        self.token = nn.Embedding(config.vocab_size, E)
        self.token_type = nn.Embedding(2, E)
        self.position = None
        if VARIANTS[config.variant].absolute:
            self.position = nn.Embedding(config.max_length, E)

        # what is done with the sum
        self.norm = nn.LayerNorm(E, eps=1e-12)
        self.dropout = nn.Dropout(config.dropout)
        self.projection = nn.Identity()
        if E != C:
            self.projection = nn.Linear(E, C)

    def forward(self, input_ids, token_type_ids):
        """input_ids, token_type_ids: (B, N). Returns (B, N, C)."""
        N = input_ids.shape[1]
        x = self.token(input_ids) + self.token_type(token_type_ids)  # (B, N, E)

        # position i has the same vector in every sequence
        if self.position is not None:
            if N > self.max_length:
                raise ValueError(
                    f"a sequence of {N} tokens is too long for a model with "
                    f"{self.max_length} positions"
                )
            x = x + self.position.weight[:N]  # (N, E)

        return self.projection(self.dropout(self.norm(x)))  # (B, N, C)


class Layer(nn.Module):
    """A layer of BERT, with a LayerNorm after each residual connection (post-norm).

    x = LayerNorm(x + mixer(x))
    x = LayerNorm(x + W2 gelu(W1 x))

    with dropout applied to mixer(x) and to W2 gelu(W1 x).
    """

    def __init__(self, config, mixer):
        super().__init__()
        C = config.hidden_size
        self.mixer = mixer
        self.mixer_norm = nn.LayerNorm(C, eps=1e-12)
        self.ffn = nn.Sequential(
            nn.Linear(C, config.ffn_size),
            nn.GELU(),
            nn.Linear(config.ffn_size, C),
        )
        self.ffn_norm = nn.LayerNorm(C, eps=1e-12)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x, attention_mask):
        """x: (B, N, C). attention_mask: (B, N). Returns (B, N, C)."""
        x = self.mixer_norm(x + self.dropout(self.mixer(x, attention_mask)))
        x = self.ffn_norm(x + self.dropout(self.ffn(x)))
        return x


class Bert(nn.Module):
    """The encoder: token ids (B, N) to hidden states (B, N, C).

    The two models below, which contain it, initialise its weights. For an encoder on its own, call
    initialise(bert).

    Args:
        input_ids: (B, N) int64.
        attention_mask: (B, N) bool, True at real tokens; None if all tokens are real.
        token_type_ids: (B, N) int64, 0 for the first sentence and 1 for the second; None for all 0,
            as in pre-training.
    """

    def __init__(self, config):
        super().__init__()
        self.embeddings = Embeddings(config)
        self.layers = nn.ModuleList(Layer(config, mixer) for mixer in make_mixers(config))

    def forward(self, input_ids, attention_mask=None, token_type_ids=None):
        if attention_mask is None:
            attention_mask = torch.ones_like(input_ids, dtype=torch.bool)
        if token_type_ids is None:
            token_type_ids = torch.zeros_like(input_ids)

        x = self.embeddings(input_ids, token_type_ids)  # (B, N, C)
        for layer in self.layers:
            x = layer(x, attention_mask)  # (B, N, C)
        return x

    def share(self):
        """Share the common parameters of the layers again. Only deberta has one, P.

        Each common parameter is taken from the first layer that has it. Call this after loading
        weights, because loading may give each layer a tensor of its own.
        """
        mixers = [layer.mixer for layer in self.layers]
        for index, mixer in enumerate(mixers):
            mixer.share(mixers[:index])


def initialise(module):
    """BERT's initialisation: linear and embedding weights normal(0, 0.02), biases 0.

    Google's code truncates this normal distribution at two standard deviations.

    A mixer initialises itself. LayerNorms keep PyTorch's default, weight 1 and bias 0.
    """
    if isinstance(module, Mixer):
        module.initialise()
        return

    if isinstance(module, nn.Linear):
        initialise_linear(module)
    if isinstance(module, nn.Embedding):
        nn.init.normal_(module.weight, std=0.02)

    for child in module.children():
        initialise(child)


def parameter_count(model):
    """Number of trainable parameters; shared ones are counted once."""
    return sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)


# --- The masked language model --------------------------------------------------------------------


class BertForMaskedLM(nn.Module):
    """The encoder, and the head that predicts the masked tokens.

    The head is Linear C -> E, GELU, LayerNorm, then the token embeddings used again as the decoder
    E -> V, plus one bias per vocabulary item.
    """

    def __init__(self, config):
        super().__init__()
        self.config = config
        self.bert = Bert(config)
        self.transform = nn.Linear(config.hidden_size, config.embedding_size)
        self.norm = nn.LayerNorm(config.embedding_size, eps=1e-12)
        self.bias = nn.Parameter(torch.zeros(config.vocab_size))
        initialise(self)

    def forward(self, input_ids, attention_mask=None, token_type_ids=None):
        """Logits of every token, (B, N, V). Arguments as in `Bert`."""
        return self.head(self.bert(input_ids, attention_mask, token_type_ids))

    def head(self, x):
        """Hidden states (..., C) to logits (..., V)."""
        x = self.norm(F.gelu(self.transform(x)))  # (..., E)
        logits = F.linear(x, self.bert.embeddings.token.weight)  # (..., E) (V, E)^T -> (..., V)
        # The float32 bias turns bf16 logits into float32, which the cross-entropy needs.
        return logits + self.bias

    def masked_logits(self, hidden, labels, pad_to_multiple_of=1, max_predictions=None):
        """Logits of only those tokens that are to be predicted.

        The decoder is the largest matrix of a small model. Applying it only to the 15 % of the
        tokens that are masked costs about a seventh of applying it to all tokens.

        Args:
            hidden: (B, N, C), from the encoder.
            labels: (B, N), the token to predict, -100 where there is none.
            pad_to_multiple_of: round M up to a multiple of this number, by rows whose target is
                -100. Libraries prepare matrix products for each shape separately, so a new shape
                in every step would be slow.
            max_predictions: a fixed number for M. Then pad_to_multiple_of is not used, and the CPU
                does not wait until the GPU has counted the masked tokens. Masked tokens beyond
                this number are left out. None: M is the number of masked tokens, rounded up.
        Returns:
            (logits (M, V), targets (M,)).
        """
        hidden = hidden.flatten(0, 1)  # (B, N, C) -> (B * N, C)
        labels = labels.flatten()  # (B, N) -> (B * N,)

        if max_predictions is None:
            indices, targets = masked_indices(labels, pad_to_multiple_of)
        else:
            indices, targets = first_masked_indices(labels, max_predictions)
        return self.head(hidden[indices]), targets  # (M, C) -> (M, V)


def masked_indices(labels, pad_to_multiple_of=1):
    """Where labels (B * N,) is not -100: (indices (M,), targets (M,)).

    M is rounded up to a multiple of pad_to_multiple_of with index 0 and target -100.
    """
    indices = (labels != IGNORED).nonzero().squeeze(-1)  # (M,)
    targets = labels[indices]  # (M,)

    spare = -len(indices) % pad_to_multiple_of
    indices = F.pad(indices, (0, spare))
    targets = F.pad(targets, (0, spare), value=IGNORED)
    return indices, targets


def first_masked_indices(labels, max_predictions):
    """`masked_indices` with a fixed M = max_predictions, without waiting for the device.

    To know how many tokens are masked, the CPU would have to wait for the GPU. Instead, every token
    writes its own index into a slot: masked token m, counted from 0, into slot m, and every other
    token into an additional slot at the end, which is dropped. Example with max_predictions = 3:

        token          0   1     2     3   4
        labels      -100   7  -100  -100   9       (tokens 1 and 4 are masked)
        slot           3   0     3     3   1

        slot           0   1     2
        indices        1   4     0                 slot 2 stays 0: its target becomes -100
    """
    is_masked = labels != IGNORED  # (B * N,)
    count = is_masked.sum()  # a tensor on the device, which the CPU does not read

    # the slot of each token; masked tokens beyond max_predictions go to the last slot, too
    slots = torch.where(is_masked, is_masked.cumsum(0) - 1, max_predictions)
    slots = slots.clamp(max=max_predictions)

    own_index = torch.arange(len(labels), device=labels.device)
    indices = slots.new_zeros(max_predictions + 1).scatter(0, slots, own_index)
    indices = indices[:max_predictions]  # (M,)

    # slots that no token wrote into
    is_empty = torch.arange(max_predictions, device=labels.device) >= count
    targets = labels[indices].masked_fill(is_empty, IGNORED)  # (M,)
    return indices, targets


def masked_lm_loss(logits, targets):
    """Mean cross-entropy in nats over the tokens to predict; 0 if there are none.

    logits (M, V), targets (M,) with -100 in rows to ignore.
    """
    total = F.cross_entropy(logits, targets, reduction="sum", ignore_index=IGNORED)
    return total / (targets != IGNORED).sum().clamp(min=1)


# --- The classifier -------------------------------------------------------------------------------


class BertForClassification(nn.Module):
    """The encoder and a classifier of its first token, [CLS].

    The classifier is Linear C -> C and tanh (the pooler), then dropout and Linear C -> num_labels.
    """

    def __init__(self, config, num_labels):
        super().__init__()
        self.config = config
        self.bert = Bert(config)
        self.pooler = nn.Linear(config.hidden_size, config.hidden_size)
        self.dropout = nn.Dropout(config.dropout)
        self.classifier = nn.Linear(config.hidden_size, num_labels)
        initialise(self)

    def forward(self, input_ids, attention_mask=None, token_type_ids=None):
        """Scores (B, num_labels). Arguments as in `Bert`."""
        hidden = self.bert(input_ids, attention_mask, token_type_ids)  # (B, N, C)
        pooled = torch.tanh(self.pooler(hidden[:, 0]))  # (B, C)
        return self.classifier(self.dropout(pooled))


# --- A run on disk --------------------------------------------------------------------------------


def save_run(folder, model, tokenizer):
    """Write the config, the tokenizer and the weights, from which `load_run` makes the model."""
    write_run(folder, asdict(model.config), model.state_dict(), tokenizer)


def load_config(folder):
    """The BertConfig of a run. Raises UserError if the folder is not a run of this project."""
    values = read_config(folder)
    try:
        return BertConfig(**values)
    except (TypeError, UserError) as error:
        raise UserError(f"{folder}/config.json does not describe a model: {error}") from None


def load_run(folder):
    """The masked-LM model of a run, in evaluation mode, and its tokenizer.

    Raises UserError if the folder is not a run, or a file in it is damaged or does not fit.
    """
    config = load_config(folder)

    # On the device "meta" a model has shapes but no numbers, so a wrong config costs no memory.
    try:
        with torch.device("meta"):
            model = BertForMaskedLM(config)
    except RuntimeError:
        raise UserError(f"{folder}/config.json describes a model that is too large") from None
    except UserError as error:
        raise UserError(f"{folder}/config.json does not describe a model: {error}") from None

    load_weights(model, read_weights(folder), f"{folder}/model.pt", assign=True)
    model.bert.share()  # the file has a copy of a shared parameter for each layer
    tokenizer = read_tokenizer(folder, config.vocab_size)
    return model.eval(), tokenizer


# --- Fill in the blank ----------------------------------------------------------------------------


def fill_in(model, tokenizer, text, best=5):
    """The `best` most likely pieces for each [MASK] in `text`, as lists of (piece, probability).

    The model must be on the CPU and in evaluation mode, as load_run returns it.
    A text without an end mark gets a full stop: the model was trained on complete sentences.
    """
    text = valid_text(text).rstrip()
    if not text.endswith((".", "?", "!", "[SEP]")):
        text += "."

    cls = tokenizer.token_to_id("[CLS]")
    sep = tokenizer.token_to_id("[SEP]")
    mask = tokenizer.token_to_id("[MASK]")
    ids = [cls, *tokenizer.encode(text, add_special_tokens=False).ids, sep]
    if mask not in ids:
        raise UserError(
            "the text has no blank: write [MASK] for the word to guess, "
            'as in "the dog [MASK] tired"'
        )
    if len(ids) > model.config.max_length:
        raise UserError(
            f"the text has {len(ids)} tokens, the model takes {model.config.max_length}"
        )

    # predict the tokens at the blanks
    input_ids = torch.tensor([ids])  # (1, N)
    labels = torch.where(input_ids == mask, input_ids, IGNORED)  # (1, N)
    with torch.inference_mode():
        logits, _ = model.masked_logits(model.bert(input_ids), labels)  # (M, V)
    top = logits.softmax(dim=-1).topk(min(best, logits.shape[-1]))  # (M, best)

    answers = []
    for indices, probabilities in zip(top.indices.tolist(), top.values.tolist(), strict=True):
        pieces = [readable_piece(tokenizer, i) for i in indices]
        answers.append(list(zip(pieces, probabilities, strict=True)))
    return answers


def readable_piece(tokenizer, token_id):
    """A piece of the vocabulary as text. In the vocabulary, "▁" is the space before a word."""
    return tokenizer.id_to_token(token_id).replace("▁", " ").strip() or "(space)"


def unknown_words(tokenizer, text):
    """The words of `text` that the model has not learned as words, each once.

    Such a word has no piece in the vocabulary, or its only pieces are single letters.
    """
    unk = tokenizer.token_to_id("[UNK]")
    without_marks = re.sub(r"\[[A-Z]+\]", " ", text)  # [MASK] and the like are not words

    unknown = []
    for word in re.findall(r"\w+", without_marks):
        ids = tokenizer.encode(word, add_special_tokens=False).ids
        pieces = [readable_piece(tokenizer, i) for i in ids]
        letters = [piece for piece in pieces if len(piece) == 1]
        is_spelled = len(word) > 1 and len(letters) == len(word)
        if (unk in ids or is_spelled) and word not in unknown:
            unknown.append(word)
    return unknown


def main(arguments=None):
    parser = argparse.ArgumentParser(
        description="Fill in the [MASK] of a text with a pre-trained model."
    )
    parser.add_argument("run", help="folder that pretrain.py wrote")
    parser.add_argument(
        "text",
        help='text with one or more [MASK], e.g. "the cat that chased the dogs [MASK] tired"',
    )
    args = parser.parse_args(arguments)

    # compute the answers before printing anything: if there is an error, it is the only line
    model, tokenizer = load_run(args.run)
    answers = fill_in(model, tokenizer, args.text)
    for word in unknown_words(tokenizer, args.text):
        print(f'"{word}" is unknown to this model, so its answer may mean little')
    for number, answer in enumerate(answers, 1):
        words = "   ".join(f"{piece} {100 * p:.1f}%" for piece, p in answer)
        print(f"[MASK] {number}:  {words}")
    return 0


if __name__ == "__main__":
    run_command("model.py", main)
