# SPDX-License-Identifier: Apache-2.0
"""Both forms of ModelNet40 are read from small copies that the tests write."""

import pickle
import zlib

import numpy as np
import pytest
import torch

from torchvox._errors import CloudFileError, MissingExtraError
from torchvox.data.readers.modelnet import ModelNet40

CLASSES = ["airplane", "night_stand", "sofa"]


def objects(count: int, rows: int = 40) -> np.ndarray:
    g = np.random.default_rng(count)
    return g.normal(5.0, 2.0, (count, rows, 6)).round(6).astype(np.float32)


@pytest.fixture
def resampled(tmp_path):
    """airplane_0001 and so on: of each class two to train on and one to test on."""
    (tmp_path / "modelnet40_shape_names.txt").write_text("\n".join(CLASSES) + "\n")
    clouds = objects(9).reshape(3, 3, 40, 6)
    names = {"train": [], "test": []}
    for kind, of_kind in zip(CLASSES, clouds, strict=True):
        (tmp_path / kind).mkdir()
        for i, cloud in enumerate(of_kind):
            name = f"{kind}_{i + 1:04d}"
            np.savetxt(tmp_path / kind / f"{name}.txt", cloud, fmt="%.6f", delimiter=",")
            names["test" if i == 2 else "train"].append(name)
    for split, found in names.items():
        (tmp_path / f"modelnet40_{split}.txt").write_text("\n".join(found) + "\n\n")
    return tmp_path, clouds


@pytest.fixture
def hdf5(tmp_path):
    h5py = pytest.importorskip("h5py")
    clouds = objects(6)
    for i in range(2):
        with h5py.File(tmp_path / f"ply_data_train{i}.h5", "w") as file:
            file["data"] = clouds[3 * i : 3 * i + 3, :, :3]
            file["normal"] = clouds[3 * i : 3 * i + 3, :, 3:]
            file["label"] = np.array([[0], [1], [2]], np.uint8)
    (tmp_path / "shape_names.txt").write_text("\n".join(CLASSES))
    return tmp_path, clouds


def test_resampled_text(resampled):
    root, clouds = resampled
    train, val = ModelNet40(root, points=16, normals=True), ModelNet40(root, "val", points=16)
    assert (len(train), len(val)) == (6, 3)
    assert train.classes == CLASSES
    batch = train.batch([3, 0])
    assert batch["label"].tolist() == [1, 0] and batch["id"].tolist() == [3, 0]
    np.testing.assert_array_equal(batch["points"][0, :, 3:].numpy(), clouds[1, 1, :16, 3:])
    xyz = batch["points"][..., :3]
    assert xyz.mean(1).abs().max() < 1e-6
    torch.testing.assert_close(xyz.norm(dim=-1).amax(1), torch.ones(2))
    assert val[2]["points"].shape == (16, 3) and val[2]["label"] == 2


def test_text_is_parsed_once_and_again_when_the_list_changes(resampled):
    root, _ = resampled
    first = ModelNet40(root, points=8)[1]["points"].clone()
    for path in root.glob("*/airplane_*.txt"):
        path.write_text("gone")
    assert torch.equal(ModelNet40(root, points=8)[1]["points"], first)
    (root / "modelnet40_train.txt").write_text("sofa_0001\nairplane_0001\n")
    with pytest.raises(CloudFileError, match=r"airplane_0001.txt: line 1 .* 6 numbers: 'gone'"):
        ModelNet40(root, points=8)
    assert not list((root / "torchvox_index").glob(".*")), "nothing half-written stays"


def test_the_index_goes_where_it_is_told(resampled, tmp_path_factory):
    root, _ = resampled
    cache = tmp_path_factory.mktemp("cache")
    ModelNet40(root, points=8, cache=cache)
    assert (cache / "train_8" / "points.bin").is_file()
    assert not (root / "torchvox_index").exists()


def test_hdf5(hdf5):
    root, clouds = hdf5
    data = ModelNet40(root, points=32, normals=True)
    assert len(data) == 6 and data.classes == CLASSES
    assert data[4]["label"] == 1
    np.testing.assert_array_equal(data[4]["points"][:, 3:].numpy(), clouds[4, :32, 3:])
    whole = torch.from_numpy(clouds[4, :32, :3])
    whole = whole - whole.mean(0)
    torch.testing.assert_close(data[4]["points"][:, :3], whole / whole.norm(dim=1).max())


def empty_chunks(file):
    del file["data"]
    file.create_dataset("data", (4000, 2048, 3), "f4", chunks=(1000, 2048, 3))


def large_chunk(file):
    del file["data"]
    options = {"maxshape": (None, 40, 3), "chunks": (400_000, 40, 3), "compression": "gzip"}
    data = file.create_dataset("data", (3, 40, 3), "f4", **options)
    data.id.write_direct_chunk((0, 0, 0), zlib.compress(bytes(1440)))


def elsewhere(file):
    import h5py

    del file["data"]
    file["data"] = h5py.ExternalLink("ply_data_train1.h5", "data")


def raw_elsewhere(file):
    del file["data"]
    file.create_dataset("data", (3, 40, 3), "f4", external="/dev/zero")


def virtual(file):
    import h5py

    del file["data"]
    layout = h5py.VirtualLayout((3, 40, 3), "f4")
    layout[:] = h5py.VirtualSource("ply_data_train1.h5", "data", (3, 40, 3))
    file.create_virtual_dataset("data", layout)


def replaced(name, values):
    def change(file):
        del file[name]
        file[name] = values

    return change


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (empty_chunks, "data claims 98304000 bytes, and holds 0"),
        (large_chunk, "data claims 192000000 bytes"),
        (elsewhere, "no data set of its own"),
        (raw_elsewhere, "no data set of its own"),
        (virtual, "no data set of its own"),
        (lambda file: file.move("data", "points"), "data"),
        (replaced("data", np.zeros((3, 40, 3), "S4")), "holds no numbers"),
        (replaced("data", 7.0), "is not a file of ModelNet40"),
        (replaced("label", np.zeros((4, 1), np.uint8)), "shapes do not fit"),
        (replaced("data", np.zeros((3, 39, 3), np.float32)), "is not a file of ModelNet40"),
        (replaced("label", np.array([0, 1, 2**60])), r"labels must lie in 0\.\.2"),
        (replaced("label", np.array([0, -1, 1])), r"labels must lie in 0\.\.2"),
    ],
)
def test_a_hostile_hdf5_file_is_one_sentence(hdf5, change, reason):
    h5py = pytest.importorskip("h5py")
    with h5py.File(hdf5[0] / "ply_data_train0.h5", "a") as file:
        change(file)
    with pytest.raises(CloudFileError, match=reason) as error:
        ModelNet40(hdf5[0], points=32, normals=True)
    assert len(str(error.value).splitlines()) == 1


def test_labels_without_names_are_bounded(hdf5):
    (hdf5[0] / "shape_names.txt").unlink()
    assert ModelNet40(hdf5[0], points=8).classes == ["0", "1", "2"]
    h5py = pytest.importorskip("h5py")
    with h5py.File(hdf5[0] / "ply_data_train0.h5", "a") as file:
        replaced("label", np.array([0, 1, 2**25]))(file)
    with pytest.raises(CloudFileError, match=r"labels must lie in 0\.\.65535"):
        ModelNet40(hdf5[0])


def test_a_damaged_index_is_made_anew(resampled):
    root, _ = resampled
    first = ModelNet40(root, points=8)[5]["points"].clone()
    folder = root / "torchvox_index" / "train_8"
    whole = (folder / "points.bin").read_bytes()
    for name, content in (
        ("points.bin", whole[:-4]),
        ("points.bin", whole + b"more"),
        ("index.json", b"[]"),
        ("index.json", b"[" * 100_000),
        ("index.json", b'{"source": 1' + b"0" * 5000 + b"}"),
    ):
        (folder / name).write_bytes(content)
        assert torch.equal(ModelNet40(root, points=8)[5]["points"], first)
    (folder / "points.bin").unlink()
    assert torch.equal(ModelNet40(root, points=8)[5]["points"], first)


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("modelnet40_train.txt", b"sofa_\x000001\n", "class sofa|null byte"),
        ("modelnet40_train.txt", b"sofa_\xff\n", "decode"),
        ("sofa/sofa_0001.txt", b"1,2,3,nan,5,6\n", "line 1 does not hold 6 numbers"),
        ("sofa/sofa_0001.txt", b"1,2,3,4,5,6\n1,2,3,4,1e39,6\n", "line 2 does not hold 6 numbers"),
    ],
)
def test_hostile_text_is_one_sentence(resampled, name, content, reason):
    (resampled[0] / name).write_bytes(content)
    with pytest.raises(CloudFileError, match=reason):
        ModelNet40(resampled[0], points=8)


def test_errors_are_sentences(resampled, hdf5, tmp_path_factory, monkeypatch):
    empty = tmp_path_factory.mktemp("empty")
    with pytest.raises(CloudFileError, match="is no ModelNet40"):
        ModelNet40(empty)
    with pytest.raises(CloudFileError, match="has 40 points, but 64 are wanted"):
        ModelNet40(resampled[0], points=64)
    with pytest.raises(ValueError, match="split must be train or val"):
        ModelNet40(resampled[0], "test")
    (empty / "ply_data_train0.h5").write_bytes(b"no")
    with pytest.raises(CloudFileError, match="is not a file of ModelNet40"):
        ModelNet40(empty)
    import importlib

    def missing(name):
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    monkeypatch.setattr(importlib, "import_module", missing)
    with pytest.raises(MissingExtraError, match="pip install h5py"):
        ModelNet40(empty)


def test_mapped_data_pickle_as_their_path(resampled):
    data = ModelNet40(resampled[0], points=8)
    before = data[0]
    packed = pickle.dumps(data)
    assert len(packed) < 2000
    assert torch.equal(pickle.loads(packed)[0]["points"], before["points"])
