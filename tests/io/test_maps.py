# SPDX-License-Identifier: Apache-2.0
"""The file of a map: what it holds, and what is wrong with other files."""

import json
import zipfile
from dataclasses import replace

import fuzzing
import numpy as np
import pytest

from torchvox._util.errors import CloudFileError
from torchvox.io import MapContents, read_map, write_map, write_npz
from torchvox.mapping.contents import FACTS


@pytest.fixture
def path(tmp_path):
    fuzzing.write_map(tmp_path / "a.npz")
    return tmp_path / "a.npz"


def arrays_of(path):
    with np.load(path) as archive:
        return dict(archive)


def test_plain_numpy_reads_a_map(path):
    held = arrays_of(path)
    samples = ["sample_row", "sample_count", "sample_mean", "sample_cov"]
    assert list(held) == ["about", "keys", "logodds", "hit_miss", *samples]
    facts = json.loads(held["about"].tobytes())
    assert sorted(facts) == sorted(FACTS) and facts["version"] == 1 and facts["epoch"] == 0
    assert facts["sensor"] == [0.7, 0.4, 0.12, 0.97] and facts["origin"] == [0, 0.1, 0.2]
    assert [facts["rule"], facts["preset"], facts["voxel_size"]] == ["every_ray", "mine", 0.1]
    found = read_map(path)
    assert {name: getattr(found, name) for name in FACTS} == facts
    for name, array in (("keys", found.keys), *found.layers.items()):
        assert array.dtype == held[name].dtype and np.array_equal(array, held[name])
    with zipfile.ZipFile(path) as archive:
        assert {info.date_time for info in archive.infolist()} == {(1980, 1, 1, 0, 0, 0)}


def test_what_is_written_does_not_depend_on_the_order_of_layers_or_the_sign_of_zero(path):
    found, other = read_map(path), path.with_name("b.npz")
    layers = dict(reversed(found.layers.items()))
    origin, model = [-0.0, *found.origin[1:]], (found.sensor, found.rule, found.preset)
    contents = found.keys, layers, found.voxel_size, origin, *model
    write_map(other, MapContents(*contents, ndt=found.ndt))
    assert other.read_bytes() == path.read_bytes()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"keys": np.array([3, 2, 4])}, "keys must be .* ascending"),
        ({"keys": np.array([-1, 2, 4])}, "keys must be .* from 0 on"),
        ({"keys": np.arange(3, dtype=np.int32)}, r"keys must be \[n\] int64, got \[3\] int32"),
        ({"hit_miss": np.zeros((3, 512), np.int32)}, r"hit_miss must be \[n, 512, 2\] int32"),
        ({"logodds": np.zeros((512, 3), np.int16).T}, r"logodds must be \[n, 512\] int16"),
        ({"logodds": None}, "layers must be among"),
        ({"color": np.zeros(3)}, "a map has no array color"),
        ({"about": None}, "no item named 'about.npy'"),
        ({"about": b"[1]"}, r"about must have voxel_size, .* got \[1\]"),
        ({"about": b'{"version": 2, "more": 1}'}, "its version must be 1, got 2"),
        ({"about": b'{"version": 1, "more": 1}'}, "about must have .* got {'version': 1, 'more'"),
        ({"about": b"{"}, "Expecting property name"),
        ({"voxel_size": 0}, "voxel_size must be above 0, got 0"),
        ({"origin": [0, 0, float("nan")]}, "origin must be three numbers"),
        ({"epoch": None}, "origin must be three numbers and epoch one"),
        ({"sensor": [0.7, 0.4, 0.1, 1.0]}, "sensor must be four probabilities"),
        ({"rule": "any"}, "rule must be one of .* got .'any'"),
        ({"preset": 3}, "preset a name, got .'every_ray', 3"),
        ({"sample_row": np.array([1, -1, 0], np.int32)}, "sample_row must number the regions"),
        ({"sample_row": np.array([0, -2, 1], np.int32)}, "sample_row must number the regions"),
        ({"sample_row": None}, r"layers with sample_count must have \['sample_row'\]"),
        ({"sample_count": np.full((2, 512), -1, np.int32)}, "sample_count must be 0 or more"),
        ({"sample_mean": np.ones((3, 512, 3), np.float32)}, r"sample_mean must be \[2, 512, 3\]"),
        ({"sample_cov": np.full((2, 512, 6), np.nan, np.float32)}, "sample_cov must be finite"),
        ({"ndt": None}, "ndt must be noise > 0, .* with sample_cov, got None"),
        ({"ndt": [0.05, 0.2, 0.5, 0.2, 100]}, "ndt must be noise > 0"),
        ({"rule": "scan"}, "ndt must be .* with the rule every_ray"),
    ],
)
def test_what_is_no_map_is_told(changes, words, path):
    held = arrays_of(path)
    facts = json.loads(held["about"].tobytes())
    for name, value in changes.items():
        if name in FACTS:
            value, name = json.dumps({**facts, name: value}).encode(), "about"
        held[name] = np.frombuffer(value, np.uint8) if isinstance(value, bytes) else value
    write_npz(path, **{name: array for name, array in held.items() if array is not None})
    with pytest.raises(CloudFileError, match=f"{path} is not a readable map file: .*{words}"):
        read_map(path)


def test_contents_are_checked_where_they_are_made(path):
    found = read_map(path)
    with pytest.raises(ValueError, match="version must be 1, got 3"):
        replace(found, version=3)
    with pytest.raises(ValueError, match="keys must be"):
        replace(found, keys=found.keys[::-1].copy())
