"""Pre-trained BERTs of Hugging Face's transformers: read their checkpoints, and write such ones.

    python -m lab.huggingface import FOLDER RUN     a published checkpoint becomes a run
    python -m lab.huggingface export RUN FOLDER     a run becomes a checkpoint for transformers

FOLDER holds config.json, tokenizer.json, and model.safetensors or pytorch_model.bin. RUN is a run
as pretrain.py writes it: model.py, glue.py and lab work with it. The second folder must be new.
`import` needs transformers, which reads its own files. Its classes, and our variants:

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
from support.files import load_checkpoint, new_folder, save_checkpoint, write_text
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


def import_checkpoint(folder, run):
    """Write the run of a published checkpoint. Returns lines for the user."""
    transformers = import_optional("transformers")
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    try:
        theirs, found = transformers.AutoModelForMaskedLM.from_pretrained(
            folder, dtype=torch.float32, output_loading_info=True, local_files_only=True
        )
        published = Tokenizer.from_file(str(folder / "tokenizer.json"))
    except Exception as error:  # transformers has no class of its own for it
        raise UserError(f"{folder} is no checkpoint of transformers: {error}") from None
    kind = theirs.config.model_type
    if kind not in HEADS:
        raise UserError(f"model_type is {kind}; it must be one of {', '.join(HEADS)}")
    tokenizer, old_ids = renumbered(published)

    # a model of the same sizes, and its weights
    tensors = theirs.state_dict()
    variant = "absolute"
    if kind == "convbert":
        variant, tensors = "convbert", join_convbert(tensors)
    config = BertConfig(
        variant=variant,
        vocab_size=len(old_ids),
        embedding_size=theirs.get_input_embeddings().embedding_dim,
        kernel_size=getattr(theirs.config, "conv_kernel_size", None),
        dropout=theirs.config.hidden_dropout_prob,
        **{own: getattr(theirs.config, name) for name, own in SIZES.items()},
    )
    model = BertForMaskedLM(config).eval()
    for name, own in model.state_dict().items():
        tensor = tensors.get(published_name(name, kind))
        if name in (TOKEN, "bias"):
            tensor = tensor[old_ids]
        if tensor is None or tensor.shape != own.shape:
            raise UserError(f"{published_name(name, kind)} does not fit {name} {list(own.shape)}")
        own.copy_(tensor)
    check_same(theirs.eval(), model, old_ids)

    has_own_head = published_name("transform.weight", kind) not in found["missing_keys"]
    with new_folder(run) as temporary:
        save_run(temporary, model, tokenizer)
        if not has_own_head:
            save_checkpoint(temporary / "model.pt", model.bert.state_dict(prefix="bert."))
    note = "" if has_own_head else "; it has no masked-LM head: it cannot fill in blanks"
    return [
        f"{run}: {variant}, from {kind}{note}",
        f"next: python glue.py finetune {run} --task cola",
    ]


@torch.inference_mode()
def check_same(theirs, ours, old_ids):
    """UserError if the two models do not compute the same: then ours lacks something of theirs."""
    numbers = torch.Generator().manual_seed(0)
    ids = torch.randint(len(old_ids), (2, min(16, ours.config.max_length)), generator=numbers)
    types = torch.arange(ids.shape[1]).expand_as(ids) // 8 % 2
    expected = theirs.double()(torch.tensor(old_ids)[ids], token_type_ids=types).logits
    difference = (ours.double()(ids, token_type_ids=types) - expected[..., old_ids]).abs().max()
    ours.float()
    if not difference < 1e-6:
        raise UserError(f"here this model would compute something else (by {difference:.2g})")


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


def renumbered(tokenizer):
    """A tokenizer whose special tokens have the ids 0 to 4: (tokenizer, old ids).

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
    return Tokenizer.from_str(json.dumps(state)), old_ids


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
