"""The picture at the top of README.md: a kernel, its map of scores, and the convolution.

    python -m lab.figures idea

Everything is placed in units of one square, from the upper left corner; y points down, as the rows
of a matrix do.
"""

TOKENS = ("the", "cat", "saw", "a", "dog")
QUERY = 2  # "saw": the convolution on the right computes the sum of this token

# One colour per relative position r; colour-blind readers can tell them apart (Okabe and Ito 2008).
STRONG = {-1: "#56B4E9", 0: "#E69F00", 1: "#009E73"}
LIGHT = {-1: "#DDF0FB", 1: "#CCECE3"}  # of the end weights, for tokens farther away

# The kernel, which is added to the scores, and its softmax, the weights of the convolution.
SCORES = {-1: "\u03b2\u208b\u2081", 0: "\u03b2\u2080", 1: "\u03b2\u2081"}  # beta_-1, beta_0, beta_1
WEIGHTS = {-1: "p\u208b\u2081", 0: "p\u2080", 1: "p\u2081"}  # p_-1, p_0, p_1
SUBSCRIPTS = "\u2080\u2081\u2082\u2083\u2084"  # 0 to 4
GREY = "#E4E4E4"
INK = "#1A1A1A"

TITLE = 0.5  # y of the titles
TOP = 2.5  # y of the upper edge of the map
ROW = TOP + QUERY  # y of the row of "saw"; the kernel and the window are at the same height


def draw_idea(pyplot):
    """The figure: on the left the kernel, in the middle the map, on the right the convolution."""
    figure, axis = pyplot.subplots(figsize=(10, 4.75), facecolor="white")
    axis.set(xlim=(0, 20.2), ylim=(9.5, 0), aspect="equal")
    axis.axis("off")

    draw_kernel(axis, left=0.2)
    draw_arrow(axis, (3.5, ROW + 0.5), (4.7, ROW + 0.5))
    draw_map(axis, left=6.5)
    draw_arrow(axis, (11.8, ROW + 0.5), (13, ROW + 0.5))
    draw_convolution(axis, left=14.3)
    return figure


def draw_kernel(axis, left):
    """Three numbers, one for each relative position."""
    write(axis, left + 1.5, TITLE, "a kernel:", "3 numbers", size=15)

    names = {-1: "before", 0: "itself", 1: "after"}
    for r in (-1, 0, 1):
        x = left + 1 + r
        draw_square(axis, x, ROW, STRONG[r], SCORES[r])
        write(axis, x + 0.5, ROW + 1.4, names[r], size=10.5)
    write(axis, left + 1.5, ROW + 2.05, "r = \u22121, 0, 1", size=12)


def draw_map(axis, left):
    """The map of 5 x 5 scores: each token has the kernel, shifted to its own position."""
    write(
        axis,
        left + 2.5,
        TITLE,
        "in attention: each row of the",
        "score map is the kernel, shifted",
        size=15,
    )

    # the tokens as keys (columns) and as queries (rows), and the score of each pair
    for i, token in enumerate(TOKENS):
        write(axis, left + i + 0.5, TOP - 0.4, token)
        write(axis, left - 0.75, TOP + i + 0.5, token)
        for j in range(len(TOKENS)):
            r = j - i
            if r < -1:
                draw_square(axis, left + j, TOP + i, LIGHT[-1])
            elif r > 1:
                draw_square(axis, left + j, TOP + i, LIGHT[1])
            else:
                draw_square(axis, left + j, TOP + i, STRONG[r], SCORES[r])

    # a frame around the row whose convolution is drawn on the right
    draw_frame(axis, left, ROW, width=5)
    write(axis, left + 2.5, TOP + 5.6, "light: farther away,", "the end number again", size=12)


def draw_convolution(axis, left):
    """The values v, a window of the three weights p under them, and the sum z."""
    write(
        axis, left + 2.5, TITLE, "as a convolution: the kernel", "slides over the values v", size=15
    )

    # the values, one per token
    for j, token in enumerate(TOKENS):
        write(axis, left + j + 0.5, TOP - 0.4, token)
        draw_square(axis, left + j, TOP, GREY, "v" + SUBSCRIPTS[j])

    # the weights, each with a line from its value and one to the sum; the arrow: they slide
    for r in (-1, 0, 1):
        x = left + QUERY + r
        draw_square(axis, x, ROW, STRONG[r], WEIGHTS[r])
        draw_line(axis, (x + 0.5, TOP + 1.1), (x + 0.5, ROW - 0.05))
        draw_line(axis, (x + 0.5, ROW + 1.05), (left + QUERY + 0.5, ROW + 2))
    draw_frame(axis, left + 1, ROW, width=3)
    draw_arrow(axis, (left + 4.15, ROW + 0.5), (left + 5.1, ROW + 0.5))
    write(axis, left + 4.7, ROW + 1, "next", size=12)

    # the sum z_i = sum_r p_r v_(i+r), and how the weights come from the kernel
    draw_square(axis, left + QUERY, ROW + 2, GREY, "z" + SUBSCRIPTS[QUERY])
    formula = "z\u1d62 = \u03a3\u1d63 p\u1d63 v\u1d62\u208a\u1d63"
    write(axis, left + 2.5, TOP + 5.5, formula, size=16)
    write(axis, left + 2.5, TOP + 6.2, "p = softmax(\u03b2)", "(without the light ones)", size=12)


def draw_square(axis, x, y, colour, text=""):
    """A square with its upper left corner at (x, y), and a text in it."""
    axis.fill([x, x + 1, x + 1, x], [y, y, y + 1, y + 1], facecolor=colour, edgecolor="white")
    write(axis, x + 0.5, y + 0.5, text)


def draw_frame(axis, x, y, width):
    """A thick frame around some squares of a row; its upper left corner is at (x, y)."""
    xs = [x, x + width, x + width, x]
    axis.fill(xs, [y, y, y + 1, y + 1], facecolor="none", edgecolor=INK, linewidth=2.5, zorder=3)


def draw_arrow(axis, start, end):
    axis.annotate("", end, start, arrowprops={"arrowstyle": "-|>", "color": INK, "linewidth": 2})


def draw_line(axis, start, end):
    axis.plot([start[0], end[0]], [start[1], end[1]], color="#777777", linewidth=1.5, zorder=0)


def write(axis, x, y, *lines, size=14):
    """Write lines of text; the middle of the first one is at (x, y)."""
    for number, line in enumerate(lines):
        axis.text(x, y + 0.65 * number, line, ha="center", va="center", fontsize=size, color=INK)
