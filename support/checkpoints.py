"""Check what a checkpoint of training holds, before any of it is used.

The checksums in the file show that its bytes are the ones that were written (support/files.py).
They do not show that Trainer.save wrote them. A file from another program, or a file that was
changed by hand, could stop the program later, or let it train with wrong numbers. The checks here
refuse such a file.
"""

import json
import math

import torch

from support.commands import UserError
from support.files import damaged, load_checkpoint
from support.json_lines import reason_of

# what Trainer.save writes at any time, and what an unfinished run needs in addition
KEYS = ("settings", "step", "losses", "tokens", "seconds", "records", "result")
UNFINISHED_KEYS = ("model", "optimizer")

# AdamW counts its steps in float32. From this number on, adding 1 no longer changes a float32.
LAST_COUNTED_STEP = 2**24


# --- The state of a run ---------------------------------------------------------------------------


def read_state(path):
    """The dictionary that Trainer.save wrote, with all but its tensors checked.

    The tensors are checked where they are loaded: by `load_optimizer`, and by load_weights in
    support/runs.py. Raises UserError if the file is damaged or is not such a checkpoint.
    """
    if not path.is_file():
        raise UserError(f"{path} is not a file")
    state = load_checkpoint(path)
    try:
        check_state(state)
    except (ValueError, TypeError, KeyError, IndexError, RecursionError) as error:
        raise damaged(path, reason_of(error)) from None
    return state


def check_state(state):
    """Raise an error that says what is wrong with a state."""
    if type(state) is not dict:
        raise TypeError("it is not a dictionary")
    for key in KEYS:
        if key not in state:
            raise UserError(f"it has no {key}")

    # All but the tensors are plain values, which can be written as JSON. NaN and infinity cannot.
    json.dumps([state[key] for key in KEYS], allow_nan=False)
    if type(state["settings"]) is not dict:
        raise TypeError("its settings are not a dictionary")

    check_progress(state)
    check_log(state)
    check_result(state)


def check_progress(state):
    """UserError if the numbers that say how far a run has come are not possible."""
    step = state["step"]
    steps = state["settings"]["steps"]
    if not is_count(step) or not is_count(steps) or step > steps:
        raise UserError(f"it is at step {step} of {steps}")
    if not is_count(state["tokens"]):
        raise UserError("its number of tokens is not a whole number")
    if not is_number(state["seconds"]) or state["seconds"] < 0:
        raise UserError("its seconds are not a number")


def check_log(state):
    """UserError if these are not the lines of a log. The first line holds the settings."""
    records = state["records"]
    is_list = type(records) is list
    if not is_list or not records or not all(type(record) is dict for record in records):
        raise UserError("its log is not a list of records")
    if records[0]["settings"] != state["settings"]:
        raise UserError("its log has other settings")
    if not all(type(record.get("made_by", {})) is dict for record in records):
        raise UserError("its log does not say what made it")

    # one loss for each step since the last line with a loss
    logged = 0
    for record in records:
        if "loss" in record:
            logged = record["step"]
    losses = state["losses"]
    if type(losses) is not list or not all(is_number(loss) for loss in losses):
        raise UserError("its losses are not numbers")
    if logged + len(losses) != state["step"]:
        raise UserError("its losses are not one for each step since the last line of its log")


def check_result(state):
    """UserError if a run is said to be finished and is not, or the other way round.

    The result is found directly after the last step, before anything is saved.
    """
    finished = state["result"] is not None
    at_the_end = state["step"] == state["settings"]["steps"]
    if finished != at_the_end:
        raise UserError("it has a result before the last step, or none after it")

    if finished and type(state["result"]) is not dict:
        raise TypeError("its result is not a dictionary")
    if not finished:
        for key in UNFINISHED_KEYS:
            if key not in state:
                raise UserError(f"it has no {key}")


def is_count(value):
    """Whether a value is a whole number from 0 to 2**63 - 1. True and False are not."""
    return type(value) is int and 0 <= value < 2**63


def is_number(value):
    """Whether a value is a finite number; a whole one has at most 63 bits."""
    if type(value) is int:
        return abs(value) < 2**63
    return type(value) is float and math.isfinite(value)


# --- Tensors --------------------------------------------------------------------------------------


def check_tensor(name, tensor, expected):
    """UserError unless a tensor has finite numbers, and the shape and dtype of `expected`.

    torch itself copies complex numbers without their imaginary part, and accepts sparse tensors,
    tensors without numbers (of the device "meta"), and numbers that are not finite.
    """
    if not isinstance(tensor, torch.Tensor):
        raise UserError(f"{name} is not a tensor")
    if tensor.dtype != expected.dtype:
        raise UserError(f"{name} is {tensor.dtype}, not {expected.dtype}")
    if tensor.layout != torch.strided or tensor.is_meta:
        raise UserError(f"{name} is not an ordinary tensor with numbers")
    if tensor.shape != expected.shape:
        raise UserError(f"{name} has the shape {list(tensor.shape)}, not {list(expected.shape)}")
    if not tensor.isfinite().all():
        raise UserError(f"{name} has numbers that are not finite")


def load_optimizer(optimizer, saved, step, path):
    """Restore the moments of AdamW after `step` steps.

    torch does not compare their shapes, and its fused kernel would read and write beyond the end of
    a moment that is too small: so they are compared here. Of the other values (betas, weight decay,
    ...), the saved ones are not used: `optimizer` has its own, which follow from the settings.

    Args:
        optimizer: of a new model.
        saved: its state_dict in the checkpoint.
        step: how many steps had been done.
        path: the file, for the message.
    Raises:
        UserError: the moments belong to another model, or are damaged.
    """
    own = optimizer.state_dict()
    parameters = []
    for group in optimizer.param_groups:
        parameters += group["params"]

    # the same parameters in the same groups
    try:
        if type(saved) is not dict or type(saved["param_groups"]) is not list:
            raise TypeError("not the state of an optimizer")
        groups = [group["params"] for group in saved["param_groups"]]
        moments = dict(saved["state"])
    except (KeyError, TypeError, ValueError, AttributeError, IndexError):
        raise damaged(path, "its optimizer is not that of AdamW") from None
    if groups != [group["params"] for group in own["param_groups"]]:
        raise UserError(f"{path} holds the optimizer of another model")

    # before the first step there are no moments, after it each parameter has its own
    numbers = range(len(parameters))
    if step == 0:
        numbers = range(0)
    if set(moments) != set(numbers):
        raise damaged(path, "its optimizer does not have the moments of each parameter")
    try:
        for number in numbers:
            moments[number] = checked_moments(moments[number], parameters[number], step)
    except (ValueError, TypeError, KeyError, IndexError, RuntimeError) as error:
        raise damaged(path, f"its optimizer: {error}") from None
    optimizer.load_state_dict({"state": moments, "param_groups": own["param_groups"]})


def checked_moments(moments, parameter, step):
    """Copies of what AdamW keeps for a parameter. Raises an error if something is wrong with it."""
    if set(moments) != {"step", "exp_avg", "exp_avg_sq"}:
        raise UserError("a parameter does not have the two moments of AdamW")

    # AdamW's own count of the steps
    count = moments["step"]
    check_tensor("its step", count, torch.tensor(0.0))
    if count.item() != min(step, LAST_COUNTED_STEP):
        raise UserError(f"it is at step {count.item():g}, the run at step {step}")

    # the mean of the gradients and of their squares
    mean = moments["exp_avg"]
    square = moments["exp_avg_sq"]
    check_tensor("a moment", mean, parameter)
    check_tensor("a moment", square, parameter)
    if (square < 0).any():
        raise UserError("the mean of squares is below 0")

    # Each tensor gets its own memory: in a file that was changed, several tensors may share it.
    return {"step": count.clone(), "exp_avg": own_copy(mean), "exp_avg_sq": own_copy(square)}


def own_copy(tensor):
    return torch.clone(tensor.detach(), memory_format=torch.contiguous_format)
