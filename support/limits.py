"""The memory of the machine: what cannot fit into it is refused before any work.

A step computes its batch in parts: all rows at once, or with --micro_batch at most so many rows at
a time. From the second step on, it needs at least

    12 bytes per parameter while it computes the loss: the weight and AdamW's two moments, float32;
    16 bytes per parameter while it updates the weights: the gradient in addition. With several
       parts or several processes the gradient is there all the time;

and, at the end of the forward pass of a part, what the backward pass cannot do without. For every
token of the part, in each layer:

    C numbers    the input of the first linear layer of the feed-forward network, for the gradient
                 of its weights
    F numbers    the output of this layer, for the gradient of GELU

in the precision of the matrix products, 4 bytes or 2. And for every masked token, in float32:

    V numbers    the logits, which are still there
    V numbers    their log-probabilities, for the gradient of the cross-entropy

This is a lower bound: LayerNorms, mixers, attention maps and the text itself are not counted, and a
step can need five times as much. So a run that is refused cannot fit, but a run that is not refused
may still be too large. `python pretrain.py --dry_run` measures what a step really needs.

Tokens are counted without padding. A step of B pairs has B times the mean length of a pair. The
batch itself needs 24 bytes per token: its ids, the masked ids and the labels, 8 bytes each.
"""

import os
from pathlib import Path

import torch

from support.commands import UserError
from support.distributed import local_count, rows_at_once
from support.memory import process_memory, reset_peak

MIB = 2**20
GIB = 2**30
BYTES_TO_UPDATE = 16  # per parameter
BYTES_TO_COMPUTE = 12  # per parameter
BYTES_OF_IDS = 24  # per token of a batch
CONTAINER_LIMIT = Path("/sys/fs/cgroup/memory.max")  # bytes, or "max"; only Linux has it


def memory_of(device):
    """The memory of a device in bytes, in a container at most its limit; None if unknown."""
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory
    # Apple's GPU has the memory of the machine. Windows has no sysconf.
    try:
        memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return None

    # a container on Linux may have less; without a limit, the file says "max"
    try:
        return min(memory, int(CONTAINER_LIMIT.read_text()))
    except (OSError, ValueError):
        return memory


def memory_of_process(device):
    """The memory in bytes that a process can have; None if it cannot be found out.

    Each process has its own GPU. On a CPU, the processes share the memory of the machine.
    """
    memory = memory_of(device)
    if device.type == "cpu" and memory is not None:
        memory //= local_count()
    return memory


def free_memory(device):
    """The memory in bytes that this process could use on a device, with what it uses now.

    None if it cannot be found out. On a CPU other programs may need some of it.
    """
    if device.type != "cuda":
        return memory_of_process(device)
    free, _ = torch.cuda.mem_get_info(device)
    return free + torch.cuda.memory_reserved(device)


def peak_memory(device, run):
    """The most memory in bytes that this process uses while it calls run(); None if unknown.

    On CUDA: the memory of its tensors. On Linux: all that the process has in the memory of the
    machine, its code and the text included.
    """
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        run()
        return torch.cuda.max_memory_allocated(device)

    is_reset = reset_peak()
    run()
    if not is_reset:
        return None
    return process_memory("VmHWM")


def measured_line(peaks):
    """The straight line through the measurements with the fewest and the most pairs at a time.

    Args:
        peaks: {pairs at a time: bytes}.
    Returns:
        (bytes without any pair, bytes per pair)
    """
    few = min(peaks)
    many = max(peaks)
    per_pair = 0.0
    if few < many:
        per_pair = (peaks[many] - peaks[few]) / (many - few)
    return peaks[many] - many * per_pair, per_pair


def memory_for(pairs, peaks):
    """The bytes that so many pairs at a time need, by the line through the measurements."""
    fixed, per_pair = measured_line(peaks)
    return fixed + pairs * per_pair


def memory_line(peaks, own_pairs, memory):
    """What a dry run says about the memory.

    Args:
        peaks: {pairs at a time: bytes}, measured.
        own_pairs: the pairs of a step that this process computes.
        memory: bytes that there are.
    """
    measured = []
    for pairs, peak in peaks.items():
        unit = "pairs"
        if pairs == 1:
            unit = "pair"
        measured.append(f"{mib(peak)} with {pairs:,} {unit} at a time")
    text = f"a step took {', '.join(measured)}; there are {mib(memory)}"

    # A single measurement gives no line.
    if len(peaks) == 1 and own_pairs not in peaks:
        return f"{text}; measure with a larger --micro_batch how many pairs would fit"

    advice = f"all {own_pairs:,} pairs of a step fit at once"
    if memory_for(own_pairs, peaks) > memory:
        fixed, per_pair = measured_line(peaks)
        fits = 0
        if per_pair > 0:
            fits = int((memory - fixed) / per_pair)
        advice = f"--micro_batch {fits:,} would fit"
        if fits < 1:
            advice = "not even a single pair would fit: choose a smaller --size or --seq_len"
    return f"{text}, so by linear extrapolation {advice}"


def check_memory(
    make_model, config, batch_size, lengths, masked_share, device, dtype, micro_batch=None
):
    """UserError if a training step cannot fit into the memory of a device.

    Args:
        make_model: the class BertForMaskedLM. It is an argument, because model.py imports support/.
        config: its BertConfig.
        batch_size: B, pairs per step.
        lengths: (training pairs,) the tokens of each pair.
        masked_share: the share of the tokens that the model predicts.
        device, dtype: where the model is trained, and the precision of the matrix products.
        micro_batch: pairs that are computed at once, at most; None: all pairs of this process.
    """
    memory = memory_of_process(device)
    if memory is None:
        return

    # On the device "meta" a model has shapes but no numbers.
    with torch.device("meta"):
        model = make_model(config)
    parameters = sum(parameter.numel() for parameter in model.parameters())

    # what a step needs at least: for the parameters, for the ids of the batch, for each pair
    pairs = rows_at_once(batch_size, micro_batch)
    to_update = BYTES_TO_UPDATE * parameters
    to_compute = BYTES_TO_COMPUTE * parameters
    if pairs < batch_size:
        to_compute = to_update
    id_bytes = BYTES_OF_IDS * float(lengths.mean())
    pair_bytes = bytes_per_pair(config, lengths.mean(), masked_share, dtype)
    needed = max(to_update, to_compute + batch_size * id_bytes + pairs * pair_bytes)
    if needed <= memory:
        return

    advice = advice_on_pairs(memory - to_update, batch_size, id_bytes, pair_bytes)
    raise UserError(
        f"{config.variant} with {parameters:,} parameters and --batch_size {batch_size:,}, "
        f"{pairs:,} pairs at a time, needs more than {gib(needed)} of memory, and there are "
        f"{gib(memory)}; {advice}"
    )


def advice_on_pairs(room, batch_size, id_bytes, pair_bytes):
    """What a user can do if a step does not fit: fewer pairs at a time, in a batch, or neither.

    Args:
        room: bytes for the pairs: the memory without the parameters, gradients and so on.
        batch_size: pairs per step.
        id_bytes: of the token ids of a pair; those of all pairs are in memory.
        pair_bytes: of a pair that is being computed.
    """
    # the whole batch, but fewer pairs at a time
    micro_batch = int((room - batch_size * id_bytes) / pair_bytes)
    if micro_batch >= 1:
        return f"--micro_batch {micro_batch:,} is the largest that could fit"

    # a smaller batch, one pair at a time
    batch_size = int((room - pair_bytes) / id_bytes)
    if batch_size >= 1:
        return f"--batch_size {batch_size:,} is the largest that could fit, with --micro_batch 1"

    # not even a single pair
    return "choose a smaller --size or --seq_len"


def bytes_per_pair(config, tokens, masked_share, dtype):
    """What a training step keeps of a pair of so many tokens at least, in bytes."""
    layers = config.layers * (config.hidden_size + config.ffn_size) * dtype.itemsize
    head = 2 * config.vocab_size * torch.float32.itemsize
    masked = masked_share * (tokens - 3)  # [CLS] and two [SEP] are never masked
    return float(tokens * layers + masked * head)


def mib(count):
    """Bytes as text: "512 MiB"."""
    return f"{count / MIB:,.0f} MiB"


def gib(count):
    """Bytes as text: "23.4 GiB"."""
    return f"{count / GIB:,.1f} GiB"
