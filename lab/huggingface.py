"""Pre-trained BERTs of Hugging Face's transformers: read their checkpoints, and write such ones.

    python -m lab.huggingface import FOLDER RUN     a published checkpoint becomes a run
    python -m lab.huggingface export RUN FOLDER     a run becomes a checkpoint for transformers

FOLDER holds config.json, tokenizer.json, and model.safetensors or pytorch_model.bin. RUN is a run
as pretrain.py writes it: model.py, glue.py and lab work with it. The second folder must be new.
Neither command needs transformers. Its classes, and our variants:

    BertForMaskedLM        absolute     embeddings of the hidden size (E = C)
    ElectraForMaskedLM     absolute     embeddings of another size (E != C); imported with any size
    ConvBertForMaskedLM    convbert     only imported

A run of `none` is exported like one of `absolute` whose position vectors are all 0. The other
variants cannot be exported: most have parts for which these classes have no place, and ConvBERT's
convolutions treat padding in another way there.
"""

import argparse
import json
import re
from pathlib import Path

import torch
from tokenizers import Tokenizer, processors

from model import BertConfig, BertForMaskedLM, has_head, load_run, save_run
from support.commands import UserError, import_optional, run_command
from support.files import finite, load_checkpoint, new_folder, save_checkpoint, write_text
from support.tokenizer import CLS, PAD, SEP, SPECIAL_TOKENS

# --- Names ----------------------------------------------------------------------------------------

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
    # ConvBERT, after `join_convbert`
    "mixer.depthwise": "attention.self.key_conv_attn_layer.depthwise",
    "mixer.pointwise": "attention.self.key_conv_attn_layer.pointwise",
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

# The kinds of checkpoints. A kind is the "model_type" in config.json, and the names of the
# encoder's weights begin with it.
HEADS = {"bert": BERT_HEAD, "electra": GENERATOR_HEAD, "convbert": GENERATOR_HEAD}

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


# --- Import ---------------------------------------------------------------------------------------

# The sizes in config.json, and our names for them.
SIZES = {
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
    "is_decoder": False,
    "head_ratio": 2,
}


def import_checkpoint(folder, run):
    """Write the run of a published checkpoint. Returns lines for the user."""
    values = read_json(folder / "config.json")
    kind = check_kind(values)
    tensors = each_once(with_new_names(read_tensors(folder), kind))
    join_copies(tensors, kind, values.get("tie_word_embeddings", True))
    if kind == "convbert":
        tensors = join_convbert(tensors)
    tokenizer, old_ids, notes = renumbered(read_tokenizer(folder))

    # each token needs a vector
    vectors = tensors.get(published_name(TOKEN, kind), torch.empty(0, 0))
    if max(old_ids) >= len(vectors):
        raise UserError(f"tokenizer.json has more tokens than the {len(vectors)} vectors of tokens")
    if len(old_ids) < len(vectors):
        notes.append(f"left out: {len(vectors) - len(old_ids)} vectors without a token")

    # a model of the same sizes
    variant = "convbert" if kind == "convbert" else "absolute"
    config = BertConfig(
        variant=variant,
        vocab_size=len(old_ids),
        embedding_size=vectors.shape[1],
        kernel_size=values.get("conv_kernel_size"),
        dropout=values.get("hidden_dropout_prob", 0.1),
        **{own: values[name] for name, own in SIZES.items()},
    )
    model = BertForMaskedLM(config)

    with_head, more_notes = load_published(model, tensors, kind, old_ids)
    with new_folder(run) as temporary:
        save_run(temporary, model, tokenizer)
        if not with_head:
            save_checkpoint(temporary / "model.pt", model.bert.state_dict(prefix="bert."))
    return [
        f"{run}: {variant}, from {kind}",
        *notes,
        *more_notes,
        f"next: python glue.py finetune {run} --task cola",
    ]


def first_bytes(path):
    """The first bytes of a file of a checkpoint. UserError if the file is not there."""
    if not path.is_file():
        raise UserError(
            f"{path} is not there: AutoModel and AutoTokenizer of transformers write it"
        )
    with open(path, "rb") as file:
        head = file.read(20)
    if head.startswith(b"version https://git"):
        raise UserError(f"{path} is a pointer of Git LFS: `git lfs pull` gets the file")
    return head


def read_json(path):
    """The content of a JSON file."""
    first_bytes(path)
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UserError(f"{path} is no JSON: {error}") from None


def read_tokenizer(folder):
    """The tokenizer of tokenizer.json. UserError if tokenizer_config.json contradicts it.

    transformers reads both files, and lets the second one win. So it is not known with which of the
    two readings the model was trained.
    """
    path = folder / "tokenizer.json"
    first_bytes(path)
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # the library has no class of its own for it
        raise UserError(f"{path} is no tokenizer: {error}") from None

    # what the settings say of case, accents and Chinese characters; None: nothing
    settings = {}
    if (folder / "tokenizer_config.json").exists():
        settings = read_json(folder / "tokenizer_config.json")
    lower_case = settings.get("do_lower_case")
    accents = settings.get("strip_accents")
    if accents is None:
        accents = lower_case  # as transformers reads it
    chinese = settings.get("tokenize_chinese_chars")

    # what the tokenizer does
    normalize = tokenizer.normalizer.normalize_str if tokenizer.normalizer else str
    for name, needed, text, changed in (
        ("do_lower_case", lower_case, "A", "a"),
        ("strip_accents", accents, "\u00e9", "e"),
        ("tokenize_chinese_chars", chinese, "\u6f22", " \u6f22 "),
    ):
        if needed is not None and needed != (normalize(text) == changed):
            raise UserError(
                f"{name} is {needed} in tokenizer_config.json, and tokenizer.json does not agree; "
                "AutoTokenizer of transformers writes both anew"
            )
    return tokenizer


def check_kind(values):
    """The kind of a checkpoint. UserError if our models cannot compute the same.

    values: the content of config.json. The oldest files do not name their kind: they are BERTs.
    """
    kind = values.get("model_type", "bert")
    if kind not in HEADS:
        raise UserError(f"model_type is {kind}; it must be one of {', '.join(HEADS)}")
    for name, needed in SAME.items():
        if values.get(name, needed) != needed:
            raise UserError(f"{name} is {values[name]}, and here it can only be {needed}")
    return kind


def read_tensors(folder):
    """{name: tensor} of the files with the weights. Nothing in the files is executed.

    The weights are in one file, in those that an index names, or, without an index, in all parts.
    """
    for name in ("model.safetensors", "pytorch_model.bin"):
        # which files: those that an index names, or all parts, or the one file
        file = folder / name
        index = folder / f"{name}.index.json"
        paths = sorted(folder.glob(f"{file.stem}-*{file.suffix}"))
        places = {}  # {name of a tensor: its file}
        if index.exists():
            places = read_json(index).get("weight_map", {})
            paths = [folder / part for part in sorted({*places.values()})]
        if file.exists():
            if paths:
                raise UserError(f"{folder} has {name} and parts of such a file: which are meant?")
            paths = [file]
        if not paths:
            continue

        # read them, and see that nothing is missing
        tensors = each_once(pair for path in paths for pair in read_tensor_file(path).items())
        missing = [tensor for tensor in places if tensor not in tensors]
        if missing:
            raise UserError(f"{index} names {missing[0]}, which its files do not have")
        return finite(tensors, folder)
    raise UserError(f"{folder} has no model.safetensors and no pytorch_model.bin")


def each_once(named_tensors):
    """{name: tensor} of pairs (name, tensor). UserError if a name comes twice."""
    tensors = {}
    for name, tensor in named_tensors:
        if name in tensors:
            raise UserError(f"the checkpoint has two tensors {name}")
        tensors[name] = tensor
    return tensors


def read_tensor_file(path):
    """{name: tensor} of one file."""
    head = first_bytes(path)
    if path.suffix == ".safetensors":
        library = import_optional("safetensors.torch")
        try:
            return library.load_file(path)
        except Exception as error:  # safetensors has a class of its own for a cut file
            raise UserError(f"{path} is damaged: {error}") from None

    # load_checkpoint compares the checksums of a zip file; before PyTorch 1.6, files were none
    if head.startswith(b"PK"):
        return load_checkpoint(path)
    return torch.load(path, map_location="cpu", weights_only=True)


def with_new_names(tensors, kind):
    """Yield (name, tensor): the tensors under the names that transformers gives them today.

    LayerNorm.gamma, LayerNorm.beta     ->  LayerNorm.weight, LayerNorm.bias (older files)
    encoder.layer.0. ...                ->  bert.encoder.layer.0. ... (files of an encoder)
    module.bert. ..., _orig_mod.bert.   ->  bert. ... (saved from a wrapped or a compiled model)
    """
    for name, tensor in tensors.items():
        name = re.sub(r"^(module\.|_orig_mod\.)+", "", name)
        name = name.replace("LayerNorm.gamma", "LayerNorm.weight")
        name = name.replace("LayerNorm.beta", "LayerNorm.bias")
        if name.startswith(("embeddings", "encoder.", "pooler.")):
            name = f"{kind}.{name}"
        yield name, tensor


def join_copies(tensors, kind, is_tied):
    """Take the second names of weights out: those of the output matrix, and of BERT's bias.

    Here the output matrix is that of the token embeddings. UserError if it is another one. A file
    may have one of the two names only.

    is_tied: what config.json says; False: the output matrix must be there, to be compared.
    """
    copies = {"generator_lm_head.weight": published_name(TOKEN, kind)}
    if kind == "bert":
        copies = {
            "cls.predictions.decoder.weight": published_name(TOKEN, kind),
            "cls.predictions.decoder.bias": "cls.predictions.bias",
        }
    has_matrix = next(iter(copies)) in tensors
    if published_name("transform.weight", kind) in tensors and not (is_tied or has_matrix):
        raise UserError("tie_word_embeddings is False, and there is no output matrix")
    for copy, name in copies.items():
        if copy in tensors:
            tensor = tensors.pop(copy)
            if not torch.equal(tensor, tensors.setdefault(name, tensor)):
                raise UserError(f"{copy} differs from {name}: here the two are one")


def join_convbert(tensors):
    """The tensors of a ConvBERT as our mixer has them.

    value and conv_out_layer (C/2, C) each   ->   value (C, C): the heads of both kinds
    pointwise (C/2, C, 1)                    ->   (C/2, C): a kernel of one weight
    bias (C/2, 1), of both convolutions      ->   bias of pointwise; that of depthwise is 0
    feed-forward (groups, in, out)           ->   one matrix, with zeros outside the groups
    """
    joined = dict(tensors)
    for name, tensor in tensors.items():
        if name.endswith("dense.weight") and tensor.dim() == 3:
            joined[name] = torch.block_diag(*tensor.transpose(1, 2))
        if not name.endswith(".key_conv_attn_layer.bias"):
            continue

        # the values
        mixer = name.removesuffix("key_conv_attn_layer.bias")
        for end in ("weight", "bias"):
            values = [tensors[f"{mixer}value.{end}"], joined.pop(f"{mixer}conv_out_layer.{end}")]
            joined[f"{mixer}value.{end}"] = torch.cat(values)

        # the two convolutions
        convolution = name.removesuffix("bias")
        pointwise = tensors[f"{convolution}pointwise.weight"]
        joined[f"{convolution}pointwise.weight"] = pointwise[:, :, 0]
        joined[f"{convolution}pointwise.bias"] = joined.pop(name)[:, 0]
        joined[f"{convolution}depthwise.bias"] = torch.zeros(pointwise.shape[1])
    return joined


def load_published(model, tensors, kind, old_ids):
    """Copy the published weights into a model of ours.

    Returns (whether the checkpoint has a masked-LM head, lines for the user).

    Args:
        model: a BertForMaskedLM. Its head stays as it is if the checkpoint has none.
        tensors: {published name: tensor}. What is copied is taken out.
        old_ids: the published id of each of our token ids.
    """
    notes = []
    with_head = published_name("transform.weight", kind) in tensors
    if not with_head:
        notes.append("it has no masked-LM head: fine-tuning works, filling in blanks does not")

    for name, own in model.state_dict().items():
        if not (with_head or name.startswith("bert.")):
            continue
        published = published_name(name, kind)
        if published not in tensors:
            raise UserError(f"the checkpoint has no {published}")
        tensor = tensors.pop(published)

        # the tokens in our order; vectors without a token are left out
        if name in (TOKEN, "bias"):
            tensor = tensor[old_ids]

        if tensor.shape != own.shape:
            raise UserError(
                f"{published} has the shape {list(tensor.shape)}, not {list(own.shape)}"
            )
        own.copy_(tensor)

    # what is left has no place here
    left = [name for name, tensor in tensors.items() if not is_not_needed(name, tensor)]
    of_encoder = [name for name in left if name.startswith((f"{kind}.emb", f"{kind}.enc"))]
    if of_encoder:
        raise UserError(f"the encoder has parts that have no place here: {', '.join(of_encoder)}")
    if left:
        notes.append(f"left out: {', '.join(left)}")
    return with_head, notes


def is_not_needed(name, tensor):
    """Whether a tensor only says what is so here, too: positions 0, 1, 2, ..., and types 0."""
    if name.endswith("position_ids"):
        return tensor.flatten().tolist() == list(range(tensor.numel()))
    return name.endswith("token_type_ids") and not tensor.any()


def renumbered(tokenizer):
    """A tokenizer whose special tokens have the ids 0 to 4: (tokenizer, old ids, lines to print).

    The other pieces follow in their old order. So the pieces of a text stay the same, and only
    their numbers change. Example with [PAD] = 0, a = 1, [UNK] = 2, [CLS] = 3, [SEP] = 4, [MASK] = 5
    and b = 6:

        new id     0      1      2      3      4       5  6
        piece      [PAD]  [UNK]  [CLS]  [SEP]  [MASK]  a  b
        old ids    0      2      3      4      5       1  6
    """
    ids = tokenizer.get_vocab()
    missing = [token for token in SPECIAL_TOKENS if token not in ids]
    if missing:
        raise UserError(f"tokenizer.json has no {', '.join(missing)}")

    # the special tokens, then all others: each one once
    tokens = list(dict.fromkeys([*SPECIAL_TOKENS, *sorted(ids, key=ids.get)]))
    old_ids = [ids[token] for token in tokens]

    # The content of tokenizer.json, as the library writes it today: older files lack entries. Our
    # programs cut and pad a text, and add [CLS] and [SEP], by themselves.
    state = json.loads(tokenizer.to_str())
    state |= {"truncation": None, "padding": None, "post_processor": None}

    notes = []
    if old_ids != list(range(len(tokens))):
        if state["model"]["type"] != "WordPiece":
            raise UserError(
                f"tokenizer.json: {', '.join(SPECIAL_TOKENS)} must have the ids 0 to 4, and only "
                f"WordPiece can get new ids, not {state['model']['type']}"
            )
        new_ids = {token: number for number, token in enumerate(tokens)}
        pieces = {*state["model"]["vocab"], *SPECIAL_TOKENS}
        state["model"]["vocab"] = {token: new_ids[token] for token in tokens if token in pieces}
        for entry in state["added_tokens"]:
            entry["id"] = new_ids[entry["content"]]
        state["added_tokens"].sort(key=lambda entry: entry["id"])
        before = old_ids[: len(SPECIAL_TOKENS)]
        notes.append(f"new ids: {', '.join(SPECIAL_TOKENS)} are 0 to 4, and were {before}")
    return Tokenizer.from_str(json.dumps(state)), old_ids, notes


# --- Export ---------------------------------------------------------------------------------------


def export_run(run, folder):
    """Write a checkpoint for transformers. Returns lines for the user."""
    model, tokenizer = load_run(run, needs_head=False)
    config = model.config
    if config.causal or config.variant not in ("absolute", "none"):
        raise UserError("only `absolute` and `none` can be exported, and no causal model")

    # all weights, or those of the encoder, and what transformers calls such a model
    kind = "bert" if config.embedding_size == config.hidden_size else "electra"
    weights = model.state_dict()
    architecture = f"{kind.title()}ForMaskedLM"
    if not has_head(load_checkpoint(run / "model.pt")):
        weights = model.bert.state_dict(prefix="bert.")
        architecture = f"{kind.title()}Model"

    # `none` has no positions: vectors of 0 add nothing
    weights.setdefault(POSITION, torch.zeros(config.max_length, config.embedding_size))
    tensors = {published_name(name, kind): tensor for name, tensor in weights.items()}

    safetensors = import_optional("safetensors.torch")
    with new_folder(folder) as temporary:
        # not save_file, whose file only its owner can read
        content = safetensors.save(tensors, metadata={"format": "pt"})
        (temporary / "model.safetensors").write_bytes(content)
        write_json(temporary / "config.json", published_config(config, kind, architecture))
        add_special_tokens(tokenizer)
        write_text(temporary / "tokenizer.json", tokenizer.to_str())
        write_json(temporary / "tokenizer_config.json", tokenizer_settings(config))
    return [f"{folder}: {architecture}, from {config.variant}"]


def published_config(config, kind, architecture):
    """The entries of config.json with which transformers makes the model."""
    return {
        **SAME,
        **{name: getattr(config, own) for name, own in SIZES.items()},
        "architectures": [architecture],
        "model_type": kind,
        "vocab_size": config.vocab_size,
        "embedding_size": config.embedding_size,
        "hidden_dropout_prob": config.dropout,
        "attention_probs_dropout_prob": config.dropout,
        "pad_token_id": PAD,
    }


def add_special_tokens(tokenizer):
    """Make a tokenizer add [CLS] and [SEP], as those of transformers do."""
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", CLS), ("[SEP]", SEP)],
    )


def tokenizer_settings(config):
    """The entries of tokenizer_config.json."""
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": config.max_length,
        "model_input_names": ["input_ids", "token_type_ids", "attention_mask"],
    }
    for token in SPECIAL_TOKENS:
        settings[f"{token.strip('[]').lower()}_token"] = token  # "pad_token": "[PAD]"
    return settings


def write_json(path, values):
    write_text(path, json.dumps(values, indent=2) + "\n")


# --- The command line -----------------------------------------------------------------------------

CHECKPOINT = "with config.json, tokenizer.json and the weights"

# {command: (what it does, its function, what it reads, what it writes)}
COMMANDS = {
    "import": (
        "Make a run of a BERT, ELECTRA or ConvBERT of transformers.",
        import_checkpoint,
        f"folder of the checkpoint, {CHECKPOINT} (.safetensors or .bin)",
        "new folder, of the run: model.py, glue.py and lab work with it",
    ),
    "export": (
        "Make a checkpoint of transformers of a run of `absolute` or `none`.",
        export_run,
        "folder of the run",
        f"new folder, {CHECKPOINT}",
    ),
}


def parse_arguments(arguments):
    """The command line's values; .command is "import" or "export"."""
    parser = argparse.ArgumentParser(
        description="Read and write checkpoints of the transformers library."
    )
    commands = parser.add_subparsers(dest="command", required=True)
    for name, (what, _, source, target) in COMMANDS.items():
        add = commands.add_parser(name, help=what, description=what).add_argument
        add("source", type=Path, help=source)
        add("target", type=Path, help=target)
    return parser.parse_args(arguments)


def main(arguments=None):
    """Import or export, and say what was done."""
    args = parse_arguments(arguments)
    if args.target.exists():
        raise UserError(f"{args.target} already exists; name a new folder")
    _, function, *_ = COMMANDS[args.command]
    print(*function(args.source, args.target), sep="\n")


if __name__ == "__main__":
    run_command(main)
