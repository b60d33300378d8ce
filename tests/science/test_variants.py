"""The table VARIANTS: what each variant holds, and the paper's parameter counts."""

import pytest
import torch

from attention import VARIANTS, ConvBert, Deberta, LightConv, Variant, make_mixer
from conftest import ROOT, rows_of
from helpers import H, K, d, random_mixer
from model import BertConfig, BertForMaskedLM, parameter_count

# --- The table of variants ------------------------------------------------------------------------

# The paper's variants: the terms, and the depthwise convolutions by the names of their weights.
HOLDS = """
    none
    absolute
    fixed                fixed
    dynamic              dynamic
    composite            fixed dynamic
    composite-key        fixed dynamic key_dynamic
    depthwise            depthwise
    composite-depthwise  fixed dynamic depthwise
    conv-qk              query.depthwise key.depthwise
    conv-v               value.depthwise
    conv-qkv             query.depthwise key.depthwise value.depthwise
    composite-conv-qk    fixed dynamic query.depthwise key.depthwise
    composite-conv-v     fixed dynamic value.depthwise
    composite-conv-qkv   fixed dynamic query.depthwise key.depthwise value.depthwise
"""
HOLDS = {variant: names for variant, *names in rows_of(HOLDS)}


def parameters_of(table):
    """{variant: (its parameters, what the paper prints of them, if it does)}."""
    return {variant: (int(number), *printed) for variant, number, *printed in rows_of(table)}


# Parameters of BERT-small: C = 256, d = 64, H = 4, E = 128, 12 layers, a vocabulary of
# 30004, 128 positions, k = 8. The paper also prints 13.53M for conv-qk, which has 13.52M here.
SMALL = parameters_of("""
    none                 13_414_324 13.41M
    absolute             13_430_708 13.43M
    fixed                13_415_140 13.42M
    dynamic              13_427_380 13.43M
    composite            13_428_196 13.43M
    composite-key        13_441_252 13.44M
    depthwise            13_469_620 13.47M
    composite-depthwise  13_483_492 13.48M
    conv-qk              13_524_916
    conv-v               13_469_620 13.47M
    conv-qkv             13_580_212 13.58M
    composite-conv-qk    13_538_788 13.54M
    composite-conv-v     13_483_492 13.48M
    composite-conv-qkv   13_594_084 13.59M
    convbert             13_094_540 13.09M
""")

# The variants of other papers. A mixer of `none` has 4 (C^2 + C) = 263,168 parameters.
#   shaw         none, and two tables d * K per layer: + 12 * 2 * 64 * 17
#   lightconv    C -> 2C and C -> C with biases, 3 (C^2 + C), and H * K weights:
#                - 12 * (65,792 - 68)
#   dynamicconv  the same with a matrix C * H * K in place of the weights:
#                - 12 * (65,792 - 17,408)
#   dilated      as lightconv
#   hybrids      11 such layers and one of none
OTHERS = parameters_of("""
    shaw                 13_440_436
    lightconv            12_625_636
    dynamicconv          12_833_716
    dilated              12_625_636
    lightconv-hybrid     12_691_360
    dynamicconv-hybrid   12_882_100
    dilated-hybrid       12_691_360
""")

# Further relative positions, counted from none.
#   t5           H * 32 scalars per layer: + 12 * 4 * 32
#   alibi        nothing to learn; nor has rotary
#   fire         layers 1 -> 32 and 32 -> H with biases, and c and L: + 12 * (64 + 132 + 2)
#   xl           W: C -> C without bias, and b_c and b_p, H * d each: + 12 * (65,536 + 2 * 256)
#   deberta      one table K * C for all layers: + 17 * 256
#   canon        a kernel of 5 and a bias per channel: + 12 * 6 * 256
FAMILY = parameters_of("""
    t5                   13_415_860
    alibi                13_414_324
    fire                 13_416_700
    xl                   14_206_900
    rotary               13_414_324
    deberta              13_418_676
    canon                13_432_756
""")

# Parameters of BERT-base: C = E = 768, H = 12, d = 64, a feed-forward size of 3072.
#   embeddings  30004 * 768 tokens + 2 * 768 types + 2 * 768 norm                       23,046,144
#   per layer   4 (768^2 + 768) + (768 * 3072 + 3072) + (3072 * 768 + 768) + 4 * 768     7,087,872
#   12 layers                                                                           85,054,464
#   head        768^2 + 768 + 2 * 768 norm + 30004 biases; the decoder is tied             622,132
#   none        the sum                                                                108,722,740
#   absolute    + 128 * 768
#   fixed       + 12 layers * 12 heads * 17
#   dynamic     + 12 layers * 64 * 17
BASE = parameters_of("""
    absolute             108_821_044 108.82M
    fixed                108_725_188 108.73M
    dynamic              108_735_796 108.74M
    composite            108_738_244 108.74M
""")


@pytest.mark.parametrize("variant", HOLDS)
def test_a_variant_has_the_terms_and_convolutions_of_the_paper_and_no_others(variant):
    names = {*HOLDS[variant]}
    convolutions = {name for name in names if "depthwise" in name}
    weights = random_mixer(variant).state_dict()

    # tables: beta has one bias per head, the others have d
    tables = {name.split(".")[1]: x for name, x in weights.items() if name.startswith("terms.")}
    assert set(tables) == names - convolutions
    for name, table in tables.items():
        assert table.shape == ((H, K) if name == "fixed" else (d, K))

    # convolutions
    found = {name.removesuffix(".weight") for name in weights if "depthwise.weight" in name}
    assert found == convolutions


def check_parameters(size, variant, expected, printed=None):
    """On the device "meta" a model has shapes without numbers."""
    with torch.device("meta"):
        model = BertForMaskedLM(BertConfig.from_size(size, variant, vocab_size=30004))
    assert parameter_count(model) == expected
    assert printed in (None, f"{expected / 1e6:.2f}M")


@pytest.mark.parametrize("variant", SMALL | OTHERS | FAMILY)
def test_small_has_the_parameters_of_the_tables_and_of_the_paper_where_it_prints_them(variant):
    check_parameters("small", variant, *(SMALL | OTHERS | FAMILY)[variant])


def test_a_layer_of_convbert_has_so_many_parameters_fewer_as_family_md_says():
    with torch.device("meta"):
        none, convbert = [
            parameter_count(make_mixer(name, hidden_size=128, heads=4))
            for name in ("none", "convbert")
        ]
    page = (ROOT / "docs/family.md").read_text("utf-8")
    assert f"in each layer {none - convbert:,} fewer than in `none`, for C = 128, H = 4" in page


@pytest.mark.parametrize("variant", BASE)
def test_base_has_the_parameters_of_the_paper(variant):
    check_parameters("base", variant, *BASE[variant])


def test_the_table_has_the_fifteen_variants_of_the_paper_and_those_of_the_others():
    assert set(SMALL) | set(OTHERS) | set(FAMILY) <= set(VARIANTS)
    assert len(SMALL) == 15
    assert set(HOLDS) == set(SMALL) - {"convbert"}
    assert {name for name in SMALL if VARIANTS[name].absolute} == {"absolute", "convbert"}


def test_exactly_none_and_absolute_and_terms_without_a_window_have_no_kernel():
    without = {name for name in SMALL | OTHERS | FAMILY if not VARIANTS[name].has_kernel}
    assert without == {"none", "absolute", "t5", "alibi", "fire", "xl", "rotary"}


@pytest.mark.parametrize(
    "fields, message",
    [
        (dict(terms=("fixed", "fixd")), "unknown term 'fixd'; the terms are: fixed, dynamic, key_"),
        (dict(terms="fixed"), r'terms must be a tuple, \("fixed",\), and not a text'),
        (dict(terms=("fixed",), mixer=Deberta), "Deberta does not use terms"),
        (dict(depthwise=True, mixer=LightConv), "LightConv does not use terms, .* or depthwise"),
        (dict(convolutional=("key",), mixer=ConvBert), "ConvBert does not use .*, convolutional"),
        (dict(dilations=(1, 2), mixer=ConvBert), "ConvBert does not use dilations"),
        (dict(convolutional=("values",)), "unknown projection 'values'; they are: query, key, val"),
        (dict(terms=("rotary", "xl")), "only one of the terms .* may change the content term"),
    ],
)
def test_a_variant_that_cannot_be_is_refused_in_one_line(fields, message):
    with pytest.raises(ValueError, match=message) as refused:
        Variant(**fields)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    "variant, equation",
    [
        (Variant(), "a_ij = q_i.k_j/sqrt(d)"),
        (
            Variant(terms=("key_dynamic", "fixed")),
            "a_ij = q_i.k_j/sqrt(d) + beta_r + k_j.u_(i-j)/sqrt(d)",
        ),
        (
            Variant(terms=("alibi", "rotary"), depthwise=True),
            "a_ij = (R_i q_i).(R_j k_j)/sqrt(d) - 2^(-8(h+1)/H) abs(r),  "
            "z_i = sum_j p_ij v_j + depthwise(v)_i",
        ),
        (
            Variant(terms=("dynamic", "relative_value"), depthwise=True),
            "a_ij = q_i.k_j/sqrt(d) + q_i.w_r/sqrt(d),  "
            "z_i = sum_j p_ij (v_j + s_r) + depthwise(v)_i",
        ),
        (
            VARIANTS["dilated-hybrid"],
            "z_i = sum_r softmax_r(weight) g_(i+D*r),  g = glu(input(x)),  "
            "D = 1, 2, 4, 8 by layer;  "
            "the last layer: a_ij = q_i.k_j/sqrt(d)",
        ),
    ],
)
def test_the_equation_of_a_variant_is_that_of_its_parts(variant, equation):
    assert variant.equation == equation
