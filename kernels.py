"""The hot loop: attention with relative positions, at about the price of attention without.

    a_ij = q_i . k_j / sqrt(d)  [+ rows[i, clip(j - i)]]  [+ key_rows[j, clip(i - j)]]
    z_i  = sum_j softmax_j(a_ij) (v_j  [+ relative_value[clip(j - i)]])

A relative row holds what query i adds to the score of a token at each relative position r = j - i:

    rows[b, h, i, r + k],   r = -k .. k,   K = 2k + 1

and the map of scores reads it off at every key j:

    scores[b, h, i, j] = rows[b, h, i, clip(j - i, -k, k) + k]        window "clip"  (Shaw et al. 2018; the default)
    scores[b, h, i, j] = rows[b, h, i, j - i + k] if |j - i| <= k     window "zero"  (0 beyond the window)

Three ways of computing that map stand here, each tested against the one before and the first against plain loops:

    gather_scores     the definition, in one index
    relative_scores   no index: the rows shifted into place; autograd finds the backward
    band_scores       the same forward, and a backward that reads diagonals and sums edges. Every model runs this one

and `attention` runs the last of them whole or in blocks of queries (see `choose_path`).

    python kernels.py          time, memory and error of all of them, for 64 to 4096 tokens
"""

import argparse
import contextlib
import ctypes
import functools
import math
import statistics
import sys
import time

import torch
from torch.nn import functional as F

WINDOWS = ("clip", "zero")
LONGEST_WHOLE = 1024  # tokens; a longer sequence goes through attention in blocks
BLOCK = 128  # queries in a block
BAND = 32  # queries whose kernels are applied as one matrix
STRIP = 64  # rows of a map that are shifted at a time: their copy is still in the cache when it is read


# --- The map of scores, three times -----------------------------------------------------------------------------------


def gather_scores(rows, length, window="clip", first=0):
    """The definition above, by an index of the size of the map. Same arguments and result as `relative_scores`.

    Its backward adds every score's gradient into one of K slots, through an index: slow, and on CUDA not deterministic.
    """
    k, n = rows.shape[-1] // 2, rows.shape[-2]
    i, j = torch.arange(first, first + n, device=rows.device), torch.arange(length, device=rows.device)
    r = j[None, :] - i[:, None]  # (n, N): j - i
    scores = rows.gather(-1, (r.clamp(-k, k) + k).expand(*rows.shape[:-1], length))  # (B, H, n, N)
    return scores if window == "clip" else scores.masked_fill(r.abs() > k, 0)


def spare_columns(n, K, N, first):
    """How many relative positions beyond k are met on the left and on the right; below 0: weights that meet no key.

    The farthest to the left is key 0 from the last query, the farthest to the right key N - 1 from the first.
    """
    return first + n - 1 - K // 2, N - 1 - first - K // 2


def relative_scores(rows, length, window="clip", first=0):
    """Scores of every query-key pair from relative rows, without an index.

    Each row is continued to both sides by its end weight ("clip") or by 0 ("zero") until it covers every r that any of
    the queries meets. A query needs the stretch of N weights that starts one place earlier than its predecessor's, so
    the flattened rows read again with a width one smaller are already in place: a view.

    Args:
        rows: (B, H, n, K) weights, K odd; leading dimensions may be any.
        length: N, the number of keys.
        window: "clip" or "zero", what lies beyond k positions.
        first: the position of the first row's query; the n queries are first .. first + n - 1, all N by default.
    Returns:
        (B, H, n, N) scores, [b, h, i, j] for query first + i and key j.
    """
    N, n, K = length, *rows.shape[-2:]
    left, right = spare_columns(n, K, N, first)
    ends = rows[..., :1], rows[..., -1:]  # (B, H, n, 1) each
    if window == "zero":
        ends = [torch.zeros_like(end) for end in ends]
    wide = torch.cat([
        ends[0].expand(*rows.shape[:-1], max(0, left)),
        rows[..., max(0, -left):K - max(0, -right)],
        ends[1].expand(*rows.shape[:-1], max(0, right) + 1),  # one more than is met, to make the width N + n
    ], dim=-1)  # (B, H, n, N + n): column c holds r = c - (first + n - 1)
    return wide.flatten(-2)[..., n - 1:].unfold(-1, N, N + n - 1)[..., :n, :]  # (i, j) at n - 1 + i (N + n - 1) + j


class BandScores(torch.autograd.Function):
    """`relative_scores`, added to `scores` in place where they are given, and a backward by diagonals.

    The gradient of rows[i, r + k] is that of the score at j = i + r: the forward's adjoint, `sum_bands`.
    """

    @staticmethod
    def forward(ctx, rows, length, window, first, scores):
        ctx.settings = rows.shape[-1], window, first
        if scores is None:
            return relative_scores(rows, length, window, first)
        if torch.compiler.is_compiling():  # a compiler makes one loop of the map and the sum by itself
            return scores + relative_scores(rows, length, window, first)
        ctx.mark_dirty(scores)
        for i, (block, some) in enumerate(zip(scores.split(STRIP, dim=-2), rows.split(STRIP, dim=-2))):
            block += relative_scores(some, length, window, first + i * STRIP)
        return scores

    @staticmethod
    def backward(ctx, gradient):
        return sum_bands(gradient, *ctx.settings), None, None, None, gradient if ctx.needs_input_grad[4] else None


class BandSums(torch.autograd.Function):
    """`sum_bands`, whose adjoint is `relative_scores` in turn."""

    @staticmethod
    def forward(ctx, scores, K, window, first):
        ctx.settings = scores.shape[-1], window, first
        return sum_bands(scores, K, window, first)

    @staticmethod
    def backward(ctx, gradient):
        return relative_scores(gradient, *ctx.settings), None, None, None


def sum_bands(scores, K, window="clip", first=0):
    """sums[i, r + k] = sum of scores[i, j] over the keys j with clip(j - i) = r: (B, H, n, N) to (B, H, n, K).

    One view of a map has its diagonals as columns. Those within the window are the result; under "clip" those beyond it
    are summed into the ends. No index, no scatter, no atomic addition: the same bits every time.
    """
    step = scores.shape[-2] if torch.compiler.is_compiling() else STRIP  # a compiler does without the padded copy
    return torch.cat([sum_strip(strip, K, window, first + i * step)
                      for i, strip in enumerate(scores.split(step, dim=-2))], dim=-2)


def sum_strip(scores, K, window, first):
    """`sum_bands` of a few queries at once."""
    n, N = scores.shape[-2:]
    left, right = spare_columns(n, K, N, first)
    padded = F.pad(scores, (n - 1, n - 1))  # (B, H, n, N + 2n - 2)
    diagonals = padded.flatten(-2).unfold(-1, N + n - 1, N + 2 * n - 1)  # (B, H, n, N + n - 1), columns as of `wide`
    end = N + n - 1 - max(0, right)
    sums = F.pad(diagonals[..., max(0, left):end], (max(0, -left), max(0, -right)))  # (B, H, n, K), a copy
    if window == "clip":
        sums[..., 0] += diagonals[..., :max(0, left)].sum(-1)
        sums[..., -1] += diagonals[..., end:].sum(-1)
    return sums


def band_scores(rows, length, window="clip", first=0):
    """What every model runs. Same arguments and result as `relative_scores`."""
    return BandScores.apply(rows, length, window, first, None)


def band_sums(scores, K, window="clip", first=0):
    """`sum_bands`, with a gradient."""
    return BandSums.apply(scores, K, window, first)


def key_scores(rows, queries, window, first, scores_of):
    """Key j's row read by i - j, at the queries first .. first + n - 1: (B, H, N, K) to (B, H, n, N).

    Only keys within k of these queries need the map, which is transposed; to all others every query is beyond the
    window on the same side.
    """
    N, k = rows.shape[-2], rows.shape[-1] // 2
    start, stop = max(0, first - k), min(N, first + queries + k)
    before, after = rows[..., :start, -1:], rows[..., stop:, :1]  # keys whose queries are all to the right, to the left
    if window == "zero":
        before, after = torch.zeros_like(before), torch.zeros_like(after)
    near = scores_of(rows[..., start:stop, :], queries, window, start - first)  # (B, H, near keys, n)
    return torch.cat([x.expand(*x.shape[:-1], queries) for x in (before, near, after)], dim=-2).transpose(-1, -2)


def convolve(rows, value):
    """z_i = sum_r rows[i, r + k] v_(i+r), a kernel a query: (B, H, N, K) and (B, H, N, d) to (B, H, N, d).

    The map of scores with a "zero" window times the values, n queries with the n + 2k keys in their reach at a time: a
    band of matrices along the diagonal, whose size and cost grow with N and not with its square.
    """
    N, k, n = value.shape[-2], rows.shape[-1] // 2, min(value.shape[-2], BAND)
    spare = -N % n
    rows = F.pad(rows.to(value.dtype), (0, 0, 0, spare)).unflatten(-2, (-1, n))  # (B, H, N, K) -> (B, H, N/n, n, K)
    near = F.pad(value, (0, 0, k, k + spare)).unfold(-2, n + 2 * k, n)  # (B, H, N, d) -> (B, H, N/n, d, n + 2k)
    band = band_scores(rows, n + 2 * k, "zero", k)  # (B, H, N/n, n, n + 2k); a block's first query stands at key k
    z = band @ near.transpose(-1, -2)  # (B, H, N/n, n, d)
    return z.flatten(-3, -2)[..., :N, :]  # (B, H, N, d)


# --- Attention --------------------------------------------------------------------------------------------------------


def minus_infinity(padding_mask, dtype):
    """(B, 1, 1, N) to add to scores: 0 at real tokens, at padding what no score comes near. A sum costs less than a
    masked fill, whose gradient is one more copy of the map; half of the lowest number, lest a sum overflow."""
    zero = torch.zeros_like(padding_mask, dtype=dtype)
    return zero.masked_fill(~padding_mask, torch.finfo(dtype).min / 2)[:, None, None, :]


def whole_attention(query, key, value, padding_mask, rows=None, key_rows=None, relative_value=None, window="clip",
                    dropout=0.0, first=0, scores_of=band_scores, generator=None):
    """The equations at the top, term by term, for the n queries from position `first` on. Else as `attention`."""
    n, N = query.shape[-2], key.shape[-2]
    scores = (query / math.sqrt(query.shape[-1])) @ key.transpose(-1, -2)  # (B, H, n, N)
    if rows is not None and scores_of is band_scores:
        scores = BandScores.apply(rows.to(scores.dtype), N, window, first, scores)
    elif rows is not None:
        scores = scores + scores_of(rows.to(scores.dtype), N, window, first)
    if key_rows is not None:
        scores = scores + key_scores(key_rows.to(scores.dtype), n, window, first, scores_of)
    scores = scores + minus_infinity(padding_mask, scores.dtype)
    p = scores.softmax(dim=-1)
    if generator is None:
        p = F.dropout(p, dropout)
    else:  # the same, from random numbers of its own
        p = p * torch.empty_like(p).bernoulli_(1 - dropout, generator=generator).div_(1 - dropout)
    z = p.to(value.dtype) @ value  # (B, H, n, d)
    if relative_value is not None:  # sum_j p_ij s_(j-i) = sum_r (sum of p_ij where j - i = r) s_r
        sums = band_sums(p, relative_value.shape[-1], window, first)  # (B, H, n, K)
        z = z + sums.to(value.dtype) @ relative_value.to(value.dtype).t()  # (K, d) -> (B, H, n, d)
    return z


class BlockwiseAttention(torch.autograd.Function):
    """`whole_attention` BLOCK queries at a time; the backward computes each block again, with the same dropout.

    No more than BLOCK rows of the map are in memory at once. Results and gradients go into tensors made beforehand: if
    each block left some behind, the allocator's free memory would be in pieces, none large enough for the next block.
    """

    @staticmethod
    def forward(ctx, query, key, value, padding_mask, rows, key_rows, relative_value, window, dropout):
        query, key, value = (x.contiguous() for x in (query, key, value))  # else every block would copy
        device = query.device.type
        ctx.save_for_backward(padding_mask, query, key, value, rows, key_rows, relative_value)
        ctx.settings = dict(window=window, dropout=dropout, seed=int(torch.randint(2**62, ())))  # drawn on the CPU
        ctx.precision = dict(device_type=device, dtype=torch.get_autocast_dtype(device),
                             enabled=torch.is_autocast_enabled(device))
        z = torch.empty_like(value)
        for first in range(0, query.shape[-2], BLOCK):
            block = slice(first, first + BLOCK)
            q, r = (None if x is None else x[..., block, :] for x in (query, rows))
            z[..., block, :] = attend_block(q, key, value, padding_mask, r, key_rows, relative_value, first,
                                            **ctx.settings)
        return z

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, gradient):
        padding_mask, *saved = ctx.saved_tensors
        names = ("query", "key", "value", "rows", "key_rows", "relative_value")
        given = {name: x for name, x in zip(names, saved) if x is not None}
        sums = {name: torch.zeros_like(x, dtype=torch.promote_types(x.dtype, torch.float32))  # bf16 loses small parts
                for name, x in given.items()}

        for first in range(0, gradient.shape[-2], BLOCK):

            def of_block(name, x):  # every block meets all keys and values, and its own queries
                return x[..., first:first + BLOCK, :] if name in ("query", "rows") else x

            inputs = {name: of_block(name, x).detach().requires_grad_() for name, x in given.items()}
            with torch.enable_grad(), torch.autocast(**ctx.precision):
                z = attend_block(padding_mask=padding_mask, first=first, **ctx.settings, **inputs)
            gradients = torch.autograd.grad(z, tuple(inputs.values()), of_block("query", gradient))
            for name, part in zip(inputs, gradients):
                of_block(name, sums[name]).add_(part)
        query, key, value, *relative = (sums[name].to(given[name].dtype) if name in given else None for name in names)
        return query, key, value, None, *relative, None, None


def attend_block(query, key, value, padding_mask, rows=None, key_rows=None, relative_value=None, first=0, *,
                 window, dropout, seed):
    """whole_attention for one block of queries, its dropout drawn from `seed` and the block's place alone."""
    generator = torch.Generator(query.device).manual_seed(seed + first) if dropout else None
    return whole_attention(query, key, value, padding_mask, rows, key_rows, relative_value, window, dropout, first,
                           generator=generator)


@torch.compiler.disable  # a compiler would unroll the loop over blocks
def blockwise_attention(query, key, value, padding_mask, rows=None, key_rows=None, relative_value=None, window="clip",
                        dropout=0.0):
    """`whole_attention` with memory that grows with N, not with its square. Arguments and result as of `attention`."""
    return BlockwiseAttention.apply(query, key, value, padding_mask, rows, key_rows, relative_value, window, dropout)


@functools.cache
def compiled_attention(device):
    """`whole_attention` through torch.compile, after a trial; itself, said once, where the machine cannot compile.

    Each shape is compiled by itself. A model does not call this: compiled as a whole (pretrain.py --compile), it has
    `whole_attention` compiled with everything around it.
    """
    compiled = torch.compile(whole_attention, dynamic=False)
    try:
        x = torch.zeros(2, 2, 6, 8, device=device, requires_grad=True)
        mask = torch.ones(2, 6, dtype=torch.bool, device=device)
        compiled(x, x, x, mask, x[..., :5]).sum().backward()
    except Exception as error:  # no compiler, an unsupported GPU: whatever it is, the plain code computes the same
        print(f"torch.compile does not work here ({type(error).__name__}); attention runs uncompiled")
        return whole_attention
    return compiled


def choose_path(length):
    """(function, why): what `attention` runs for sequences of this length. Nothing else decides."""
    if length > LONGEST_WHOLE:
        return blockwise_attention, f"in blocks, {length} tokens being more than {LONGEST_WHOLE}: memory linear in N"
    return whole_attention, f"whole, {length} tokens being no more than {LONGEST_WHOLE}"


def attention(query, key, value, padding_mask, rows=None, key_rows=None, relative_value=None, window="clip",
              dropout=0.0):
    """Attention with relative positions, the equations at the top.

    Args:
        query, key, value: (B, H, N, d).
        padding_mask: (B, N) bool, True where a token is real; the others get no attention.
        rows, key_rows: (B, H, N, K) or (H, N, K), K odd, or None: what a query adds to the scores of the keys around
            it, and a key to those of the queries around it.
        relative_value: (d, K) or None: what is added to the value of a key at each relative position.
        window: "clip" or "zero", what lies beyond k positions.
        dropout: probability of setting a weight of the softmax to 0.
    Returns:
        z (B, H, N, d), of value's dtype.
    """
    run, _ = choose_path(query.shape[-2])
    return run(query, key, value, padding_mask, rows, key_rows, relative_value, window, dropout)


# --- What the machine can do ------------------------------------------------------------------------------------------


def choose_device(device=None, dtype=None):
    """(torch.device, torch.dtype, reason): what to run on, and why. "auto" or None choose.

    bf16 where the hardware multiplies it (CUDA from compute capability 8.0 on, CPUs with AVX512-BF16 or AMX), float32
    everywhere else. Raises ValueError where the machine lacks what is asked for.
    """
    available = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    chosen = next(name for name in available if available[name]) if device in (None, "auto") else device
    try:
        kind, index = torch.device(chosen).type, torch.device(chosen).index or 0
        if not available.get(kind) or index >= (torch.cuda.device_count() if kind == "cuda" else 1):
            raise ValueError(f"this machine has no device {chosen!r} that torch can use")
    except RuntimeError:
        raise ValueError(f"unknown device {chosen!r}; the devices are: {', '.join(available)}") from None
    why = "asked for" if device == chosen else f"the best of: {', '.join(n for n in available if available[n])}"
    chosen = torch.device(chosen)
    precision = "asked for"
    if dtype in (None, "auto"):
        fast = has_bf16(chosen)
        dtype, precision = ("bf16", "multiplied by its hardware") if fast else ("fp32", "it has no fast bf16")
    name = torch.cuda.get_device_name(chosen) if chosen.type == "cuda" else f"threads: {torch.get_num_threads()}"
    reason = f"device {chosen} ({why}; {name}), precision {dtype} ({precision})"
    return chosen, {"fp32": torch.float32, "bf16": torch.bfloat16}[dtype], reason


def has_bf16(device):
    """Whether the device has instructions that multiply bf16, so that it is about twice as fast as float32."""
    if device.type == "cuda":
        return torch.cuda.get_device_capability(device) >= (8, 0)
    found = getattr(torch.cpu, "get_capabilities", dict)()  # an older torch has no such function: float32
    return device.type == "cpu" and any(found.get(name) for name in ("avx512_bf16", "amx_bf16"))


def autocast(device, dtype):
    """The context in which a forward pass runs: bf16 matrix products over float32 weights, or plain float32."""
    return torch.autocast(device.type, dtype) if dtype != torch.float32 else contextlib.nullcontext()


def keep_freed_memory():
    """Have glibc keep what a step frees for the next one, which takes 10 to 20 % off a step on a CPU.

    By default it gives large blocks back to the system, and gets them again page by page, cleared.
    """
    with contextlib.suppress(OSError, AttributeError, TypeError):  # another system, another library
        libc = ctypes.CDLL(None)
        if libc.mallopt(-3, 2 ** 31 - 1):  # M_MMAP_THRESHOLD; an older glibc refuses, and then is better left alone
            libc.mallopt(-1, 2 ** 31 - 1)  # M_TRIM_THRESHOLD


# --- The benchmark ----------------------------------------------------------------------------------------------------


def fused_attention(query, key, value, padding_mask, rows):
    """The same through torch's fused attention, which takes the map of scores as a bias."""
    bias = band_scores(rows, key.shape[-2]) + minus_infinity(padding_mask, rows.dtype)  # (B, H, N, N)
    return F.scaled_dot_product_attention(query, key, value, bias)


def contenders(device, compiled):
    """{name: function of (query, key, value, padding_mask, rows)}; the first is what the others are compared with."""
    functions = {
        "plain": lambda query, key, value, padding_mask, rows: whole_attention(query, key, value, padding_mask),
        "gather": functools.partial(whole_attention, scores_of=gather_scores),
        "reference": functools.partial(whole_attention, scores_of=relative_scores),
        "band": whole_attention,
        "blocks": blockwise_attention,
        "fused": fused_attention,
    }
    return functions | ({"compiled": compiled_attention(device)} if compiled else {})


def forward_backward(function, inputs, upstream):
    """(z, gradient of each input that has one) of sum(z * upstream)."""
    half = upstream.dtype in (torch.bfloat16, torch.float16)
    with torch.autocast(upstream.device.type, upstream.dtype if half else None, enabled=half):
        z = function(*inputs)
    wanted = [x for x in inputs if x.requires_grad]
    return z.detach(), *torch.autograd.grad(z, wanted, upstream, allow_unused=True)


def make_inputs(B, N, device, dtype, H=4, d=64, K=17):
    """((query, key, value, padding_mask, rows), upstream gradient) of a BERT-small layer."""
    generator = torch.Generator().manual_seed(N)
    query, key, value, upstream = torch.randn(4, B, H, N, d, generator=generator).to(device, dtype)
    rows = torch.randn(B, H, N, K, generator=generator).to(device, dtype)
    mask = (torch.arange(N) < N - N // 8).expand(B, N).to(device)  # an eighth is padding
    return (*(x.requires_grad_() for x in (query, key, value)), mask, rows.requires_grad_()), upstream


def memory_now(name):
    """"VmRSS", what this process holds, or "VmHWM", its highest since it was reset, in MiB. Linux alone tells."""
    with open("/proc/self/status", encoding="utf-8") as file:
        return next(int(line.split()[1]) / 1024 for line in file if line.startswith(name))


def peak_memory(run, device):
    """(what run() returns, MiB that it needed at its highest; nan where the system does not tell)."""
    if device.type == "cuda":
        before = torch.cuda.memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
        result = run()
        return result, (torch.cuda.max_memory_allocated(device) - before) / 2**20
    try:
        ctypes.CDLL(None).malloc_trim(0)  # what was freed before must not be at hand, or it would not count
        with open("/proc/self/clear_refs", "w", encoding="utf-8") as file:
            file.write("5")  # the highest starts anew
        before = memory_now("VmRSS")
    except (OSError, AttributeError, TypeError):
        return run(), math.nan
    return run(), memory_now("VmHWM") - before


def errors(results, truth):
    """The largest error of the values, and of the gradients, each as a part of the largest number there."""
    relative = [((a.double() - b).abs().max() / b.abs().max()).item() for a, b in zip(results, truth) if b is not None]
    return relative[0], max(relative[1:])


def seconds(run, device):
    wait = {"cuda": torch.cuda.synchronize, "mps": torch.mps.synchronize}.get(device.type, lambda: None)
    wait()
    start = time.perf_counter()
    run()
    wait()
    return time.perf_counter() - start


def benchmark(N, tokens, device, dtype, functions):
    """Print the table of one length: medians of rounds in which the contenders take turns."""
    B = max(1, tokens // N)
    inputs, upstream = make_inputs(B, N, device, dtype)
    exact = [x if x.dtype == torch.bool else x.detach().double().requires_grad_() for x in (x.cpu() for x in inputs)]
    runs = {name: functools.partial(forward_backward, function, inputs, upstream)
            for name, function in functions.items()}
    memory, error = {}, {}
    for name, function in functions.items():
        runs[name]()  # the first time is not like the others
        results, memory[name] = peak_memory(runs[name], device)
        if name in ("plain", "gather"):  # the two definitions; all others compute what the second does
            truth = forward_backward(function, exact, upstream.double().cpu())
        error[name] = errors([x if x is None else x.cpu() for x in results], truth)
        del results
    rounds = [{name: seconds(run, device) for name, run in runs.items()} for _ in range(9 if N <= 512 else 3)]
    for name in functions:
        milliseconds = 1000 * statistics.median(times[name] for times in rounds)
        ratio = statistics.median(times[name] / times["plain"] for times in rounds)
        print(f"{N:>6} {B:>4}  {name:<10}{milliseconds:>10.2f}{ratio:>10.2f}{memory[name]:>10.0f}"
              f"{error[name][0]:>10.1e}{error[name][1]:>12.1e}", flush=True)


def main():
    parser = argparse.ArgumentParser(description="Time, memory and error of attention with relative positions.",
                                     formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--max_length", type=int, default=4096, help="lengths are 64, 128, .. up to this")
    parser.add_argument("--tokens", type=int, default=2048, help="in a batch")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--dtype", choices=("fp32", "bf16", "fp16"), default="fp32")
    parser.add_argument("--compile", action="store_true", help="also the band path through torch.compile")
    args = parser.parse_args()
    if args.max_length < 64 or args.tokens < 1:
        parser.error(f"--max_length must be 64 or more and --tokens 1 or more, not {args.max_length} and {args.tokens}")
    dtype = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}[args.dtype]
    try:
        device = torch.empty(0, device=args.device).device
    except (RuntimeError, AssertionError):
        sys.exit(f"kernels.py: this machine has no device {args.device!r} that torch can use")
    print(f"forward and backward of attention, 4 heads of 64 channels, K = 17, {args.dtype} on {device} "
          f"({torch.get_num_threads()} threads); errors against float64, relative to the largest number")
    print(f"{'N':>6} {'B':>4}  {'path':<10}{'ms':>10}{'to plain':>10}{'peak MiB':>10}{'z error':>10}{'grad error':>12}")
    functions, N = contenders(device, args.compile), 64
    try:
        while N <= args.max_length:
            benchmark(N, args.tokens, device, dtype, functions)
            N *= 2
    except (RuntimeError, MemoryError) as error:  # no memory for it, or a device that does not compute
        sys.exit(f"kernels.py: N = {N} cannot be measured here: {str(error).splitlines()[0]}")


if __name__ == "__main__":
    main()
