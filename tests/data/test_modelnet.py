# SPDX-License-Identifier: Apache-2.0
"""Both forms of ModelNet40 are read from small copies that the tests write."""

import pickle

import numpy as np
import pytest
import torch

from torchvox._errors import CloudFileError, MissingExtraError
from torchvox.data.modelnet import ModelNet40

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
    with pytest.raises(MissingExtraError, match=r'pip install "torchvox\[hdf5\]"'):
        ModelNet40(empty)


def test_mapped_data_pickle_as_their_path(resampled):
    data = ModelNet40(resampled[0], points=8)
    before = data[0]
    packed = pickle.dumps(data)
    assert len(packed) < 2000
    assert torch.equal(pickle.loads(packed)[0]["points"], before["points"])
