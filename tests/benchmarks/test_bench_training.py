# SPDX-License-Identifier: Apache-2.0
"""The detector in plain torch that training is measured against is the detector."""

import pytest
import torch

from benchmarks.suite import WrongResult
from benchmarks.training import DYNAMIC, STAGES, Plain, Trainer, build, compare, measure, report
from torchvox.data import World

TINY = {
    "point_cloud_range": [0.0, -20.48, -3.0, 20.48, 20.48, 1.0],
    "pillar_size": [0.32, 0.32, 4.0],
    "backbone.layers": [1],
    "backbone.strides": [2],
    "backbone.channels": [8],
    "neck.strides": [1],
    "neck.channels": [8],
}


@pytest.fixture(scope="module")
def model_and_batch():
    batch = World(sensor="vlp16", reach=20).batch(range(2))
    return build(torch.device("cpu"), DYNAMIC | TINY).train(), batch


@torch.no_grad()
def test_plain_torch_sees_what_torchvox_sees(model_and_batch):
    model, batch = model_and_batch
    plain = Plain(model).train()
    compare(model, plain, batch)
    plain.offset += 1.0
    with pytest.raises(WrongResult, match="directions"):
        compare(model, plain, batch)
    plain.columns = plain.columns[::-1]
    with pytest.raises(WrongResult, match="anchors differ"):
        compare(model, plain, batch)


def test_plain_torch_is_where_the_detector_is():
    plain = Plain(build(torch.device("meta"), DYNAMIC | TINY))
    assert {str(one.device) for one in (*plain.parameters(), *plain.buffers())} == {"meta"}


def test_a_step_is_measured_by_stages(model_and_batch):
    model, batch = model_and_batch
    rows = {}
    for name, net in (("torchvox", model), ("plain torch", Plain(model))):
        before = [p.detach().clone() for p in net.parameters()]
        trainer = Trainer(net, torch.float32, compiled=False)
        rows[name] = measure(trainer, [batch], 1)
        changed = [not torch.equal(a, b) for a, b in zip(before, net.parameters(), strict=True)]
        assert all(changed)
    assert rows["torchvox"].keys() == {"step", *STAGES}
    rows["plain torch"] |= {"idle": 0.25, "syncs": 3}
    assert "| 25.0 % | 3 |" in report(rows, 2) and "times plain torch" in report(rows, 2)
