# SPDX-License-Identifier: Apache-2.0
"""Definitions take the arguments of the ops that they define."""

import functools
import inspect
from collections.abc import Callable
from inspect import Parameter
from typing import TypeVar

import numpy as np
import torch

R = TypeVar("R")


def define_op(definition: Callable[..., R]) -> Callable[..., R]:
    """Gives a function the arguments and defaults of the registered op of its name, which are those
    of the function in `torchvox.ops` where no convention sets them. It gets all of them by name.
    NumPy warns of nothing in it: infinities and NaN are part of what it defines."""
    schema = getattr(torch.ops.torchvox, definition.__name__).default._schema
    parameters = []
    for argument in schema.arguments:
        kind = Parameter.KEYWORD_ONLY if argument.kwarg_only else Parameter.POSITIONAL_OR_KEYWORD
        default = argument.default_value if argument.has_default_value() else Parameter.empty
        parameters.append(Parameter(argument.name, kind, default=default))
    signature = inspect.Signature(parameters)

    @functools.wraps(definition)
    def call(*args: object, **kwargs: object) -> R:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        with np.errstate(all="ignore"):
            return definition(**bound.arguments)

    call.__signature__ = signature  # type: ignore[attr-defined]
    return call
