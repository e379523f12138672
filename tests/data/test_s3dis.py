# SPDX-License-Identifier: Apache-2.0
"""The forms of S3DIS hold the same rooms, read from small copies that the tests write."""

import numpy as np
import pytest
import torch

from torchvox._errors import CloudFileError
from torchvox.data.readers import s3dis
from torchvox.data.readers.s3dis import S3DIS, pack_rooms
from torchvox.data.worlds.furniture import CLASSES

ROOMS = {("Area_1", "office_1"): 0, ("Area_1", "hallway_2"): 1, ("Area_5", "office_1"): 2}
OBJECTS = ("floor", "chair", "clutter")


def room(seed: int) -> np.ndarray:
    """[N, 7]: 600 points each of three classes, x and y over 3 meters, away from the origin."""
    g = np.random.default_rng(seed)
    xyz = g.uniform((-2, 7, 1), (1, 10, 3.5), (1800, 3)).round(3)
    label = np.repeat([CLASSES.index(name) for name in OBJECTS], 600)
    return np.column_stack([xyz, g.integers(0, 256, (1800, 3)), label]).astype(np.float32)


def write_annotations(root):
    for (area, name), seed in ROOMS.items():
        folder = root / area / name / "Annotations"
        folder.mkdir(parents=True)
        whole = room(seed)
        # stairs are no class of their own there
        for kind, stem in zip(OBJECTS, ("floor_1", "chair_1", "stairs_1"), strict=True):
            rows = whole[whole[:, 6] == CLASSES.index(kind)]
            np.savetxt(folder / f"{stem}.txt", rows[:, :6], fmt="%.3f %.3f %.3f %d %d %d")


HUGE = b"1" + b"0" * 400  # no float64 holds it


def write_npy(root):
    for (area, name), seed in ROOMS.items():
        np.save(root / f"{area}_{name}.npy", room(seed))


def write_split_npy(root):
    for (area, name), seed in ROOMS.items():
        folder, whole = root / area / name, room(seed)
        folder.mkdir(parents=True)
        np.save(folder / "coord.npy", whole[:, :3])
        np.save(folder / "color.npy", whole[:, 3:6].astype(np.uint8))
        np.save(folder / "segment.npy", whole[:, 6:].astype(np.int16))


FORMS = (write_annotations, write_npy, write_split_npy)


@pytest.mark.parametrize("write", FORMS)
def test_every_form_gives_the_same_rooms(write, tmp_path):
    write(tmp_path)
    index = pack_rooms(tmp_path, tmp_path / "packed")
    assert sorted(r["area"] for r in index["rooms"]) == [1, 1, 5]
    data = S3DIS(tmp_path, "val", cache=tmp_path / "packed")
    assert len(data.rooms) == 1
    first = data.rooms[0]["first"]
    rows = np.column_stack(
        [x[slice(first, first + 1800)] for x in (data.xyz, data.rgb, data.label)]
    ).astype(np.float64)
    wanted = room(2).astype(np.float64)
    wanted[:, :3] -= wanted[:, :3].min(0)
    order = [np.lexsort(table.round(3).T) for table in (rows, wanted)]
    np.testing.assert_allclose(rows[order[0]], wanted[order[1]], atol=2e-6)


def test_blocks_have_nine_features_in_their_ranges(tmp_path):
    write_npy(tmp_path)
    data = S3DIS(tmp_path, points=512, block=1.0, size=5)
    batch = data.batch(range(5))
    points, labels = batch["points"], batch["labels"]
    assert points.shape == (5, 512, 9) and points.dtype == torch.float32
    assert points[..., :2].abs().max() <= 0.5001
    assert points[..., 2].min() >= 0 and points[..., 2].max() <= 2.5
    assert points[..., 3:].min() >= 0 and points[..., 3:].max() <= 1.0001
    assert set(labels.unique().tolist()) == {CLASSES.index(name) for name in OBJECTS}


def test_a_block_is_a_function_of_its_number(tmp_path):
    write_npy(tmp_path)
    data = S3DIS(tmp_path, points=64, size=9)
    alone = data[4]
    batch = S3DIS(tmp_path, points=64, size=9).batch([8, 4])
    for name, value in alone.items():
        assert torch.equal(batch[name][1], value)
    other = S3DIS(tmp_path, points=64, size=9, seed=1)[4]
    assert not torch.equal(other["points"], alone["points"])


def test_a_thin_block_repeats_its_points(tmp_path):
    write_npy(tmp_path)
    points = S3DIS(tmp_path, points=4096, size=2)[0]["points"]
    distinct = len(points.unique(dim=0))
    assert 20 < distinct < 1800 and len(points) == 4096


def test_rooms_are_packed_once(tmp_path):
    write_npy(tmp_path)
    S3DIS(tmp_path, size=1)
    (tmp_path / "Area_1_office_1.npy").write_bytes(b"gone")
    S3DIS(tmp_path, size=1)
    (tmp_path / "Area_2_office_1.npy").write_bytes(b"new")
    with pytest.raises(CloudFileError, match=r"is no \.npy file"):
        S3DIS(tmp_path, size=1)


@pytest.mark.parametrize("kind", ["link to a mount point", "link to nothing"])
def test_an_index_goes_into_a_folder_that_stays(tmp_path, kind):
    (tmp_path / "data").mkdir()
    write_npy(tmp_path / "data")
    cache, there = tmp_path / "cache", tmp_path / "there"
    if kind == "link to a mount point":  # which cannot be removed or renamed
        (there / "lost+found").mkdir(parents=True)
    cache.symlink_to(there)
    number = there.stat().st_ino if there.exists() else None
    for _ in range(2):
        assert len(S3DIS(tmp_path / "data", size=3, cache=cache)) == 3
        assert number in (None, there.stat().st_ino) and cache.is_symlink()
        (there / "label.bin").write_bytes(b"damaged")


def test_the_later_of_two_writers_takes_the_index_of_the_first(tmp_path, monkeypatch):
    write_npy(tmp_path)
    read, index = s3dis._read_room, tmp_path / "torchvox_index" / "index.json"

    def read_beside_another(path):
        monkeypatch.setattr(s3dis, "_read_room", read)
        if not index.exists():
            S3DIS(tmp_path, size=1)
            numbers.append(index.stat().st_ino)
        return read(path)

    numbers = []
    monkeypatch.setattr(s3dis, "_read_room", read_beside_another)
    late = S3DIS(tmp_path, size=1)
    assert numbers == [index.stat().st_ino]
    assert np.array_equal(late[0]["points"], S3DIS(tmp_path, size=1)[0]["points"])
    assert not list(index.parent.glob(".draft*"))


def test_an_index_replaces_nothing_but_an_index(tmp_path):
    (tmp_path / "data").mkdir()
    write_npy(tmp_path / "data")
    mine = tmp_path / "home" / "scan.bin"
    mine.parent.mkdir()
    mine.write_bytes(b"mine")
    with pytest.raises(CloudFileError, match=r"holds other files than an index: set data\.cache"):
        S3DIS(tmp_path / "data", size=1, cache=mine.parent)
    assert mine.read_bytes() == b"mine"
    S3DIS(tmp_path / "data", size=1, cache=tmp_path / "new")
    assert (tmp_path / "new").stat().st_mode == mine.parent.stat().st_mode  # others may read it
    assert not list(tmp_path.glob(".*"))


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("label.bin", lambda whole: whole[:-1]),
        ("xyz.bin", lambda whole: whole + whole),
        ("rgb.bin", lambda whole: b""),
        ("index.json", lambda whole: whole.replace(b'"first": 1800', b'"first": -1')),
        ("index.json", lambda whole: whole.replace(b'"points": 1800', b'"points": 1e9', 1)),
        ("index.json", lambda whole: whole.replace(b'"points": 1800', b'"points": 5400')),
        ("index.json", lambda whole: whole.replace(b'"area": 1', b'"area": []', 1)),
        ("index.json", lambda whole: whole.replace(b'"size": [', b'"size": [NaN, ', 1)),
        ("index.json", lambda whole: whole.replace(b'"rooms": [', b'"rooms": [7, ')),
        ("index.json", lambda whole: b'{"source": {"rooms": []}}'),
        (
            "index.json",
            lambda whole: whole.replace(b'"size": [', b'"size": [1' + b"0" * 400 + b", ", 1),
        ),
    ],
)
def test_a_damaged_index_is_packed_anew(tmp_path, name, change):
    write_npy(tmp_path)
    first = S3DIS(tmp_path, points=64, size=3).batch(range(3))["points"]
    path = tmp_path / "torchvox_index" / name
    whole = path.read_bytes()
    path.write_bytes(change(whole))
    assert torch.equal(S3DIS(tmp_path, points=64, size=3).batch(range(3))["points"], first)
    assert path.read_bytes() == whole


def nan(row, column):
    whole = room(0)
    whole[row, column] = np.nan
    return whole


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        (np.zeros((9, 7), "<U3"), "holds other things than numbers"),
        (np.zeros((0, 7)), "is empty"),
        (nan(5, 0), "coordinates must be finite"),
        (nan(5, 4), r"colors must lie in 0\.\.255"),
        (np.add(room(0), [0, 0, 0, 0, 0, 256, 0]), r"colors must lie in 0\.\.255"),
        (nan(5, 6), r"labels must lie in 0\.\.12"),
    ],
)
def test_a_hostile_room_is_one_sentence(tmp_path, values, reason):
    np.save(tmp_path / "Area_1_office_1.npy", values)
    with pytest.raises(CloudFileError, match=reason):
        S3DIS(tmp_path)


def test_arrays_of_a_room_must_fit(tmp_path):
    write_split_npy(tmp_path)
    path = tmp_path / "Area_1" / "office_1" / "coord.npy"
    for values, reason in ((np.zeros((1800, 2)), "differ in length"), (np.float32(3), "differ")):
        np.save(path, values)
        with pytest.raises(CloudFileError, match=reason):
            S3DIS(tmp_path)
    path.write_bytes(b"PK\x05\x06" + bytes(18))  # an archive without members
    with pytest.raises(CloudFileError, match=r"coord\.npy is a \.npz archive"):
        S3DIS(tmp_path)


def test_a_stray_control_character_is_a_blank(tmp_path):
    write_annotations(tmp_path)
    path = tmp_path / "Area_5/office_1/Annotations/floor_1.txt"
    path.write_bytes(path.read_bytes().replace(b" ", b"\x10", 1))
    assert len(S3DIS(tmp_path, "val", size=1).rooms) == 1


def test_errors_name_file_and_line(tmp_path):
    with pytest.raises(CloudFileError, match="is no S3DIS"):
        S3DIS(tmp_path)
    write_annotations(tmp_path)
    path = tmp_path / "Area_1/office_1/Annotations/chair_1.txt"
    lines = path.read_text().splitlines()
    lines[6] = "1.0 2.0 oops 1 2 3"
    path.write_text("\n".join(lines))
    with pytest.raises(CloudFileError, match=r"chair_1.txt: line 7 does not hold 6 numbers"):
        S3DIS(tmp_path)
    path.write_text("1 2 3 4 5 6\n")
    with pytest.raises(CloudFileError, match="no room for val with val_area 3"):
        S3DIS(tmp_path, "val", val_area=3)
