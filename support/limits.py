"""What cannot fit into the memory of the machine is refused before any work.

From the second one on, a training step needs at least

    12 bytes per parameter while it computes the loss: the weight and AdamW's two moments, float32;
    16 bytes per parameter while it updates the weights: the gradient in addition;

and, at the end of its forward pass, what the backward pass cannot do without. For every token, in
each layer:

    C numbers    that enter the feed-forward network, for the gradient of its first weights
    F numbers    that leave these weights, for the gradient of GELU

in the precision of the matrix products, 4 bytes or 2. And for every masked token, in float32:

    V numbers    the logits
    V numbers    their log-probabilities, for the gradient of the cross-entropy

This is a lower bound: LayerNorms, mixers, maps of attention and the text itself come on top of it,
and a step can need five times as much. So a run that is not refused may still be too large. But a
run that is refused cannot fit.

Tokens are counted without padding. A step of B pairs has B times the mean length of a pair.
"""

import os

import torch

GIB = 2**30
BYTES_TO_UPDATE = 16  # per parameter
BYTES_TO_COMPUTE = 12  # per parameter


def memory_of(device):
    """The memory in bytes that a device has in all; None if it cannot be found out."""
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory
    # Apple's GPU has the memory of the machine. Windows has no sysconf.
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return None


def check_memory(make_model, config, batch_size, lengths, masked_share, device, dtype):
    """ValueError if a training step cannot fit into the memory of a device.

    Args:
        make_model: BertForMaskedLM.
        config: its BertConfig.
        batch_size: B, pairs per step.
        lengths: (training pairs,) the tokens of each pair.
        masked_share: the share of the tokens that the model predicts.
        device, dtype: where the model is trained, and the precision of the matrix products.
    """
    memory = memory_of(device)
    if memory is None:
        return

    # On the device "meta" a model has shapes but no numbers.
    with torch.device("meta"):
        model = make_model(config)
    parameters = sum(parameter.numel() for parameter in model.parameters())

    # what a step needs at least
    to_update = BYTES_TO_UPDATE * parameters
    to_compute = BYTES_TO_COMPUTE * parameters
    pair = bytes_per_pair(config, lengths.mean(), masked_share, dtype)
    needed = max(to_update, to_compute + batch_size * pair)
    if needed <= memory:
        return

    # what would fit
    largest = int((memory - to_compute) / pair)
    advice = f"--batch_size {largest:,} is the largest that could fit"
    if to_update > memory or largest < 1:
        advice = "choose a smaller --size or --seq_len"
    raise ValueError(
        f"{config.variant} with {parameters:,} parameters and --batch_size {batch_size:,} needs "
        f"more than {gib(needed)} of memory, and there are {gib(memory)}; {advice}"
    )


def bytes_per_pair(config, tokens, masked_share, dtype):
    """What a training step keeps of a pair of so many tokens at least, in bytes."""
    layers = config.layers * (config.hidden_size + config.ffn_size) * dtype.itemsize
    head = 2 * config.vocab_size * torch.float32.itemsize
    masked = masked_share * (tokens - 3)  # [CLS] and two [SEP] are never masked
    return float(tokens * layers + masked * head)


def gib(count):
    """Bytes as text: "23.4 GiB"."""
    return f"{count / GIB:,.1f} GiB"
