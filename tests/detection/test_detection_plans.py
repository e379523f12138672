# SPDX-License-Identifier: Apache-2.0
"""Selections of many candidates by every plan of the GPU."""

import pytest
import torch
from helpers import assert_same_bits, forced
from op_infos import detection as infos
from samples import on

# Selections that end at the first level, at a later one, among ties, and without a cut.
LARGE = {
    "spread": lambda: infos.anchor_call(3000, pre=900, score_threshold=0.0),
    "tied": lambda: with_logits(0.25, 3),
    "one score": lambda: with_logits(0.0, 0),
    "by class": lambda: infos.anchor_call(3000, pre=200, **infos.BY_CLASS),
    "shared": lambda: infos.anchor_call(3000, pre=300, **infos.SHARED),
    "centers": lambda: infos.center_call(3000, pre=500),
}


def with_logits(step: float, values: int) -> dict:
    """All logits in 1 + [0, values] * step."""
    call = infos.anchor_call(3000, pre=500, post=500)
    number = torch.arange(call["cls"][0].numel()) * 7919 % 104729
    call["cls"][0] = (1 + number % (values + 1) * step).view_as(call["cls"][0])
    return call


@pytest.mark.gpu
@pytest.mark.parametrize("kernels", ["separate", "fused"])
@pytest.mark.parametrize("name", LARGE)
def test_large_selections_have_the_bits_of_the_cpu(name, kernels):
    call = LARGE[name]()
    op = "center_decode_nms" if "heatmap" in call else "anchor_decode_nms"
    run = getattr(torch.ops.torchvox, op)
    with forced(decode_kernels=kernels):
        outputs = run(**on("cuda", call))
    assert_same_bits(tuple(outputs), tuple(run(**call)), op)
