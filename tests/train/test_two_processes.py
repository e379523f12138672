# SPDX-License-Identifier: Apache-2.0
"""Two processes train like one with the whole batch: gradients, running statistics, metrics."""

import os
import sys
from pathlib import Path

import pytest
import torch
import torch.multiprocessing as mp
from test_detecting import HEADS
from test_detecting import content as detector_content
from tiny import TinyClassifier, content
from torch import nn
from torch.nn import functional as F

from torchvox.data import Shapes, World
from torchvox.models import PointNet2Classifier
from torchvox.models.detection.files import checked
from torchvox.train import fit
from torchvox.train.builders import DETECTORS
from torchvox.train.config import make_config
from torchvox.train.detecting import DetectionScores
from torchvox.train.loading import SharedBatches
from torchvox.train.metrics import ConfusionOfSamples
from torchvox.train.norm import GlobalBatchNorm, convert_batch_norm

WORLD, BATCH = 2, 12
KINDS = ("tiny", "pointnet2", "pointpillars", "center_pointpillars", "second")


def step(model, rank, world):
    """One backward pass over this process's share of the first batch."""
    if isinstance(getattr(model, "module", model), Taught):
        return model(scans(slice(rank, None, world))).backward()
    indices = next(iter(SharedBatches(64, BATCH, 0, rank, world)))
    batch = Shapes(points=32, size=64).batch(indices)
    F.cross_entropy(model(batch["points"].double()), batch["label"]).backward()


CLASSES = ["Car", "Pedestrian", "Cyclist"]


class Taught(nn.Module):
    """A detector whose forward is its loss, as it is for DDP in training."""

    def __init__(self, kind):
        super().__init__()
        args = {"classes": CLASSES, **detector_content(kind)["model"]["args"]}
        args["loss"] = {**args["loss"], "normalizer": "batch"} if "loss" in args else {}
        content = {"task": "detect", "model": {"kind": kind, "args": args}}
        self.detector = DETECTORS[kind][0](checked(content, "test")[1])

    def forward(self, batch):
        names = ("points", "num_points", "boxes", "labels", "num_boxes", "weight")
        return self.detector.loss(*(batch[name] for name in names))["loss"]


def scans(rows):
    """Of four scans, of which those of the second process have no boxes, and those of the first
    one alone that is no car: less than one for each process."""
    batch = World("val", sensor="vlp16", points=2048, size=4).batch(range(4))
    batch["labels"][1::2], batch["num_boxes"][1::2], batch["weight"][1::2] = -1, 0, 0
    batch["labels"][tuple((batch["labels"] > 0).nonzero()[1:].T)] = -1
    return {name: tensor[rows] for name, tensor in batch.items()}


def scored(rows):
    """The metric where the truth is found but in the last scans."""
    batch, metric = scans(rows), DetectionScores(CLASSES)
    labels = torch.where(batch["id"][:, None] > 1, -1, batch["labels"])
    metric.update(batch, (batch["boxes"], labels + 1.0, labels))
    return metric.compute()


def results(model):
    return {
        **{f"gradient of {name}": p.grad for name, p in model.named_parameters()},
        **dict(model.named_buffers()),
    }


def fresh(kind):
    torch.manual_seed(3)
    if kind in HEADS:
        return Taught(kind)
    if kind == "tiny":
        return TinyClassifier(16).double()
    ball = {"points": 8, "radii": [0.5], "neighbors": [8], "channels": [[8, 16]]}
    whole = {"points": None, "radii": [], "neighbors": [], "channels": [[32]]}
    return PointNet2Classifier(16, levels=[ball, whole], head=[16], dropout=[0.0]).double()


def one_of_two(rank, folder):
    torch.set_num_threads(1)
    # They meet at a file: a port that is free now may be taken when they get there.
    meeting = f"file://{folder}/meeting"
    torch.distributed.init_process_group("gloo", meeting, rank=rank, world_size=WORLD)
    found = {}
    for kind in KINDS:
        model = nn.parallel.DistributedDataParallel(convert_batch_norm(fresh(kind)))
        step(model, rank, WORLD)
        found[kind] = results(model.module)
    metric = ConfusionOfSamples(3)
    # Sample 5 is on both.
    metric.update(torch.tensor([rank, 5]), torch.tensor([rank, 2]), torch.tensor([0, 2]))
    found["scores"] = scored([rank, 2, rank + 1])  # 2 is on both
    torch.save({**found, "confusion": metric.compute()}, f"{folder}/{rank}.pt")
    # Straight out: gloo's destructor joins its threads while it holds Python's lock, which a thread
    # that drops the last tensors of a collective wants too; now and then they wait for ever.
    os._exit(0)


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ranks")
    here = str(Path(__file__).parent)
    before = os.environ.get("PYTHONPATH", "")
    os.environ["PYTHONPATH"] = os.pathsep.join([here, *filter(None, [before])])
    try:
        mp.spawn(one_of_two, (str(folder),), nprocs=WORLD)
    finally:
        os.environ["PYTHONPATH"] = before
    return [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in range(WORLD)]


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_and_statistics_equal_those_of_one_process(two, kind):
    whole = fresh(kind)
    step(whole, 0, 1)
    for name, wanted in results(whole).items():
        near = (1e-4, 1e-5) if wanted.dtype == torch.float32 else (1e-9, 1e-12)  # a detector's
        for found in two:
            torch.testing.assert_close(
                found[kind][name], wanted, rtol=near[0], atol=near[1], msg=name
            )


def test_the_metric_is_gathered_and_repeats_dropped(two):
    wanted = scored([0, 1, 2])
    assert 0 < wanted["map"] < 1
    for found in two:
        assert found["confusion"].tolist() == [[1, 1, 0], [0, 0, 0], [0, 0, 1]]
        assert found["scores"] == pytest.approx(wanted, nan_ok=True)


def test_in_one_process_it_is_an_ordinary_batch_norm():
    x = torch.randn(4, 6, 5)
    plain = nn.BatchNorm1d(6)
    ours = convert_batch_norm(nn.Sequential(plain))[0]
    assert isinstance(ours, GlobalBatchNorm) and ours.weight is plain.weight
    assert torch.equal(ours(x), nn.BatchNorm1d(6)(x))
    assert list(ours.state_dict()) == list(plain.state_dict())
    torchs = convert_batch_norm(nn.Sequential(plain), on_gpu=True)[0]
    assert isinstance(torchs, nn.SyncBatchNorm) and torchs.weight is plain.weight


@pytest.mark.slow
def test_a_run_on_two_devices_ends_with_the_weights_of_one(tmp_path):
    """Through the command, which starts the second process itself."""
    import subprocess

    import yaml

    (tmp_path / "run.yaml").write_text(yaml.safe_dump(content(epochs=2)))
    root = Path(__file__).resolve().parents[2]
    path = os.pathsep.join([str(root), str(Path(__file__).parent)])
    command = [sys.executable, "-m", "torchvox", "train", "run.yaml", "train.devices=2"]
    command += ["-o", "two"]
    done = subprocess.run(
        command,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    fit(make_config(content(epochs=2)), tmp_path / "one", quiet=True)
    one, two = (
        torch.load(tmp_path / name / "last.ckpt", weights_only=True)["state_dict"]
        for name in ("one", "two")
    )
    for name, value in one.items():
        torch.testing.assert_close(two[name], value, rtol=1e-3, atol=1e-4, msg=name)
