# SPDX-License-Identifier: Apache-2.0
"""Detectors whose tensors or settings are not what they should be."""

import pytest
import torch
from upstream.detector_parity import detector_parity
from upstream_nets import small, small_points

from torchvox.models.checkpoints import CheckpointError
from torchvox.models.importing import convert


@pytest.mark.parametrize(
    "key", ["vfe.pfn_layers.0.linear.weight", "vfe.pfn_layers.1.linear.weight"]
)
def test_axes_are_dropped_only_when_they_are_of_one_element(key):
    """[8, 16, 1, 1], of a 1x1 convolution, is [8, 16]; [8, 4, 4] is not."""
    upstream = small("openpcdet centers, hard")
    state = upstream.network.state_dict()
    outputs, inputs = state[key].shape
    found = convert({**state, key: state[key][:, :, None, None]}, settings=upstream.settings)
    ours = found.model.state_dict()[key.replace("vfe", "encoder")]
    assert torch.equal(ours, state[key])
    with pytest.raises(CheckpointError, match=r"pfn_layers.\d.linear"):
        reshaped = state[key].reshape(outputs, inputs // 2, 2)
        convert({**state, key: reshaped}, settings=upstream.settings)


@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        *(("openpcdet anchors", sizes) for sizes in ((), (0,), (1, 1), (5, 1, 1, 0))),
        ("mmdet3d anchors", (3,)),
        pytest.param("openpcdet heads", (), marks=pytest.mark.slow),
    ],
)
def test_a_tensor_of_other_axes_is_refused_in_a_sentence_wherever_it_is(name, sizes):
    upstream = small(name, weights=False)
    state = upstream.network.state_dict()
    for key, value in state.items():
        if key.endswith(("global_step", "num_batches_tracked")) or value.shape == sizes:
            continue
        with pytest.raises(CheckpointError, match=r"\w+ \w+"):
            convert({**state, key: torch.zeros(sizes)}, settings=upstream.settings)


@pytest.mark.parametrize(
    "changed",
    [
        lambda t: t.to(torch.complex64),
        lambda t: t.to_sparse(),
        lambda t: t.to("meta"),
        lambda t: torch.quantize_per_tensor(t, 0.1, 0, torch.qint8),
    ],
    ids=["complex", "sparse", "meta", "quantized"],
)
@pytest.mark.filterwarnings("ignore")
def test_tensors_that_hold_no_plain_numbers_are_refused(changed):
    upstream = small("openpcdet anchors", weights=False)
    state = upstream.network.state_dict()
    state["dense_head.conv_box.weight"] = changed(state["dense_head.conv_box.weight"])
    with pytest.raises(CheckpointError, match=r"not dense, real .*: dense_head.conv_box.weight"):
        convert(state, settings=upstream.settings)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float64])
def test_other_precisions_become_single(dtype):
    upstream = small("openpcdet anchors")
    state = upstream.network.to(dtype).state_dict()
    found = convert(state, settings=upstream.settings)
    assert {p.dtype for p in found.model.parameters()} == {torch.float32}
    assert torch.equal(found.model.head.box.weight, state["dense_head.conv_box.weight"].float())
    assert detector_parity(found, small_points(4)).trouble(1e-4) is None


def test_labels_of_heads_that_are_not_each_class_once_are_refused():
    upstream = small("openpcdet heads", weights=False)
    for labels in ([2, 2], [0, 2], [2, 9]):
        state = upstream.network.state_dict()
        state["dense_head.rpn_heads.1.head_label_indices"] = torch.tensor(labels)
        with pytest.raises(CheckpointError, match=r"head_label_indices must be 1, 2, \.\. once"):
            convert(state, settings=upstream.settings)
