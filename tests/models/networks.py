# SPDX-License-Identifier: Apache-2.0
"""Small networks of every class by name, and what holds for all of them."""

import detectors
import nets
import pytest

from torchvox.models import export, fuse_batch_norms
from torchvox.models.detection import DetectionNet

DETECTORS = {name: (lambda n=name: detectors.small(n)) for name in detectors.SMALL}
POINT_NETS = {
    f"{name}, {preset}": (lambda n=name, p=preset: nets.SMALL[n](preset=p))
    for name in nets.SMALL
    for preset in ("yanx27", "pn2")
}
U_NETS = {f"minkunet, {name}": (lambda n=name: nets.minkunet(preset=n)) for name in nets.PRESETS}
MODELS = {**DETECTORS, **POINT_NETS, **U_NETS}
each_model = pytest.mark.parametrize("name", MODELS)
each_detector = pytest.mark.parametrize("name", DETECTORS)
each_point_net = pytest.mark.parametrize("name", nets.ALL)


def detects(model):
    return isinstance(model, DetectionNet)


def fast(name, dtype=None):
    """The model as it is run: fused, and merged where it is a detector."""
    model = MODELS[name]()
    return detectors.fused(model, dtype) if detects(model) else fuse_batch_norms(model, dtype)


def outputs(answer):
    return tuple(answer) if isinstance(answer, (tuple, list)) else (answer,)


def scores(model, *some):
    """The maps of the head of a detector, those of rows where these are, or the scores of another
    network."""
    if detects(model):
        return [m[m != -float("inf")] for kind in model.maps(*some) for m in kind]
    return [model(*some)]


def inputs(model, *lengths):
    """Points, perhaps a category, lengths."""
    return export.example_inputs(model, lengths)
