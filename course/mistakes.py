"""Known mistakes, to check the tests: each must fail in the test command of its function.

A mistake replaces one piece of text in the body of a graded function. The piece must occur there
exactly once. After a change in a graded function, tests/test_course.py says which lines of this
table have to follow it.

Those that begin with "bug: " are also planted for students to find (course/answers.md).
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


# {function: ((what, the piece, what stands in its place), ...)}
# fmt: off
TABLE = {
    "attention.composite_attention": (
        ("bug: r = i - j",
            "i[None, :] - i[:, None]", "i[:, None] - i[None, :]"),
        ("bug: beta is divided by sqrt(d)",
            "(content + dynamic) / math.sqrt(d) + fixed",
            "(content + dynamic + fixed) / math.sqrt(d)"),
        ("bug: q . w is not divided",
            "(content + dynamic) / math.sqrt(d)", "content / math.sqrt(d) + dynamic"),
        ("bug: the softmax runs over the queries",
            "softmax(dim=-1)", "softmax(dim=-2)"),
        ("an offset of one",
            "+ reach  # (N, N)", "+ reach - 1"),
        ("bug: beyond the window, the columns begin again",
            "r.clamp(-reach, reach) + reach", "(r + reach) % K"),
    ),
    "kernels.bias_matrix": (
        ("bug: r = i - j",
            "offsets(N, bias.device)", "-offsets(N, bias.device)"),
        ("beyond has no influence",
            'if beyond == "zero":', "if False:"),
        ("bug: zero on one side only",
            "r.abs() > reach", "r > reach"),
        ("bug: zero at the ends of the window, too",
            "r.abs() > reach", "r.abs() >= reach"),
        ("a bias that all queries share is not repeated",
            "bias = bias.expand(*bias.shape[:-2], N, K)", "pass"),
        ("an offset of one",
            "+ reach  # (N, N)", "+ reach - 1"),
        ("far keys get the middle entry",
            "r.clamp(-reach, reach) + reach", "torch.where(r.abs() > reach, 0, r) + reach"),
    ),
    "kernels.sum_by_offset": (
        ("mirrored: r = i - j",
            "return sums", "return sums.flip(-1)"),
        ("the first and the last column get one number, not a sum",
            'if beyond == "clip" and reach < N - 1:', "if False:"),
        ("beyond has no influence",
            'beyond == "clip" and reach < N - 1', "reach < N - 1"),
        ("bug: the sums beyond the window change sides",
            "F.pad(left, (0, K - 1)) + F.pad(right, (K - 1, 0))",
            "F.pad(right, (0, K - 1)) + F.pad(left, (K - 1, 0))"),
        ("bug: the left end only is added up",
            " + F.pad(right, (K - 1, 0))", ""),
        ("bug: the key at the end of the window is added twice",
            "r >= -reach", "r > -reach"),
        ("a number in place of the sum of the keys beyond the window",
            "x.masked_fill(r <= reach, 0).sum(dim=-1, keepdim=True)",
            "x.masked_fill(r <= reach, 0)[..., -1:]"),
        ("off by one column",
            "(reach, reach)", "(reach + 1, reach - 1)"),
        ("every query reads the same keys",
            "column = i + torch.arange", "column = 0 * i + torch.arange"),
        ("a mean of the far keys, not their sum",
            "x.masked_fill(r >= -reach, 0).sum(dim=-1, keepdim=True)",
            "x.masked_fill(r >= -reach, 0).mean(dim=-1, keepdim=True)"),
    ),
    "attention.depthwise_convolution": (
        ("mirrored: y_i takes x_(i-r)",
            "weight[:, None, :, None]", "weight.flip(-1)[:, None, :, None]"),
        ("a softmax over the kernel",
            "weight[:, None, :, None]", "weight.softmax(dim=-1)[:, None, :, None]"),
        ("no dilation",
            "D = dilation", "D = 1"),
        ("the bias is lost",
            "kernel, bias,", "kernel, None,"),
        ("all channels have the first kernel",
            "weight[:, None, :, None]", "weight[:1, None, :, None].expand(C, 1, K, 1)"),
    ),
    "kernels.convolve": (
        ("bug: mirrored: z_i takes v_(i-r)",
            "kernels.to(value.dtype)", "kernels.flip(-1)"),
        ("bug: the values are k tokens late",
            "(0, 0, left, 2 * reach - left + spare)", "(0, 0, 0, 2 * reach + spare)"),
        ("sums in float32",
            "matrices @ near.transpose(-1, -2)",
            "(matrices.float() @ near.mT.float()).to(value.dtype)"),
        ("a softmax over the kernels",
            "kernels.to(value.dtype)", "kernels.softmax(dim=-1).to(value.dtype)"),
        ("all queries have the kernel of the first",
            "kernels.to(value.dtype)", "kernels[..., :1, :].expand_as(kernels).to(value.dtype)"),
    ),
    "attention.Fixed.query_bias": (
        ("beta is divided by sqrt(d)",
            "self.beta[:, None, :]", "self.beta[:, None, :] / math.sqrt(q.shape[-1])"),
        ("mirrored: r = i - j",
            "self.beta[:, None, :]", "self.beta.flip(-1)[:, None, :]"),
        ("beta does not learn",
            "self.beta[:, None, :]", "self.beta[:, None, :].detach()"),
    ),
    "attention.Dynamic.query_bias": (
        ("q . w is not divided",
            "(self.w / math.sqrt(d))", "self.w"),
        ("a softmax over the bias",
            "q @ (self.w / math.sqrt(d))", "(q @ (self.w / math.sqrt(d))).softmax(dim=-1)"),
        ("mirrored: r = i - j",
            "(self.w / math.sqrt(d))", "(self.w.flip(-1) / math.sqrt(d))"),
    ),
    "attention.lowest_at_padding": (
        ("the scores of padding get 0",
            "torch.finfo(dtype).min / 2", "0"),
        ("tiny is taken for the lowest number",
            ".min / 2", ".tiny"),
        ("-inf",
            "torch.finfo(dtype).min / 2", "float('-inf')"),
        ("the padding of the queries is masked",
            "lowest[:, None, None, :]", "lowest[:, None, :, None]"),
    ),
    "attention.attention": (
        ("bug: q . k is not divided",
            "(q / math.sqrt(d))", "q"),
        ("padding gets attention",
            "softmax(scores, unseen,", "softmax(scores, 0 * unseen,"),
        ("later keys are seen with causal",
            "if causal:", "if False:"),
        ("bug: with causal, padding gets attention",
            "torch.minimum(unseen, lowest_after_query(scores))", "lowest_after_query(scores)"),
        ("the bias of the keys is lost",
            "banded_softmax(scores, unseen, positions)",
            "banded_softmax(scores, unseen, positions._replace(key_bias=None))"),
        ("beyond is lost for the values",
            "positions.value_table, positions.beyond)", "positions.value_table)"),
        ("no dropout",
            "F.dropout(p, dropout)", "p"),
        ("dropout before the softmax",
            "p = banded_softmax(scores, unseen, positions)  # (B, H, N, N)\n"
            "p = F.dropout(p, dropout)",
            "p = banded_softmax(F.dropout(scores, dropout), unseen, positions)"),
        ("sums in float32",
            "z = p @ v", "z = (p.float() @ v.float()).to(v.dtype)"),
        ("the biases are divided, too",
            "banded_softmax(scores, unseen, positions)",
            "banded_softmax(scores, unseen, positions._replace(\n"
            "    query_bias=None if positions.query_bias is None else positions.query_bias / 2))"),
    ),
    "attention.relative_values": (
        ("mirrored: the vector of i - j",
            "table.t()", "table.flip(-1).t()"),
        ("beyond has no influence",
            "sum_by_offset(p, K, beyond)", "sum_by_offset(p, K)"),
        ("divided by sqrt(d), as a score",
            "return sums @", "return sums / math.sqrt(table.shape[0]) @"),
        ("sums in float32",
            "sums @ table.t()", "(sums.float() @ table.t().float()).to(p.dtype)"),
    ),
    "data.mask_tokens": (
        ("all chosen tokens become [MASK]",
            "0.8 * MASK_PROBABILITY", "MASK_PROBABILITY"),
        ("the first ordinary token is never chosen",
            "input_ids >= len(SPECIAL_TOKENS)", "input_ids > len(SPECIAL_TOKENS)"),
        ("special tokens are chosen",
            "chosen = ordinary & (draw < MASK_PROBABILITY)", "chosen = draw < MASK_PROBABILITY"),
        ("special tokens replace others",
            "len(SPECIAL_TOKENS), vocab_size, shape", "0, vocab_size, shape"),
        ("the last token of the vocabulary is never drawn",
            "vocab_size, shape", "vocab_size - 1, shape"),
        ("a second random number",
            "ordinary & (draw < 0.9 * MASK_PROBABILITY)", "chosen & (torch.rand(shape) < 0.9)"),
        ("the generator is not used",
            "torch.rand(shape, generator=generator, device=device)", "torch.rand(shape)"),
    ),
    "pretrain.Trainer.device_step": (
        ("zero_grad between backward and step",
            "self.optimizer.step()\nself.optimizer.zero_grad()",
            "self.optimizer.zero_grad()\nself.optimizer.step()"),
        ("no zero_grad",
            "self.optimizer.zero_grad()", "pass"),
        ("no clipping",
            "self.model.parameters(), MAX_GRADIENT_NORM", 'self.model.parameters(), float("inf")'),
        ("clipping after the step",
            "norm = nn.utils.clip_grad_norm_(self.model.parameters(), MAX_GRADIENT_NORM)\n"
            "self.optimizer.step()",
            "self.optimizer.step()\n"
            "norm = nn.utils.clip_grad_norm_(self.model.parameters(), MAX_GRADIENT_NORM)"),
        ("each parameter is clipped by itself",
            "norm = nn.utils.clip_grad_norm_(self.model.parameters(), MAX_GRADIENT_NORM)",
            "norm = nn.utils.get_total_norm([x.grad for x in self.model.parameters()])\n"
            "for parameter in self.model.parameters():\n"
            "    nn.utils.clip_grad_norm_(parameter, MAX_GRADIENT_NORM)"),
        ("the norm after the clipping",
            "self.optimizer.step()",
            "norm = nn.utils.get_total_norm([x.grad for x in self.model.parameters()])\n"
            "self.optimizer.step()"),
        ("the loss is read, so the host waits for the device",
            "return loss, norm", "return loss.item(), norm"),
        ("the norm is read, so the host waits for the device",
            "return loss, norm", "return loss, norm.item()"),
        ("loss and norm change places",
            "return loss, norm", "return norm, loss"),
    ),
    "attention.KeyDynamic.key_bias": (
        ("the bias is read at j - i",
            "self.u / math.sqrt(d)", "self.u.flip(-1) / math.sqrt(d)"),
    ),
    "kernels.skew": (
        ("the lines keep their places",
            "numbers.unflatten(-1, (n, W - 1))", "x[..., :-1]"),
        ("the lines move to the left",
            "numbers[..., :-n]", "numbers[..., n:]"),
    ),
    "attention.LightConv.convolution": (
        ("repeat in place of repeat_interleave",
            "p.repeat_interleave(d, dim=0)", "p.repeat(d, 1)"),
        ("the softmax runs over the heads",
            "softmax(dim=-1)", "softmax(dim=0)"),
        ("dropout before the softmax",
            "self.dropout(self.weight.softmax(dim=-1))",
            "self.dropout(self.weight).softmax(dim=-1)"),
        ("no dilation",
            ", dilation=self.dilation", ""),
    ),
    "attention.DynamicConv.convolution": (
        ("the softmax runs over the heads",
            "softmax(dim=-1)", "softmax(dim=1)"),
        ("dropout before the softmax",
            "self.dropout(self.kernel_logits(g).softmax(dim=-1))",
            "self.dropout(self.kernel_logits(g)).softmax(dim=-1)"),
        ("dropout of the result",
            "p = self.dropout(self.kernel_logits(g).softmax(dim=-1))",
            "p = self.kernel_logits(self.dropout(g)).softmax(dim=-1)"),
    ),
    "attention.ConvBert.forward": (
        ("the input is not 0 at padding",
            "zero_padding(x, attention_mask)", "x"),
        ("the values are not 0 at padding",
            "zero_padding(self.value(x), attention_mask)", "self.value(x)"),
        ("dropout also in evaluation",
            "self.dropout if self.training else 0.0", "self.dropout"),
        ("no dropout in the convolution heads",
            "F.dropout(p, dropout)", "p"),
    ),
    "pretrain.learning_rate": (
        ("0 in the first step",
            "(step + 1)", "step"),
        ("one step of warm-up too many",
            "step < warmup_steps", "step <= warmup_steps"),
        ("the fall ends at the last step, not after it",
            "(steps - step)", "(steps - 1 - step)"),
    ),
    "pretrain.evaluate": (
        ("the model stays in evaluation mode",
            "model.train()", "pass"),
        ("the batch means, divided by all tokens",
            "count=1", "count=len(targets)"),
        ("the mean of the batch means",
            "predicted += len(targets)",
            "predicted += 1\n"
            "    loss += masked_lm_loss(logits, targets, count=len(targets)).item()\n"
            "    loss -= masked_lm_loss(logits, targets, count=1).item()"),
        ("padding is not masked",
            "masked_ids != PAD", "None"),
        ("no autocast",
            "with autocast(device, dtype), torch", "with torch"),
    ),
}
# fmt: on
MISTAKES = [Mistake(function, *texts) for function, group in TABLE.items() for texts in group]
BUGS = [mistake for mistake in MISTAKES if mistake.what.startswith("bug: ")]
