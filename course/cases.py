"""The cases of every graded function: its inputs, and which property its outputs show.

A case calls one function of the project and returns named outputs. It runs twice, in separate
processes (course/child.py): with the student's function, and with the original one. Every case
belongs to a property, and a property is right if all its cases are:

    values        the numbers are those of the equation
    shape and dtype    of these numbers (course/grade.py looks at them separately)
    gradients     of every input and parameter
    zero          what is different with beyond = "zero"
    block         some of the queries of a longer sequence
    long          a sequence with more queries than LONGEST_WHOLE
    edges         one token; a kernel that is longer than the sequence
    padding       padding has no influence
    dropout       what is dropped, and what is scaled up
    end to end    a mixer, a model or a training with this function in it
    no loop       the number of tensor operations does not grow with the number of positions
    no index      slices and views, no index that is a tensor

Some functions have properties of their own: `query_rows`, `key_rows` and `relative_value`
(attention, so that each term earns its share), `dilation` (depthwise_convolution), `labels` and
`generator` (mask_tokens), `constants` (make_optimizer), `parts` (Trainer.update and train_step),
`seeds` and `tokens` (train_step), `mode` (evaluate).

Random inputs are float64 and come from fixed seeds. The arguments of one call have different sizes
(B = 2, H = 3, N = 7, d = 4, K = 5), so that no two axes can be exchanged unnoticed.
"""

import inspect
from types import SimpleNamespace
from typing import NamedTuple

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode

B, H, N, d, K = 2, 3, 7, 4, 5
TOLERANCE = 1e-7  # float64; relative, and absolute for small numbers
BF16_TOLERANCE = 2e-2
SHAPE = "shape and dtype"
GROWS = "the number of tensor operations grows with N"
INDEXED = "an index that is a tensor is used"
INDEX_OPERATIONS = (
    # these read
    "aten.index.",
    "aten.index_select",
    "aten.gather",
    "aten.take",
    # these write or add
    "aten.index_put",
    "aten.index_add",
    "aten.index_copy",
    "aten.index_fill",
    "aten.put",
    "aten.scatter",
    "aten.masked_scatter",
)


class WrongResult(Exception):
    """A function returned something that cannot be compared. The message is for the student."""


class Case(NamedTuple):
    function: str  # its name in course/parts.py
    property: str
    key: str
    what: str  # a sentence for the student: what is special about these inputs
    compute: object  # compute(project) -> {name: output}
    letters: str  # the axes of the first output, as in the messages: "b h i j"
    tolerance: float
    expected: str | None  # a function in course/plain.py that computes the expected outputs


CASES = []


def cases_of(functions):
    """The cases of these functions."""
    return [case for case in CASES if case.function in functions]


def add(function, property_name, compute, what, letters="", tolerance=TOLERANCE, expected=None):
    key = f"{function}: {what}, {property_name}"
    CASES.append(Case(function, property_name, key, what, compute, letters, tolerance, expected))


def case(function, property_name, **options):
    """Decorator: compute(project) is a case of the function. Its docstring is what is shown."""

    def register(compute):
        add(function, property_name, compute, compute.__doc__, **options)
        return compute

    return register


def differentiable(function, property_name, letters, **options):
    """Decorator: compute(project) returns (result, {name: input}), and is two cases.

    One case compares the result, the other one compares the gradients of the inputs. If the
    property is "values", the gradients belong to the property "gradients". For any other one, such
    as "padding", both cases belong to this property.
    """
    gradient_property = "gradients" if property_name == "values" else property_name

    def register(compute):
        def result(project):
            return {"result": compute(project)[0]}

        def gradients(project):
            return gradients_of(*compute(project))

        add(function, property_name, result, compute.__doc__, letters, **options)
        add(function, gradient_property, gradients, f"{compute.__doc__}; the gradients", **options)
        return compute

    return register


def no_index(function, compute):
    """A case: compute(project, 20), on 20 tokens, must not use an index that is a tensor.

    If it does, all points of the function are lost.
    """

    def count(project):
        with Operations() as operations:
            compute(project, 20)
        return {INDEXED: operations.indexed}

    add(function, "no index", count, "N = 20")


def no_loop(function, compute, property_name="no loop", short=20, long=40):
    """A case: compute(project, N) must not take more tensor operations if N is larger.

    If it takes more, all points of the function are lost. An error costs only those of the
    property.
    """

    def count(project):
        with Operations() as few:
            compute(project, short)
        with Operations() as many:
            compute(project, long)
        return {GROWS: many.count > few.count + 10}

    add(function, property_name, count, f"N = {short} and N = {long}")


class Operations(TorchDispatchMode):
    """Counts the tensor operations inside a `with` block, and notes those that use an index."""

    count = 0
    indexed = False  # whether one of them uses an index that is a tensor

    def __torch_dispatch__(self, operation, types, arguments=(), options=None):
        self.count += 1
        if str(operation).startswith(INDEX_OPERATIONS):
            self.indexed = True
        return operation(*arguments, **(options or {}))


# --- Inputs ---------------------------------------------------------------------------------------


def draw(*shape, seed=0):
    """Random float64 numbers, the same for the same seed and shape."""
    numbers = torch.Generator().manual_seed(1000 * seed + sum(shape))
    return torch.randn(*shape, dtype=torch.float64, generator=numbers)


def leaf(*shape, seed=0):
    """The same, with a gradient."""
    return draw(*shape, seed=seed).requires_grad_()


def call(function, *arguments, **options):
    """Call a student's function: it must return tensors and leave its inputs as they are."""
    inputs = [x for x in (*arguments, *options.values()) if type(x) is torch.Tensor]
    copies = [x.detach().clone() for x in inputs]
    result = function(*arguments, **options)
    check_type(result)
    for x, copy in zip(inputs, copies, strict=True):
        if x.shape != copy.shape or not torch.equal(x.detach(), copy):
            raise WrongResult("it changes one of its inputs in place")
    return result


def check_type(result):
    """WrongResult if a result is not a tensor, a number or a tuple of them."""
    if type(result) is tuple:
        for element in result:
            check_type(element)
    elif type(result) not in (torch.Tensor, torch.nn.Parameter, int, float):
        hint = ": is `return` missing?" if result is None else ""
        type_name = type(result).__name__
        raise WrongResult(f"it returns a value of type {type_name}, not a tensor{hint}")


def gradients_of(result, inputs):
    """{"gradient of ...": gradient} of a fixed weighted sum of the result."""
    if result.requires_grad:
        weights = torch.arange(result.numel(), dtype=torch.float64).sin().view(result.shape)
        (result.double() * weights).sum().backward()
    gradients = {}
    for name, x in inputs.items():
        # no gradient at all is a gradient of 0: an input that is not used
        gradients[f"gradient of {name}"] = torch.zeros_like(x) if x.grad is None else x.grad
    return gradients


def dropout_by_shape(input, p=0.5, training=True, inplace=False):
    """In place of torch's dropout: what is dropped depends on the seed and the shape alone.

    So the order in which a function draws its random numbers does not matter.
    """
    if not training or p == 0:
        return input
    seed = torch.initial_seed() % 2**31
    for size in input.shape:
        seed = (31 * seed + size) % 2**31
    kept = torch.rand(input.shape, generator=torch.Generator().manual_seed(seed)) >= p
    return input * kept / (1 - p)


# the name that an error message about its arguments shows
dropout_by_shape.__name__ = "dropout"
dropout_by_shape.__qualname__ = "dropout"


def padded_mask(length=N):
    """(2, N): the first sentence has no padding, the second one at the end and in the middle."""
    mask = torch.ones(2, length, dtype=torch.bool)
    mask[1, -2:] = False
    mask[1, 2] = False
    return mask


def randomise(module, std=0.5):
    """Random float64 weights: those at the start may be 0. LayerNorms get weights around 1."""
    module.double()
    with torch.no_grad():
        for number, (name, parameter) in enumerate(module.named_parameters()):
            parameter.copy_(std * draw(*parameter.shape, seed=number))
            if "norm" in name and name.endswith("weight"):
                parameter += 1
    return module


def mixer_config(variant="composite", **settings):
    config = dict(variant=variant, hidden_size=12, heads=4, kernel_size=K, beyond="clip")
    config.update(dropout=0.3, attention_layer=2)
    config.update(settings)
    return SimpleNamespace(**config)


def mixer(project, variant, layer=0, **settings):
    """A mixer with random weights, in evaluation mode."""
    made = project.attention.make_mixer(mixer_config(variant, **settings), layer)
    return randomise(made).eval()


def mixer_case(function, property_name, variant, training=False, layer=0, **settings):
    """Two cases: output and gradients of a mixer, for two sentences with padding."""

    def output(project):
        made = mixer(project, variant, layer, **settings).train(training)
        x = leaf(2, N, 12)
        y = call(made, x, padded_mask())  # (B, N, C)
        y = y.masked_fill(~padded_mask()[:, :, None], 0)  # at padding it has no meaning
        return y, {"x": x, **dict(made.named_parameters())}

    what = f"layer {layer} of --variant {variant}, two sentences with padding"
    if training:
        what += ", in training"
    if settings:
        what += f", {settings}"
    output.__doc__ = what
    differentiable(function, property_name, "b i c")(output)


def model_config(project, variant="composite", **settings):
    sizes = dict(layers=2, hidden_size=12, ffn_size=20, heads=2, embedding_size=8, max_length=16)
    config = dict(variant=variant, vocab_size=40, dropout=0.2, **sizes)
    if project.attention.VARIANTS[variant].has_kernel:
        config["kernel_size"] = K
    config.update(settings)
    return project.model.BertConfig(**config)


def token_ids():
    """(2, N) ordinary ids, then [PAD] where padded_mask is False; and token types (2, N)."""
    ids = torch.randint(5, 40, (2, N), generator=torch.Generator().manual_seed(N))
    types = torch.zeros_like(ids)
    types[:, 3:5] = 1
    return ids.masked_fill(~padded_mask(), 0), types


# --- Part 1: content and scaled softmax -----------------------------------------------------------


@differentiable("attention.split_heads", "values", "b h i c")
def split(project, N=N):
    """12 channels and 3 heads"""
    x = leaf(B, N, 12)
    return call(project.attention.split_heads, x, 3), {"x": x}


@differentiable("attention.merge_heads", "values", "b i c")
def merge(project, N=N):
    """3 heads of 4 channels"""
    x = leaf(B, H, N, d)
    return call(project.attention.merge_heads, x), {"x": x}


@case("attention.lowest_at_padding", "values", letters="b h i j")
def no_padding_at_all(project, N=N):
    """added to scores, then softmax; no padding"""
    mask = torch.ones(B, N, dtype=torch.bool)
    lowest = call(project.attention.lowest_at_padding, mask, torch.float64)
    return {"softmax": (draw(B, H, 6, N) + lowest).softmax(-1), "shape": lowest}


@case("attention.lowest_at_padding", "padding", letters="b h i j", tolerance=1e-3)
def weights_at_padding(project):
    """added to scores of -10000, and of 10000 at padding, then softmax; two sentences"""
    outputs = {}
    for dtype in (torch.float64, torch.float32, torch.bfloat16):
        outputs.update(low_scores(project, dtype))
    return outputs


@case("attention.lowest_at_padding", SHAPE, letters="b h i j", tolerance=1e-3)
def weights_in_float16(project):
    """the same in float16, whose lowest number is -65504"""
    return low_scores(project, torch.float16)


def low_scores(project, dtype):
    """The weights of scores around -10000, and of 10000 at padding; whether a sum overflows."""
    mask = padded_mask()  # (B, N)
    lowest = call(project.attention.lowest_at_padding, mask, dtype)
    scores = draw(B, H, 6, N) - 10_000
    scores = scores.masked_fill(~mask[:, None, None, :], 10_000).to(dtype)
    large = torch.finfo(dtype).min / 4 + lowest
    return {
        f"softmax of {dtype}": (scores + lowest).softmax(-1),
        f"the sum with a large {dtype} is finite": bool(large.isfinite().all()),
    }


def dropped(project, generator=None):
    """What 20,000 numbers become: shares and sizes, because the draws themselves may differ."""
    p = leaf(100, 200)
    z = call(project.attention.drop, p, 0.3, generator)
    is_zero = z == 0
    z.sum().backward()
    return {
        "share of zeros": is_zero.double().mean(),
        "factor of the others": (z / p)[~is_zero].mean(),
        "largest factor": (z / p).max(),
        "gradient at the others": p.grad[~is_zero].mean(),
        "gradient at the zeros": p.grad[is_zero].abs().sum(),
        "zeros per row, at most 100": bool((is_zero.sum(1) < 100).all()),
        "zeros per column, at most 60": bool((is_zero.sum(0) < 60).all()),
    }


@case("attention.drop", "values", tolerance=0.02)
def without_generator(project):
    """dropout = 0.3, without a generator"""
    return dropped(project)


@case("attention.drop", "dropout", tolerance=0.02)
def with_generator(project):
    """dropout = 0.3, with a generator: the global seed has no influence, the generator's has"""
    outputs = dropped(project, torch.Generator().manual_seed(1))
    zeros = []
    for global_seed, seed in ((1, 5), (2, 5), (1, 6)):
        torch.manual_seed(global_seed)
        numbers = torch.Generator().manual_seed(seed)
        zeros.append(project.attention.drop(torch.ones(30, 30), 0.3, numbers) == 0)
    outputs["same generator, same zeros"] = torch.equal(zeros[0], zeros[1])
    outputs["other generator, other zeros"] = not torch.equal(zeros[0], zeros[2])
    return outputs


def drop_of(project, N):
    project.attention.drop(draw(B, H, N, N), 0.3)


@case("attention.drop", "values")
def nothing_dropped(project):
    """dropout = 0: everything stays"""
    return {"result": call(project.attention.drop, draw(B, H, N), 0.0)}


def attention_inputs(N=N, n=None):
    """query, key, value, the rows and the relative values, all with gradient."""
    n = N if n is None else n
    return {
        "query": leaf(B, H, n, d, seed=1),
        "key": leaf(B, H, N, d, seed=2),
        "value": leaf(B, H, N, d, seed=3),
        "query_rows": leaf(B, H, n, K, seed=4),
        "key_rows": leaf(B, H, N, K, seed=5),
        "relative_value": leaf(d, K, seed=6),
    }


def attend(project, names, mask=None, n=None, N=N, **options):
    """(z, inputs) of attention with only the named inputs."""
    inputs = {name: x for name, x in attention_inputs(N, n).items() if name in names.split()}
    if mask is None:
        mask = torch.ones(B, N, dtype=torch.bool)
    z = call(project.attention.attention, **inputs, attention_mask=mask, **options)
    return z, inputs


QKV = "query key value"
ALL = "query key value query_rows key_rows relative_value"


@differentiable("attention.attention", "values", "b h i c")
def content(project, N=N):
    """content alone: no rows, no padding"""
    return attend(project, QKV, N=N)


@differentiable("attention.attention", "padding", "b h i c")
def attention_padding(project):
    """content alone, with padding at the end and in the middle of the second sentence"""
    return attend(project, QKV, padded_mask())


@differentiable("attention.attention", "dropout", "b h i c")
def attention_dropout(project):
    """content alone, dropout = 0.3"""
    return attend(project, QKV, dropout=0.3)


@case("attention.attention", "dropout", letters="b h i c")
def attention_generator(project):
    """dropout = 0.3 with a generator, as for the blocks of a long sequence"""
    numbers = torch.Generator().manual_seed(3)
    return {"result": attend(project, QKV, dropout=0.3, generator=numbers)[0]}


def term_of_attention(name, kinds):
    """The cases of content with one more input. kinds: properties of clip, zero, block."""

    # a case with these options
    def compute_with(what, n=None, **options):
        def compute(project, N=N):
            return attend(project, f"{QKV} {name}", n=n, N=N, **options)

        compute.__doc__ = what
        return compute

    # beyond = "clip", then what is special
    clip = compute_with(f"content and {name}")
    of_clip, of_zero, of_block = kinds
    differentiable("attention.attention", of_clip, "b h i c")(clip)
    no_loop("attention.attention", clip, of_clip)
    zero = compute_with(f'content and {name}, beyond = "zero"', beyond="zero")
    differentiable("attention.attention", of_zero, "b h i c")(zero)
    block = compute_with(f"content and {name}: the queries 2, 3, 4 of 7", n=3, first=2)
    differentiable("attention.attention", of_block, "b h i c")(block)


term_of_attention("query_rows", ("query_rows", "zero", "block"))
term_of_attention("key_rows", ("key_rows", "key_rows", "key_rows"))
term_of_attention("relative_value", ("relative_value", "relative_value", "relative_value"))


@case("attention.attention", "relative_value", letters="b h i c")
def relative_value_dropout(project):
    """content and relative_value, dropout = 0.3"""
    return {"result": attend(project, QKV + " relative_value", dropout=0.3)[0]}


@case("attention.attention", "long")
def long_sequence(project):
    """7 queries, LONGEST_WHOLE = 5: what attention_in_blocks gets"""
    attention, kernels = project.attention, project.kernels
    signature = inspect.signature(kernels.attention_in_blocks)
    calls = []

    # In its place: a function that keeps its arguments, by their names, and returns the values.
    def in_blocks(*arguments, **options):
        bound = signature.bind(*arguments, **options)
        bound.apply_defaults()
        calls.append(bound.arguments)
        return bound.arguments["value"]

    kept = attention.attention_in_blocks, attention.LONGEST_WHOLE
    attention.attention_in_blocks = kernels.attention_in_blocks = in_blocks
    attention.LONGEST_WHOLE = 5
    try:
        z, inputs = attend(project, ALL, padded_mask(), beyond="zero", dropout=0.3)
    finally:
        attention.attention_in_blocks, attention.LONGEST_WHOLE = kept
        kernels.attention_in_blocks = kept[0]

    # its arguments; an empty dictionary if it was not called
    arguments = dict(calls[0]) if calls else {}
    is_same = arguments.pop("attention", None) is attention.attention
    return {
        "attention_in_blocks is called": bool(calls),
        "its first argument is the function attention": is_same,
        "its arguments": arguments,
        "what it returns is the result": torch.equal(z, inputs["value"]),
    }


@case("attention.attention", SHAPE, tolerance=BF16_TOLERANCE)
def bf16_values(project):
    """query and key in float32, value in bf16, as under autocast"""
    inputs = attention_inputs()
    query = inputs["query"].detach().float()
    key = inputs["key"].detach().float()
    value = inputs["value"].detach().bfloat16()
    mask = torch.ones(B, N, dtype=torch.bool)
    return {"result": call(project.attention.attention, query, key, value, mask)}


for name in ("attention.split_heads", "attention.merge_heads", "attention.attention"):
    mixer_case(name, "end to end", "composite-key")
mixer_case("attention.lowest_at_padding", "end to end", "none")
mixer_case("attention.drop", "end to end", "none")
no_loop("attention.split_heads", split)
no_loop("attention.merge_heads", merge)
no_loop("attention.lowest_at_padding", no_padding_at_all)
no_loop("attention.drop", drop_of)
no_loop("attention.attention", content)

# part 1: the ungraded functions that connect the graded ones
for name in ("shaw", "composite-key", "composite-depthwise", "conv-qkv"):
    mixer_case("attention.SelfAttention.forward", "values", name)
    mixer_case("attention.SelfAttention.project", "values", name)
    mixer_case("attention.SelfAttention.sum_of_rows", "values", name)
mixer_case("attention.SelfAttention.forward", "values", "composite", beyond="zero")
mixer_case("attention.SelfAttention.forward", "dropout", "composite", training=True)


@case("attention.zero_padding", "padding", letters="b i c")
def zeros_at_padding(project):
    """padding in the second sentence"""
    return {"result": call(project.attention.zero_padding, draw(B, N, 12), padded_mask())}


# --- Part 2: fixed and dynamic terms --------------------------------------------------------------


def term_cases(function, class_name, variant):
    """Values, gradients and a mixer, for one of the position terms."""

    def rows(project, N=N):
        """one row of K weights per head and token"""
        term = getattr(project.attention, class_name)(mixer_config(heads=H))
        randomise(term)
        x = leaf(B, H, N, d)
        made = call(term, x)  # (H, 1, K), (H, N, K) or (B, H, N, K)
        if made.dim() in (3, 4) and made.shape[-3:] in ((H, 1, K), (H, N, K)):
            made = made.expand(B, H, N, K)
        return made, {"q": x, **dict(term.named_parameters())}

    differentiable(function, "values", "b h i r")(rows)
    mixer_case(function, "end to end", variant)
    no_loop(function, rows)


term_cases("attention.Fixed.forward", "Fixed", "fixed")
term_cases("attention.Dynamic.forward", "Dynamic", "dynamic")
term_cases("attention.KeyDynamic.forward", "KeyDynamic", "composite-key")


@case("attention.relative_table", "values")
def table_at_the_start(project):
    """the table that is drawn from seed 0"""
    return {"result": project.attention.relative_table(mixer_config())}


def map_cases(function):
    """From rows to the map of scores, for gather_scores and relative_scores.

    Returns compute(project, N) for further cases: the map of N tokens.
    """
    short = function.split(".")[1]

    # n queries and `length` keys
    def map_case(property_name, what, n=N, length=N, K=K, **options):
        def compute(project):
            rows = leaf(B, H, n, K)
            scores = call(getattr(project.kernels, short), rows, length, **options)
            return scores, {"rows": rows}

        compute.__doc__ = what
        differentiable(function, property_name, "b h i j")(compute)

    # ordinary sizes, and everything that is special
    map_case("values", 'N = 7, K = 5, beyond = "clip"')
    map_case("zero", 'N = 7, K = 5, beyond = "zero"', beyond="zero")
    map_case("block", "a block: the queries 2, 3, 4 of 7", n=3, first=2)
    map_case(
        "zero", 'a block: the queries 2, 3, 4 of 7, beyond = "zero"', 3, first=2, beyond="zero"
    )
    map_case("block", "a block far to the right: the queries 6, 7, 8 of 9", 3, 9, 3, first=6)
    map_case("edges", "a kernel that reaches beyond both ends: N = 3, K = 9", 3, 3, 9)
    map_case("zero", 'N = 3, K = 9, beyond = "zero"', 3, 3, 9, beyond="zero")
    map_case("edges", "one token", 1, 1)
    map_case("edges", "K = 1: one weight for all keys", K=1)

    def map_of(project, N):
        return getattr(project.kernels, short)(draw(B, H, N, K), N)

    no_loop(function, map_of)
    return map_of


map_cases("kernels.gather_scores")


# --- Part 3: the equivalences ---------------------------------------------------------------------

map_of_relative_scores = map_cases("kernels.relative_scores")
no_index("kernels.relative_scores", map_of_relative_scores)
mixer_case("kernels.relative_scores", "end to end", "composite")
mixer_case("kernels.relative_scores", "zero", "composite", beyond="zero")


def strip_case(property_name, what, n, length, K, beyond, first):
    def compute(project):
        scores = leaf(B, H, n, length)
        strip = project.kernels.sum_bands_of_strip
        return call(strip, scores, K, beyond, first), {"scores": scores}

    compute.__doc__ = what
    differentiable("kernels.sum_bands_of_strip", property_name, "b h i r")(compute)


def strip_of(project, N):
    return project.kernels.sum_bands_of_strip(draw(B, H, N, N), K, "clip", 0)


strip_case("values", 'N = 7, K = 5, beyond = "clip"', N, N, K, "clip", 0)
strip_case("zero", 'N = 7, K = 5, beyond = "zero"', N, N, K, "zero", 0)
strip_case("block", "the queries 2, 3, 4 of 9", 3, 9, 3, "clip", 2)
strip_case("zero", 'the queries 6, 7, 8 of 9, beyond = "zero"', 3, 9, 3, "zero", 6)
strip_case("edges", "a kernel that reaches beyond both ends: N = 3, K = 9", 3, 3, 9, "clip", 0)
no_loop("kernels.sum_bands_of_strip", strip_of)
no_index("kernels.sum_bands_of_strip", strip_of)
mixer_case("kernels.sum_bands_of_strip", "end to end", "shaw")


def key_case(property_name, what, n, length, K, beyond="clip", first=0):
    def compute(project):
        rows = leaf(B, H, length, K)
        return call(project.kernels.key_scores, rows, n, beyond, first), {"rows": rows}

    compute.__doc__ = what
    differentiable("kernels.key_scores", property_name, "b h i j")(compute)


def key_map(project, N):
    return project.kernels.key_scores(draw(B, H, N, K), N)


key_case("values", 'N = 7, K = 5, beyond = "clip"', N, N, K)
key_case("zero", 'N = 7, K = 5, beyond = "zero"', N, N, K, "zero")
key_case("block", "a block: the queries 5, 6 of 12, K = 3", 2, 12, 3, "clip", 5)
key_case("zero", 'a block: the queries 5, 6 of 12, beyond = "zero"', 2, 12, 3, "zero", 5)
no_loop("kernels.key_scores", key_map)
mixer_case("kernels.key_scores", "end to end", "composite-key")


def convolve_case(property_name, what, length, K):
    def compute(project, length=length):
        rows = leaf(B, H, length, K, seed=1)
        value = leaf(B, H, length, d, seed=2)
        z = call(project.kernels.convolve, rows, value)
        return z, {"rows": rows, "value": value}

    compute.__doc__ = what
    differentiable("kernels.convolve", property_name, "b h i c")(compute)
    return compute


convolve_of = convolve_case("values", "N = 7, K = 5", N, K)
convolve_case("block", "N = 70: more than two blocks of queries", 70, K)
convolve_case("edges", "one token", 1, K)
convolve_case("edges", "a kernel that reaches beyond both ends: N = 3, K = 9", 3, 9)
no_loop("kernels.convolve", convolve_of, short=40, long=70)
mixer_case("kernels.convolve", "end to end", "dynamicconv")

# part 3: the ungraded functions that connect the graded ones
mixer_case("kernels.extra_columns", "values", "shaw")
mixer_case("kernels.extra_columns", "values", "composite", beyond="zero")


@differentiable("kernels.AddBand", "values", "b h i j")
def band_of_two_strips(project):
    """N = 70: more than one strip"""
    rows = leaf(H, 70, K, seed=1)
    scores = leaf(B, H, 70, 70, seed=2)
    total = project.kernels.add_band(scores * 1, rows)  # a copy: the sum is written into it
    return total, {"rows": rows, "scores": scores}


@differentiable("kernels.sum_bands", "values", "b h i r")
def sums_of_two_strips(project):
    """N = 70: more than one strip"""
    scores = leaf(B, H, 70, 70)
    return project.kernels.sum_bands(scores, K), {"scores": scores}


@case("kernels.zeros_to_sum", "values")
def zeros_of_bf16(project):
    """zeros for the gradients of bf16 tensors"""
    return {"result": project.kernels.zeros_to_sum(torch.ones(3, dtype=torch.bfloat16))}


@case("kernels.attend_block", "dropout")
def dropout_of_blocks(project):
    """what is dropped in two blocks, each computed twice"""

    def attention(*arguments):
        generator = arguments[-1]
        return torch.rand(5, generator=generator)

    drawn = {}
    for first in (0, 0, 128):
        arguments = [torch.ones(1)] * 7 + [first, "clip", 0.3, 5]
        drawn[f"block {first}, {len(drawn)}"] = project.kernels.attend_block(attention, *arguments)
    return drawn


# --- Part 4: depthwise convolution, LightConv, DynamicConv, ConvBERT ------------------------------


def depthwise_case(property_name, what, length, K, dilation=1, with_bias=True):
    def compute(project, length=length):
        inputs = {"x": leaf(B, length, 6, seed=1), "weight": leaf(6, K, seed=2)}
        if with_bias:
            inputs["bias"] = leaf(6, seed=3)
        function = project.attention.depthwise_convolution
        return call(function, **inputs, dilation=dilation), inputs

    compute.__doc__ = what
    differentiable("attention.depthwise_convolution", property_name, "b i c")(compute)
    return compute


depthwise = depthwise_case("values", "N = 7, K = 5, without bias", N, K, with_bias=False)
depthwise_case("values", "N = 7, K = 5", N, K)
depthwise_case("dilation", "dilation = 3, N = 8, K = 3: the example of the docstring", 8, 3, 3)
depthwise_case("dilation", "dilation = 2, N = 7, K = 5", N, K, 2)
depthwise_case("edges", "a kernel that reaches beyond both ends: N = 2, K = 5", 2, K)
no_loop("attention.depthwise_convolution", depthwise)
mixer_case("attention.depthwise_convolution", "end to end", "dilated", layer=1)


@differentiable("attention.HalfConvolution.forward", "values", "b i c")
def half_convolution(project, N=N):
    """C = 12, H = 4"""
    made = randomise(project.attention.HalfConvolution(mixer_config("conv-v")))
    x = leaf(B, N, 12)
    return call(made, x), {"x": x, **dict(made.named_parameters())}


no_loop("attention.HalfConvolution.forward", half_convolution)
mixer_case("attention.HalfConvolution.forward", "end to end", "conv-qkv")


def gate_case(property_name, what, mask):
    def compute(project, N=N):
        made = mixer(project, "lightconv")
        x = leaf(B, N, 12)
        seen = torch.ones(B, N, dtype=torch.bool) if mask is None else mask
        return call(made.gate, x, seen), {"x": x, **dict(made.input.named_parameters())}

    compute.__doc__ = what
    differentiable("attention.GatedConvolution.gate", property_name, "b i c")(compute)
    return compute


gate = gate_case("values", "no padding", None)
gate_case("padding", "padding in the second sentence", padded_mask())
no_loop("attention.GatedConvolution.gate", gate)
mixer_case("attention.GatedConvolution.gate", "end to end", "dynamicconv")


def convolution_cases(function, variant):
    """convolution(g) of LightConv or DynamicConv: values, dropout, and the mixer."""

    # g has no padding here: `gate` makes it 0 there
    def convolved(project, N=N, training=False):
        made = mixer(project, variant).train(training)
        g = leaf(B, N, 12)
        return call(made.convolution, g), {"g": g, **dict(made.named_parameters())}

    def plain(project, N=N):
        """evaluation mode: nothing is dropped"""
        return convolved(project, N)

    def dropping(project):
        """training mode: weights of the kernels are dropped"""
        return convolved(project, training=True)

    differentiable(function, "values", "b i c")(plain)
    differentiable(function, "dropout", "b i c")(dropping)
    mixer_case(function, "end to end", variant)
    no_loop(function, plain)


convolution_cases("attention.LightConv.convolution", "lightconv")
mixer_case("attention.LightConv.convolution", "values", "dilated", layer=2)
convolution_cases("attention.DynamicConv.convolution", "dynamicconv")


@differentiable("attention.ConvBert.forward", "values", "b i c")
def convbert(project, N=N):
    """no padding"""
    made = mixer(project, "convbert")
    x = leaf(B, N, 12)
    mask = torch.ones(B, N, dtype=torch.bool)
    return call(made, x, mask), {"x": x, **dict(made.named_parameters())}


mixer_case("attention.ConvBert.forward", "padding", "convbert")
mixer_case("attention.ConvBert.forward", "dropout", "convbert", training=True)
no_loop("attention.ConvBert.forward", convbert)

# part 4: the ungraded functions that connect the graded ones
mixer_case("attention.GatedConvolution.forward", "values", "lightconv")
mixer_case("attention.DynamicConv.kernel_logits", "values", "dynamicconv")
mixer_case("attention.ConvBert.kernel_logits", "values", "convbert")


@case("attention.LightConv.__init__", "values")
def lightconv_at_the_start(project):
    """weights and dilations of four layers, drawn from seed 0"""
    layers = [project.attention.make_mixer(mixer_config("dilated"), layer) for layer in range(4)]
    outputs = {f"weight of layer {i}": layer.weight for i, layer in enumerate(layers)}
    return {"dilations": [layer.dilation for layer in layers], **outputs}


# --- Part 5: masks, loss, learning rate, training -------------------------------------------------


def hidden_tokens(project):
    """(input_ids, masked_ids, labels) of 240,000 tokens, 40 of the vocabulary, some special."""
    numbers = torch.Generator().manual_seed(1)
    input_ids = torch.randint(0, 40, (300, 800), generator=numbers)
    mask_tokens = project.data.mask_tokens
    masked_ids, labels = call(mask_tokens, input_ids, 40, torch.Generator().manual_seed(2))
    return input_ids, masked_ids, labels


# With other random numbers, each of these numbers changes by less than the tolerance: in 120 draws,
# by 63 % of it at most.
@case("data.mask_tokens", "values", tolerance=0.012)
def shares(project):
    """240,000 tokens: what becomes of them on average"""
    input_ids, masked_ids, labels = hidden_tokens(project)
    chosen = labels != -100  # (300, 800)
    original = input_ids[chosen]
    seen = masked_ids[chosen]
    is_other = chosen & (masked_ids != input_ids) & (masked_ids != 4)  # (300, 800)

    # Tokens are chosen independently of each other: neighbours, sentences and positions.
    both = chosen[:, 1:] & chosen[:, :-1]
    both_other = is_other[1:] & is_other[:-1]
    equal = (masked_ids[1:] == masked_ids[:-1]) & both_other
    return {
        "share chosen of the ordinary tokens": chosen.sum() / (input_ids >= 5).sum(),
        "of these, [MASK]": (seen == 4).double().mean(),
        "of these, another token": is_other.sum() / chosen.sum(),
        "of these, the same token": (seen == original).double().mean(),
        "of the tokens after a chosen one, chosen": both.sum() / chosen[:, :-1].sum(),
        "standard deviation of the chosen per sentence / 200": chosen.sum(1).double().std() / 200,
        "standard deviation of the chosen per position / 100": chosen.sum(0).double().std() / 100,
        "random tokens differ between sentences": bool(equal.sum() < 0.2 * both_other.sum()),
    }


@case("data.mask_tokens", "labels")
def labels_of_masks(project):
    """240,000 tokens: what is exact"""
    input_ids, masked_ids, labels = hidden_tokens(project)
    chosen = labels != -100
    drawn = masked_ids[chosen & (masked_ids != input_ids) & (masked_ids != 4)]
    return {
        "special tokens chosen": int((chosen & (input_ids < 5)).sum()),
        "labels that are not the original token": int((labels != input_ids)[chosen].sum()),
        "tokens changed without a label": int((masked_ids != input_ids)[~chosen].sum()),
        "smallest token drawn": int(drawn.min()),
        "largest token drawn": int(drawn.max()),
        "dtypes": [str(masked_ids.dtype), str(labels.dtype)],
        "shapes": [list(masked_ids.shape), list(labels.shape)],
    }


@case("data.mask_tokens", "generator")
def generator_of_masks(project):
    """the same generator gives the same masks, whatever the global seed is"""
    made = []
    for global_seed, seed in ((1, 5), (2, 5), (1, 6)):
        torch.manual_seed(global_seed)
        ids = torch.arange(400).view(20, 20) % 40
        made.append(project.data.mask_tokens(ids, 40, torch.Generator().manual_seed(seed)))
    return {
        "same generator, same masks": torch.equal(made[0][1], made[1][1]),
        "same generator, same tokens": torch.equal(made[0][0], made[1][0]),
        "other generator, other masks": not torch.equal(made[0][1], made[2][1]),
    }


def loss_case(property_name, what, targets):
    def compute(project):
        logits = leaf(len(targets), 11)
        loss = call(project.model.masked_lm_loss, logits, torch.tensor(targets))
        return loss, {"logits": logits}

    compute.__doc__ = what
    differentiable("model.masked_lm_loss", property_name, "")(compute)


loss_case("values", "every row has a target", [3, 0, 10, 7])
loss_case("padding", "two rows have the target -100", [3, -100, 10, -100, 0])
loss_case("padding", "no row has a target: the loss is 0", [-100, -100])


@case("pretrain.learning_rate", "values", letters="step")
def schedule(project):
    """12 steps with 4 of warm-up, peak 0.5"""
    rates = [project.pretrain.learning_rate(step, 12, 4, 0.5) for step in range(12)]
    return {"rates": torch.tensor(rates, dtype=torch.float64)}


@case("pretrain.learning_rate", "edges", letters="step")
def schedule_edges(project):
    """without warm-up, and with nothing but warm-up"""
    rates = [project.pretrain.learning_rate(step, 5, 0, 1.0) for step in range(5)]
    only = [project.pretrain.learning_rate(step, 5, 5, 1.0) for step in range(5)]
    return {"no warm-up": rates, "only warm-up": only}


@case("pretrain.make_optimizer", "values")
def groups(project):
    """which parameters of a model with all variants of modules decay"""
    model = project.model.BertForMaskedLM(model_config(project, "composite-conv-qkv"))
    optimizer = project.pretrain.make_optimizer(model, 0.125)
    decay = {}
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            decay[id(parameter)] = group["weight_decay"]
    names = dict(model.named_parameters())
    outputs = {f"decay of {name}": decay.get(id(x), "none") for name, x in names.items()}
    return outputs


@case("pretrain.make_optimizer", "constants")
def constants(project):
    """AdamW, its betas and eps"""
    model = project.model.BertForMaskedLM(model_config(project))
    optimizer = project.pretrain.make_optimizer(model, 0.1)
    group = optimizer.param_groups[0]
    return {
        "class": type(optimizer).__name__,
        "betas": list(group["betas"]),
        "eps": group["eps"],
        "parameters": sum(len(group["params"]) for group in optimizer.param_groups),
    }


# The training itself is compared with a plain loop (course/plain.py).
SETTINGS = dict(seed=3, steps=6, warmup_steps=2, lr=0.05, weight_decay=0.1, batch_size=4)
STEPS = 4


def training(project):
    """A Trainer of a small model, and a corpus of 20 sentences of 4 to 12 tokens."""
    model = randomise(project.model.BertForMaskedLM(model_config(project)))
    model.bias.data[5:20] += 4  # so that some guesses are correct
    pretrain = project.pretrain
    pretrain.made_by = str  # it would read files
    trainer = pretrain.Trainer(
        model, SETTINGS, "train_state.pt", torch.device("cpu"), torch.float32
    )
    return trainer, tiny_corpus(project)


def tiny_corpus(project):
    """A BatchSource of 20 sentences, so short that the steps of a training take no time."""

    class TinyCorpus(project.data.BatchSource):
        vocab_size = 40
        seq_len = 12
        lengths = np.arange(20) % 9 + 4
        train = np.arange(20)

        # sentences of different lengths, so that every batch has padding
        def rows(self, indices):
            width = self.lengths[indices].max()
            ids = 5 + (np.arange(20)[:, None] * 7 + np.arange(12) ** 2) % 35  # (20, 12)
            ids = np.where(np.arange(12) < self.lengths[:, None], ids, 0)
            return ids[indices, :width]

        # three batches, the last one smaller
        def held_out_batches(self, batch_size):
            for start in (0, 8, 16):
                indices = np.arange(start, min(20, start + 8))
                ids = torch.from_numpy(self.rows(indices))
                generator = torch.Generator().manual_seed(start)
                yield project.data.mask_tokens(ids, 40, generator)

    return TinyCorpus()


def state_of(trainer):
    """What a few steps have made of a Trainer."""
    weights = {name: x.detach() for name, x in trainer.model.named_parameters()}
    return {
        "losses": [float(loss) for loss in trainer.unread_losses],
        "steps done": trainer.step,
        "weights": weights,
    }


def few_steps(project):
    """4 steps of training, compared with a plain loop"""
    trainer, corpus = training(project)
    for _ in range(STEPS):
        project.pretrain.train_step(trainer, corpus)
    return state_of(trainer)


def evaluation(project):
    """20 held-out sentences, compared with a plain loop"""
    trainer, corpus = training(project)
    cpu = torch.device("cpu")
    results = project.pretrain.evaluate(trainer.model, corpus, 8, cpu, torch.float32)
    return {
        "loss and accuracy": [float(number) for number in results],
        "has gradients": any(x.grad is not None for x in trainer.model.parameters()),
    }


def updates(project):
    """4 updates of two linear layers with large gradients, compared with a plain loop"""
    trainer, x = small_trainer(project)
    rates = []
    for _ in range(STEPS):
        trainer.update((trainer.model(x) ** 2).sum())
        rates.append([group["lr"] for group in trainer.optimizer.param_groups])
    return {
        "rates": rates,
        "gradient norms": [float(norm) for norm in trainer.unread_norms],
        "losses have a graph": any(loss.requires_grad for loss in trainer.unread_losses),
        **state_of(trainer),
    }


def small_trainer(project):
    """A Trainer of two linear layers, and an input for them."""
    nn = torch.nn
    project.pretrain.made_by = str
    model = randomise(nn.Sequential(nn.Linear(4, 5), nn.LayerNorm(5), nn.Linear(5, 3)))
    cpu = torch.device("cpu")
    return project.pretrain.Trainer(model, SETTINGS, "x", cpu, torch.float32), draw(6, 4)


add("pretrain.Trainer.update", "values", updates, updates.__doc__, expected="updates")
# pretrain.evaluate computes the loss in float32
add("pretrain.evaluate", "values", evaluation, evaluation.__doc__, "", 1e-5, "evaluation")
add("pretrain.train_step", "values", few_steps, few_steps.__doc__, expected="few_steps")
for name in ("learning_rate", "make_optimizer", "Trainer.update"):
    add(f"pretrain.{name}", "end to end", few_steps, few_steps.__doc__, expected="few_steps")


@case("pretrain.train_step", "tokens")
def counted_tokens(project):
    """2 steps: the real tokens of their batches are counted"""
    trainer, corpus = training(project)
    for _ in range(2):
        project.pretrain.train_step(trainer, corpus)
    return {"tokens": int(trainer.tokens)}


@case("pretrain.train_step", "seeds")
def other_seed(project):
    """1 step with another seed: other sentences, masks and dropout"""
    trainer, corpus = training(project)
    trainer.settings = {**SETTINGS, "seed": 4}
    project.pretrain.train_step(trainer, corpus)
    return state_of(trainer)


@case("pretrain.train_step", "parts")
def two_parts(project):
    """1 step of 4 rows, at most 2 of them at a time"""
    trainer, corpus = training(project)
    trainer.micro_batch = 2
    project.pretrain.train_step(trainer, corpus)
    return state_of(trainer)


# If the gradients of an earlier part are lost, this shows it.
add("pretrain.Trainer.update", "parts", two_parts, two_parts.__doc__)


@case("pretrain.evaluate", "mode")
def mode_afterwards(project):
    """the model trains with dropout again"""
    trainer, corpus = training(project)
    cpu = torch.device("cpu")
    project.pretrain.evaluate(trainer.model, corpus, 8, cpu, torch.float32)
    return {"in training mode afterwards": trainer.model.training}


# part 5: the ungraded functions that connect the graded ones
def module_case(function, property_name, what, module, inputs, training=True):
    """Outputs of a part of a small model: `module` picks it, `inputs` are its arguments."""

    def compute(project):
        model = project.model.BertForMaskedLM(model_config(project, "absolute"))
        part = module(randomise(model).train(training))
        return {"result": part(*inputs)}

    add(function, property_name, compute, what)


def embeddings(model):
    return model.bert.embeddings


def layer(model):
    return model.bert.layers[0]


def bert(model):
    return model.bert


def head(model):
    return model.head


def itself(model):
    return model


IDS, TYPES = token_ids()
HIDDEN = draw(B, N, 12)
ATTENTION_MASK = padded_mask()
for mode in (True, False):
    word = "training" if mode else "evaluation"
    module_case("model.Embeddings.forward", word, word, embeddings, (IDS, TYPES), training=mode)
    module_case("model.Layer.forward", word, word, layer, (HIDDEN, ATTENTION_MASK), training=mode)
    module_case("model.Bert.forward", word, word, bert, (IDS, ATTENTION_MASK, TYPES), training=mode)
    module_case(
        "model.BertForMaskedLM", word, word, itself, (IDS, ATTENTION_MASK, TYPES), training=mode
    )
module_case("model.BertForMaskedLM", "head", "hidden states", head, (HIDDEN * 1e-3,))


@case("model.BertForMaskedLM", "masked logits")
def masked_logits(project):
    """logits and targets of the masked tokens"""
    model = randomise(project.model.BertForMaskedLM(model_config(project)))
    labels = IDS.masked_fill(torch.arange(N) % 3 > 0, -100)
    return {"logits and targets": list(model.masked_logits(HIDDEN, labels))}


@case("model.masked_indices", "values")
def indices(project):
    """M is rounded up to a multiple of 4"""
    labels = torch.tensor([-100, 7, -100, 0, 9, -100])
    return {"indices and targets": list(project.model.masked_indices(labels, 4))}


@case("model.initialise", "values")
def weights_at_the_start(project):
    """all weights, drawn from seed 0"""
    model = project.model.BertForMaskedLM(model_config(project, "absolute"))
    return dict(model.named_parameters())


@case("model.BertForClassification.forward", "values")
def classifier(project):
    """scores with padding and token types, in evaluation and in training"""
    model = randomise(project.model.BertForClassification(model_config(project), 3))
    outputs = {}
    for mode in (True, False):
        model.train(mode)
        outputs[f"scores, training {mode}"] = model(IDS, padded_mask(), TYPES)
    return outputs


@case("glue.classify", "values")
def what_the_classifier_gets(project):
    """two pairs of sentences, one with padding"""

    def model(input_ids, attention_mask=None, token_type_ids=None):
        return {"ids": input_ids, "mask": attention_mask, "types": token_type_ids}

    ids = torch.tensor([[2, 7, 8, 3, 9, 10, 3], [2, 7, 3, 9, 3, 0, 0]])
    return project.glue.classify(model, ids)


@case("pretrain.Recipe", "values")
def recipe(project):
    """the weight decay of all recipes"""
    recipes = [*project.pretrain.RECIPES.values(), project.pretrain.TOY_RECIPE]
    return {"weight decay": [recipe.weight_decay for recipe in recipes]}


@case("pretrain.step_seed", "values")
def seeds(project):
    """seeds of several steps and streams"""
    step_seed = project.pretrain.step_seed
    streams = ("masks", "dropout", "weights")
    return {stream: [step_seed(1, 2, stream), step_seed(2, 1, stream)] for stream in streams}


@case("data.Corpus.most_frequent_token", "values")
def frequent(project):
    """a text in which [SEP] is the most frequent token"""
    corpus = project.data.Corpus.__new__(project.data.Corpus)
    tokens = np.array([3, 3, 3, 3, 3, 9, 8, 9, 8, 9, 7], dtype=np.uint16)
    corpus.token_file = SimpleNamespace(array=tokens.copy)
    corpus.vocab_size = 12
    return {"token": corpus.most_frequent_token()}
