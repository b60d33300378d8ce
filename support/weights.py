"""Weights that belong to a model, and those of another one."""

import re

from support.commands import UserError, say_once


def compare(model, weights):
    """What fits: (the weights whose name and shape the model has, names of the model's others,
    names of what is left over).

    weights: {name: tensor}. All layers have one name: "bert.layers.*.norm.bias".
    """
    own = model.state_dict()
    fitting = {}
    for name, weight in weights.items():
        if name in own and own[name].shape == weight.shape:
            fitting[name] = weight
    return fitting, kinds(own.keys() - fitting), kinds(weights.keys() - fitting)


def kinds(names):
    """Names as text, those of all layers as one; "none" without names."""
    found = {re.sub(r"\.\d+\.", ".*.", name) for name in names}
    return ", ".join(sorted(found)) or "none"


def take(model, weights, folder):
    """Give a model those weights of a run that fit; a line says which are new and left over."""
    fitting, new, left = compare(model, weights)
    model.load_state_dict(fitting, strict=False)
    say_once(f"{len(fitting)} weights are those of {folder}; new: {new}; not used: {left}")


def fill(model, weights, folder):
    """Give a model its weights. UserError, in one line, if these are others."""
    fitting, missing, left = compare(model, weights)
    if len(fitting) < max(len(weights), len(model.state_dict())):
        raise UserError(
            f"{folder} has other weights than this code; missing: {missing}; not used: {left}"
        )
    model.load_state_dict(weights)
