# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of the two references: every tensor used once, the outputs theirs."""

import pytest
import torch
from nets import calibrated
from upstream import pn2, yanx27
from upstream.pointnet2_parity import EXACT, EXPANDED

from torchvox.models.checkpoints import CheckpointError
from torchvox.models.importing import convert, import_checkpoint, parity
from torchvox.models.importing.smoke import scene

# Network of the reference, classes, columns, tensors in its checkpoint by scales.
NETS = {
    "yanx27 classifier": (yanx27.Classifier, 40, 6, {"ssg": 79, "msg": 163}),
    "yanx27 classifier of xyz": (yanx27.Classifier, 15, 3, {"ssg": 79, "msg": 163}),
    "yanx27 parts": (yanx27.PartSegmenter, 50, 6, {"ssg": 121, "msg": 177}),
    "yanx27 rooms": (yanx27.Segmenter, 13, 9, {"ssg": 156, "msg": 240}),
    "pn2 classifier": (pn2.Classifier, 40, 6, {"ssg": 68, "msg": 140}),
    "pn2 rooms": (pn2.Segmenter, 13, 9, {"ssg": 134, "msg": 200}),
}


def plain(name, scales="ssg", **options):
    kind, classes, columns, _ = NETS[name]
    torch.manual_seed(0)
    return kind(classes, columns, scales, **options)


QUICK = ("yanx27 classifier", "yanx27 parts", "pn2 rooms")


@pytest.mark.parametrize(
    ("name", "scales"),
    [
        pytest.param(n, s, marks=() if s == "ssg" and n in QUICK else pytest.mark.slow)
        for n in NETS
        for s in ("ssg", "msg")
    ],
)
def test_an_imported_model_gives_the_outputs_of_the_reference(name, scales):
    network = plain(name, scales)
    first = convert(network.state_dict())
    calibrated(network, *scene(first.model)[1])
    imported = convert(network.state_dict())
    assert imported.used == NETS[name][3][scales] == len(network.state_dict())
    report = parity(imported)
    assert report.output > 1
    assert report.differences[EXACT] <= 1e-4 * report.output
    assert report.same_class[EXACT] == 1
    if "yanx27" in name:  # rims and coincident points go by the rounding of the expansion there
        assert report.same_class[EXPANDED] > 0.99
    rows = dict(report.rows())
    assert rows["tensors"] == f"{imported.used} of {imported.used} used, each once"
    assert rows["flag weight"] == ("dist2" if "yanx27" in name else "dist")
    assert [f"difference, {how}" for how in report.differences] == [k for k in rows if "diff" in k]


def test_a_network_without_coordinates_is_recognized():
    imported = convert(plain("pn2 classifier", use_xyz=False).state_dict())
    assert imported.model.config()["use_xyz"] is False
    assert parity(imported).differences[EXACT] <= 1e-5


@pytest.mark.parametrize("name", NETS)
def test_a_tensor_that_is_missing_or_left_over_is_named(name):
    whole = plain(name).state_dict()
    victim = next(k for k in reversed(whole) if k.endswith(".running_var"))
    less, left = {k: v for k, v in whole.items() if k != victim}, {"stn.fc1.weight": whole[victim]}
    for state, words in (
        (less, f"has no {victim}$"),
        ({**whole, **left}, r"has tensors that nothing takes: stn\.fc1\.weight$"),
        ({**less, **left}, rf"has no {victim}; and .* stn\.fc1\.weight$"),
    ):
        with pytest.raises(CheckpointError, match=words):
            convert(state)


def test_a_tensor_of_another_shape_is_named_with_both_shapes():
    state = plain("yanx27 classifier").state_dict()
    state["fc2.weight"] = torch.zeros(256, 500)
    with pytest.raises(CheckpointError, match=r"fc2.weight must be \[256, 512\] .* \[256, 500\]"):
        convert(state)


@pytest.mark.parametrize("wrapper", ["model_state_dict", "state_dict", "model_state"])
def test_the_state_dict_is_found_in_what_trainers_save(wrapper, tmp_path):
    state = plain("pn2 classifier").state_dict()
    wrapped = {f"module.{k}": v for k, v in state.items()}
    torch.save({"epoch": 7, wrapper: wrapped, "optimizer": {"lr": 1e-3}}, tmp_path / "best.pth")
    imported = import_checkpoint(tmp_path / "best.pth")
    head = imported.model.head.scores.weight
    assert torch.equal(head, state["fc_layer.7.weight"])


def test_batch_counts_may_be_absent_as_before_torch_0_4_1():
    state = plain("yanx27 classifier").state_dict()
    old = {k: v for k, v in state.items() if not k.endswith("num_batches_tracked")}
    imported = convert(old)
    assert imported.used == len(old)
    assert torch.equal(imported.model.head.scores.bias, state["fc3.bias"])
    some = next(k for k in state if k.endswith("num_batches_tracked"))
    with pytest.raises(CheckpointError, match=r"has no .*num_batches_tracked"):
        convert({**old, some: state[some]})


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ({}, "holds no state dict"),
        ([1], "holds no state dict"),
        ({"state_dict": {"a": 1}}, "more than tensors: a"),
        ({"encoder.weight": torch.zeros(1)}, "not named as in yanx27"),
        ({"sa1.mlp_convs.0.bias": torch.zeros(1)}, "has no sa1.mlp_convs.0.weight"),
    ],
)
def test_other_contents_are_refused_in_a_sentence(content, words):
    with pytest.raises(CheckpointError, match=words):
        convert(content)


def test_a_layout_by_name_must_fit_and_settings_are_for_detectors():
    state = plain("pn2 classifier").state_dict()
    assert convert(state, "pn2").layout.name == "pn2"
    for layout, settings, words in (
        ("yanx27", None, "not named as in yanx27.*: SA_modules"),
        ("pcdet", None, "no layout 'pcdet': there are yanx27, pn2"),
        (None, {"columns": 3}, "nothing can be set"),
    ):
        with pytest.raises(CheckpointError, match=words):
            convert(state, layout, settings)
