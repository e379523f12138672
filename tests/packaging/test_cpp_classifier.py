# SPDX-License-Identifier: Apache-2.0
"""An exported classifier runs from C++ without Python, with the bits of eager."""

import re

import pytest
import shipping
import torch
from helpers import assert_same_bits
from shipping import call, clean_env, saved_points

from torchvox import models
from torchvox.models import export
from torchvox.models.fuse import fuse_batch_norms

COLUMNS = 6
BATCHES = [[1024, 1024], [0, 1, 700], [1], [0], [300, 0, 512, 1]]


@pytest.fixture(scope="session")
def runner(tmp_path_factory):
    return shipping.runner(tmp_path_factory, "classifier_runner")


def classifier(preset: str) -> torch.nn.Module:
    """Batch norms with statistics of their own, so that scores depend on the points."""
    torch.manual_seed(0)
    model = models.PointNet2Classifier(10, in_channels=COLUMNS, preset=preset)
    with torch.no_grad():
        model.train()(torch.rand(4, 600, COLUMNS) * 2 - 1)
    return model.eval()


def run(runner, folder, program, clouds):
    paths = saved_points(folder, clouds)
    said = call(runner, program, COLUMNS, folder / "scores.pt", *paths, env=clean_env()).stdout
    (scores,) = torch.load(folder / "scores.pt", weights_only=True)
    assert re.findall(r"(\d+) points, class (\d+)", said) == [
        (str(len(cloud)), str(int(best)))
        for cloud, best in zip(clouds, scores.argmax(-1), strict=True)
    ]
    return scores


def batch(lengths):
    """Clouds, and what the program makes of them: points padded to the largest, lengths."""
    clouds = [torch.rand(n, COLUMNS) * 2 - 1 for n in lengths]
    points = torch.zeros(len(lengths), max(2, *lengths, 2), COLUMNS)
    for row, cloud in zip(points, clouds, strict=True):
        row[: len(cloud)] = cloud
    return clouds, points, torch.tensor(lengths)


@pytest.mark.slow
@pytest.mark.parametrize("preset", ["yanx27", "pn2"])
@pytest.mark.parametrize("fuse", [False, True], ids=["norms", "fused"])
@torch.inference_mode()
def test_a_scripted_classifier_gives_the_bits_of_eager(runner, preset, fuse, tmp_path):
    model = classifier(preset)
    model = fuse_batch_norms(model) if fuse else model
    export.export_model(model, tmp_path / "model.pt", "script")
    for lengths in BATCHES:
        clouds, points, sizes = batch(lengths)
        scores = run(runner, tmp_path, tmp_path / "model.pt", clouds)
        assert_same_bits(scores, model(points, sizes), str(lengths))


@pytest.mark.slow
def test_what_goes_wrong_is_said_in_a_sentence(runner, tmp_path):
    export.export_model(classifier("pn2"), tmp_path / "model.pt", "script")
    (path,) = saved_points(tmp_path, [torch.rand(60, COLUMNS)])
    (tmp_path / "junk.pt").write_bytes(b"junk")
    for model, columns in (("missing.pt", COLUMNS), ("junk.pt", COLUMNS), ("model.pt", 4)):
        arguments = (tmp_path / model, columns, tmp_path / "scores.pt", path)
        done = call(runner, *arguments, env=clean_env(), ok=False)
        assert done.returncode == 1 and done.stdout.startswith("classifier_runner: ")
        assert not re.search("frame #|Traceback|Exception raised", done.stdout), done.stdout
        assert len(done.stdout.splitlines()) < 4, done.stdout


@pytest.mark.slow
@torch.inference_mode()
def test_an_aoti_classifier_agrees_with_eager(runner, tmp_path):
    model = fuse_batch_norms(classifier("pn2"))
    export.export_model(model, tmp_path / "model.pt2", "aoti")
    for lengths in BATCHES:
        clouds, points, sizes = batch(lengths)
        scores = run(runner, tmp_path, tmp_path / "model.pt2", clouds)
        torch.testing.assert_close(scores, model(points, sizes), rtol=1e-5, atol=1e-5)
