# SPDX-License-Identifier: Apache-2.0
"""Modules survive pickle, deepcopy and torch.save; so do the results of the public functions."""

import copy
import io
import pickle

import pytest
import torch
from helpers import assert_same_bits
from samples import MODULES, each_module, each_public_op

import torchvox


def through_torch_save(thing, weights_only: bool):
    file = io.BytesIO()
    torch.save(thing, file)
    file.seek(0)
    return torch.load(file, weights_only=weights_only)


COPIES = {
    "pickle": lambda module: pickle.loads(pickle.dumps(module)),
    "deepcopy": copy.deepcopy,
    "torch.save": lambda module: through_torch_save(module, weights_only=False),
}


@pytest.mark.parametrize("how", COPIES)
@each_module
def test_a_copied_module_gives_the_same_bits(name, how):
    make, arguments = MODULES[name]
    module = make()
    copied = COPIES[how](module)
    assert repr(copied) == repr(module)
    inputs = arguments(50)
    assert_same_bits(tuple(copied(*inputs)), tuple(module(*inputs)), f"{name} through {how}")


@each_module
def test_a_modules_state_loads_with_weights_only(name):
    module = MODULES[name][0]()
    module.load_state_dict(through_torch_save(module.state_dict(), weights_only=True))


@each_public_op
def test_named_results_survive_pickling_and_their_tensors_weights_only(op):
    result = getattr(torchvox, op.name)(**op.call(40, 0))
    outs = (result,) if torch.is_tensor(result) else tuple(result)
    copied = pickle.loads(pickle.dumps(result))
    assert type(copied) is type(result)
    assert_same_bits((copied,) if torch.is_tensor(copied) else tuple(copied), outs, op.name)
    assert_same_bits(through_torch_save(list(outs), weights_only=True), outs, op.name)
