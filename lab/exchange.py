"""Exchange models with the transformers library: read its checkpoints, and write them.

    python -m lab.exchange import FOLDER RUN     a published checkpoint becomes a run
    python -m lab.exchange export RUN FOLDER     a run becomes a checkpoint that transformers loads

FOLDER holds config.json, model.safetensors or pytorch_model.bin, and tokenizer.json or vocab.txt.
RUN is a run as pretrain.py writes it: model.py, glue.py and lab work with it. The second folder
must be new or empty. Neither command needs transformers. Its classes, and our variants:

    BertForMaskedLM        absolute     embeddings of the hidden size (E = C)
    ElectraForMaskedLM     absolute     embeddings of another size (E != C); imported with any size
    ConvBertForMaskedLM    convbert

A run of `none` is exported like one of `absolute` whose position vectors are all 0. All other
variants are refused, because these classes have no place for their parts.

Weights that a run has no place for and unknown entries of config.json are named in the output. A
checkpoint is refused if one of them changes what the encoder computes, as far as this can be seen.
docs/exchange.md has the details.
"""

import support.quiet_start  # noqa: F401 (first: Ctrl-C ends the imports below quietly)

# isort: split
import argparse
import json
import os
import re
import shutil
import zipfile
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import NamedTuple

import torch
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from attention import VARIANTS, ConvBert, SelfAttention
from model import BertConfig, BertForMaskedLM, load_run
from support.checkpoints import check_tensor, own_copy
from support.commands import UserError, run_command
from support.files import load_checkpoint, rename, write_text
from support.json_lines import refuse_constant
from support.runs import SPECIAL_TOKENS, parse_tokenizer, say_if_unfinished, write_run
from support.safetensors import load_safetensors, save_safetensors, unique_keys

# --- Names ----------------------------------------------------------------------------------------

# The kinds of checkpoints. A kind is the "model_type" in config.json, and the names of the
# encoder's weights begin with it. Each has a class for the masked language model.
CLASSES = {
    "bert": "BertForMaskedLM",
    "electra": "ElectraForMaskedLM",
    "convbert": "ConvBertForMaskedLM",
}

# Our modules and the published ones. A module has a weight, a bias, or both.
EMBEDDINGS = {
    "token": "embeddings.word_embeddings",
    "token_type": "embeddings.token_type_embeddings",
    "position": "embeddings.position_embeddings",
    "norm": "embeddings.LayerNorm",
    "projection": "embeddings_project",
}
LAYER = {
    "mixer.query": "attention.self.query",
    "mixer.key": "attention.self.key",
    "mixer.value": "attention.self.value",
    "mixer.output": "attention.output.dense",
    "mixer_norm": "attention.output.LayerNorm",
    "ffn.0": "intermediate.dense",
    "ffn.2": "output.dense",
    "ffn_norm": "output.LayerNorm",
    # ConvBERT, in the parts that `separate_convbert` makes
    "mixer.convolution_value": "attention.self.conv_out_layer",
    "mixer.depthwise": "attention.self.key_conv_attn_layer.depthwise",
    "mixer.pointwise": "attention.self.key_conv_attn_layer.pointwise",
    "mixer.summary": "attention.self.key_conv_attn_layer",
    "mixer.kernel": "attention.self.conv_kernel_layer",
}
BERT_HEAD = {
    "transform": "cls.predictions.transform.dense",
    "norm": "cls.predictions.transform.LayerNorm",
    "": "cls.predictions",  # the bias of the vocabulary
}
GENERATOR_HEAD = {
    "transform": "generator_predictions.dense",
    "norm": "generator_predictions.LayerNorm",
    "": "generator_lm_head",
}
HEADS = {"bert": BERT_HEAD, "electra": GENERATOR_HEAD, "convbert": GENERATOR_HEAD}

# The names of our own weights of the head, and of two that are treated separately.
HEAD = ("transform.weight", "transform.bias", "norm.weight", "norm.bias", "bias")
TOKEN = "bert.embeddings.token.weight"
POSITION = "bert.embeddings.position.weight"


def published_name(name, kind):
    """The published name of one of our weights.

    "bert.layers.3.ffn.0.weight" -> "bert.encoder.layer.3.intermediate.dense.weight"
    """
    module, _, end = name.rpartition(".")
    in_layer = re.fullmatch(r"bert\.layers\.(\d+)\.(.+)", module)
    if in_layer:
        return f"{kind}.encoder.layer.{in_layer[1]}.{LAYER[in_layer[2]]}.{end}"
    if module.startswith("bert.embeddings."):
        return f"{kind}.{EMBEDDINGS[module.removeprefix('bert.embeddings.')]}.{end}"
    return f"{HEADS[kind][module]}.{end}"


def copies_of(kind):
    """{copy: original}: weights that some files hold twice, because two modules share them."""
    token = published_name(TOKEN, kind)
    if kind == "bert":
        return {
            "cls.predictions.decoder.weight": token,
            "cls.predictions.decoder.bias": "cls.predictions.bias",
        }
    return {"generator_lm_head.weight": token}


def separate_convbert(weights):
    """The weights of a model, with ConvBERT's mixers in the parts that are published.

        value (C, C)        ->   value and convolution_value, (C/2, C) each
        pointwise (C/2, C)  ->   (C/2, C, 1), a convolution with a kernel of one weight

    and the two biases of the summary become one, (C/2, 1):

        pointwise (depthwise x + b) + c  =  pointwise depthwise x + (pointwise b + c)
    """
    parts = dict(weights)
    for name in weights:
        if not name.endswith(".mixer.depthwise.bias"):
            continue
        mixer = name.removesuffix("depthwise.bias")

        # the values of the attention heads, and those of the convolution heads
        for end in ("weight", "bias"):
            attention_value, convolution_value = weights[f"{mixer}value.{end}"].chunk(2)
            parts[f"{mixer}value.{end}"] = attention_value
            parts[f"{mixer}convolution_value.{end}"] = convolution_value

        # the summary
        pointwise = weights[f"{mixer}pointwise.weight"]  # (C/2, C)
        b = parts.pop(f"{mixer}depthwise.bias")  # (C,)
        c = parts.pop(f"{mixer}pointwise.bias")  # (C/2,)
        bias = (pointwise.double() @ b.double() + c).float()  # (C/2,)
        parts[f"{mixer}pointwise.weight"] = pointwise[:, :, None]
        parts[f"{mixer}summary.bias"] = bias[:, None]
    return parts


def join_convbert(parts):
    """The inverse of `separate_convbert`; the bias b is 0."""
    weights = dict(parts)
    for name in parts:
        if not name.endswith(".mixer.summary.bias"):
            continue
        mixer = name.removesuffix("summary.bias")

        # the values
        for end in ("weight", "bias"):
            attention_value = parts[f"{mixer}value.{end}"]
            convolution_value = weights.pop(f"{mixer}convolution_value.{end}")
            weights[f"{mixer}value.{end}"] = torch.cat([attention_value, convolution_value])

        # the summary
        pointwise = parts[f"{mixer}pointwise.weight"]  # (C/2, C, 1)
        weights[f"{mixer}pointwise.weight"] = pointwise[:, :, 0]
        weights[f"{mixer}pointwise.bias"] = weights.pop(f"{mixer}summary.bias")[:, 0]
        weights[f"{mixer}depthwise.bias"] = torch.zeros(pointwise.shape[1])
    return weights


# --- Import: the config ---------------------------------------------------------------------------

# The entries of config.json that must be there, and our names for them.
SIZES = {
    "vocab_size": "vocab_size",
    "num_hidden_layers": "layers",
    "hidden_size": "hidden_size",
    "intermediate_size": "ffn_size",
    "num_attention_heads": "heads",
    "max_position_embeddings": "max_length",
}

# Entries that must have these values, because our models compute nothing else. A missing entry
# counts as this value.
SAME = {
    "hidden_act": "gelu",
    "layer_norm_eps": 1e-12,
    "type_vocab_size": 2,
    "position_embedding_type": "absolute",
    "tie_word_embeddings": True,
    "is_decoder": False,
    "is_encoder_decoder": False,
    "add_cross_attention": False,
    "pruned_heads": {},
    "quantization_config": None,
    "head_ratio": 2,
}

# Entries that are read in another place, and those that do not change what the encoder computes.
# fmt: off
OTHERS = {
    "model_type", "hidden_dropout_prob", "attention_probs_dropout_prob", "embedding_size",
    "conv_kernel_size", "num_groups",

    "_name_or_path", "architectures", "bos_token_id", "classifier_dropout", "directionality",
    "dtype", "eos_token_id", "gradient_checkpointing", "id2label", "initializer_range", "label2id",
    "output_past", "pad_token_id", "pooler_fc_size", "pooler_num_attention_heads",
    "pooler_num_fc_layers", "pooler_size_per_head", "pooler_type", "problem_type",
    "summary_activation", "summary_last_dropout", "summary_type", "summary_use_proj",
    "torch_dtype", "transformers_version", "use_cache",
}
# fmt: on
KNOWN = {*SIZES, *SAME, *OTHERS}

# What transformers takes if the entry is missing.
EMBEDDING_SIZE = {"electra": 128, "convbert": 768}


class Description(NamedTuple):
    """What a published config.json says."""

    kind: str  # a name in CLASSES
    config: BertConfig  # with the vocabulary of the checkpoint
    groups: int  # of ConvBERT's feed-forward networks; 1: ordinary ones
    notes: list  # lines for the user


def read_json(path):
    """The dictionary in a JSON file. Raises UserError if it is damaged."""
    try:
        text = path.read_text(encoding="utf-8")
        values = json.loads(text, object_pairs_hook=unique_keys, parse_constant=refuse_constant)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is damaged: {error}") from None
    if not isinstance(values, dict):
        raise UserError(f"{path} is damaged: it is not a JSON object")
    return values


def read_description(folder):
    """The Description of a folder. Raises UserError if our models cannot be what it describes."""
    path = folder / "config.json"
    if not path.is_file():
        raise UserError(f"{folder} is not a checkpoint of transformers: it has no config.json")
    values = read_json(path)
    try:
        return describe(values)
    except ValueError as error:
        raise UserError(f"{path}: {error}") from None


def describe(values):
    """The Description from the entries of config.json."""
    # what kind of model it is, and whether it computes what ours do
    kind = values.get("model_type")
    if kind is None:
        raise UserError("it has no model_type (a run of this project needs no import)")
    if not isinstance(kind, str) or kind not in CLASSES:
        raise UserError(
            f"model_type is {shown(kind)}; models of type {', '.join(CLASSES)} can be imported"
        )
    for name, needed in SAME.items():
        value = values.get(name, needed)
        if value != needed:
            raise UserError(f"{name} is {shown(value)}, and here it can only be {needed!r}")

    # sizes
    for name in SIZES:
        if name not in values:
            raise UserError(f"it has no {name}")
    sizes = {own: values[name] for name, own in SIZES.items()}
    sizes["embedding_size"] = sizes["hidden_size"]
    if kind != "bert":
        sizes["embedding_size"] = values.get("embedding_size", EMBEDDING_SIZE[kind])

    # what only ConvBERT has
    variant = "absolute"
    groups = 1
    if kind == "convbert":
        variant = "convbert"
        sizes["kernel_size"] = values.get("conv_kernel_size", 9)
        groups = values.get("num_groups", 1)

    dropout = values.get("hidden_dropout_prob", 0.1)
    config = BertConfig(variant=variant, dropout=dropout, **sizes)
    check_groups(groups, config)
    return Description(kind, config, groups, notes_on_config(values, config))


def check_groups(groups, config):
    """UserError if a feed-forward network cannot have this number of groups."""
    if type(groups) is not int or groups < 1:
        raise UserError(f"num_groups is {shown(groups)}, not a whole number above 0")
    if config.hidden_size % groups or config.ffn_size % groups:
        raise UserError(
            f"{config.hidden_size} and {config.ffn_size} cannot be divided into {shown(groups)} "
            "groups (num_groups)"
        )


def notes_on_config(values, config):
    """What the user should know about the entries of config.json."""
    notes = []
    attention_dropout = values.get("attention_probs_dropout_prob", 0.1)
    if attention_dropout != config.dropout:
        notes.append(
            f"dropout is {config.dropout:g} everywhere; "
            f"attention_probs_dropout_prob was {shown(attention_dropout)}"
        )
    unknown = [shown(name) for name in values if name not in KNOWN]
    if unknown:
        notes.append(f"entries of config.json that were not used: {', '.join(unknown)}")
    return notes


def shown(value):
    """A value from a file as a short text of one line."""
    text = str(value)
    if not text.isprintable():
        text = ascii(text)
    if len(text) > 80:
        text = text[:77] + "..."
    return text


# --- Import: the weights --------------------------------------------------------------------------

FLOATS = (torch.float32, torch.float16, torch.bfloat16)

# Default position ids and token types, which some files hold. Our models do not need them.
INDICES = ("embeddings.position_ids", "embeddings.token_type_ids")


def read_tensors(folder):
    """(path, {name: tensor}) of the file with the weights. Nothing in the file is executed."""
    path = folder / "model.safetensors"
    if path.is_file():
        return path, load_safetensors(path)
    path = folder / "pytorch_model.bin"
    if path.is_file():
        return path, load_pickled(path)
    raise UserError(f"{folder} has neither model.safetensors nor pytorch_model.bin")


def load_pickled(path):
    """{name: tensor} of a pytorch_model.bin."""
    if not zipfile.is_zipfile(path):
        raise UserError(
            f"{path} is damaged, or was written by PyTorch before 1.6: give model.safetensors, or "
            "save the file again with a newer PyTorch"
        )
    try:
        tensors = load_checkpoint(path)
    except ValueError:
        raise UserError(
            f"{path} is damaged, or holds more than tensors by name (code in it is not executed)"
        ) from None

    # a dictionary of names; what belongs to a name is checked when it is used
    if not isinstance(tensors, dict) or not all(isinstance(name, str) for name in tensors):
        raise UserError(f"{path} does not hold tensors by name")
    return dict(tensors)


def weights_of(tensors, description):
    """Our weights from a file's tensors: (state_dict, notes).

    Args:
        tensors: {name: tensor}, as read from the file.
        description: of the model that the file should hold.
    Raises:
        UserError: a weight is missing, wrong or has no place here.
    """
    # one name and one place for each weight
    kind, config, groups, _ = description
    tensors = with_new_names(tensors, kind)
    remaining = without_copies(tensors, kind)

    # the weights that our model has, without its head if the file has none
    expected = expected_parts(config, kind)
    notes = []
    has_head = any(published_name(name, kind) in remaining for name in HEAD)
    if not has_head:
        expected = {name: part for name, part in expected.items() if name not in HEAD}
        notes.append(
            "the checkpoint has no masked-LM head, so a new, untrained one was made: for "
            "fine-tuning the model is complete, but it cannot fill in blanks or score sentences"
        )

    # take each of them, with the right shape and finite numbers
    parts = {}
    dtypes = set()
    for name, part in expected.items():
        published = published_name(name, kind)
        if published not in remaining:
            raise UserError(f"it has no {published}")
        tensor = remaining.pop(published)
        if groups > 1 and re.search(r"\.ffn\.[02]\.weight", name):
            tensor = ungrouped(published, tensor, groups, part)
        parts[name] = checked(published, tensor, part)
        dtypes.add(tensor.dtype)

    # what the user should know
    notes += notes_on_rest(remaining, kind)
    if dtypes != {torch.float32}:
        notes.append("the weights were converted from 16 bits to float32")
    if groups > 1:
        notes.append(
            f"the {groups} groups of the feed-forward networks became full matrices with zeros "
            "outside the groups; further training changes these zeros"
        )

    # our own form
    weights = join_convbert(parts)
    if not has_head:
        weights |= new_head(config)
    return weights, notes


def with_new_names(tensors, kind):
    """The tensors under the names that transformers gives them today.

        LayerNorm.gamma, LayerNorm.beta     ->  LayerNorm.weight, LayerNorm.bias (older files)
        encoder.layer.0. ...                ->  bert.encoder.layer.0. ... (files of an encoder)

    Raises UserError if two tensors get the same name.
    """
    renamed = {}
    for name, tensor in tensors.items():
        new = name.replace("LayerNorm.gamma", "LayerNorm.weight")
        new = new.replace("LayerNorm.beta", "LayerNorm.bias")
        if new.startswith(("embeddings.", "embeddings_project.", "encoder.", "pooler.")):
            new = f"{kind}.{new}"
        if new in renamed:
            raise UserError(f"it has two tensors that are {shown(new)}")
        renamed[new] = tensor
    return renamed


def without_copies(tensors, kind):
    """The tensors without those that are copies. UserError if a copy is not equal."""
    tensors = dict(tensors)
    for copy, original in copies_of(kind).items():
        if copy not in tensors:
            continue

        # A file may hold the copy in place of the original.
        tensor = tensors.pop(copy)
        other = tensors.setdefault(original, tensor)
        if not is_equal(tensor, other):
            raise UserError(f"{copy} differs from {original}, and here they are the same weights")
    return tensors


def is_equal(first, second):
    """Whether two values from a file are equal tensors."""
    try:
        return first is second or torch.equal(first, second)
    except (RuntimeError, TypeError, NotImplementedError):
        return False


def expected_parts(config, kind):
    """{name: tensor without numbers}: the weights that a file must hold, under our names."""
    try:
        with torch.device("meta"):
            weights = BertForMaskedLM(config).state_dict()
    except RuntimeError:
        raise UserError("config.json describes a model that is too large") from None
    if kind == "convbert":
        weights = separate_convbert(weights)
    return weights


def ungrouped(name, tensor, groups, expected):
    """The matrix (out, in) of a grouped linear layer, with zeros outside the groups.

    Args:
        tensor: (groups, in / groups, out / groups), one matrix per group.
        expected: the shape of the result, as a tensor without numbers.
    """
    rows, columns = expected.shape
    in_groups = expected.new_empty(groups, columns // groups, rows // groups)
    tensor = checked(name, tensor, in_groups)
    return torch.block_diag(*tensor.transpose(1, 2))


def checked(name, tensor, expected):
    """A float32 copy of a tensor. UserError if it has the wrong shape or numbers.

    Args:
        name: of the tensor in the file.
        expected: a tensor of the right shape, without numbers.
    """
    if not isinstance(tensor, torch.Tensor) or tensor.dtype not in FLOATS:
        kind = getattr(tensor, "dtype", type(tensor).__name__)
        raise UserError(f"{name} is {kind}, and must be float32, float16 or bfloat16")
    check_tensor(name, tensor, expected.to(tensor.dtype))
    return own_copy(tensor.float())


def new_head(config):
    """Weights of a masked-LM head as at the start of pre-training, the same every time."""
    E = config.embedding_size
    C = config.hidden_size
    generator = torch.Generator().manual_seed(0)
    return {
        "transform.weight": torch.empty(E, C).normal_(std=0.02, generator=generator),
        "transform.bias": torch.zeros(E),
        "norm.weight": torch.ones(E),
        "norm.bias": torch.zeros(E),
        "bias": torch.zeros(config.vocab_size),
    }


def notes_on_rest(remaining, kind):
    """Name the tensors that were not used. UserError if one of them belongs to the encoder."""
    names = [name for name in remaining if name.removeprefix(f"{kind}.") not in INDICES]
    of_encoder = [name for name in names if name.startswith((f"{kind}.emb", f"{kind}.enc"))]
    if of_encoder:
        raise UserError(
            f"{len(of_encoder)} weights of its encoder have no place here: "
            f"{', '.join(map(shown, of_encoder[:3]))}"
        )
    if not names:
        return []
    return [f"left out, because a run has no place for them: {', '.join(map(shown, names))}"]


# --- Import: the tokenizer ------------------------------------------------------------------------


def read_published_tokenizer(folder):
    """(path, tokenizer, notes) of tokenizer.json, or of vocab.txt if there is no such file."""
    path = folder / "tokenizer_config.json"
    settings = {}
    if path.is_file():
        settings = read_json(path)

    # a complete tokenizer
    path = folder / "tokenizer.json"
    if path.is_file():
        tokenizer = parse_tokenizer(path)
        check_case(path, tokenizer, settings)
        return path, tokenizer, []

    # only its pieces: older files
    path = folder / "vocab.txt"
    if path.is_file():
        extra = folder / "added_tokens.json"
        if extra.is_file() and read_json(extra):
            raise UserError(
                f"{extra} is not supported: add tokenizer.json of the same model, which has these "
                "tokens, too"
            )
        tokenizer, notes = wordpiece_tokenizer(path, settings)
        return path, tokenizer, notes
    raise UserError(f"{folder} has neither tokenizer.json nor vocab.txt")


def check_case(path, tokenizer, settings):
    """UserError if the two files of a tokenizer disagree about capital letters.

    transformers uses the value in tokenizer_config.json, the tokenizers library that in
    tokenizer.json.
    """
    lower_case = settings.get("do_lower_case")
    normalizer = json.loads(tokenizer.to_str())["normalizer"] or {}
    own = normalizer.get("lowercase")
    if lower_case is not None and own is not None and lower_case != own:
        raise UserError(
            f"{path}: lowercase is {own}, but do_lower_case is {shown(lower_case)} in "
            "tokenizer_config.json; make them equal"
        )


def wordpiece_tokenizer(path, settings):
    """(tokenizer, notes): BERT's tokenizer from vocab.txt, which has one piece per line.

    Args:
        path: of vocab.txt.
        settings: the entries of tokenizer_config.json.
    """
    # the pieces; the number of a piece is its line
    vocabulary = {}
    try:
        with open(path, encoding="utf-8") as file:
            for number, line in enumerate(file):
                piece = line.rstrip("\n")
                if piece in vocabulary:
                    raise UserError(f"lines {vocabulary[piece] + 1} and {number + 1} are equal")
                vocabulary[piece] = number
    except ValueError as error:
        raise UserError(f"{path} is damaged: {error}") from None

    # how text is changed before it is cut into pieces
    notes = []
    entries = {
        "do_lower_case": settings.get("do_lower_case", True),
        "tokenize_chinese_chars": settings.get("tokenize_chinese_chars", True),
        "strip_accents": settings.get("strip_accents"),
    }
    for name, value in entries.items():
        is_unset = name == "strip_accents" and value is None
        if type(value) is not bool and not is_unset:
            raise UserError(f"{path}: tokenizer_config.json has {shown(value)} for {name}")
    if "do_lower_case" not in settings:
        notes.append(
            "text is converted to lower case, because tokenizer_config.json has no do_lower_case"
        )

    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(
        clean_text=True,
        lowercase=entries["do_lower_case"],
        handle_chinese_chars=entries["tokenize_chinese_chars"],
        strip_accents=entries["strip_accents"],
    )
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    return tokenizer, notes


def renumbered(tokenizer, rows):
    """A tokenizer whose special tokens have the ids 0 to 4: (tokenizer, old ids, notes).

    The other pieces follow in their old order. So the pieces of a text stay the same, and only
    their numbers change. Example with [PAD] = 0, a = 1, [UNK] = 2, [CLS] = 3, [SEP] = 4, [MASK] = 5
    and b = 6:

        new id     0      1      2      3      4       5  6
        piece      [PAD]  [UNK]  [CLS]  [SEP]  [MASK]  a  b
        old ids    0      2      3      4      5       1  6

    Args:
        tokenizer: a tokenizers.Tokenizer.
        rows: how many token embeddings the checkpoint has.
    Raises:
        UserError: the tokenizer does not fit, or is of a kind that cannot get new numbers.
    """
    ids = tokenizer.get_vocab(with_added_tokens=True)
    pieces = tokenizer.get_vocab(with_added_tokens=False)
    for token in SPECIAL_TOKENS:
        if token not in ids:
            raise UserError(f"the tokenizer has no {token}")

    # The tokenizers library requires that tokens which were added to the pieces come after them.
    def place(token):
        return token not in pieces, ids[token]

    tokens = [*SPECIAL_TOKENS, *sorted(set(ids) - set(SPECIAL_TOKENS), key=place)]
    old_ids = [ids[token] for token in tokens]
    if len(set(old_ids)) != len(old_ids):
        raise UserError("two pieces of the tokenizer have the same number")
    if max(old_ids) >= rows:
        raise UserError(
            f"the tokenizer has a piece with the number {max(old_ids)}, and the model has only "
            f"{rows} token embeddings"
        )

    # our programs add [CLS] and [SEP] by themselves
    state = json.loads(tokenizer.to_str())
    state["post_processor"] = None
    notes = []
    if old_ids != list(range(len(tokens))):
        renumber(state, tokens)
        notes.append("the special tokens have the new ids 0 to 4; other pieces keep their order")
    if len(tokens) < rows:
        notes.append(f"{rows - len(tokens)} token embeddings without a piece were left out")

    tokenizer = Tokenizer.from_str(json.dumps(state))
    tokenizer.add_special_tokens(list(SPECIAL_TOKENS))
    if tokenizer.get_vocab() != {token: number for number, token in enumerate(tokens)}:
        raise UserError("the pieces of this tokenizer cannot get new numbers")
    return tokenizer, old_ids, notes


def renumber(state, tokens):
    """Change the numbers in the JSON form of a tokenizer. tokens: all, in their new order."""
    model = state["model"]
    if model["type"] != "WordPiece":
        raise UserError(
            f"{', '.join(SPECIAL_TOKENS)} must have the ids 0 to 4, and only a WordPiece "
            f"tokenizer can get new ids; this one is {model['type']}"
        )
    numbers = {token: number for number, token in enumerate(tokens)}
    model["vocab"] = {
        token: number
        for token, number in numbers.items()
        if token in model["vocab"] or token in SPECIAL_TOKENS
    }
    for entry in state["added_tokens"]:
        entry["id"] = numbers[entry["content"]]
    state["added_tokens"].sort(key=lambda entry: entry["id"])


# --- Import and export ----------------------------------------------------------------------------


@contextmanager
def new_folder_without_lock(folder):
    """Yield a temporary folder to write to; at the end it becomes `folder`.

    support.files.new_folder is for folders with a lock. Without a lock, two processes may write at
    the same time: the name of a temporary folder has the process ID. After an error or Ctrl-C,
    nothing is left. After a kill, at most FOLDER.ID.part is left.
    """
    folder = folder.resolve()
    temporary = folder.with_name(f"{folder.name}.{os.getpid()}.part")
    temporary.mkdir(parents=True)
    try:
        yield temporary
        if folder.exists():
            folder.rmdir()  # it is empty
        rename(temporary, folder)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


def check_new(folder):
    """UserError if there is something that would be overwritten."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"{folder} already exists; name a new or an empty folder")


def import_checkpoint(folder, run):
    """Write the run of a published checkpoint. Returns (kind, BertConfig, notes)."""
    check_new(run)
    description = read_description(folder)
    kind, config, _, notes = description
    path, tensors = read_tensors(folder)
    try:
        weights, notes_on_weights = weights_of(tensors, description)
    except ValueError as error:
        raise UserError(f"{path}: {error}") from None

    # the tokenizer, and with it the order of the token embeddings
    path, tokenizer, notes_on_file = read_published_tokenizer(folder)
    try:
        tokenizer, old_ids, notes_on_ids = renumbered(tokenizer, config.vocab_size)
    except ValueError as error:
        raise UserError(f"{path}: {error}") from None
    config = replace(config, vocab_size=len(old_ids))
    for name in (TOKEN, "bias"):
        weights[name] = weights[name][old_ids]

    # load_run reads it as the programs will
    with new_folder_without_lock(run) as temporary:
        write_run(temporary, asdict(config), weights, tokenizer)
        load_run(temporary)
    notes = notes + notes_on_weights + notes_on_file + notes_on_ids
    return kind, config, notes + notes_on_padding(kind)


def notes_on_padding(kind):
    """ConvBERT's convolutions in transformers see what is at padding; ours see zeros there."""
    if kind != "convbert":
        return []
    return ["rows with padding give other numbers in transformers, whose convolutions see padding"]


def kind_of(config):
    """The kind of checkpoint a run can be exported as. UserError, with the reason, if none."""
    # what those models have no place for
    variant = VARIANTS[config.variant]
    reason = None
    if variant.mixer not in (SelfAttention, ConvBert):
        reason = f"a mixer that neither BERT nor ConvBERT has ({variant.mixer.__name__})"
    elif variant.hybrid:
        reason = "layers of two kinds"
    elif variant.terms:
        reason = f"terms for relative positions ({', '.join(variant.terms)})"
    elif variant.convolutional:
        reason = f"convolutions in its projections ({', '.join(variant.convolutional)})"
    elif variant.depthwise:
        reason = "a convolution of the values next to attention"
    if reason is not None:
        raise UserError(
            f"{config.variant} cannot be exported: it has {reason}, and the models of transformers "
            "have no place for it; none, absolute and convbert can be exported"
        )

    if variant.mixer is ConvBert:
        return "convbert"
    if config.embedding_size != config.hidden_size:
        return "electra"
    return "bert"


def published_config(config, kind):
    """The entries of config.json with which transformers makes the model."""
    values = {
        "architectures": [CLASSES[kind]],
        "model_type": kind,
        "hidden_act": "gelu",
        "hidden_dropout_prob": config.dropout,
        "attention_probs_dropout_prob": config.dropout,
        "layer_norm_eps": 1e-12,
        "type_vocab_size": 2,
        "tie_word_embeddings": True,
        "pad_token_id": SPECIAL_TOKENS.index("[PAD]"),
    }

    # the sizes
    for name, own in SIZES.items():
        values[name] = getattr(config, own)
    if kind != "bert":
        values["embedding_size"] = config.embedding_size
    if kind == "convbert":
        values["conv_kernel_size"] = config.kernel_size
        values["head_ratio"] = 2
        values["num_groups"] = 1
    return values


def published_tokenizer(tokenizer):
    """A copy of a run's tokenizer that adds [CLS] and [SEP], as those of transformers do."""
    special = [(token, tokenizer.token_to_id(token)) for token in ("[CLS]", "[SEP]")]
    copy = Tokenizer.from_str(tokenizer.to_str())
    copy.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=special
    )
    return copy


def tokenizer_settings(config):
    """The entries of tokenizer_config.json."""
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": config.max_length,
        "model_input_names": ["input_ids", "token_type_ids", "attention_mask"],
        "clean_up_tokenization_spaces": False,
    }
    for token in SPECIAL_TOKENS:
        settings[f"{token.strip('[]').lower()}_token"] = token  # "pad_token": "[PAD]"
    return settings


def export_run(run, folder):
    """Write a checkpoint for transformers. Returns (kind, BertConfig, notes)."""
    check_new(folder)
    model, tokenizer = load_run(run)
    config = model.config
    kind = kind_of(config)
    notes = notes_on_padding(kind)

    # the weights under their published names
    weights = model.state_dict()
    if POSITION not in weights:
        weights[POSITION] = torch.zeros(config.max_length, config.embedding_size)
        notes.append("its position vectors are 0, because the run has none; training changes them")
    if kind == "convbert":
        weights = separate_convbert(weights)
    tensors = {published_name(name, kind): tensor for name, tensor in weights.items()}

    with new_folder_without_lock(folder) as temporary:
        save_safetensors(temporary / "model.safetensors", tensors)
        write_json(temporary / "config.json", published_config(config, kind))
        write_text(temporary / "tokenizer.json", published_tokenizer(tokenizer).to_str())
        write_json(temporary / "tokenizer_config.json", tokenizer_settings(config))
    return kind, config, notes


def write_json(path, values):
    write_text(path, json.dumps(values, indent=2) + "\n")


# --- The command line -----------------------------------------------------------------------------


def parse_arguments(arguments=None):
    """The command line's values; .command is "import" or "export"."""
    parser = argparse.ArgumentParser(
        prog="python -m lab.exchange",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", required=True)
    command = commands.add_parser("import", help="a checkpoint of transformers becomes a run")
    command.add_argument("folder", type=Path, help="folder with the checkpoint")
    command.add_argument("run", type=Path, help="new folder for the run")
    command = commands.add_parser("export", help="a run becomes a checkpoint of transformers")
    command.add_argument("run", type=Path, help="folder of a run")
    command.add_argument("folder", type=Path, help="new folder for the checkpoint")
    return parser.parse_args(arguments)


def main(arguments=None):
    """Import or export, and say what was done. Returns the exit code."""
    args = parse_arguments(arguments)
    if args.command == "import":
        kind, config, notes = import_checkpoint(args.folder, args.run)
        print(f"{args.run}: the variant {config.variant}, from {kind} ({size_of(config)})")
    else:
        say_if_unfinished(args.run)
        kind, config, notes = export_run(args.run, args.folder)
        print(f"{args.folder}: {CLASSES[kind]}, from {config.variant} ({size_of(config)})")
    for note in notes:
        print(f"note: {note}")
    return 0


def size_of(config):
    """The size of a model in a few words."""
    return (
        f"{config.layers} layers, hidden size {config.hidden_size}, {config.heads} heads, "
        f"{config.vocab_size:,} pieces"
    )


if __name__ == "__main__":
    run_command("lab.exchange", main)
