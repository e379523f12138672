# SPDX-License-Identifier: Apache-2.0
"""ModelNet40 and S3DIS in each of their forms, read from small copies that the tests write."""

import pickle

import numpy as np
import pytest
import torch
from helpers import assert_same_bits

from torchvox._util.errors import CloudFileError
from torchvox.data.readers.modelnet import ModelNet40
from torchvox.data.readers.s3dis import S3DIS
from torchvox.data.worlds.furniture import CLASSES

h5py = pytest.importorskip("h5py")
NAMES, OBJECTS = ["airplane", "night_stand", "sofa"], ("floor", "chair", "clutter")
ROOMS = {("Area_1", "office_1"): 0, ("Area_1", "hallway_2"): 1, ("Area_5", "office_1"): 2}


def clouds() -> np.ndarray:
    """Three objects of each class."""
    return np.random.default_rng(9).normal(5.0, 2.0, (3, 3, 40, 6)).round(6).astype(np.float32)


def write_text(root):
    """Two objects of each class to train on and one to test on."""
    (root / "modelnet40_shape_names.txt").write_text("\n".join(NAMES) + "\n")
    for kind, of_kind in zip(NAMES, clouds(), strict=True):
        (root / kind).mkdir()
        for i, cloud in enumerate(of_kind, 1):
            np.savetxt(root / kind / f"{kind}_{i:04d}.txt", cloud, fmt="%.6f", delimiter=",")
    for split, numbers in (("train", (1, 2)), ("test", (3,))):
        lines = [f"{kind}_{i:04d}\n" for kind in NAMES for i in numbers]
        (root / f"modelnet40_{split}.txt").write_text("".join(lines))


def write_hdf5(root):
    """The same objects, those to train on in two files."""
    label = np.arange(3).repeat(3).reshape(3, 3)
    parts = {"train0": np.s_[:, :2], "train1": np.s_[:0], "test0": np.s_[:, 2:]}
    for name, part in parts.items():
        with h5py.File(root / f"ply_data_{name}.h5", "w") as file:
            objects = clouds()[part].reshape(-1, 40, 6)
            file["data"], file["normal"] = objects[..., :3], objects[..., 3:]
            file["label"] = label[part].reshape(-1, 1).astype(np.uint8)
    (root / "shape_names.txt").write_text("\n".join(NAMES))


def room(seed: int) -> np.ndarray:
    """[N, 7]: 600 points each of three classes, x and y over 3 meters, away from the origin."""
    g = np.random.default_rng(seed)
    xyz = g.uniform((-2, 7, 1), (1, 10, 3.5), (1800, 3)).round(3)
    label = np.repeat([CLASSES.index(name) for name in OBJECTS], 600)
    return np.column_stack([xyz, g.integers(0, 256, (1800, 3)), label]).astype(np.float32)


def write_rooms(root, form="npy"):
    for (area, name), seed in ROOMS.items():
        whole, folder = room(seed), root / area / name
        if form == "npy":
            np.save(root / f"{area}_{name}.npy", whole)
        elif form == "split":
            folder.mkdir(parents=True)
            parts = zip(("coord", "color", "segment"), np.split(whole, (3, 6), 1), strict=True)
            for stem, values in parts:
                np.save(folder / f"{stem}.npy", values)
        else:
            (folder / "Annotations").mkdir(parents=True)
            for rows, stem in zip(np.split(whole, 3), ("floor", "chair", "stairs"), strict=True):
                path = folder / "Annotations" / f"{stem}_1.txt"  # stairs count as clutter
                np.savetxt(path, rows[:, :6], fmt="%.3f %.3f %.3f %d %d %d")


@pytest.mark.parametrize("write", [write_text, write_hdf5])
def test_objects_of_modelnet40_are_centered_in_the_unit_sphere(write, tmp_path):
    write(tmp_path)
    val, train = (
        ModelNet40(tmp_path, "val", points=9),
        ModelNet40(tmp_path, points=16, normals=True),
    )
    assert (len(train), len(val), train.classes) == (6, 3, NAMES)
    assert val[2]["label"] == 2 and val[2]["points"].shape == (9, 3)
    batch, one = train.batch([3, 0]), torch.from_numpy(clouds()[1, 1, :16])
    assert batch["label"].tolist() == [1, 0] and batch["id"].tolist() == [3, 0]
    xyz = one[:, :3] - one[:, :3].mean(0)
    xyz = torch.cat([xyz / xyz.norm(dim=1).max(), one[:, 3:]], 1)
    torch.testing.assert_close(batch["points"][0], xyz, atol=1e-6, rtol=0)
    again = pickle.dumps(train)
    assert_same_bits(pickle.loads(again).batch([3, 0])["points"], batch["points"])
    assert write is write_hdf5 or len(again) < 2000  # the path of mapped data, not the data


@pytest.mark.parametrize("form", ["npy", "split", "text"])
def test_every_form_of_s3dis_gives_the_same_rooms(form, tmp_path):
    write_rooms(tmp_path, form)
    options = {"points": 4096, "block": 9.0, "size": 3}
    data, whole = S3DIS(tmp_path, "val", **options), room(2)
    batch = data.batch(range(3))
    assert (len(data.rooms), len(S3DIS(tmp_path, **options).rooms)) == (1, 2)
    low, size = whole[:, :3].min(0), np.ptp(whole[:, :3], 0)
    rows = np.column_stack([batch["points"][0][:, 3:], batch["labels"][0]]).astype(np.float64)
    expected = np.column_stack([whole[:, 3:6] / 255, (whole[:, :3] - low) / size, whole[:, 6]])
    rows, expected = (np.unique(table.round(3), axis=0) for table in (rows, expected))
    np.testing.assert_allclose(rows, expected, atol=2e-3)  # all points; some of them again
    assert_same_bits(data[2]["points"], batch["points"][2])
    other = S3DIS(tmp_path, "val", points=512, seed=1)[2]["points"]
    assert not torch.equal(other, S3DIS(tmp_path, "val", points=512)[2]["points"])
    assert other.shape == (512, 9) and 0.4 < other[:, :2].abs().max() <= 0.5001


@pytest.mark.parametrize("cache", [None, "cache"])
@pytest.mark.parametrize("kind", [ModelNet40, S3DIS])
def test_files_are_packed_once_and_again_where_that_is_damaged(kind, cache, tmp_path):
    write, source = (write_text, "sofa/sofa_0001.txt"), (write_rooms, "Area_1_office_1.npy")
    write, source = write if kind is ModelNet40 else source
    (root := tmp_path / "data").mkdir()
    write(root)

    def first():
        return kind(root, points=8, cache=cache and tmp_path / cache)[0]["points"]

    points, folder = first(), root / "torchvox_index" if cache is None else tmp_path / cache
    content = (root / source).read_bytes()
    (root / source).write_bytes(b"gone")
    assert_same_bits(first(), points)
    packed = sorted(folder.iterdir())
    for damage in (b"", packed[0].read_bytes()[:-4], b"mine"):
        for path in packed:
            path.write_bytes(damage)
        with pytest.raises(CloudFileError, match=source.split("/")[-1]):
            first()
        (root / source).write_bytes(content)
        assert_same_bits(first(), points)
        (root / source).write_bytes(b"gone")
    assert sorted(folder.iterdir()) == packed, "nothing half-written stays"


def test_what_modelnet40_lists_is_packed_again_when_it_changes(tmp_path):
    write_text(tmp_path)
    before, path = ModelNet40(tmp_path, points=8), tmp_path / "modelnet40_train.txt"
    path.write_text("\n".join(path.read_text().split()[::-1]))
    after = ModelNet40(tmp_path, points=8)
    for i in range(6):
        assert_same_bits(after[i]["points"], before[5 - i]["points"])
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(
        CloudFileError, match=r"cannot be written: Not a dir.*: set data.cache to a"
    ):
        ModelNet40(tmp_path, "val", points=8, cache=tmp_path / "file")


WRONG = [  # file, its content or a change of this part of it, words
    ("ply_data_train0.h5/data", {"shape": (4000, 2048, 3), "chunks": (1000, 2048, 3)}, "claims 98"),
    (
        "ply_data_train0.h5/data",
        {"shape": (6, 40, 3), "external": "/dev/zero"},
        "must be stored in",
    ),
    (
        "ply_data_train0.h5/data",
        np.zeros((6, 39, 3), np.float32),
        "not a readable file of ModelNet",
    ),
    ("ply_data_train0.h5/label", np.zeros((4, 1), np.uint8), "shapes do not fit"),
    ("ply_data_train0.h5/label", np.array([0, -1, 1, 0, 0, 0]), r"labels must lie in 0\.\.2"),
    ("modelnet40_train.txt", b"sofa_\x000001\n", "class sofa|null byte"),
    ("modelnet40_train.txt", b"\n", "names no object"),
    ("sofa/sofa_0001.txt", b"1,2,3,4,5,6\n1,2,3,4,1e39,6\n", "line 2 does not hold 6"),
    ("sofa/sofa_0001.txt", b"1,2,3,4,5,6\n", "has 1 points, fewer than 8"),
    ("Area_1_office_1.npy", np.zeros((9, 7), "<U3"), "must hold numbers"),
    ("Area_1_office_1.npy", np.zeros((9, 6)), r"rooms are \[N, 7\]"),
    ("Area_1_office_1.npy", room(0) * [np.nan, 1, 1, 1, 1, 1, 1], "coordinates must be finite"),
    ("Area_1_office_1.npy", np.full((9, 7), 13), r"labels must lie in 0\.\.12"),
    ("Area_1/office_1/coord.npy", np.zeros((1800, 2)), "differ in length"),
    ("Area_1/office_1/coord.npy", b"PK\x05\x06" + bytes(18), r"coord\.npy is a \.npz archive"),
    ("Area_1/office_1/Annotations/floor_1.txt", b"1 2 oops 1 2 3", "floor_1.txt: line 1 does"),
]


@pytest.mark.parametrize(("file", "content", "reason"), WRONG)
def test_a_file_that_is_wrong_is_named_with_the_reason(tmp_path, file, content, reason):
    path = tmp_path / file
    if file.startswith("Area"):
        form = "npy" if file.endswith("1.npy") else "split"
        write_rooms(tmp_path, "text" if "floor_1" in file else form)
    elif ".h5" in file:
        write_hdf5(tmp_path)
        with h5py.File(path.parent, "a") as whole:
            del whole[path.name]
            options = content if isinstance(content, dict) else {"data": content}
            whole.create_dataset(path.name, dtype=None if "data" in options else "f4", **options)
    else:
        write_text(tmp_path)
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif path.suffix == ".npy":
        np.save(path, content)
    with pytest.raises(CloudFileError, match=reason) as error:
        S3DIS(tmp_path) if file.startswith("Area") else ModelNet40(tmp_path, points=8)
    assert len(str(error.value).splitlines()) == 1
