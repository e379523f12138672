# SPDX-License-Identifier: Apache-2.0
"""What every network promises: lengths, batches, fused copies, checkpoints."""

import json

import pytest
import torch
from detectors import scan
from helpers import assert_same_bits
from networks import MODELS, detects, each_model, fast, inputs, outputs, scores

from torchvox import models
from torchvox.models import checkpoints, export
from torchvox.models.fuse import is_fused
from torchvox.nn import SparseBatchNorm
from torchvox.nn.shared_mlp import SharedLayer


@each_model
@torch.inference_mode()
def test_rows_past_a_length_are_ignored_whatever_they_hold(name):
    model = MODELS[name]()
    points, *category, lengths = inputs(model, 700, 0, 23)
    expected = outputs(model(points, *category, lengths))
    past = torch.arange(points.size(1)) >= lengths[:, None]
    for junk in (float("nan"), float("inf"), 1e30, 0.0):
        points[past] = junk
        assert_same_bits(outputs(model(points, *category, lengths)), expected, str(junk))
    assert all(one.isfinite().all() for one in expected)
    if expected[0].shape[:2] == past.shape:  # scores of points
        assert (expected[0][past] == 0).all() and (expected[0][~past] != 0).any()


@each_model
@torch.inference_mode()
def test_a_cloud_of_a_batch_scores_as_it_does_alone(name):
    model = MODELS[name]()
    points, *category, lengths = inputs(model, 3000 if detects(model) else 70, 1, 23)
    together = outputs(model(points, *category, lengths))
    for b, length in enumerate(lengths.tolist()):
        one = [t[b : b + 1] for t in (*category, lengths)]
        alone = outputs(model(points[b : b + 1, : max(2, length)], *one))
        mine = tuple(t[b : b + 1] for t in together)
        if detects(model):
            found = export._compare_boxes(alone, mine)
            assert found.strays == 0 and found.difference < 1e-4
        else:
            mine = mine[0] if mine[0].dim() == 2 else mine[0][:, : max(2, length)]
            torch.testing.assert_close(mine, alone[0], rtol=1e-4, atol=1e-5)


@each_model
@pytest.mark.one_of("merge")
@pytest.mark.parametrize("merge", [False, True])
@torch.no_grad()
def test_a_fused_and_merged_model_gives_the_scores_of_the_model(name, merge):
    model = MODELS[name]()
    quick = fast(name) if merge else models.fuse_batch_norms(model)
    some = inputs(model, 3000 if detects(model) else 70, 1)
    nearness = 1e-4 if detects(model) else 1e-5
    for mine, theirs in zip(scores(model, *some), scores(quick, *some), strict=True):
        torch.testing.assert_close(theirs, mine, rtol=1e-4, atol=nearness)
    assert is_fused(quick) and not is_fused(model)
    norms = (
        torch.nn.BatchNorm1d,
        torch.nn.BatchNorm2d,
        SharedLayer,
        SparseBatchNorm,
        models.detection.backbone.Neck,
    )
    assert not any(isinstance(m, norms) for m in quick.modules())


@each_model
@pytest.mark.one_of("dtype")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@torch.inference_mode()
def test_half_weights_leave_outputs_in_float32_and_scores_close(name, dtype):
    model = MODELS[name]()
    quick, some = fast(name, dtype), inputs(model, 1000)
    exact, half = scores(model, *some)[0], scores(quick, *some)[0].float()
    assert float((half - exact).abs().mean()) < 0.1 * float(exact.std())
    assert all(one.dtype in (torch.float32, torch.int32) for one in outputs(quick(*some)))
    exact_layers = ("sparse_backbone.first.",)  # which see meters
    for layer, parameter in quick.named_parameters():
        kept = layer.startswith(exact_layers)
        assert parameter.dtype == (torch.float32 if kept else dtype), layer


@each_model
@pytest.mark.one_of("variant")
@pytest.mark.parametrize("variant", ["as built", "fused", "fast", "bfloat16"])
@torch.inference_mode()
def test_a_saved_model_loads_with_its_bits_and_its_plain_configuration(name, variant, tmp_path):
    model = MODELS[name]()
    if variant != "as built":
        dtype = torch.bfloat16 if variant == "bfloat16" else torch.float32
        model = fast(name, dtype) if variant == "fast" else models.fuse_batch_norms(model, dtype)
    models.save(model, tmp_path / "model.pt")
    loaded = models.load(tmp_path / "model.pt")
    some = inputs(model, 1000, 10)
    assert_same_bits(outputs(loaded(*some)), outputs(model(*some)))
    assert not loaded.training
    config = json.loads(json.dumps(model.config()))
    assert checkpoints.build(type(model).__name__, config).config() == model.config() == config


@each_model
def test_a_training_step_repeats_to_the_bit_with_empty_clouds_too(name):
    gradients = []
    for _ in range(2):
        model = MODELS[name]().train()
        for module in model.modules():
            if isinstance(module, torch.nn.Dropout):
                module.p = 0.0
        some = scan(model, 2000, 0, 1500) if detects(model) else inputs(model, 70, 0, 1)
        sum(one.float().square().mean() for one in scores(model, *some)).backward()
        assert all(p.grad.isfinite().all() for p in model.parameters())
        assert all(b.isfinite().all() for b in model.buffers())
        gradients.append([p.grad for p in model.parameters()])
    assert_same_bits(gradients[0], gradients[1])
    if detects(model):
        assert all(gradient.abs().sum() > 0 for gradient in gradients[0])
