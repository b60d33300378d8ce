"""BERT: the embeddings, the post-norm encoder, the masked-LM head, the classifier, and a run's folder on disk.

    python model.py RUN "the cat that chased the dogs [MASK] tired"

fills in the blanks with a pre-trained model. Architecture: Devlin et al. 2019, with the factorised embedding of
ELECTRA-small where the embedding size E differs from the hidden size C. The mixers are in attention.py; the legend of
the shapes stands there too. V is the vocabulary size, M the number of tokens to predict.
"""

import argparse
import json
import os
import sys
import time
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F

from attention import VARIANTS, make_mixer
from kernels import WINDOWS

SIZES = {  # small and base: [C] table 4; tiny is what a laptop's CPU trains in minutes
    "tiny": dict(layers=4, hidden_size=128, ffn_size=512, heads=4, embedding_size=128),
    "small": dict(layers=12, hidden_size=256, ffn_size=1024, heads=4, embedding_size=128),
    "base": dict(layers=12, hidden_size=768, ffn_size=3072, heads=12, embedding_size=768),
}


@dataclass(frozen=True)
class BertConfig:
    """Everything that fixes the shape of a model. Raises ValueError, in one line, where the numbers do not fit."""

    variant: str
    vocab_size: int
    layers: int
    hidden_size: int
    ffn_size: int
    heads: int
    embedding_size: int
    max_length: int = 128  # positions
    kernel_size: int | None = None  # K, odd; None: the variant's own (17, ConvBERT 9)
    window: str = "clip"  # beyond the kernel's reach: the end weight of the side ("clip") or nothing ("zero")
    dropout: float = 0.1  # of hidden states, attention probabilities and the kernels of LightConv and DynamicConv
    attention_layer: int | None = None  # of a hybrid: its layer of self-attention, the first is 1; None: the last

    def __post_init__(self):
        if self.variant not in VARIANTS:
            raise ValueError(f"unknown variant {self.variant!r}; the variants are: {', '.join(VARIANTS)}")
        if self.kernel_size is None:
            object.__setattr__(self, "kernel_size", VARIANTS[self.variant].kernel_size)
        if self.attention_layer is None and VARIANTS[self.variant].hybrid:
            object.__setattr__(self, "attention_layer", self.layers)
        for field in fields(self):
            value = getattr(self, field.name)
            whole = field.type is int or field.type == int | None and value is not None
            if whole and (type(value) is not int or value < 1):
                raise ValueError(f"{field.name} must be a whole number above 0, not {value!r}")
        if self.attention_layer is not None and not VARIANTS[self.variant].hybrid:
            raise ValueError(f"attention_layer belongs to the hybrid variants; {self.variant} has none to place")
        if self.attention_layer is not None and self.attention_layer > self.layers:
            raise ValueError(f"attention_layer {self.attention_layer} is beyond the model's {self.layers} layers")
        if self.hidden_size % self.heads:
            raise ValueError(f"hidden_size {self.hidden_size} does not divide into {self.heads} heads")
        if self.kernel_size % 2 == 0:
            raise ValueError(f"kernel_size must be odd (k tokens to each side, and itself), not {self.kernel_size}")
        if self.window not in WINDOWS:
            raise ValueError(f"window must be one of {', '.join(WINDOWS)}, not {self.window!r}")
        if not isinstance(self.dropout, (int, float)) or not 0 <= self.dropout < 1:
            raise ValueError(f"dropout must lie in [0, 1), not {self.dropout!r}")

    @classmethod
    def from_size(cls, size, variant="composite", vocab_size=30004, **overrides):
        """The config of "tiny", "small" or "base"; overrides are any other fields."""
        if size not in SIZES:
            raise ValueError(f"unknown size {size!r}; the sizes are: {', '.join(SIZES)}")
        unknown = set(overrides) - {field.name for field in fields(cls)}
        if unknown:
            raise ValueError(f"BertConfig has no field {', '.join(sorted(unknown))}")
        return cls(**{"variant": variant, "vocab_size": vocab_size, **SIZES[size], **overrides})


class Embeddings(nn.Module):
    """x_i = W (LayerNorm(token_i + type_i [+ position_i])), the sum of width E, W: E -> C only where E != C.

    Positions are there for the variants marked `absolute` alone. (B, N) ids to (B, N, C).
    """

    def __init__(self, config):
        super().__init__()
        E, C = config.embedding_size, config.hidden_size
        self.token = nn.Embedding(config.vocab_size, E)
        self.token_type = nn.Embedding(2, E)
        self.position = nn.Embedding(config.max_length, E) if VARIANTS[config.variant].absolute else None
        self.norm = nn.LayerNorm(E, eps=1e-12)
        self.dropout = nn.Dropout(config.dropout)
        self.projection = nn.Linear(E, C) if E != C else nn.Identity()
        self.max_length = config.max_length

    def forward(self, input_ids, token_type_ids):
        N = input_ids.shape[1]
        if N > self.max_length and self.position is not None:
            raise ValueError(f"a sequence of {N} tokens does not fit a model with {self.max_length} positions")
        x = self.token(input_ids) + self.token_type(token_type_ids)  # (B, N, E)
        if self.position is not None:
            x = x + self.position.weight[:N]  # (N, E), the same in every sentence
        return self.projection(self.dropout(self.norm(x)))  # (B, N, C)


class Layer(nn.Module):
    """x = LayerNorm(x + mixer(x)), then x = LayerNorm(x + W2 gelu(W1 x)): the post-norm block of BERT."""

    def __init__(self, config, layer):
        super().__init__()
        C = config.hidden_size
        self.mixer = make_mixer(config, layer)
        self.mixer_norm = nn.LayerNorm(C, eps=1e-12)
        self.ffn = nn.Sequential(nn.Linear(C, config.ffn_size), nn.GELU(), nn.Linear(config.ffn_size, C))
        self.ffn_norm = nn.LayerNorm(C, eps=1e-12)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x, padding_mask):
        x = self.mixer_norm(x + self.dropout(self.mixer(x, padding_mask)))  # (B, N, C)
        return self.ffn_norm(x + self.dropout(self.ffn(x)))  # (B, N, C)


class Bert(nn.Module):
    """The encoder: (B, N) token ids to (B, N, C) hidden states.

    Args:
        input_ids: (B, N) int64.
        padding_mask: (B, N) bool, True where a token is real; None: all are.
        token_type_ids: (B, N), 0 for the first sentence and 1 for the second; None: all 0, as in pre-training.
    """

    def __init__(self, config):
        super().__init__()
        self.embeddings = Embeddings(config)
        self.layers = nn.ModuleList(Layer(config, layer) for layer in range(config.layers))

    def forward(self, input_ids, padding_mask=None, token_type_ids=None):
        if padding_mask is None:
            padding_mask = torch.ones_like(input_ids, dtype=torch.bool)
        if token_type_ids is None:
            token_type_ids = torch.zeros_like(input_ids)
        x = self.embeddings(input_ids, token_type_ids)  # (B, N, C)
        for layer in self.layers:
            x = layer(x, padding_mask)  # (B, N, C)
        return x


def initialise(module):
    """Linear and embedding weights normal(0, 0.02), biases 0. Norms, convolutions and tables of positions keep
    their own start."""
    if isinstance(module, (nn.Linear, nn.Embedding)):
        nn.init.normal_(module.weight, std=0.02)
    if isinstance(module, nn.Linear) and module.bias is not None:
        nn.init.zeros_(module.bias)


def masked_places(labels, capacity):
    """(places, targets), both (capacity,): where labels (B * N,) is not -100, and those labels; beyond their number
    place 0 and -100. No more than `capacity` are kept. Nothing here waits for the device.
    """
    chosen = labels != -100
    slots = torch.where(chosen, chosen.cumsum(0) - 1, capacity).clamp(max=capacity)  # the last one takes all others
    places = slots.new_zeros(capacity + 1).scatter(0, slots, torch.arange(len(labels), device=labels.device))[:capacity]
    return places, labels[places].masked_fill(torch.arange(capacity, device=labels.device) >= chosen.sum(), -100)


class BertForMaskedLM(nn.Module):
    """The encoder and the head that names the masked tokens: C -> E, GELU, LayerNorm, the token embeddings again."""

    def __init__(self, config):
        super().__init__()
        self.config = config
        self.bert = Bert(config)
        self.transform = nn.Linear(config.hidden_size, config.embedding_size)
        self.norm = nn.LayerNorm(config.embedding_size, eps=1e-12)
        self.bias = nn.Parameter(torch.zeros(config.vocab_size))
        self.apply(initialise)

    def head(self, x):
        """Hidden states (..., C) to logits (..., V), the decoder tied to the token embeddings."""
        x = self.norm(F.gelu(self.transform(x)))  # (..., E)
        logits = F.linear(x, self.bert.embeddings.token.weight)  # (..., E) (V, E)^T -> (..., V)
        return logits + self.bias  # a float32 bias lifts bf16 logits to float32, which the cross-entropy needs

    def forward(self, input_ids, padding_mask=None, token_type_ids=None):
        """Logits of every token, (B, N, V). Arguments as in `Bert`."""
        return self.head(self.bert(input_ids, padding_mask, token_type_ids))

    def masked_logits(self, input_ids, labels, padding_mask=None, token_type_ids=None, multiple=1, capacity=None):
        """Logits (M, V) and targets (M,) of the tokens to predict alone, those where labels (B, N) is not -100.

        The decoder is the largest matrix of a small model: this spares it six tokens of seven. `multiple` rounds M up
        with rows whose target is -100, to be ignored; `capacity` fixes M.
        """
        hidden = self.bert(input_ids, padding_mask, token_type_ids).flatten(0, 1)  # (B, N, C) -> (B * N, C)
        labels = labels.flatten()  # (B * N,)
        if capacity is None:
            predicted = (labels != -100).nonzero().squeeze(-1)  # (M,)
            spare = -len(predicted) % multiple
            targets = F.pad(labels[predicted], (0, spare), value=-100)  # (M,)
            predicted = F.pad(predicted, (0, spare))  # (M,)
        else:
            predicted, targets = masked_places(labels, capacity)
        return self.head(hidden[predicted]), targets  # (M, C) -> (M, V), (M,)

    def loss(self, input_ids, labels, padding_mask=None, token_type_ids=None, capacity=None):
        """Mean cross-entropy in nats over the tokens to predict; 0 where there is none.

        Their number differs in each batch. It is rounded up to a multiple of 64 because a matrix product of a new shape
        is costly: libraries compile it and keep what they compiled. On a GPU asking for that number means to wait for
        all the work before it: there `capacity` fixes it.
        """
        logits, targets = self.masked_logits(input_ids, labels, padding_mask, token_type_ids, 64, capacity)
        return F.cross_entropy(logits, targets, reduction="sum") / (targets != -100).sum().clamp(min=1)


class BertForClassification(nn.Module):
    """The encoder, then on the first token: Linear C -> C, tanh (the pooler), dropout, Linear C -> labels."""

    def __init__(self, config, labels):
        super().__init__()
        self.config = config
        self.bert = Bert(config)
        self.pooler = nn.Linear(config.hidden_size, config.hidden_size)
        self.dropout = nn.Dropout(config.dropout)
        self.classifier = nn.Linear(config.hidden_size, labels)
        self.apply(initialise)

    def forward(self, input_ids, padding_mask=None, token_type_ids=None):
        """Scores (B, labels). Arguments as in `Bert`."""
        first = self.bert(input_ids, padding_mask, token_type_ids)[:, 0]  # (B, N, C) -> (B, C)
        return self.classifier(self.dropout(torch.tanh(self.pooler(first))))  # (B, labels)


def parameter_count(model):
    """Trainable numbers, shared ones counted once."""
    return sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)


def compile_encoder(model, input_ids, precision):
    """torch.compile the encoder in place, after a trial; where the machine cannot, say so in a line and run uncompiled.

    On a GPU as a whole; on a CPU layer by layer, as layers alike are compiled once and the first step comes three
    times sooner. Each width of a batch is compiled by itself, that of the trial's input_ids (B, N) here, the others
    when they are met. torch keeps what it compiled on disk, for the next start. precision: the context of a forward
    pass. Returns whether it is compiled.
    """
    start, parts = time.perf_counter(), [model.bert] if input_ids.device.type == "cuda" else list(model.bert.layers)
    try:
        torch._dynamo.reset()  # the graphs of the run before
        torch._dynamo.config.recompile_limit = 128  # a graph for each of the few batch widths, training and evaluating
        for part in parts:
            part.compile(dynamic=False)
        with precision:
            x = model.bert(input_ids, input_ids == input_ids)  # (B, N, C)
        x.float().sum().backward()
        print(f"  first step: {time.perf_counter() - start:.0f} s to compile batches of {len(input_ids)} x "
              f"{input_ids.shape[1]} (--no-compile starts at once); each other width takes its own time when first met")
    except Exception as error:  # no compiler, an unsupported GPU: whatever it is, the plain code computes the same
        print(f"  torch.compile does not work here ({type(error).__name__}); running uncompiled")
        for part in parts:
            part._compiled_call_impl = None
    model.zero_grad()
    return parts[0]._compiled_call_impl is not None


# --- A run's folder: config.json, tokenizer.json, model.pt (and what pretrain.py adds) --------------------------------


def write_whole(path, write):
    """Let `write(temporary_path)` make a file, then move it to `path`: a kill leaves the old file or the new one."""
    path = Path(path)
    temporary = path.with_name(path.name + ".part")
    try:
        write(temporary)
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def write_text(text, path):
    """`text` to `path`, whole or not at all, the same bytes on every system."""
    write_whole(path, lambda part: part.write_text(text, encoding="utf-8", newline="\n"))


def save_file(value, path):
    """torch.save to `path`, whole or not at all. A disk that fills up is an OSError, as for any other file."""

    def write(part):
        with open(part, "wb") as file:  # torch turns a failed write into a RuntimeError unless the file is Python's own
            torch.save(value, file)

    try:
        write_whole(path, write)
    except RuntimeError as error:
        raise OSError(f"could not write {path}: {error.__context__ or 'is the disk full?'}") from None


def save_run(folder, model, tokenizer):
    """Write what `load_run` reads: the config, the tokenizer and the weights."""
    folder = Path(folder)
    write_text(json.dumps(asdict(model.config), indent=2) + "\n", folder / "config.json")
    write_text(tokenizer.to_str(), folder / "tokenizer.json")
    save_file(model.state_dict(), folder / "model.pt")


def load_file(path):
    """What torch.save wrote to `path`, tensors and plain values only: a hostile file executes nothing.

    Raises ValueError, in one line, where the file is damaged or something else.
    """
    with open(path, "rb") as file:
        try:
            return torch.load(file, map_location="cpu", weights_only=True)
        except Exception as error:  # torch raises half a dozen kinds, with pages of advice; the cause is the same
            kind = type(error).__name__
            raise ValueError(f"{path} is damaged or is not a checkpoint of this project ({kind})") from None


def load_weights(model, state, path, **options):
    """Load a state_dict, or say in one line (ValueError) that it belongs to another model."""
    try:
        model.load_state_dict(state, **options)
    except (RuntimeError, TypeError, AttributeError):
        raise ValueError(
            f"{path} holds the weights of another model than {model.config.variant} with hidden size "
            f"{model.config.hidden_size}, {model.config.layers} layers and {model.config.vocab_size} vocabulary items"
        ) from None


def load_config(folder):
    """The BertConfig of a run's folder. Raises ValueError, in one line, where there is none."""
    path = Path(folder) / "config.json"
    if not path.is_file():
        raise ValueError(f"{folder} is not a run: it has no config.json (python pretrain.py makes one)")
    try:
        return BertConfig(**json.loads(path.read_text(encoding="utf-8")))
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"{path} is damaged or of another project: {error}") from None


def load_run(folder):
    """The masked-LM model, in evaluation mode, and the tokenizer of a run's folder.

    Raises ValueError, in one line, where the folder is not a run, or a file in it is damaged or foreign.
    """
    from tokenizers import Tokenizer

    folder = Path(folder)
    config = load_config(folder)
    for name in ("model.pt", "tokenizer.json"):
        if not (folder / name).is_file():
            raise ValueError(f"{folder} is not a whole run: it has no {name}")
    try:
        with torch.device("meta"):  # shapes alone, however large a damaged config may say they are
            model = BertForMaskedLM(config)
    except RuntimeError:
        raise ValueError(f"{folder / 'config.json'} describes a model too large for any machine") from None
    load_weights(model, load_file(folder / "model.pt"), folder / "model.pt", assign=True)
    try:
        tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    except Exception as error:  # tokenizers raises a bare Exception
        raise ValueError(f"{folder / 'tokenizer.json'} is damaged: {error}") from None
    absent = [name for name in ("[CLS]", "[SEP]", "[MASK]") if tokenizer.token_to_id(name) is None]
    if absent or tokenizer.get_vocab_size() != config.vocab_size:
        lacks = f" and lacks {absent[0]}" if absent else ""
        raise ValueError(f"{folder}: the tokenizer has {tokenizer.get_vocab_size()} vocabulary items{lacks}; "
                         f"the model was trained with {config.vocab_size}")
    return model.eval(), tokenizer


# --- Fill in the blank ------------------------------------------------------------------------------------------------


def fill_in(model, tokenizer, text, best=5):
    """For each [MASK] in `text`, the `best` likeliest pieces as (piece, probability) pairs.

    Text without an end gets a full stop: the model was trained on whole sentences, and takes the end for a word else.
    """
    cls, sep, mask = (tokenizer.token_to_id(name) for name in ("[CLS]", "[SEP]", "[MASK]"))
    text = text.encode("utf-8", "replace").decode().rstrip()  # a terminal may hand over bytes that are no text
    text += "" if text.endswith((".", "?", "!", "[SEP]")) else "."
    ids = [cls, *tokenizer.encode(text, add_special_tokens=False).ids, sep]
    if mask not in ids:
        raise ValueError('the text has no blank: write [MASK] for the word to guess, as in "the dog [MASK] tired"')
    if len(ids) > model.config.max_length:
        raise ValueError(f"the text has {len(ids)} tokens, the model takes {model.config.max_length}")
    ids = torch.tensor([ids])  # (1, N)
    with torch.inference_mode():
        logits, _ = model.masked_logits(ids, torch.where(ids == mask, ids, -100))  # (M, V)
    top = logits.softmax(dim=-1).topk(min(best, logits.shape[-1]))  # (M, best)
    return [
        [(tokenizer.id_to_token(i).replace("\u2581", " ").strip() or "(space)", p) for i, p in zip(row_i, row_p)]
        for row_i, row_p in zip(top.indices.tolist(), top.values.tolist())
    ]


def main():
    parser = argparse.ArgumentParser(description="Fill in the [MASK] of a text with a pre-trained model.")
    parser.add_argument("run", help="folder that pretrain.py wrote")
    parser.add_argument("text", help='text with one or more [MASK], e.g. "the cat that chased the dogs [MASK] tired"')
    args = parser.parse_args()
    sys.stdout.reconfigure(errors="replace")  # a console without Unicode shows a ? rather than failing
    try:
        blanks = fill_in(*load_run(args.run), args.text)
    except (ValueError, OSError) as error:
        sys.exit(f"model.py: {error}")
    for number, words in enumerate(blanks, 1):
        print(f"[MASK] {number}:  " + "   ".join(f"{word} {100 * p:.1f}%" for word, p in words))


if __name__ == "__main__":
    main()
