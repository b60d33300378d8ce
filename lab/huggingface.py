"""Pre-trained BERTs of Hugging Face's transformers: read their checkpoints, and write such ones.

    python -m lab.huggingface import FOLDER RUN     a published checkpoint becomes a run
    python -m lab.huggingface export RUN FOLDER     a run becomes a checkpoint for transformers

FOLDER holds config.json, tokenizer.json, and model.safetensors or pytorch_model.bin. RUN is a run
as pretrain.py writes it: model.py, glue.py and lab work with it. The second folder must be new.
`import` needs transformers, which reads its own files; then the two models are compared, and their
tokenizers. What differs is refused.

The classes of transformers, and our variants:

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
import shlex
import zipfile
from pathlib import Path

import torch
from tokenizers import Tokenizer, processors

from model import BertConfig, BertForMaskedLM, has_head, load_run, save_run
from support.commands import UserError, import_optional, run_command
from support.files import (
    check_archive,
    finite,
    load_checkpoint,
    new_folder,
    save_checkpoint,
    write_text,
)
from support.tokenizer import CLS, PAD, SEP, SPECIAL_TOKENS, Encoder, ids_of
from support.weights import fill

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
    theirs, their_tokenizer, published, found = read_published(folder)

    # the tokenizer, which has to give the same tokens
    tokenizer, old_ids = renumbered(published)
    check_same_tokens(their_tokenizer, tokenizer, old_ids)

    # the model, which has to compute the same
    model = copy_of(theirs, old_ids, folder)
    difference = check_same_outputs(theirs, model, old_ids)

    # a head that is not in the file has random numbers
    has_own_head = not found["missing_keys"]
    with new_folder(run) as temporary:
        save_run(temporary, model, tokenizer)
        if not has_own_head:
            save_checkpoint(temporary / "model.pt", model.bert.state_dict(prefix="bert."))
    lines = [
        f"{run}: {model.config.variant}, from {theirs.config.model_type}; "
        f"its outputs are those of transformers (largest difference {difference:.1g})"
    ]
    if not has_own_head:
        lines.append("it has no masked-LM head: fine-tuning works, filling in blanks does not")
    if found["unexpected_keys"]:
        lines.append(f"left out: {', '.join(sorted(found['unexpected_keys']))}")
    return [*lines, f"next: python glue.py finetune {shlex.quote(str(run))} --task cola"]


def read_published(folder):
    """A checkpoint as transformers reads it, from the disk alone; nothing in it is executed.

    Returns (model, tokenizer, the Tokenizer of tokenizer.json, which weights were not found and
    which have no place).
    """
    transformers = import_optional("transformers")
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    for path in folder.glob("*.bin"):
        if zipfile.is_zipfile(path):
            check_archive(path)

    safely = {"local_files_only": True, "trust_remote_code": False}
    options = {"dtype": torch.float32, "weights_only": True, "output_loading_info": True}
    try:
        theirs, found = transformers.AutoModelForMaskedLM.from_pretrained(
            folder, **safely, **options
        )
        their_tokenizer = transformers.AutoTokenizer.from_pretrained(folder, **safely)
        tokenizer = Tokenizer.from_str((folder / "tokenizer.json").read_text(encoding="utf-8"))
    except Exception as error:  # transformers has no class of its own for it
        reason = str(error).strip().partition("\n")[0]
        raise UserError(f"{folder} is no checkpoint of transformers: {reason}") from None
    finite(theirs.state_dict(), folder)

    kind = theirs.config.model_type
    if kind not in HEADS:
        raise UserError(f"model_type is {kind}; it must be one of {', '.join(HEADS)}")

    # transformers gives random numbers to weights that are not in the file, and skips those for
    # which it has no place: neither may happen in the encoder
    lacking = [name for name in found["missing_keys"] if name.startswith(f"{kind}.")]
    skipped = [name for name in found["unexpected_keys"] if re.search("encoder|embeddings", name)]
    if lacking or skipped:
        names = ", ".join(sorted([*lacking, *skipped])[:3])
        raise UserError(f"{folder} has an encoder with other weights than transformers: {names}")
    return theirs.eval(), their_tokenizer, tokenizer, found


def copy_of(theirs, old_ids, folder):
    """A model of ours with the weights of theirs. old_ids: the published id of each token."""
    kind = theirs.config.model_type
    vectors = theirs.get_input_embeddings().weight  # (V, E)
    if max(old_ids) >= len(vectors):
        raise UserError(f"the tokenizer has more tokens than the {len(vectors)} vectors of tokens")

    # a model of the same sizes
    tensors = theirs.state_dict()
    variant = "absolute"
    if kind == "convbert":
        variant, tensors = "convbert", join_convbert(tensors)
    config = BertConfig(
        variant=variant,
        vocab_size=len(old_ids),
        embedding_size=vectors.shape[1],
        kernel_size=getattr(theirs.config, "conv_kernel_size", None),
        dropout=theirs.config.hidden_dropout_prob,
        **{own: getattr(theirs.config, name) for name, own in SIZES.items()},
    )
    model = BertForMaskedLM(config).eval()

    # its weights, those of the vocabulary in the order of our ids
    weights = {name: tensors[published_name(name, kind)] for name in model.state_dict()}
    for name in (TOKEN, "bias"):
        weights[name] = weights[name][old_ids]
    fill(model, weights, folder)
    return model


# --- Is it the same? ------------------------------------------------------------------------------
#
# A checkpoint may hold what this program does not know: another activation, another kind of
# position, a token that was added to the vocabulary. Instead of a list of such cases, what comes
# out is compared. What differs is refused, whatever the reason.


@torch.inference_mode()
def check_same_outputs(theirs, ours, old_ids):
    """The largest difference between the logits of two models. UserError if it is above rounding.

    In float64, rounding gives some 1e-14. The probes: two sequences of 3, half of the most and the
    most tokens that the model takes, of two sentences each, the second sequence padded.
    """
    theirs.double()
    ours.double()
    numbers = torch.Generator().manual_seed(0)
    differences = []
    for N in (3, ours.config.max_length // 2, ours.config.max_length):
        ids = torch.randint(len(old_ids), (2, N), generator=numbers)  # (2, N)
        types = (torch.arange(N) >= N // 2).long().expand(2, N)  # (2, N)
        mask = torch.ones(2, N, dtype=torch.bool)
        # their convolutions see the vectors of padding, and ours see 0: docs/text.md says so
        if ours.config.variant != "convbert":
            mask[1, N - N // 3 :] = False

        expected = theirs(torch.tensor(old_ids)[ids], mask.long(), types).logits[..., old_ids]
        found = ours(ids, mask, types)  # (2, N, V)
        differences.append((found - expected)[mask].abs().max())
    ours.float()
    largest = torch.stack(differences).max()
    if not largest <= 1e-9:
        raise UserError(
            f"here this model would compute something else (by {largest:.2g}): has it another "
            "activation, LayerNorm eps, attention, or an output matrix of its own?"
        )
    return largest


PROBES = ("The DOG's caf\u00e9, it isn't 12.5 \u6f22\u5b57 ", "the cats were tired.")


def check_same_tokens(theirs, ours, old_ids):
    """UserError if a text has other tokens here than in transformers.

    Ours is that of tokenizer.json. transformers also reads tokenizer_config.json, which may
    contradict it, for example in do_lower_case.

    Compared are texts with capitals, accents, numbers and Chinese, a pair of them, and each token
    that was added to the vocabulary: alone, in other letters, inside a word.
    """
    texts = list(PROBES)
    for token in theirs.get_added_vocab():
        if token not in SPECIAL_TOKENS:
            texts.append(f"the {token} dog, {token.upper()} {token.title()}, the{token}dogs")

    # glue.py reads a text with an Encoder, and model.py with the tokenizer itself
    encode = Encoder(ours)
    first, second = map(encode, PROBES)
    readings = [(PROBES, [CLS, *first, SEP, *second, SEP], theirs(*PROBES))]
    for text in texts:
        expected = theirs(text, add_special_tokens=False)
        readings += [(text, encode(text), expected), (text, ids_of(ours, text), expected)]
    for text, ids, expected in readings:
        if expected["input_ids"] != [old_ids[i] for i in ids]:
            raise UserError(f"tokenizer.json and transformers give other tokens for {text!r}")


# --- Other names and other ids --------------------------------------------------------------------


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

    # Other special tokens, such as a mark of names, stand in texts: Encoder must not split them.
    for entry in state["added_tokens"]:
        entry["special"] = entry["content"] in SPECIAL_TOKENS
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

COMMANDS = {"import": import_checkpoint, "export": export_run}


def parse_arguments(arguments):
    """The command line's values."""
    parser = argparse.ArgumentParser(
        description="Make a run of a BERT, ELECTRA or ConvBERT of transformers (import), or a "
        "checkpoint of transformers of a run of `absolute` or `none` (export)."
    )
    parser.add_argument("command", choices=COMMANDS)
    parser.add_argument("source", type=Path, help="folder of the checkpoint, or of the run")
    parser.add_argument("target", type=Path, help="new folder, of the run, or of the checkpoint")
    return parser.parse_args(arguments)


def main(arguments=None):
    """Import or export, and say what was done."""
    args = parse_arguments(arguments)
    if args.target.exists():
        raise UserError(f"{args.target} already exists; name a new folder")
    print(*COMMANDS[args.command](args.source, args.target), sep="\n")


if __name__ == "__main__":
    run_command(main)
