"""Known mistakes: each one is a wrong line, and the sentence that the grader prints about it.

`python -m course check` puts each of them into the original function and checks whether the cases
notice it. `python -m course grade` compares the outputs of a wrong function with those of these
mistakes. A sentence completes "This is what comes out if ...".

`right` occurs exactly once in the original function.
"""

from typing import NamedTuple

from course.parts import original, read_source


class Mistake(NamedTuple):
    function: str
    right: str  # a part of the original text
    wrong: str  # what is written in its place
    sentence: str


def wrong_source(mistake):
    """The text of the file with the mistake in it. ValueError if `right` is not there once."""
    text = read_source(mistake.function)
    node = original(mistake.function)
    lines = text.split("\n")
    before = "\n".join(lines[: node.lineno - 1]) + "\n"
    inside = "\n".join(lines[node.lineno - 1 : node.end_lineno])
    after = "\n" + "\n".join(lines[node.end_lineno :])
    if inside.count(mistake.right) != 1:
        raise ValueError(f"{mistake.function} does not contain exactly once: {mistake.right!r}")
    return before + inside.replace(mistake.right, mistake.wrong) + after


MISTAKES = []


def of(function, *rows):
    """Add mistakes of one function: (right, wrong, sentence)."""
    for right, wrong, sentence in rows:
        MISTAKES.append(Mistake(function, right, wrong, sentence))


# fmt: off
# --- Part 1 ---------------------------------------------------------------------------------------

of("attention.split_heads",
   ("x.unflatten(-1, (heads, -1)).transpose(1, 2)", "x.unflatten(-1, (-1, heads)).movedim(-1, 1)",
    "a head takes every H-th channel, not d channels next to each other"),
   (".transpose(1, 2)", "", "the heads stay behind the positions: (B, N, H, d)"),
   ("x.unflatten(-1, (heads, -1)).transpose(1, 2)",
    "x.reshape(x.shape[0], heads, x.shape[1], -1)",
    "the numbers are read into (B, H, N, d) without exchanging the axes N and H"),
   (".transpose(1, 2)", ".transpose(1, 2).flip(1)", "the order of the heads is reversed"))

of("attention.merge_heads",
   ("x.transpose(1, 2).flatten(2)", "x.reshape(x.shape[0], x.shape[2], -1)",
    "the axes N and H are not exchanged before heads and channels become one axis"),
   ("x.transpose(1, 2).flatten(2)", "x.permute(0, 2, 3, 1).flatten(2)",
    "the channels of different heads alternate"),
   (".flatten(2)", "", "heads and channels stay two axes"),
   ("x.transpose(1, 2)", "x.flip(1).transpose(1, 2)", "the order of the heads is reversed"))

of("attention.lowest_at_padding",
   ("~attention_mask", "attention_mask", "the mask is inverted: real tokens get no attention"),
   ("lowest[:, None, None, :]", "lowest[:, None, :, None]",
    "the padding of the queries is masked, not that of the keys"),
   ("torch.finfo(dtype).min / 2", "-10.0", "the number at padding is not low enough"),
   ("torch.finfo(dtype).min / 2", "-10000.0",
    "the number at padding is not low enough for large scores"),
   ("torch.finfo(dtype).min / 2", "torch.finfo(dtype).tiny",
    "`tiny` is taken for the lowest number; it is the smallest one above 0"),
   ("torch.finfo(dtype).min / 2", "torch.finfo(dtype).max / 2",
    "padding gets the highest score, not the lowest"),
   ("lowest[:, None, None, :]", "lowest[:, None, :]", "one axis is missing: (B, 1, N)"),
   ("torch.finfo(dtype).min / 2", "0", "padding is not masked"),
   ("torch.finfo(dtype).min / 2", "-1e9",
    "the number at padding is a constant, which float16 cannot hold"),
   ("torch.finfo(dtype).min / 2", "torch.finfo(dtype).min",
    "the lowest number itself is taken: its sum with a negative score overflows"))

of("attention.drop",
   ("F.dropout(p, dropout)", "F.dropout(p, dropout) * (1 - dropout)",
    "what is kept is not scaled up by 1 / (1 - dropout)"),
   ("F.dropout(p, dropout)", "F.dropout(p, 1 - dropout)",
    "numbers are kept with the probability `dropout`, not dropped with it"),
   ("kept.div_(1 - dropout)", "kept", "with a generator, what is kept is not scaled up"),
   ("bernoulli_(1 - dropout, generator=generator)", "bernoulli_(dropout, generator=generator)",
    "with a generator, numbers are kept with the probability of dropping them"),
   ("kept.div_(1 - dropout)", "kept.div_(dropout)",
    "with a generator, it is divided by dropout, not by 1 - dropout"),
   ("if generator is None", "if True", "the generator is not used"),
   ("(1 - dropout, generator=generator)", "(1 - dropout)", "the generator is not used"),
   ("F.dropout(p, dropout)", "p", "nothing is dropped without a generator"))

of("attention.attention",
   ("(query / math.sqrt(d))", "query", "the scores are not divided by sqrt(d)"),
   ("math.sqrt(d)) @", "d) @", "the scores are divided by d, not by sqrt(d)"),
   ("math.sqrt(d)) @", "math.sqrt(n)) @",
    "the scores are divided by the root of the number of queries, not of d"),
   ("(query / math.sqrt(d))", "(query * math.sqrt(d))", "the scores are multiplied by sqrt(d)"),
   ("scores.softmax(dim=-1)", "scores.softmax(dim=-2)",
    "the softmax runs over the queries, not over the keys"),
   ("scores.softmax(dim=-1)", "scores.softmax(dim=1)", "the softmax runs over the heads"),
   ("scores.softmax(dim=-1)", "scores.sigmoid()", "a sigmoid takes the place of the softmax"),
   ("scores = scores + lowest_at_padding(attention_mask, scores.dtype)", "pass",
    "padding is not masked"),
   ("scores = scores + lowest_at_padding(attention_mask, scores.dtype)",
    "scores = scores * attention_mask[:, None, None, :]",
    "the scores of padding are set to 0, and 0 is an ordinary score"),
   ("p = scores.softmax(dim=-1)  # (B, H, n, N)",
    "p = scores.softmax(dim=-1) * attention_mask[:, None, None, :] * 0.5",
    "the weights do not sum to 1"),
   ("scores = scores + lowest_at_padding(attention_mask, scores.dtype)\n\n"
    "    # each query's weights over the keys, which sum to 1\n    p = scores.softmax(dim=-1)",
    "p = scores.softmax(dim=-1) * attention_mask[:, None, None, :]",
    "the weights at padding are set to 0 after the softmax: the others no longer sum to 1"),
   ("if query_rows is not None", "if False", "the rows of the queries are left out"),
   ("add_band(scores, query_rows, beyond, first)", "add_band(scores, query_rows.flip(-1), beyond, "
    "first)", "the rows of the queries are read at i - j, not at j - i"),
   ("add_band(scores, query_rows, beyond, first)", 'add_band(scores, query_rows, "clip", first)',
    "`beyond` has no influence on the rows of the queries"),
   ("add_band(scores, query_rows, beyond, first)", "add_band(scores, query_rows, beyond)",
    "a block of queries is treated as if it were at the start of the sequence"),
   ("add_band(scores, query_rows, beyond, first)",
    "add_band(scores, query_rows / math.sqrt(d), beyond, first)",
    "the rows of the queries are divided by sqrt(d) once more"),
   ("if key_rows is not None", "if False", "the rows of the keys are left out"),
   ("key_scores(key_rows.to(scores.dtype), n, beyond, first)",
    "key_scores(key_rows.to(scores.dtype).flip(-1), n, beyond, first)",
    "the rows of the keys are read at j - i, not at i - j"),
   ("key_scores(key_rows.to(scores.dtype), n, beyond, first)",
    "key_scores(key_rows.to(scores.dtype), n, beyond)",
    "for the rows of the keys, a block is treated as if it were at the start of the sequence"),
   ("key_scores(key_rows.to(scores.dtype), n, beyond, first)",
    "key_scores(key_rows.to(scores.dtype), n, first=first)",
    "`beyond` has no influence on the rows of the keys"),
   ("p = drop(p, dropout, generator)", "pass", "no weight is dropped"),
   ("p = drop(p, dropout, generator)", "p = drop(p, dropout)",
    "the generator does not reach `drop`"),
   ("p = scores.softmax(dim=-1)", "p = drop(scores, dropout, generator).softmax(dim=-1)\n"
    "    dropout = 0.0", "scores are dropped before the softmax, not weights after it"),
   ("p = drop(p, dropout, generator)", "p = F.dropout(p, dropout) * (1 - dropout)",
    "the weights that are kept are not scaled up"),
   ("p = drop(p, dropout, generator)", "before = p\n    p = drop(p, dropout, generator)\n"
    "    if relative_value is not None:\n        p, before = before, p\n"
    "        value = value * 1.0\n        z = before.to(value.dtype) @ value\n"
    "        sums = band_sums(p, relative_value.shape[-1], beyond, first)\n"
    "        return z + sums.to(value.dtype) @ relative_value.to(value.dtype).t()",
    "the relative values are summed with the weights before dropout"),
   ("if relative_value is not None", "if False", "the relative values are left out"),
   ("relative_value.shape[-1], beyond, first)", "relative_value.shape[-1], beyond)",
    "for the relative values, a block is treated as if it were at the start of the sequence"),
   ("relative_value.shape[-1], beyond, first)", 'relative_value.shape[-1], "clip", first)',
    "`beyond` has no influence on the relative values"),
   ("relative_value.to(value.dtype).t()", "relative_value.flip(-1).to(value.dtype).t()",
    "the relative values are read at i - j, not at j - i"),
   ("if query.shape[-2] > LONGEST_WHOLE", "if False",
    "a long sequence is not computed in blocks: `attention_in_blocks` is not called"),
   ("            query_rows,\n            key_rows,",
    "            key_rows,\n            query_rows,",
    "`attention_in_blocks` gets the rows of the queries and of the keys in the wrong order"),
   ("            beyond,\n            dropout,\n", "            beyond,\n",
    "`attention_in_blocks` does not get `dropout`"),
   ("            beyond,\n            dropout,\n", "            dropout=dropout,\n",
    "`attention_in_blocks` does not get `beyond`"),
   ("z = p.to(value.dtype) @ value", "z = p @ value.to(p.dtype)",
    "the result has the dtype of the weights, not that of the values"))

of("attention.SelfAttention.forward",
   ("self.depthwise(zero_padding(value, attention_mask))", "self.depthwise(value)",
    "the convolution of the values sees what is at padding"),
   ("z = z + self.depthwise(", "self.depthwise(", "the convolution of the values is not added"),
   ("self.dropout if self.training else 0.0", "0.0", "no weight of attention is dropped"),
   ("self.dropout if self.training else 0.0", "self.dropout",
    "weights are dropped in evaluation, too"),
   ('self.sum_of_rows("key", k)', 'self.sum_of_rows("key", q)',
    "the rows of the keys are made from the queries"),
   ('self.sum_of_rows("query", q)', 'self.sum_of_rows("query", k)',
    "the rows of the queries are made from the keys"),
   ("beyond=self.beyond,", "", "`beyond` does not reach attention"),
   ("return self.output(z)", "return z", "the output projection is left out"))

of("attention.SelfAttention.project",
   ("x = zero_padding(x, attention_mask)", "pass",
    "the convolutional projections see what is at padding"))

of("attention.SelfAttention.sum_of_rows",
   ("rows if total is None else add_rows(total, rows, self.beyond)", "rows",
    "only the last term is used"),
   ("if term.belongs_to == belongs_to", 'if term.belongs_to in ("query", belongs_to)',
    "terms of the queries are added to the keys, too"))

of("attention.zero_padding",
   ("~attention_mask", "attention_mask", "real tokens become 0, not padding"))

# --- Part 2 ---------------------------------------------------------------------------------------

of("attention.Fixed.forward",
   ("self.beta[:, None, :]", "self.beta[:, None, :] / math.sqrt(q.shape[-1])",
    "beta is divided by sqrt(d); this term is not scaled"),
   ("self.beta[:, None, :]", "self.beta.flip(-1)[:, None, :]", "beta is read at i - j, not j - i"),
   ("self.beta[:, None, :]", "self.beta.softmax(-1)[:, None, :]",
    "the softmax runs over beta; it belongs to the sum of all terms"),
   ("self.beta[:, None, :]", "self.beta.detach()[:, None, :]", "beta gets no gradient"),
   ("self.beta[:, None, :]", "self.beta.mean(0, keepdim=True)[:, None, :].repeat(len(self.beta), "
    "1, 1)", "all heads have the same row"),
   ("self.beta[:, None, :]", "self.beta[:, None, :].expand(-1, q.shape[1], -1)",
    "there are as many rows as heads, not one or as many as tokens"),
   ("self.beta[:, None, :]", "self.beta.exp()[:, None, :]",
    "the exponential of beta is taken; the softmax does this later"))

of("attention.Dynamic.forward",
   ("(self.w / math.sqrt(d))", "self.w", "q . w is not divided by sqrt(d)"),
   ("math.sqrt(d)", "d", "q . w is divided by d, not by sqrt(d)"),
   ("math.sqrt(d)", "math.sqrt(self.w.shape[-1])", "q . w is divided by sqrt(K), not by sqrt(d)"),
   ("self.w /", "self.w.flip(-1) /", "w is read at i - j, not at j - i"),
   ("self.w /", "self.w.detach() /", "w gets no gradient"),
   ("q @", "q.detach() @", "the queries get no gradient from this term"),
   ("return q @ (self.w / math.sqrt(d))", "return (q @ (self.w / math.sqrt(d))).softmax(-1)",
    "the softmax runs over the row; it belongs to the sum of all terms"),
   ("return q @ (self.w / math.sqrt(d))", "return q.mean(1, keepdim=True).expand_as(q) @ (self.w "
    "/ math.sqrt(d))", "all heads have the same row"))

of("attention.KeyDynamic.forward",
   ("(self.u / math.sqrt(d))", "self.u", "k . u is not divided by sqrt(d)"),
   ("math.sqrt(d)", "d", "k . u is divided by d, not by sqrt(d)"),
   ("math.sqrt(d)", "math.sqrt(self.u.shape[-1])", "k . u is divided by sqrt(K), not by sqrt(d)"),
   ("self.u /", "self.u.flip(-1) /", "u is read at j - i, not at i - j"),
   ("self.u /", "self.u.detach() /", "u gets no gradient"))

of("attention.relative_table",
   ("nn.init.kaiming_uniform_(table, a=math.sqrt(5))", "torch.randn_like(table)",
    "the tables w, u and s start with randn: much too large"),
   ("nn.init.kaiming_uniform_(table, a=math.sqrt(5))", "torch.zeros_like(table)",
    "the tables w, u and s start at 0"),
   ("nn.init.kaiming_uniform_(table, a=math.sqrt(5))", "nn.init.normal_(table, std=0.02)",
    "the tables w, u and s start as the linear layers do"))

of("kernels.gather_scores",
   ("j[None, :] - i[:, None]", "i[:, None] - j[None, :]", "r is i - j, not j - i"),
   ("r.clamp(-k, k) + k", "r.clamp(-k, k).abs() + k", "left and right are not distinguished"),
   ("r.clamp(-k, k) + k", "r.clamp(-k, k - 1) + k", "the window is one position too short"),
   ("r.clamp(-k, k) + k", "(r % K)", "r is taken modulo K: no column for its sign, no clipping"),
   ("r.clamp(-k, k) + k", "(r + k).clamp(0, k)", "positions on the right all take one column"),
   ("torch.arange(first, first + n,", "torch.arange(n,", "`first` has no influence"),
   ('if beyond == "zero"', "if False", '"zero" does the same as "clip"'),
   ('if beyond == "zero"', "if True", '"clip" does the same as "zero"'),
   ("r.abs() > k", "r.abs() >= k", '"zero" also removes the ends of the window'),
   ("r.abs() > k", "r > k", '"zero" removes only what is beyond the window on the right'),
   ("scores = rows.gather", "scores = rows.detach().gather", "the rows get no gradient"))

# --- Part 3 ---------------------------------------------------------------------------------------

of("kernels.relative_scores",
   ("flat.unfold(-1, N, N + n - 1)", "F.pad(flat, (0, n)).unfold(-1, N, N + n)",
    "each query starts in the same column: the step is N + n, not N + n - 1"),
   ("[..., n - 1 :]", "[..., n:]", "the view starts one number too late"),
   ("[..., n - 1 :]", "[..., max(0, n - 2) :]", "the view starts one number too early"),
   ('beyond == "zero"', 'beyond == "clip"', '"clip" and "zero" are exchanged'),
   ("left_end = torch.zeros_like(left_end)", "pass",
    'with "zero", what is beyond the window on the left is not 0'),
   ("right_end = torch.zeros_like(right_end)", "pass",
    'with "zero", what is beyond the window on the right is not 0'),
   ("right_end = rows[..., -1:]", "right_end = rows[..., :1]",
    "the left end weight is also repeated on the right"),
   ("extra_columns(n, N, K, first)", "extra_columns(n, N, K, 0)", "`first` has no influence"),
   ("rows[..., max(0, -left) : K - max(0, -right)]",
    "rows.flip(-1)[..., max(0, -left) : K - max(0, -right)]",
    "the rows are read from right to left: at i - j, not at j - i"),
   ("rows[..., max(0, -left) : K - max(0, -right)]",
    "rows[..., : K - max(0, -left) - max(0, -right)]",
    "if the kernel reaches beyond the start, the wrong columns are left out"),
   ("            used,\n", "            used.detach(),\n",
    "the weights within the window get no gradient"))

of("kernels.sum_bands_of_strip",
   ("sums[..., 0] += diagonals[..., :start].sum(-1)", "pass",
    'with "clip", the keys beyond the window on the left are not counted'),
   ("sums[..., -1] += diagonals[..., stop:].sum(-1)", "pass",
    'with "clip", the keys beyond the window on the right are not counted'),
   ('if beyond == "clip"', "if True", 'with "zero", keys beyond the window are counted'),
   ('if beyond == "clip"', "if False", 'with "clip", keys beyond the window are not counted'),
   ("sums[..., 0] += ", "sums[..., 0] = ",
    "the sum beyond the window replaces the end, instead of being added to it"),
   ("sums[..., -1] += ", "sums[..., 0] += ",
    "the sum beyond the window on the right is added to the left column, not to the right one"),
   ("extra_columns(n, N, K, first)", "extra_columns(n, N, K, 0)", "`first` has no influence"),
   ("    return sums", "    return sums.flip(-1)", "the columns are in the order of i - j"),
   ("    return sums", "    return sums / N", "it is the mean, not the sum"),
   ("N + n - 1, N + 2 * n - 1)", "N + n - 1, N + 2 * n - 2)",
    "each row is read from the same column: the step is one too small"),
   ("F.pad(scores, (n - 1, n - 1))", "F.pad(scores.detach(), (n - 1, n - 1))",
    "the scores get no gradient"))

of("kernels.key_scores",
   ("by_key.transpose(-1, -2)", "by_key", "the map is not transposed: rows are still the keys"),
   ("rows[..., :start, -1:]", "rows[..., :start, :1]",
    "keys far on the left take the wrong end weight"),
   ("rows[..., stop:, :1]", "rows[..., stop:, -1:]",
    "keys far on the right take the wrong end weight"),
   ("before = torch.zeros_like(before)", "pass",
    'with "zero", keys far on the left still take their end weight'),
   ("after = torch.zeros_like(after)", "pass",
    'with "zero", keys far on the right still take their end weight'),
   ("beyond, start - first)", "beyond, start)",
    "the positions of the keys are not counted from the first query"),
   ("beyond, start - first)", "beyond, first - start)",
    "the position of the first key is `first - start`, and must be `start - first`"),
   ("band_scores(rows[..., start:stop, :]", "band_scores(rows.flip(-1)[..., start:stop, :]",
    "the rows are read at j - i, not at i - j"),
   ("beyond, start - first)", '"clip", start - first)',
    "`beyond` has no influence near the queries"))

of("kernels.convolve",
   ("band_scores(rows,", "band_scores(rows.flip(-1),", "the kernel is mirrored: z_i takes v_(i-r)"),
   ('"zero", first=k', '"clip", first=k', "the end weight is repeated beyond the kernel"),
   ('"zero", first=k', '"zero", first=0', "the kernel begins at its own query: only later values"),
   ("(0, 0, k, k + spare)", "(0, 0, 2 * k, spare)", "the kernel sees only earlier values"),
   ("(0, 0, k, k + spare)", "(0, 0, 0, 2 * k + spare)", "the kernel sees only later values"),
   ("band @ near", "band.softmax(-1) @ near", "a softmax runs over the band matrix"),
   ("[..., :N, :]", "", "the spare queries of the last block are not removed"),
   ("F.pad(rows.to(value.dtype)", "F.pad(rows.detach().to(value.dtype)",
    "the kernels get no gradient"))

of("kernels.extra_columns",
   ("k = K // 2", "k = K", "k is K, not K // 2"),
   ("(first + n - 1) - k", "first + n - k", "one column too many on the left"))

of("kernels.AddBand",
   ("first + number * STRIP", "first", "each strip is treated as the first one"),
   ("sum_bands(gradient, *ctx.settings)", "sum_bands(gradient.flip(-1), *ctx.settings)",
    "the gradient of the rows is summed from right to left"),
   ("return gradient, row_gradient", "return None, row_gradient", "the scores get no gradient"),
   ("score_strip += ", "score_strip -= ", "the rows are subtracted"))

of("kernels.sum_bands",
   ("first + number * queries_per_strip", "first", "each strip is treated as the first one"))

of("kernels.zeros_to_sum",
   ("torch.zeros_like(x, dtype=torch.promote_types(x.dtype, torch.float32))", "torch.zeros_like(x)",
    "the gradients of the blocks are summed in bf16"))

of("kernels.attend_block",
   ("seed + first", "seed", "all blocks have the same dropout"),
   ("if dropout:", "if False:",
    "the backward pass of a block has another dropout than the forward pass"))

# --- Part 4 ---------------------------------------------------------------------------------------

of("attention.depthwise_convolution",
   ("F.conv2d(image, kernel, bias,", "F.conv2d(image, kernel, None,", "the bias is left out"),
   ("    D = dilation\n", "    D = 1\n", "the dilation has no influence"),
   ("kernel = weight[:, None, :, None]", "kernel = weight.flip(-1)[:, None, :, None]",
    "the kernel is mirrored: y_i takes x_(i-r)"),
   ("kernel = weight[:, None, :, None]",
    "kernel = weight.mean(0).expand(C, K)[:, None, :, None]", "all channels have the same kernel"),
   ("F.conv2d(image, kernel, bias, padding=(K // 2, 0), groups=C)",
    "F.conv2d(F.pad(image, (0, 0, K - 1, 0)), kernel, bias, groups=C)",
    "the kernel sees only earlier tokens"),
   ("F.conv2d(image, kernel, bias, padding=(K // 2, 0), groups=C)",
    "F.conv2d(F.pad(image, (0, 0, K // 2, K // 2), mode='replicate'), kernel, bias, groups=C)",
    "beyond the ends the last value is repeated, instead of 0"),
   ("image.unflatten(1, (-1, D)).movedim(-1, 1)",
    "image.unflatten(1, (D, -1)).transpose(1, 2).movedim(-1, 1)",
    "the image is filled column by column: its neighbours are not D tokens apart"),
   ("weight[:, None, :, None]", "weight.softmax(-1)[:, None, :, None]",
    "a softmax runs over the kernel; only LightConv has one"))

of("attention.HalfConvolution.forward",
   ("[convolved, projected]", "[projected, convolved]", "the two halves are exchanged"),
   ("self.pointwise(self.depthwise(x))", "self.pointwise(F.gelu(self.depthwise(x)))",
    "there is an activation between depthwise and pointwise"),
   ("self.linear(x)", "self.linear(self.depthwise(x))", "both halves are convolutions"),
   ("self.pointwise(self.depthwise(x))", "self.pointwise(x)",
    "the depthwise convolution is left out"),
   ("self.linear(x)", "self.pointwise(x)", "the second half uses the weights of the first one"))

of("attention.GatedConvolution.gate",
   ("return zero_padding(g, attention_mask)", "return g", "what is at padding stays"),
   ("F.glu(self.input(x))", "F.glu(self.input(x).roll(x.shape[-1], -1))",
    "the sigmoid is taken of the first half, not of the second one"),
   ("F.glu(self.input(x))", "self.input(x)[..., : x.shape[-1]]", "nothing is gated"),
   ("F.glu(self.input(x))", "self.input(x).chunk(2, -1)[0] * self.input(x).chunk(2, -1)[1]",
    "the sigmoid is left out"),
   ("F.glu(self.input(x))", "self.input(x).chunk(2, -1)[0] * self.input(x).chunk(2, -1)[1].tanh()",
    "a tanh takes the place of the sigmoid"))

of("attention.LightConv.convolution",
   ("softmax(dim=-1)", "softmax(dim=0)", "the softmax runs over the heads, not over r"),
   ("self.weight.softmax(dim=-1)", "self.weight", "the softmax is left out"),
   ("self.dropout(self.weight.softmax(dim=-1))", "self.dropout(self.weight).softmax(dim=-1)",
    "dropout comes before the softmax"),
   ("self.dropout(self.weight.softmax(dim=-1))", "self.weight.softmax(dim=-1)",
    "no weight is dropped"),
   ("p.repeat_interleave(d, dim=0)", "p.repeat(d, 1)",
    "channels next to each other have different kernels: heads alternate"),
   (", dilation=self.dilation", "", "the dilation has no influence"),
   ("depthwise_convolution(g, by_channel", "depthwise_convolution(g, by_channel.flip(-1)",
    "the kernel is mirrored: z_i takes g_(i-r)"),
   ("depthwise_convolution(g, by_channel, dilation=self.dilation)",
    "self.dropout(depthwise_convolution(g, self.weight.softmax(dim=-1).repeat_interleave(d, "
    "dim=0), dilation=self.dilation))", "the result is dropped, not the weights of the kernel"))

of("attention.DynamicConv.convolution",
   (".softmax(dim=-1)", ".softmax(dim=-2)", "the softmax runs over the positions, not over r"),
   (".softmax(dim=-1)", "", "the softmax is left out"),
   ("self.dropout(self.kernel_logits(g).softmax(dim=-1))",
    "self.kernel_logits(g).softmax(dim=-1)", "no weight is dropped"),
   ("self.dropout(self.kernel_logits(g).softmax(dim=-1))",
    "self.dropout(self.kernel_logits(g)).softmax(dim=-1)", "dropout comes before the softmax"),
   ("convolve(p,", "convolve(p.flip(-1),", "the kernels are mirrored: z_i takes g_(i-r)"),
   ("merge_heads(z)", "z.reshape(g.shape)", "the heads are not moved back behind the positions"))

of("attention.ConvBert.forward",
   ("x = zero_padding(x, attention_mask)", "pass", "the convolution sees what is at padding"),
   ("zero_padding(self.value(x), attention_mask)", "self.value(x)",
    "the values at padding are not 0: the bias of the projection is there"),
   ("[merge_heads(attended), merge_heads(convolved)]",
    "[merge_heads(convolved), merge_heads(attended)]", "the two kinds of heads are exchanged"),
   ("self.kernel_logits(x, query).softmax(dim=-1)", "self.kernel_logits(x, query)",
    "the softmax over the kernel is left out"),
   ("self.kernel_logits(x, query)", "self.kernel_logits(x, key)",
    "the kernel is made from the keys, not from the queries"),
   ("p = F.dropout(p, dropout)", "pass", "no weight of the kernels is dropped"),
   ("attention_mask, dropout=dropout)", "attention_mask)", "no weight of attention is dropped"),
   ("split_heads(convolution_value, self.heads)", "split_heads(attention_value, self.heads)",
    "both kinds of heads use the first half of the values"),
   ("return self.output(z)", "return z", "the output projection is left out"),
   ("self.dropout if self.training else 0.0", "self.dropout",
    "weights are dropped in evaluation, too"))

of("attention.GatedConvolution.forward",
   ("self.output(self.convolution(g))", "self.convolution(g)", "the output projection is left out"))

of("attention.LightConv.__init__",
   ("nn.init.xavier_uniform_(torch.empty(config.heads, 1, config.kernel_size))",
    "torch.zeros(config.heads, 1, config.kernel_size)", "the weights start at 0"),
   ("layer % len(variant.dilations)", "0", "all layers have the dilation of the first one"),
   ("nn.init.xavier_uniform_", "nn.init.normal_", "the weights start with randn"))

of("attention.DynamicConv.kernel_logits",
   ("split_heads(self.kernel(g), self.heads)",
    "self.kernel(g).unflatten(-1, (-1, self.heads)).movedim(-1, 1)",
    "the weights of different heads alternate"))

of("attention.ConvBert.kernel_logits",
   ("c * query", "c + query", "c and q are added, not multiplied"),
   ("c * query", "c", "the query has no influence on the kernel"),
   ("self.pointwise(self.depthwise(x))", "self.pointwise(x)",
    "the depthwise convolution is left out"))

# --- Part 5 ---------------------------------------------------------------------------------------

of("data.mask_tokens",
   ("ordinary = input_ids >= len(SPECIAL_TOKENS)", "ordinary = input_ids >= 0",
    "special tokens are chosen, too"),
   ("ordinary = input_ids >= len(SPECIAL_TOKENS)", "ordinary = input_ids >= 4",
    "[MASK] counts as an ordinary token"),
   ("draw < 0.8 * MASK_PROBABILITY", "draw < MASK_PROBABILITY",
    "all chosen tokens become [MASK]: the 80 : 10 : 10 is missing"),
   ("draw < 0.9 * MASK_PROBABILITY", "draw < 0.8 * MASK_PROBABILITY",
    "no chosen token becomes a random one"),
   ("draw < 0.9 * MASK_PROBABILITY", "draw < MASK_PROBABILITY", "no chosen token stays as it is"),
   ("ordinary & (draw < MASK_PROBABILITY)", "ordinary", "every token has a label"),
   ("len(SPECIAL_TOKENS), vocab_size, shape", "len(SPECIAL_TOKENS), vocab_size - 1, shape",
    "the last token of the vocabulary is never drawn"),
   ("len(SPECIAL_TOKENS), vocab_size, shape", "0, vocab_size, shape",
    "special tokens are drawn as random tokens"),
   ("input_ids.masked_fill(~chosen, IGNORED)", "input_ids.masked_fill(~chosen, 0)",
    "the label without a prediction is 0, not -100"),
   ("input_ids.masked_fill(~chosen, IGNORED)", "input_ids.masked_fill(chosen, IGNORED)",
    "the labels are at the tokens that were not chosen"),
   ("return masked_ids, labels", "return masked_ids, masked_ids.masked_fill(~chosen, -100)",
    "the labels are the masked tokens, not the original ones"),
   ("masked_fill(becomes_mask, MASK)", "masked_fill(becomes_mask, 0)",
    "hidden tokens become [PAD]"),
   ("torch.rand(shape, generator=generator, device=device)",
    "torch.rand(shape[1], generator=generator, device=device).expand(shape)",
    "all sentences are masked at the same positions"),
   ("torch.rand(shape, generator=generator, device=device)", "torch.rand(shape, device=device)",
    "the generator does not decide which tokens are chosen"),
   ("shape, generator=generator, device=device\n    )", "shape, device=device\n    )",
    "the generator does not decide which random tokens are drawn"))

of("model.masked_lm_loss",
   ("total / (targets != IGNORED).sum().clamp(min=1)", "total", "it is the sum, not the mean"),
   (".clamp(min=1)", "", "without a target it is 0 / 0"),
   ("total / (targets != IGNORED).sum().clamp(min=1)", "total / len(targets)",
    "it is divided by all rows, those without a target included"),
   ("total / (targets", "total / 0.6931471805599453 / (targets", "it is in bits, not in nats"),
   ("ignore_index=IGNORED", "ignore_index=0", "the target 0 is left out, not -100"),
   ("F.cross_entropy(logits,", "F.cross_entropy(logits.softmax(-1),",
    "the softmax is taken twice"),
   ("F.cross_entropy(logits,", "F.cross_entropy(-logits,", "the sign of the logits is wrong"))

of("pretrain.learning_rate",
   ("peak * (step + 1) / warmup_steps", "peak * step / warmup_steps",
    "the warm-up starts at 0, and is one step behind"),
   ("peak * (steps - step) / max(1, steps - warmup_steps)", "peak",
    "it does not fall after the warm-up"),
   ("peak * (steps - step) / max(1, steps - warmup_steps)", "peak * (steps - step) / steps",
    "it jumps down after the warm-up: it falls from step 0 on"),
   ("peak * (steps - step) /", "peak * (steps - step - 1) /",
    "it is 0 in the last step, not after it"),
   ("if step < warmup_steps", "if False", "there is no warm-up"),
   ("peak * (step + 1) / warmup_steps", "(step + 1) / warmup_steps",
    "the warm-up rises to 1, not to the peak"))

of("pretrain.make_optimizer",
   ('name == "bias" or isinstance(module, nn.LayerNorm)', "isinstance(module, nn.LayerNorm)",
    "the biases decay, too"),
   ('name == "bias" or isinstance(module, nn.LayerNorm)', 'name == "bias"',
    "the weights of LayerNorms decay, too"),
   ('name == "bias" or isinstance(module, nn.LayerNorm)', "False", "everything decays"),
   ('name == "bias" or isinstance(module, nn.LayerNorm)', "parameter.dim() < 2 or name in 'wus'",
    "the tables w, u and s do not decay"),
   ('"weight_decay": weight_decay}', '"weight_decay": 0.0}', "nothing decays"),
   ("eps=ADAM_EPS, ", "", "eps is torch's own, 1e-8"),
   ("betas=ADAM_BETAS, ", "betas=(0.9, 0.98), ", "the second beta is 0.98, not 0.999"),
   ("torch.optim.AdamW(", "torch.optim.Adam(", "it is Adam, whose decay goes into the gradient"))

of("pretrain.Trainer.update",
   ("loss.backward()", "self.optimizer.zero_grad()\n        loss.backward()",
    "zero_grad comes before backward: the gradients of the earlier parts of a batch are lost"),
   ("self.optimizer.zero_grad()", "pass",
    "zero_grad is forgotten: each step adds to the gradients of the earlier ones"),
   ("norm = nn.utils.clip_grad_norm_(self.model.parameters(), MAX_GRADIENT_NORM)\n        "
    "self.optimizer.step()",
    "norm = loss\n        self.optimizer.step()", "the gradients are not clipped"),
   ("norm = nn.utils.clip_grad_norm_(self.model.parameters(), MAX_GRADIENT_NORM)\n        "
    "self.optimizer.step()",
    "self.optimizer.step()\n        "
    "norm = nn.utils.clip_grad_norm_(self.model.parameters(), MAX_GRADIENT_NORM)",
    "the gradients are clipped after the step"),
   ("nn.utils.clip_grad_norm_(", "loss.detach()\n        nn.utils.clip_grad_value_(",
    "each number of the gradient is clipped, not its norm"),
   ('group["lr"] = lr', "pass", "the learning rate is never set"),
   ("for group in self.optimizer.param_groups:", "for group in self.optimizer.param_groups[:1]:",
    "only the parameters that decay get the learning rate"),
   ("learning_rate(self.step,", "learning_rate(self.step + 1,",
    "each step has the learning rate of the next one"),
   ("self.step += 1", "pass", "the steps are not counted"),
   ("loss.backward()", "loss.backward()\n        self.optimizer.zero_grad()",
    "zero_grad comes between backward and step: the weights never change"),
   ("self.unread_losses.append(loss.detach())", "pass", "the losses are not kept"),
   ("self.unread_losses.append(loss.detach())", "self.unread_losses.append(loss)",
    "the losses are not detached: the graphs of all steps stay in memory"),
   ("self.unread_norms.append(norm)", "pass", "the gradient norms are not kept"),
   ("self.optimizer.step()", "pass", "the optimizer makes no step"))

of("pretrain.Recipe",
   ("weight_decay: float = 0.01", "weight_decay: float = 0.1",
    "the weight decay is 0.1 by default"))

of("pretrain.train_step",
   ('corpus.batch(settings["seed"], trainer.step,', 'corpus.batch(settings["seed"], 0,',
    "the first batch is trained on forever"),
   ("corpus.batch(settings[\"seed\"],", "corpus.batch(0,", "the batches do not depend on the seed"),
   ("model.bert(part.masked_ids, part.attention_mask)", "model.bert(part.masked_ids)",
    "the padding mask does not reach the encoder"),
   ("model.bert(part.masked_ids,", "model.bert(input_ids,",
    "the model sees the tokens that it must predict"),
   ("model.bert(part.masked_ids, part.attention_mask)",
    "model.bert(part.masked_ids, ~part.attention_mask)",
    "the padding mask is inverted"),
   ('step_seed(settings["seed"], trainer.step, "dropout")', 'step_seed(settings["seed"], 0, '
    '"dropout")', "every step has the same dropout"),
   ('torch.manual_seed(step_seed(settings["seed"], trainer.step, "dropout") + rank())', "pass",
    "dropout is not a function of (seed, step)"),
   ('step_seed(settings["seed"], trainer.step, "masks")', 'step_seed(settings["seed"], 0, '
    '"masks")', "every step has the same masks"),
   ("attention_mask = input_ids != PAD", "attention_mask = torch.ones_like(input_ids) > 0",
    "padding is taken for real tokens"),
   ("int((input_ids != PAD).sum())", "input_ids.numel()", "padding is counted as tokens"),
   ("trainer.update(loss)", "pass", "the model is not updated"),
   ("labels, trainer.micro_batch)", "labels, None)", "micro_batch is ignored"),
   ("            loss.backward()\n", "", "only the last part has a backward pass"),
   ("masked_lm_loss(logits, targets)", "masked_lm_loss(logits, targets) * len(targets)",
    "the loss is a sum, not a mean"))

of("pretrain.step_seed",
   ("[seed, step, *stream.encode()]", "[seed, step]", "masks and dropout have the same seed"),
   ("[seed, step, *stream.encode()]", "[seed + step, *stream.encode()]",
    "step 1 of seed 0 and step 0 of seed 1 have the same random numbers"))

of("pretrain.evaluate",
   ("    model.train()\n", "", "the model stays in evaluation mode: no more dropout in training"),
   ("    model.eval()\n", "", "dropout is active while it is evaluated"),
   ("model.bert(masked_ids, masked_ids != PAD)", "model.bert(masked_ids)",
    "the padding mask does not reach the encoder"),
   ('reduction="sum").item()', 'reduction="mean").item()',
    "the means of the batches are added, not the losses of the tokens"),
   ("count += len(targets)", "count += masked_ids.numel()",
    "it is divided by all tokens, not by the masked ones"),
   ("(logits.argmax(dim=-1) == targets)", "(logits.argmin(dim=-1) == targets)",
    "the worst guess is counted as correct"),
   ("return loss / count, correct / count", "return correct / count, loss / count",
    "loss and accuracy are exchanged"))

of("model.Embeddings.forward",
   ("self.dropout(self.norm(x))", "self.norm(x)", "the embeddings have no dropout"),
   ("self.dropout(self.norm(x))", "self.norm(self.dropout(x))",
    "dropout comes before the LayerNorm"),
   ("self.token(input_ids) + self.token_type(token_type_ids)", "self.token(input_ids)",
    "the token types are left out"),
   ("self.dropout(self.norm(x))", "self.dropout(x)", "the LayerNorm is left out"),
   ("self.position.weight[:N]", "self.position.weight[1 : N + 1]",
    "positions are counted from 1"),
   ("x = x + self.position.weight[:N]", "pass", "the positions are left out"))

of("model.Layer.forward",
   ("self.dropout(self.mixer(x, attention_mask))", "self.mixer(x, attention_mask)",
    "the output of the mixer has no dropout"),
   ("self.dropout(self.ffn(x))", "self.ffn(x)",
    "the output of the feed-forward network has no dropout"),
   ("self.mixer_norm(x + ", "self.mixer_norm(", "the sum around the mixer is missing"),
   ("self.ffn_norm(x + ", "self.ffn_norm(", "the sum around the feed-forward network is missing"),
   ("self.mixer_norm(x + self.dropout(self.mixer(x, attention_mask)))",
    "x + self.dropout(self.mixer(self.mixer_norm(x), attention_mask))",
    "the LayerNorm comes before the mixer (pre-norm)"),
   ("self.mixer(x, attention_mask)", "self.mixer(x, attention_mask | True)",
    "the padding mask does not reach the mixer"))

of("model.Bert.forward",
   ("if attention_mask is None", "if True", "the padding mask does not reach the layers"),
   ("if token_type_ids is None", "if True", "the token types do not reach the embeddings"))

of("model.initialise",
   ("std=0.02", "std=0.2", "the weights start ten times too large"),
   ("module.initialise()", "pass", "the mixers keep torch's start"),
   ("initialise_linear(module)", "pass", "the linear layers keep torch's start"))

of("model.BertForMaskedLM",
   ("self.bert(input_ids, attention_mask, token_type_ids)",
    "self.bert(input_ids, token_type_ids=token_type_ids)",
    "the padding mask does not reach the encoder"),
   ("self.bert(input_ids, attention_mask, token_type_ids)", "self.bert(input_ids, attention_mask)",
    "the token types are not passed on"),
   ("F.gelu(self.transform(x))", "self.transform(x)", "the head has no GELU"),
   ("F.gelu(self.transform(x))", "F.relu(self.transform(x))", "the head has a ReLU, not a GELU"),
   ("self.norm(F.gelu(self.transform(x)))", "F.gelu(self.transform(x))",
    "the head has no LayerNorm"),
   ("config.embedding_size, eps=1e-12)", "config.embedding_size)",
    "the LayerNorm of the head has torch's eps, 1e-5"),
   ("return logits + self.bias", "return logits", "the head has no bias"),
   ("self.head(hidden[indices]), targets", "self.head(hidden[: len(indices)]), targets",
    "the logits are those of the first tokens, not of the masked ones"))

of("model.masked_indices",
   ("targets = F.pad(targets, (0, spare), value=IGNORED)", "targets = F.pad(targets, (0, spare))",
    "the spare rows have the target 0, not -100"),
   ("(labels != IGNORED)", "(labels > 0)", "the token 0 is never predicted"))

of("model.BertForClassification.forward",
   ("self.bert(input_ids, attention_mask, token_type_ids)", "self.bert(input_ids, attention_mask)",
    "the token types are dropped"),
   ("self.bert(input_ids, attention_mask, token_type_ids)",
    "self.bert(input_ids, None, token_type_ids)", "the padding mask does not reach the encoder"),
   ("self.dropout(pooled)", "pooled", "the classifier has no dropout"),
   ("torch.tanh(self.pooler(hidden[:, 0]))", "self.pooler(hidden[:, 0])", "the pooler has no tanh"),
   ("hidden[:, 0]", "hidden.mean(1)", "the pooler takes the mean, not the first token"))

of("glue.classify",
   ("model(input_ids, attention_mask, token_types)", "model(input_ids, attention_mask)",
    "the classifier gets no token types"),
   ("model(input_ids, attention_mask, token_types)",
    "model(input_ids, token_type_ids=token_types)", "the classifier gets no padding mask"),
   (".long() * attention_mask", ".long()", "padding has token type 1"),
   ("separators_so_far > is_sep", "separators_so_far > 0", "the first [SEP] has token type 1"))

of("data.Corpus.most_frequent_token",
   ("ordinary = counts[len(SPECIAL_TOKENS) :]", "ordinary = counts",
    "special tokens are counted, and 5 is added to the index"),
   ("return int(ordinary.argmax()) + len(SPECIAL_TOKENS)", "return int(counts.argmax())",
    "the most frequent token may be a special one"))
# fmt: on
