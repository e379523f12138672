# SPDX-License-Identifier: Apache-2.0
"""What users of PDAL and CloudCompare do: merge, crop, select, clean, count, look, rasterize."""

import json
import shlex
import struct
from pathlib import Path

import numpy as np
import pytest
from helpers import read_points, write_points

from torchvox._util.errors import WrongUseError
from torchvox.filter.selection import outliers_of
from torchvox.io import PointTable
from torchvox.io.crs import Crs, crs_of
from torchvox.io.las_records import GEO_KEYS, LasSource, record
from torchvox.io.where import parse_where

UTM = 'PROJCRS["utm",BASEGEOGCRS["g",ID["EPSG",4326]],AXIS["E",UNIT["metre",1]],ID["EPSG",326]]'
KM = 'PROJCS["map",GEOGCS["g",UNIT["degree",0.01],AUTHORITY["EPSG","4269"]],UNIT["metre",1]{}]'
FEET = 'VERT_CS["h",UNIT["US survey foot",0.304800609601219],AUTHORITY["EPSG","6360"]]'
DEEP = 'PROJCS["x",' + "A[" * 50 + "]" * 51
CODE = ',AUTHORITY["EPSG","26910"]'
RNG = np.random.default_rng(0)
C, R = RNG.integers(0, 12, 400).astype(np.uint8), RNG.integers(1, 4, 400).astype(np.uint8)
BAD = ["", "x", "x=", "=2", "x=a", "x>1,2", "x=3..1", "x=1 or y=2", "x<1<2"]
BIG = np.where(C == 2, 2**53 + 1, 2**53).astype(np.uint64)
XYZ = RNG.integers(0, 100, (400, 3)).astype(np.int32)


def table(rows=slice(None), offset=0.0):
    columns = {
        "classification": C,
        "return_number": R,
        "big": BIG,
        "angle": C.astype("i2"),
        "xy": C,
    }
    lattice = {"scale": np.full(3, 0.1), "offset": np.full(3, offset), "crs": KM.format(CODE)}
    steps = {"angle": (np.array([0.1]), np.zeros(1))}  # 3 of which are above 0.3 in float64
    return PointTable(XYZ - np.int32(10 * offset), columns, steps=steps, **lattice).rows(rows)


@pytest.fixture
def tiles(tmp_path):
    for name, part in (("a", table(slice(0, 150))), ("b", table(slice(150, 400), 7.0))):
        write_points(tmp_path / "tiles" / f"{name}.npz", part.by_value())


@pytest.mark.parametrize(
    ("text", "mask"),
    [
        ("classification=2", C == 2),
        ("scalar_Classification == 2,9", (C == 2) | (C == 9)),
        ("ReturnNumber!=1..2 AND z<=1.4", (R == 3) & (XYZ[:, 2] <= 14)),
        ("angle>.3", C > 3),
        ("xy=2", C == 2),
        ("angle=.2..0.7,1", ((C >= 2) & (C <= 7)) | (C == 10)),
        (f"big={2**53 + 1}", C == 2),
    ],
)
def test_where_compares_values(text, mask):
    held = [condition.holds(table()) for condition in parse_where(text)]
    np.testing.assert_array_equal(np.logical_and.reduce(held), mask)


@pytest.mark.parametrize("text", BAD)
def test_where_takes_nothing_else(text):
    with pytest.raises(WrongUseError, match="where takes NAME=2"):
        parse_where(text)


def test_tiles_become_one_file_that_is_cropped_and_selected(torchvox_cli, tiles):
    chosen = "--bounds=0,0,4.8,4.8 --where classification=2,9 --policy classification=drop"
    line = torchvox_cli(*shlex.split(f"convert tiles --merge -o all.npz {chosen}")).ok()
    inside, ours = (XYZ[:, :2] <= 48).all(axis=1), np.isin(C, (2, 9))
    all_, words = read_points("all.npz"), f"{(~inside).sum()} outside of the bounds; "
    assert f"{words}{(inside & ~ours).sum()} without classification=2,9" in line.out
    np.testing.assert_array_equal(all_.xyz, XYZ[inside & ours])
    assert all_.scale[0] == 0.1 and all_.crs == KM.format(CODE)
    torchvox_cli(*shlex.split(f"downsample tiles --merge --voxel 0.1 -o d.npz {chosen}")).ok()
    assert len(read_points("d.npz")) == len(np.unique(XYZ[inside & ours], axis=0))


@pytest.mark.parametrize("command", ["convert", "downsample --voxel 1"])
@pytest.mark.parametrize(
    ("options", "words"),
    [("--policy klass=drop", "klass"), ("--where klass=2", "klass"), ("--bounds 1,2,3", "4 or 6")],
)
def test_what_is_wrong_for_all_files_is_said_once(torchvox_cli, tiles, command, options, words):
    result = torchvox_cli(*shlex.split(f"{command} tiles -o out {options}"))
    result.assert_one_sentence(2, words)


def test_outliers_are_those_of_all_distances(torchvox_cli, tiles):
    stray = [[0, 0, 0]] * 9 + [[np.nan, 0, 0], [1e300, 0, 0]]  # 0: some scanners' "no return"
    xyz = np.append(5e6 + RNG.exponential(1, (300, 3)), stray, axis=0)
    off = np.linalg.norm(xyz[:309, None] - xyz[None, :309], axis=2)
    near = np.sort(off)[:, 1:9].mean(axis=1)
    far = np.append(near > near.mean() + 0.5 * near.std(ddof=1), [True, True])
    np.testing.assert_array_equal(outliers_of(xyz, 8, 0.5), far)
    np.save("x.npy", xyz)
    command = "convert", "x.npy", "-o", "y.npy", "--outliers"
    torchvox_cli(*command, "8,0.5").ok(f"{far.sum()} outliers")
    torchvox_cli(*command, "500,1").assert_one_sentence(2, "500")


@pytest.mark.parametrize(
    ("text", "crs"),
    [
        (KM.format(""), Crs("map", None, "m")),
        (UTM, Crs("utm", 326, "m")),
        (f'COMPD_CS["two",{KM.format(CODE)},{FEET}]', Crs("two", 26910, "m", 6360, "US ft")),
        ('GEOGCS["g",UNIT["degree",1],AUTHORITY["EPSG","4269"]]', Crs("g", 4269)),
        (DEEP, Crs(DEEP)),
    ],
)
def test_codes_and_units_are_those_of_the_system_itself(text, crs):
    assert crs_of(PointTable(np.zeros((0, 3)), crs=text)) == crs


def test_codes_and_units_are_those_of_geotiff_keys():
    keys = [(1, 1, 0, 4), (3072, 0, 1, 26910), (3076, 0, 1, 9001), (4096, 0, 1, 5703)]
    rows = record(GEO_KEYS, b"".join(struct.pack("<4H", *key) for key in keys))
    head = bytes(94) + struct.pack("<HII121x", 225, 225 + len(rows), 1) + rows
    source = LasSource(head, len(head), 20)
    got = crs_of(PointTable(np.zeros((0, 3)), source=source, crs="UTM 10"))
    assert got == Crs("UTM 10", 26910, "m", 5703)


def test_info_counts_classes_and_view_names_them(torchvox_cli, tiles):
    pytest.importorskip("laspy", reason="the extra las is not installed")
    torchvox_cli("convert", "tiles", "--merge", "-o", "a.las", "--policy", "angle=drop").ok()
    torchvox_cli("info", "a.las").ok("2 ground", "map, EPSG:26910")
    (facts,) = json.loads(torchvox_cli("info", "a.las", "--json", "-").ok().out)["files"]
    assert facts["counts"]["classification"]["2"] == (C == 2).sum()
    torchvox_cli("view", "a.las", "tiles", "--color", "classification").ok("tiles (2 files)")
    assert "2 ground" in Path("view.html").read_text()
    labels = {"label": np.where(R == 1, [*range(10**6, 10**6 + 50)] * 8, np.nan)}
    write_points(Path("one/l.npz").absolute(), PointTable(XYZ.astype(float), labels))
    torchvox_cli("view", "one", "--color", "label").ok("l.npz: 400 points")
    assert "no class" in (page := Path("view.html").read_text()) and " more ·" in page
    (facts,) = json.loads(torchvox_cli("info", "one", "--json", "-").ok().out)["files"]
    assert sum(facts["counts"]["label"].values()) == (R == 1).sum()


def test_a_world_file_places_the_first_pixel(torchvox_cli, tmp_path):
    image = pytest.importorskip("matplotlib.image", reason="the extra viz is not installed")
    write_points(tmp_path / "p.npz", PointTable(np.array([[600.5, 10.5, 1]]), crs=UTM))
    grid = "--bounds=600,10,0,603,12,9 --voxel 1"
    torchvox_cli(*shlex.split(f"bev p.npz -o b.png --world-file {grid}")).ok()
    assert Path("b.pgw").read_text().split() == ["1", "0", "0", "-1", "600.5", "11.5"]
    pixels = image.imread("b.png")
    other = (pixels != pixels[0, 0]).any(axis=2)
    assert np.argwhere(other).tolist() == [[1, 0]] and pixels.shape[:2] == (2, 3)
    assert Path("b.prj").read_text() == UTM
