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
NAMES = ["airplane", "night_stand", "sofa"]
PARTS = {"train": np.s_[:, :2], "train1": np.s_[:0], "test": np.s_[:, 2:]}  # of the objects
CLOUDS = np.random.default_rng(9).normal(5.0, 2.0, (3, 3, 40, 6)).round(6).astype(np.float32)
ROOMS = ("Area_1/office_1", "Area_1/hallway_2", "Area_5/office_1")


def room(seed: int) -> np.ndarray:
    """[N, 7]: 600 points each of floor, chair, clutter, 3 meters wide, away from the origin."""
    g = np.random.default_rng(seed)
    xyz = g.uniform((-2, 7, 1), (1, 10, 3.5), (1800, 3)).round(3)
    label = np.repeat([CLASSES.index(name) for name in ("floor", "chair", "clutter")], 600)
    return np.column_stack([xyz, g.integers(0, 256, (1800, 3)), label]).astype(np.float32)


def files(form):
    """The files of a form: three objects of each class, the last to test on, or three rooms."""
    names = np.array([[f"{kind}_{i:04d}" for i in (1, 2, 3)] for kind in NAMES])
    if form == "text":
        yield "modelnet40_shape_names.txt", "\n".join(NAMES)
        for name, cloud in zip(names.flat, CLOUDS.reshape(9, 40, 6), strict=True):
            yield f"{name[:-5]}/{name}.txt", cloud
        for split in ("train", "test"):
            yield f"modelnet40_{split}.txt", "\n".join(names[PARTS[split]].flat)
    if form == "hdf5":
        yield "shape_names.txt", "\n".join(NAMES)
        for split, part in PARTS.items():
            xyz, normal = np.split(CLOUDS[part].reshape(-1, 40, 6), 2, -1)
            label = np.arange(3, dtype=np.uint8).repeat(3).reshape(3, 3)[part].reshape(-1, 1)
            columns = {"data": xyz, "normal": normal, "label": label}
            yield from ((f"ply_data_{split}.h5/{name}", v) for name, v in columns.items())
    for seed, place in enumerate(ROOMS):
        whole = room(seed)
        if form == "rooms":
            yield f"{place.replace('/', '_')}.npy", whole
        parts = zip(("coord", "color", "segment"), np.split(whole, (3, 6), 1), strict=True)
        if form == "columns":
            yield from ((f"{place}/{stem}.npy", values) for stem, values in parts)
        parts = zip(("floor", "chair", "stairs"), np.split(whole[:, :6], 3), strict=True)
        if form == "text of rooms":  # stairs count as clutter
            yield from ((f"{place}/Annotations/{stem}_1.txt", rows) for stem, rows in parts)


def write(root, form, **changes):
    for name, content in {**dict(files(form)), **changes}.items():
        path = root / name
        path.parents[".h5/" in name].mkdir(parents=True, exist_ok=True)
        if ".h5/" in name:
            with h5py.File(path.parent, "a") as file:
                options = content if isinstance(content, dict) else {"data": content}
                file.create_dataset(path.name, **options)
        elif isinstance(content, str):
            path.write_text(content)
        elif path.suffix == ".npy":
            np.save(path, content)
        else:
            np.savetxt(path, content, "%.6f", " " if "Annotations" in name else ",")


@pytest.mark.parametrize("form", ["text", "hdf5"])
def test_objects_of_modelnet40_are_centered_in_the_unit_sphere(form, tmp_path):
    write(tmp_path, form)
    val = ModelNet40(tmp_path, "val", points=9)
    train = ModelNet40(tmp_path, points=16, normals=True)
    assert (len(train), len(val), train.classes) == (6, 3, NAMES)
    assert val[2]["label"] == 2 and val[2]["points"].shape == (9, 3)
    batch, one = train.batch([3, 0]), torch.from_numpy(CLOUDS[1, 1, :16])
    assert batch["label"].tolist() == [1, 0] and batch["id"].tolist() == [3, 0]
    one[:, :3] -= one[:, :3].mean(0)
    one[:, :3] /= one[:, :3].norm(dim=1).max()
    torch.testing.assert_close(batch["points"][0], one, atol=1e-6, rtol=0)
    again = pickle.dumps(train)
    assert_same_bits(pickle.loads(again)[3]["points"], batch["points"][0])
    if form == "text":
        assert len(again) < 2000  # the path of mapped data, not the data
        path = tmp_path / "modelnet40_train.txt"  # packed again when it changes
        path.write_text("\n".join(path.read_text().split()[::-1]))
        other = ModelNet40(tmp_path, points=16, normals=True)[2]
        assert_same_bits(other["points"], batch["points"][0])
        assert len([*(tmp_path / "torchvox_index").iterdir()]) == 3


@pytest.mark.parametrize("form", ["rooms", "columns", "text of rooms"])
def test_every_form_of_s3dis_gives_the_same_rooms(form, tmp_path):
    write(tmp_path, form)
    data, whole = S3DIS(tmp_path, "val", block=9.0, size=3), room(2)
    assert (len(data.rooms), len(S3DIS(tmp_path).rooms)) == (1, 2)
    batch, xyz = data.batch(range(3)), whole[:, :3] - whole[:, :3].min(0)
    rows = np.column_stack([batch["points"][0][:, 3:], batch["labels"][0]]).astype(np.float64)
    expected = np.column_stack([whole[:, 3:6] / 255, xyz / xyz.max(0), whole[:, 6]])
    rows, expected = (np.unique(table.round(3), axis=0) for table in (rows, expected))
    np.testing.assert_allclose(rows, expected, atol=2e-3)  # all points; some of them again
    assert_same_bits(data[2]["points"], batch["points"][2])
    one, other = (S3DIS(tmp_path, "val", points=512, seed=i)[2]["points"] for i in (0, 1))
    assert other.shape == (512, 9) and not torch.equal(one, other)
    assert 0.4 < other[:, :2].abs().max() <= 0.5001


SOURCES = {ModelNet40: ("text", "sofa/sofa_0001.txt"), S3DIS: ("rooms", "Area_1_office_1.npy")}


@pytest.mark.parametrize("kind", SOURCES)
def test_files_are_packed_once_and_again_where_that_is_damaged(kind, tmp_path):
    form, source = SOURCES[kind]
    write(tmp_path, form)
    options = {"points": 8, "cache": tmp_path / "cache"}
    points = kind(tmp_path, **options)[0]["points"]
    packed = sorted(options["cache"].iterdir())
    for damage in (None, b"", packed[0].read_bytes()[:-4], b"mine"):
        (tmp_path / source).write_bytes(b"gone")
        if damage is not None:
            for path in packed:
                path.write_bytes(damage)
            with pytest.raises(CloudFileError, match=source.split("/")[-1]):
                kind(tmp_path, **options)
            write(tmp_path, form)
        assert_same_bits(kind(tmp_path, **options)[0]["points"], points)
    assert sorted(options["cache"].iterdir()) == packed, "nothing half-written stays"
    with pytest.raises(CloudFileError, match=r"cannot be written: .*: set data.cache to a folder"):
        kind(tmp_path, points=9, cache=tmp_path / source)


LARGE = {"shape": (4000, 2048, 3), "chunks": (1000, 2048, 3), "dtype": "f4"}
LINKED = {"shape": (6, 40, 3), "external": "/dev/zero", "dtype": "f4"}
WRONG = [  # form, file, what it holds instead, words
    ("hdf5", "ply_data_train.h5/data", LARGE, "claims 98"),
    ("hdf5", "ply_data_train.h5/data", LINKED, "must be stored in"),
    ("hdf5", "ply_data_train.h5/data", CLOUDS[0, :, :39, :3], "not a readable file of ModelNet"),
    ("hdf5", "ply_data_train.h5/label", np.zeros((4, 1), np.uint8), "shapes do not fit"),
    ("hdf5", "ply_data_train.h5/label", np.array([0, -1, 1, 0, 0, 0]), r"lie in 0\.\.2"),
    ("text", "modelnet40_train.txt", "sofa_\x000001\n", "class sofa|null byte"),
    ("text", "modelnet40_train.txt", "\n", "names no object"),
    ("text", "sofa/sofa_0001.txt", "1,2,3,4,5,6\n1,2,3,4,1e39,6\n", "line 2 is not 6 finite"),
    ("text", "sofa/sofa_0001.txt", "1,2,3,4,5,6\n", "has 1 points, fewer than 8"),
    ("rooms", "Area_1_office_1.npy", np.zeros((9, 7), "<U3"), "must hold numbers"),
    ("rooms", "Area_1_office_1.npy", np.zeros((9, 6)), r"rooms are \[N, 7\]"),
    ("rooms", "Area_1_office_1.npy", room(0) * [np.nan, *[1] * 6], "coordinates must be finite"),
    ("rooms", "Area_1_office_1.npy", np.full((9, 7), 13), r"labels must lie in 0\.\.12"),
    ("columns", "Area_1/office_1/coord.npy", np.zeros((1800, 2)), "differ in length"),
    ("columns", "Area_1/office_1/coord.npy", "PK\x05\x06" + "\0" * 18, r"is a \.npz archive"),
    ("text of rooms", "Area_1/office_1/Annotations/floor_1.txt", "1 oops 1 2 3", "line 1 is not 6"),
]


@pytest.mark.parametrize(("form", "file", "content", "reason"), WRONG)
def test_a_file_that_is_wrong_is_named_with_the_reason(tmp_path, form, file, content, reason):
    write(tmp_path, form, **{file: content})
    with pytest.raises(CloudFileError, match=reason) as error:
        S3DIS(tmp_path) if file.startswith("Area") else ModelNet40(tmp_path, points=8)
    assert len(str(error.value).splitlines()) == 1
