# SPDX-License-Identifier: Apache-2.0
"""What both generated data sets promise: samples that are reproducible one by one."""

import hashlib
import pickle

import pytest
import torch
from torch.utils.data import DataLoader

from torchvox.data.worlds.rooms import Rooms, generate_rooms
from torchvox.data.worlds.shapes import Shapes, generate_shapes

# SHA-256 of the float32 points of training samples of 256 points, and of their labels.
SHAPES = {
    0: "3255f2d1c9142554",
    1: "cb8ec256b0c5218f",
    7: "ef51a47128b40a13",
    10: "715f746d58476f86",
    11: "5493681ebcb165d8",
    12: "9f152bdc88771949",
    13: "36937eaf27dabd08",
    63: "745f78eea13fdc32",
}
ROOMS = {
    0: "e5e30610c23e3c6e",
    5: "23a830553f2f683f",
    8: "1a672e5d8dcc251b",
    77: "17e66d0154172ae5",
}
MAKERS = {Shapes: generate_shapes, Rooms: generate_rooms}
each = pytest.mark.parametrize("kind", MAKERS)


def digest(batch: dict) -> str:
    labels = batch["parts"] if "parts" in batch else batch["labels"]
    whole = batch["points"].cpu().numpy().tobytes() + labels.cpu().numpy().tobytes()
    return hashlib.sha256(whole).hexdigest()[:16]


@pytest.mark.parametrize(
    ("kind", "number", "checksum"),
    [(kind, *pair) for kind, sums in ((Shapes, SHAPES), (Rooms, ROOMS)) for pair in sums.items()],
)
def test_reference_samples_have_their_recorded_bits(kind, number, checksum, device):
    assert digest(MAKERS[kind]([number], points=256, device=device)) == checksum


@each
def test_a_sample_is_the_same_alone_and_in_any_batch(kind):
    numbers = [31, 2, 2, 18, 400]
    batch = MAKERS[kind](numbers, points=64)
    for row, number in enumerate(numbers):
        for name, value in MAKERS[kind]([number], points=64).items():
            assert torch.equal(batch[name][row], value[0]), name


@each
def test_workers_give_what_the_process_gives(kind):
    data = kind(points=32, size=12)
    there = list(DataLoader(data, batch_size=5, num_workers=2, multiprocessing_context="fork"))
    for name in data[0]:
        found = torch.cat([batch[name] for batch in there])
        assert torch.equal(found, torch.stack([torch.as_tensor(data[i][name]) for i in range(12)]))


@each
def test_seeds_splits_and_samples_differ(kind):
    changes = [{}, {"seed": 1}, {"split": "val"}]
    made = [MAKERS[kind]([0], points=8, **change) for change in changes]
    made.append(MAKERS[kind]([16], points=8))
    assert len({digest(one) for one in made}) == 4


@each
def test_bad_arguments_are_refused_in_a_sentence(kind):
    with pytest.raises(ValueError, match="split must be one of train, val"):
        kind("test")
    with pytest.raises(IndexError, match="sample 5 of 5"):
        kind(size=5)[5]
    with pytest.raises(ValueError, match="points must be >= 1"):
        generate_shapes([0], points=0)
    with pytest.raises(ValueError, match="samples >= 0"):
        generate_shapes([-1])
    with pytest.raises(ValueError, match=r"block in \(0, 3\]"):
        generate_rooms([0], block=5.0)
    assert generate_shapes([], points=4)["points"].shape == (0, 4, 3)


@each
def test_the_data_set_pickles(kind):
    data = pickle.loads(pickle.dumps(kind(points=16)))
    assert (len(data), len(kind("val"))) == {Shapes: (3200, 640), Rooms: (1024, 256)}[kind]
    assert torch.equal(data[3]["points"], kind(points=16)[3]["points"])


@pytest.mark.gpu
@each
def test_the_gpu_makes_the_same_bits(kind):
    here, there = (MAKERS[kind](range(40), points=1024, device=d) for d in ("cpu", "cuda"))
    for name, value in here.items():
        assert torch.equal(there[name].cpu(), value), name
