# SPDX-License-Identifier: Apache-2.0
"""Folders of your own objects, and of clouds with a label for each point."""

import numpy as np
import pytest
from helpers import assert_same_bits

from torchvox._util.errors import TorchvoxError
from torchvox.data.folder import Objects, Segments
from torchvox.data.readers.objects import find_objects

G = np.random.default_rng(4)
NAMES = [f"{kind}/{i}" for kind in ("chair", "mug") for i in range(6)]
CLOUD = G.uniform(-2, 3, (60, 3)).astype(np.float32)
LABELS = np.repeat([0, 1, 2, 7], 15)
COLUMNS = ["x", "y", "z", "label"]


@pytest.fixture
def objects(tmp_path):
    """Six objects of each class: 30 points as text with a row that is not finite."""
    for name in NAMES:
        path, table = tmp_path / f"{name}.txt", G.uniform(0, 9, (30, 7))
        path.parent.mkdir(exist_ok=True)
        np.savetxt(path, [[np.nan] * 7, *table], header="x y z nx ny nz red", comments="")
    return tmp_path


def test_an_object_is_centered_and_has_points_of_its_file_alone(objects):
    whole = Objects(objects, "val", points=30, columns=["x", "y", "z", "red"], normals=True)
    assert (whole.classes, whole.columns, len(whole)) == (["chair", "mug"], 7, 2)
    table = np.loadtxt(objects / f"{whole.scans[1].name}.txt", skiprows=2)
    xyz = table[:, :3] - table[:, :3].mean(0)
    xyz /= np.linalg.norm(xyz, axis=1).max()
    table = np.concatenate([xyz, table[:, 6:] / 255, table[:, 3:6]], 1)  # colors are 0 .. 1
    points = whole[1]["points"].numpy()
    order = [np.argsort(rows[:, 0]) for rows in (points, table)]
    np.testing.assert_allclose(points[order[0]], table[order[1]], atol=1e-5)
    assert int(whole[1]["label"]) == 1 and not np.allclose(points, table)
    more = Objects(objects, None, points=80)
    assert len(more[5]["points"].unique(dim=0)) == 30  # all, and some again
    assert_same_bits(more.batch([4, 5])["points"][1], more[5]["points"])


@pytest.mark.parametrize(
    ("files", "sizes", "val"),
    [
        ({}, (10, 2), None),
        ({"val.txt": "mug/5.txt\n\nchair/2\n"}, (10, 2), ["mug/5", "chair/2"]),
        ({"train.txt": "mug/5\nmug/4\n"}, (2, 10), NAMES[:-2]),
    ],
)
def test_a_split_is_listed_or_the_rest_or_a_fifth_of_each_class(objects, files, sizes, val):
    for name, text in files.items():
        (objects / name).write_text(text)
    train, held = ([s.name for s in find_objects(objects, part)] for part in ("train", "val"))
    assert (len(train), len(held)) == sizes and held == (val or held)
    assert sorted(train + held) == NAMES and (files or {n[:3] for n in held} == {"cha", "mug"})
    assert files or len({find_objects(objects, "val", seed)[0].name for seed in range(9)}) > 2


def write(root, form, labels=LABELS):
    for name in ("points", "labels"):
        (root / form / name).mkdir(parents=True)
    if form == "column":
        points = np.column_stack([CLOUD, labels]).astype(np.float32)
        np.savez(root / form / "points" / "0.npz", points=points, columns=np.array(COLUMNS))
    else:
        np.save(root / form / "points" / "0.npy", CLOUD)
        np.save(root / form / "labels" / "0.npy", labels)
    return root / form


@pytest.mark.parametrize(("block", "count"), [(None, 1), (1.5, 8)])  # 60 points, 8 in a sample
def test_both_forms_of_labels_give_the_same_samples(block, count, tmp_path):
    options = {"classes": "abc", "ignore": [7], "block": block, "points": 8}
    sets = [Segments(write(tmp_path, form), **options) for form in ("column", "file")]
    assert len(sets[0]) == count
    one, other = (each.batch(range(count)) for each in sets)
    for name in one:
        assert_same_bits(one[name], other[name])
    points, labels = one["points"].numpy(), one["labels"].numpy()
    assert (labels >= 0).any(1).all()
    assert abs(points[..., :2]).max() <= (1 if block is None else 0.75) + 1e-6
    z = CLOUD[:, 2] - (CLOUD[:, 2].mean() if block is None else CLOUD[:, 2].min())
    z /= 1 if block else np.linalg.norm(CLOUD - CLOUD.mean(0), axis=1).max()
    nearest = abs(points[..., 2] - z[:, None, None]).argmin(0)
    np.testing.assert_array_equal(labels, np.where(LABELS == 7, -1, LABELS)[nearest])


@pytest.mark.parametrize(
    ("labels", "options", "words"),
    [
        (LABELS, {}, r"0\.npy: the label 7 of 15 points is neither from 0 to 2 \(c\)"),
        (LABELS[:9], {}, r"0\.npy has 9 labels, but .*0\.npy has 60 points"),
        (LABELS + 0.5, {}, "labels must be whole numbers"),
        (LABELS.astype(np.uint64) << 60, {}, "labels must be whole numbers"),
        (LABELS, {"classes": "aab"}, "classes must be different names"),
        (LABELS, {"ignore": [0, 1, 2, 7]}, "no point has a label"),
        (LABELS % 3, {"columns": [*COLUMNS[:3], "red"]}, "must have the columns red, it has x"),
    ],
)
def test_what_is_wrong_is_said_with_the_file(labels, options, words, tmp_path):
    with pytest.raises(TorchvoxError, match=words):
        Segments(write(tmp_path, "file", labels), None, **{"classes": "abc", **options})[0]
