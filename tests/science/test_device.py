"""A step uses tensors of one device alone, tried without a GPU.

The device is torch's "meta", whose tensors have shapes and no numbers. So to read a number is an
error there, too.
"""

from contextlib import nullcontext
from unittest.mock import patch

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from attention import VARIANTS
from model_helpers import small_config
from pretended_graphs import tensors_in
from recorded_programs import train, trainer_of

META = torch.device("meta")
Generator = torch.Generator


class OneDevice(TorchDispatchMode):
    """In a `with` block of it, an operation on tensors of two devices is an error, as on a GPU.

    As there, a single number may be on the CPU. (Of its own accord, "meta" also takes an index, or
    a factor of a matrix product, from the CPU.)
    """

    def __torch_dispatch__(self, operation, types, arguments=(), options=None):
        found = {x.device.type for x in tensors_in(arguments) if x.dim() > 0}
        assert len(found) < 2, f"{operation}: tensors are on {found}"
        return operation(*arguments, **(options or {}))


def train_on_meta(program, config):
    trainer = trainer_of(program, config, META)
    with (
        patch(
            "torch.Generator", lambda device=None: Generator()
        ),  # "meta" draws with one of the CPU
        patch("torch.Tensor.pin_memory", lambda x: x),  # it needs a GPU
        patch("support.training.autocast", lambda device, dtype: nullcontext()),
        OneDevice(),
    ):
        train(trainer, program, 1)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("variant", VARIANTS)
def test_in_a_step_of_pre_training_no_tensor_is_left_on_the_cpu(variant, causal):
    train_on_meta("pretrain.py", small_config(variant, dropout=0.1, causal=causal))


@pytest.mark.parametrize(
    "program, causal", [("glue.py", False), ("glue.py", True), ("seq2seq.py", False)]
)
def test_in_a_step_of_fine_tuning_or_translation_no_tensor_is_left_on_the_cpu(program, causal):
    train_on_meta(program, small_config(dropout=0.1, causal=causal))
