"""Known mistakes, to check the tests: each must fail in the test command of its function.

A mistake replaces one piece of text in the body of a graded function. The piece must occur there
exactly once. After a change in a graded function, tests/test_course.py says which lines of this
table have to follow it.
"""

from typing import NamedTuple

from course.blank import body_text


class Mistake(NamedTuple):
    """What a student might write in place of a piece of a function."""

    function: str  # its name in the table of the assignment
    what: str
    old: str
    new: str

    def body(self):
        """The body of the function, with the mistake in it."""
        return body_text(self.function).replace(self.old, self.new)


# fmt: off
MISTAKES = (
    # part 1
    Mistake("attention.split_heads", "reshape in place of transpose",
        "x.unflatten(-1, (heads, -1)).transpose(1, 2)",
        "x.reshape(x.shape[0], heads, x.shape[1], -1)"),
    Mistake("attention.merge_heads", "reshape in place of transpose",
        "x.transpose(1, 2).flatten(2)",
        "x.reshape(x.shape[0], x.shape[2], -1)"),

    Mistake("attention.lowest_at_padding", "the scores of padding get 0",
        "torch.finfo(dtype).min / 2", "0"),
    Mistake("attention.lowest_at_padding", "tiny is taken for the lowest number",
        ".min / 2", ".tiny"),
    Mistake("attention.lowest_at_padding", "-inf",
        "torch.finfo(dtype).min / 2", "float('-inf')"),
    Mistake("attention.lowest_at_padding", "no room for the score",
        ".min / 2", ".min"),
    Mistake("attention.lowest_at_padding", "the padding of the queries is masked",
        "lowest[:, None, None, :]", "lowest[:, None, :, None]"),

    Mistake("kernels.banded_softmax", "the softmax runs over the queries",
        "softmax(dim=-1)", "softmax(dim=-2)"),
    Mistake("kernels.banded_softmax", "padding gets attention",
        "scores + unseen", "scores.clone()"),
    Mistake("kernels.banded_softmax", "no bias of the keys",
        "if positions.key_bias is not None:", "if False:"),
    Mistake("kernels.banded_softmax", "the bias of the keys is read at j - i, as that of a query",
        "    scores = scores.transpose(-1, -2)  # (B, H, queries, keys) -> (B, H, keys, queries)\n"
        "    scores = add_bias(scores, positions.key_bias, positions.beyond)\n"
        "    scores = scores.transpose(-1, -2)  # and back",
        "    scores = add_bias(scores, positions.key_bias, positions.beyond)"),
    Mistake("kernels.banded_softmax", "the scores stay transposed after the bias of the keys",
        "scores = scores.transpose(-1, -2)  # and back", "pass"),
    Mistake("kernels.banded_softmax", "beyond is lost for the queries",
        "positions.query_bias, positions.beyond)", "positions.query_bias)"),
    Mistake("kernels.banded_softmax", "beyond is lost for the keys",
        "positions.key_bias, positions.beyond)", "positions.key_bias)"),

    Mistake("attention.attention", "q . k is not divided",
        "(q / math.sqrt(d))", "q"),
    Mistake("attention.attention", "padding gets attention",
        "softmax(scores, unseen,", "softmax(scores, 0 * unseen,"),
    Mistake("attention.attention", "later keys are seen with causal",
        "if causal:", "if False:"),
    Mistake("attention.attention", "with causal, padding gets attention",
        "torch.minimum(unseen, lowest_after_query(scores))", "lowest_after_query(scores)"),
    Mistake("attention.attention", "the bias of the keys is lost",
        "banded_softmax(scores, unseen, positions)",
        "banded_softmax(scores, unseen, positions._replace(key_bias=None))"),
    Mistake("attention.attention", "beyond is lost for the values",
        "positions.value_table, positions.beyond)", "positions.value_table)"),
    Mistake("attention.attention", "no dropout",
        "F.dropout(p, dropout)", "p"),
    Mistake("attention.attention", "dropout before the softmax",
        "p = banded_softmax(scores, unseen, positions)  # (B, H, N, N)\n"
        "p = F.dropout(p, dropout)",
        "p = banded_softmax(F.dropout(scores, dropout), unseen, positions)"),
    Mistake("attention.attention", "sums in float32",
        "z = p @ v", "z = (p.float() @ v.float()).to(v.dtype)"),
    Mistake("attention.attention", "FlexAttention, which has no dropout, with dropout",
        " and dropout == 0.0", ""),
    Mistake("attention.attention", "FlexAttention for N = LONG, too",
        "N > LONG", "N >= LONG"),

    # part 2
    Mistake("attention.Fixed.query_bias", "beta is divided by sqrt(d)",
        "self.beta[:, None, :]", "self.beta[:, None, :] / math.sqrt(q.shape[-1])"),
    Mistake("attention.Dynamic.query_bias", "q . w is not divided",
        "(self.w / math.sqrt(d))", "self.w"),
    Mistake("attention.Dynamic.query_bias", "a softmax over the bias",
        "q @ (self.w / math.sqrt(d))", "(q @ (self.w / math.sqrt(d))).softmax(dim=-1)"),
    Mistake("attention.KeyDynamic.key_bias", "the bias is read at j - i",
        "self.u / math.sqrt(d)", "self.u.flip(-1) / math.sqrt(d)"),

    Mistake("kernels.bias_matrix", "r = i - j",
        "offsets(N, bias.device)", "-offsets(N, bias.device)"),
    Mistake("kernels.bias_matrix", "beyond has no influence",
        'if beyond == "zero":', "if False:"),
    Mistake("kernels.bias_matrix", "zero on one side only",
        "r.abs() > reach", "r > reach"),
    Mistake("kernels.bias_matrix", "zero at the ends of the window, too",
        "r.abs() > reach", "r.abs() >= reach"),
    Mistake("kernels.bias_matrix", "a bias that all queries share is not repeated",
        "bias = bias.expand(*bias.shape[:-2], N, K)", "pass"),
    Mistake("kernels.bias_matrix", "numbers in float32",
        "bias.gather", "bias.float().gather"),

    Mistake("attention.composite_attention", "r = i - j",
        "i[None, :] - i[:, None]", "i[:, None] - i[None, :]"),
    Mistake("attention.composite_attention", "beta is divided by sqrt(d)",
        "(content + dynamic) / math.sqrt(d) + fixed", "(content + dynamic + fixed) / math.sqrt(d)"),
    Mistake("attention.composite_attention", "q . w is not divided",
        "(content + dynamic) / math.sqrt(d)", "content / math.sqrt(d) + dynamic"),
    Mistake("attention.composite_attention", "the softmax runs over the queries",
        "softmax(dim=-1)", "softmax(dim=-2)"),

    # part 3
    Mistake("kernels.sum_by_offset", "mirrored: r = i - j",
        "return sums", "return sums.flip(-1)"),
    Mistake("kernels.sum_by_offset", "the first and the last column get one number, not a sum",
        'if beyond == "clip" and reach < N - 1:', "if False:"),
    Mistake("kernels.sum_by_offset", "beyond has no influence",
        'beyond == "clip" and reach < N - 1', "reach < N - 1"),
    Mistake("kernels.sum_by_offset", "the sums beyond the window change sides",
        "F.pad(left, (0, K - 1)) + F.pad(right, (K - 1, 0))",
        "F.pad(right, (0, K - 1)) + F.pad(left, (K - 1, 0))"),
    Mistake("kernels.sum_by_offset", "the left end only is added up",
        " + F.pad(right, (K - 1, 0))", ""),
    Mistake("kernels.sum_by_offset", "the key at the end of the window is added twice",
        "r >= -reach", "r > -reach"),
    Mistake("kernels.sum_by_offset", "a number in place of the sum of the keys beyond the window",
        "x.masked_fill(r <= reach, 0).sum(dim=-1, keepdim=True)",
        "x.masked_fill(r <= reach, 0)[..., -1:]"),
    Mistake("kernels.sum_by_offset", "off by one column",
        "(reach, reach)", "(reach + 1, reach - 1)"),
    Mistake("kernels.sum_by_offset", "every query reads the same keys",
        "column = i + torch.arange", "column = 0 * i + torch.arange"),
    Mistake("kernels.sum_by_offset", "sums in float32",
        "padded = F.pad(x,", "padded = F.pad(x.float(),"),

    Mistake("attention.relative_values", "mirrored: the vector of i - j",
        "table.t()", "table.flip(-1).t()"),
    Mistake("attention.relative_values", "beyond has no influence",
        "sum_by_offset(p, K, beyond)", "sum_by_offset(p, K)"),
    Mistake("attention.relative_values", "divided by sqrt(d), as a score",
        "return sums @", "return sums / math.sqrt(table.shape[0]) @"),
    Mistake("attention.relative_values", "sums in float32",
        "sums @ table.t()", "(sums.float() @ table.t().float()).to(p.dtype)"),

    Mistake("kernels.skew", "the lines keep their places",
        "numbers.unflatten(-1, (n, W - 1))", "x[..., :-1]"),
    Mistake("kernels.skew", "the lines move to the left",
        "numbers[..., :-n]", "numbers[..., n:]"),

    Mistake("kernels.convolve", "mirrored: z_i takes v_(i-r)",
        "kernels.to(value.dtype)", "kernels.flip(-1)"),
    Mistake("kernels.convolve", "the values are k tokens late",
        "(0, 0, left, 2 * reach - left + spare)", "(0, 0, 0, 2 * reach + spare)"),
    Mistake("kernels.convolve", "sums in float32",
        "matrices @ near.transpose(-1, -2)",
        "(matrices.float() @ near.mT.float()).to(value.dtype)"),

    # part 4
    Mistake("attention.depthwise_convolution", "mirrored: y_i takes x_(i-r)",
        "weight[:, None, :, None]", "weight.flip(-1)[:, None, :, None]"),
    Mistake("attention.depthwise_convolution", "a softmax over the kernel",
        "weight[:, None, :, None]", "weight.softmax(dim=-1)[:, None, :, None]"),
    Mistake("attention.depthwise_convolution", "no dilation",
        "D = dilation", "D = 1"),

    Mistake("attention.HalfConvolution.forward", "an activation between the two",
        "self.pointwise(self.depthwise(x))", "self.pointwise(F.gelu(self.depthwise(x)))"),

    Mistake("attention.GatedConvolution.gate", "the halves are exchanged",
        "g = F.glu(self.input(x))",
        "b, a = self.input(x).chunk(2, dim=-1)\n"
        "g = a * b.sigmoid()"),
    Mistake("attention.GatedConvolution.gate", "padding is not 0",
        "zero_padding(g, attention_mask)", "g"),
    Mistake("attention.GatedConvolution.gate", "padding is 0 before the bias",
        "g = F.glu(self.input(x))",
        "return F.glu(self.input(zero_padding(x, attention_mask)))"),
    Mistake("attention.GatedConvolution.gate", "dropout of the gate",
        "zero_padding(g, attention_mask)", "zero_padding(self.dropout(g), attention_mask)"),

    Mistake("attention.LightConv.convolution", "repeat in place of repeat_interleave",
        "p.repeat_interleave(d, dim=0)", "p.repeat(d, 1)"),
    Mistake("attention.LightConv.convolution", "the softmax runs over the heads",
        "softmax(dim=-1)", "softmax(dim=0)"),
    Mistake("attention.LightConv.convolution", "dropout before the softmax",
        "self.dropout(self.weight.softmax(dim=-1))", "self.dropout(self.weight).softmax(dim=-1)"),
    Mistake("attention.LightConv.convolution", "no dilation",
        ", dilation=self.dilation", ""),

    Mistake("attention.DynamicConv.convolution", "the softmax runs over the heads",
        "softmax(dim=-1)", "softmax(dim=1)"),
    Mistake("attention.DynamicConv.convolution", "dropout before the softmax",
        "self.dropout(self.kernel_logits(g).softmax(dim=-1))",
        "self.dropout(self.kernel_logits(g)).softmax(dim=-1)"),
    Mistake("attention.DynamicConv.convolution", "dropout of the result",
        "p = self.dropout(self.kernel_logits(g).softmax(dim=-1))",
        "p = self.kernel_logits(self.dropout(g)).softmax(dim=-1)"),

    Mistake("attention.ConvBert.forward", "the input is not 0 at padding",
        "zero_padding(x, attention_mask)", "x"),
    Mistake("attention.ConvBert.forward", "the values are not 0 at padding",
        "zero_padding(self.value(x), attention_mask)", "self.value(x)"),
    Mistake("attention.ConvBert.forward", "dropout also in evaluation",
        "self.dropout if self.training else 0.0", "self.dropout"),
    Mistake("attention.ConvBert.forward", "no dropout in the convolution heads",
        "F.dropout(p, dropout)", "p"),

    # part 5
    Mistake("data.mask_tokens", "all chosen tokens become [MASK]",
        "0.8 * MASK_PROBABILITY", "MASK_PROBABILITY"),
    Mistake("data.mask_tokens", "the first ordinary token is never chosen",
        "input_ids >= len(SPECIAL_TOKENS)", "input_ids > len(SPECIAL_TOKENS)"),
    Mistake("data.mask_tokens", "special tokens are chosen",
        "chosen = ordinary & (draw < MASK_PROBABILITY)", "chosen = draw < MASK_PROBABILITY"),
    Mistake("data.mask_tokens", "special tokens replace others",
        "len(SPECIAL_TOKENS), vocab_size, shape", "0, vocab_size, shape"),
    Mistake("data.mask_tokens", "the last token of the vocabulary is never drawn",
        "vocab_size, shape", "vocab_size - 1, shape"),
    Mistake("data.mask_tokens", "a second random number",
        "ordinary & (draw < 0.9 * MASK_PROBABILITY)", "chosen & (torch.rand(shape) < 0.9)"),
    Mistake("data.mask_tokens", "the generator is not used",
        "torch.rand(shape, generator=generator, device=device)", "torch.rand(shape)"),

    Mistake("model.masked_lm_loss", "the mean, divided once more",
        '"sum"', '"mean"'),
    Mistake("model.masked_lm_loss", "divided by the masked tokens of this part",
        "/ count", "/ (targets != IGNORED).sum()"),

    Mistake("pretrain.learning_rate", "0 in the first step",
        "(step + 1)", "step"),
    Mistake("pretrain.learning_rate", "one step of warm-up too many",
        "step < warmup_steps", "step <= warmup_steps"),

    Mistake("pretrain.Trainer.device_step", "zero_grad between backward and step",
        "self.optimizer.step()\nself.optimizer.zero_grad()",
        "self.optimizer.zero_grad()\nself.optimizer.step()"),
    Mistake("pretrain.Trainer.device_step", "no zero_grad",
        "self.optimizer.zero_grad()", "pass"),
    Mistake("pretrain.Trainer.device_step", "no clipping",
        "self.model.parameters(), MAX_GRADIENT_NORM", 'self.model.parameters(), float("inf")'),
    Mistake("pretrain.Trainer.device_step", "clipping after the step",
        "norm = nn.utils.clip_grad_norm_(self.model.parameters(), MAX_GRADIENT_NORM)\n"
        "self.optimizer.step()",
        "self.optimizer.step()\n"
        "norm = nn.utils.clip_grad_norm_(self.model.parameters(), MAX_GRADIENT_NORM)"),
    Mistake("pretrain.Trainer.device_step", "each parameter is clipped by itself",
        "norm = nn.utils.clip_grad_norm_(self.model.parameters(), MAX_GRADIENT_NORM)",
        "norm = nn.utils.get_total_norm([x.grad for x in self.model.parameters()])\n"
        "for parameter in self.model.parameters():\n"
        "    nn.utils.clip_grad_norm_(parameter, MAX_GRADIENT_NORM)"),
    Mistake("pretrain.Trainer.device_step", "the norm after the clipping",
        "self.optimizer.step()",
        "norm = nn.utils.get_total_norm([x.grad for x in self.model.parameters()])\n"
        "self.optimizer.step()"),
    Mistake("pretrain.Trainer.device_step", "the loss is read, so the host waits for the device",
        "return loss, norm", "return loss.item(), norm"),
    Mistake("pretrain.Trainer.device_step", "the norm is read, so the host waits for the device",
        "return loss, norm", "return loss, norm.item()"),
    Mistake("pretrain.Trainer.device_step", "loss and norm change places",
        "return loss, norm", "return norm, loss"),

    Mistake("pretrain.evaluate", "the model stays in evaluation mode",
        "model.train()", "pass"),
    Mistake("pretrain.evaluate", "the batch means, divided by all tokens",
        "count=1", "count=len(targets)"),
    Mistake("pretrain.evaluate", "the mean of the batch means",
        "predicted += len(targets)",
        "predicted += 1\n"
        "    loss += masked_lm_loss(logits, targets, count=len(targets)).item()\n"
        "    loss -= masked_lm_loss(logits, targets, count=1).item()"),
    Mistake("pretrain.evaluate", "padding is not masked",
        "masked_ids != PAD", "None"),
    Mistake("pretrain.evaluate", "no autocast",
        "with autocast(device, dtype), torch", "with torch"),
)
# fmt: on
