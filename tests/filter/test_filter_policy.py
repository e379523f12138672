# SPDX-License-Identifier: Apache-2.0
"""What becomes of attributes: every rule on every type against the oracle."""

from collections import Counter

import numpy as np
import pytest
import table_cases as cases

from torchvox._util.errors import WrongUseError
from torchvox.filter import KEEP, RULES, downsample
from torchvox.filter.policy import rules_of
from torchvox.io import PointTable

N = 90


def extremes(kind: str, rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Few values, so that there are ties; the ends of the type among them."""
    type_ = np.dtype(kind)
    if kind == "?":
        return rng.random(shape) < 0.5
    if type_.kind == "f":
        top = float(np.finfo(type_).max)
        few = [0.0, -0.0, 1.5, np.inf, -np.inf, np.nan, top, -top, np.finfo(type_).tiny]
    else:
        few = [np.iinfo(type_).min, np.iinfo(type_).max, 0, 1, np.iinfo(type_).max - 1]
    return rng.choice(np.array(few, type_), shape)


def addable(kind: str, rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Values of which a few add up within the type."""
    type_ = np.dtype(kind)
    if kind == "?":
        return rng.random(shape) < 0.03
    if type_.kind == "f":
        values = rng.normal(0, 100, shape)
        return np.where(
            rng.random(shape) < 0.2, rng.choice([np.nan, np.inf], shape), values
        ).astype(type_)
    low = 0 if type_.kind == "u" else -3
    few = [low, 0, 1, 3] if type_.itemsize < 8 else [low * 10**9, 2**32 - 1, 7]
    return rng.choice(np.array(few, type_), shape)


def table_of(make, seed: int = 0, kinds=cases.KINDS) -> PointTable:
    table, rng = cases.coordinates(N, "float64", seed), np.random.default_rng(seed)
    columns = {
        f"{kind} {k}": make(kind, rng, (N, k) if k else (N,)) for kind in kinds for k in (0, 2)
    }
    return PointTable(table.xyz, columns)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("none", [False, True])
def test_every_rule_on_every_type_is_that_of_the_oracle(device, rule, none):
    make = addable if rule in ("mean", "sum", "count") else extremes
    table = table_of(make, seed=3)
    names = [n for n, t in table.columns.items() if not (rule == "majority" and t.shape)]
    if rule == "unit_mean":
        rng = np.random.default_rng(0)
        names = ["nx", "ny", "nz"]
        columns = {n: addable(k, rng, (N,)) for n, k in zip(names, cases.FLOATS, strict=True)}
        table = PointTable(table.xyz, columns)
    else:
        table = PointTable(table.xyz, {n: table.attributes[n] for n in names})
    gone = {}
    if none:
        gone = {n: np.ravel(v[1]).tolist() for n, v in table.attributes.items()}
    if rule == "count" or (rule == "sum" and not none):
        table.attributes.pop("? 0", None), table.attributes.pop("? 2", None)
        gone = {n: v for n, v in gone.items() if n in table.attributes}
    cases.check(
        table, 2.0, device=device, no_data=gone, policy=dict.fromkeys(table.attributes, rule)
    )


def test_the_end_of_a_type_is_a_value_beside_one_that_stands_for_none():
    xyz = np.zeros((3, 3))
    for kind in ("i8", "u8"):
        low, high = np.iinfo(kind).min, np.iinfo(kind).max
        for rule, end in (("min", high), ("max", low), ("majority", high), ("majority", low)):
            for none in (5, low if end == high else high):
                table = PointTable(xyz, {"a": np.array([none, end, end], kind)})
                result = downsample(
                    table, 1.0, policy={"a": rule}, no_data={"a": np.array([none], kind)}
                )
                assert result.attributes["a"].tolist() == [end]


def test_normals_have_unit_length_and_opposite_ones_stay_zero(device):
    normals = np.array([[0, 0, 1], [0, 0, -1], [3, 0, 4], [3, 0, 4]], np.float32)
    xyz = np.array([[0, 0, 0], [0, 0, 0], [5, 0, 0], [5, 0, 0]], np.float32)
    for names in ("nx ny nz", "normal_x normal_y normal_z", "NormalX NormalY NormalZ", "NX ny nZ"):
        names = names.split()
        table = PointTable(xyz, dict(zip(names, normals.T, strict=True)))
        result = downsample(table, 1.0, device=device)
        actual = np.stack([result.attributes[name] for name in names], 1)
        assert actual.tolist() == np.array([[0, 0, 0], [0.6, 0, 0.8]], np.float32).tolist()


@pytest.mark.parametrize("keep", KEEP)
@pytest.mark.parametrize("kind", ["int32", "float32", "float64"])
def test_what_is_kept_is_what_the_oracle_keeps(device, keep, kind):
    table = cases.cloud(200, kind, seed=5)
    result = cases.check(table, (1.0, 2.0, 0.75), device=device, keep=keep, seed=9, layout="zyx")
    if keep in ("centroid", "center"):
        return
    inputs = {
        (*x, *f)
        for x, f in zip(table.xyz.tolist(), table.attributes["gps_time"][:, None], strict=True)
    }
    outputs = zip(result.xyz.tolist(), result.attributes["gps_time"][:, None], strict=True)
    assert inputs.issuperset((*x, *f) for x, f in outputs)


def test_a_real_point_lends_its_attributes_unless_a_rule_says_otherwise():
    table = cases.cloud(150, seed=2)
    cases.check(table, 2.0, keep="nearest_center", policy={"intensity": "max", "label": "drop"})


def test_random_takes_every_point_equally_often():
    """Chi-square of 8 points over 4000 voxels; 7 degrees, 24.3 at a probability of 0.001."""
    voxels, points = 4000, 8
    xyz = np.zeros((voxels * points, 3))
    xyz[:, 0] = np.tile(np.arange(voxels), points)
    table = PointTable(xyz, {"number": np.repeat(np.arange(points), voxels)})
    for seed in (0, 1, 12345):
        result = downsample(table, 1.0, keep="random", seed=seed)
        actual = Counter(result.attributes["number"].tolist())
        mean = voxels / points
        assert sum((actual[i] - mean) ** 2 for i in range(points)) / mean < 24.3


def test_defaults_go_by_name_and_type():
    kinds = {
        **{"red": "u2", "NIR": "u2", "intensity": "f4", "curvature": "f4", "other": "f8"},
        **{"nx": "f4", "ny": "f4", "nz": "f4", "normal_x": "f4", "classification": "u1"},
        **{"label": "f4", "gps_time": "f8", "t": "u4", "ring": "u2", "unknown": "i4", "flag": "?"},
        **{"user_data": "f4", "x_t": "f4", "Scalar Label": "i4", "scalar_T": "f4", "Ny": "f4"},
        **{"ReturnNumber": "f4", "label_id": "f8", "LabelId": "i4"},  # of floats without values
    }
    columns = {name: np.dtype(kind) for name, kind in kinds.items()}
    columns["segment"] = np.dtype(("i4", (2,)))
    means = ["red", "NIR", "intensity", "curvature", "other"]
    expected = {
        **dict.fromkeys(means, "mean"),
        **dict.fromkeys(["nx", "ny", "nz"], "unit_mean"),
        **dict.fromkeys(["classification", "label", "Scalar Label"], "majority"),
        **dict.fromkeys(["gps_time", "t", "scalar_T"], "min"),
        **dict.fromkeys(["normal_x", "ring", "unknown", "flag", "user_data"], "representative"),
        **dict.fromkeys(["segment", "Ny", "ReturnNumber", "label_id", "LabelId"], "representative"),
        "x_t": "drop",
    }
    assert rules_of(columns, "centroid", None) == expected
    assert set(rules_of(columns, "first", None).values()) == {"representative"}
    assert rules_of(columns, "first", {"red": "sum"})["red"] == "sum"
    columns["ny"] = np.dtype("i2")
    assert rules_of(columns, "centroid", None)["nx"] == "representative"


SPELLINGS = {  # of floats with the values 5, 2, 2, 1: what they become
    2.0: ["scalar_Classification", "Label", "ReturnNumber", "Number Of Returns", "Point Source ID",
          "scalar_Original_cloud_index", "Class Flags", "Key-Point Flag", "tree_ids", "Ring"],
    5.0: ["ScanAngleRank", "scalar_Scan_Angle", "UserData", "ScanChannel"],
    2.5: ["Intensity", "scalar_Near_Infrared", "distance"],
    1.0: ["GpsTime", "scalar_GPS_Time"],
}  # fmt: skip


@pytest.mark.parametrize("kind", ["f2", "f4", "f8"])
def test_columns_of_floats_go_by_plain_names_and_whole_numbers(kind):
    values, xyz = np.array([5, 2, 2, 1], kind), np.zeros((4, 3))
    columns = {name: values for names in SPELLINGS.values() for name in names}
    columns |= {"class_probability": values / 2, "segment_ids": np.array([3, 3, np.nan, 7], kind)}
    result = downsample(PointTable(xyz, columns), 1.0).attributes
    expected = {name: value for value, names in SPELLINGS.items() for name in names}
    expected |= {"class_probability": 1.25, "segment_ids": 3}
    assert {name: float(values[0]) for name, values in result.items()} == expected


@pytest.mark.parametrize("rule", [rule for rule in RULES if rule not in ("unit_mean", "drop")])
@pytest.mark.parametrize("scale", [0.5, -0.25])
@pytest.mark.parametrize("kind", ["u1", "i2", "i8", "f4"])
def test_columns_in_steps_give_what_their_values_give(rule, scale, kind):
    """A rule by value gives float64, NaN without values; others what is stored, with its steps."""
    table, rng = cases.coordinates(N, "float64", 6), np.random.default_rng(6)
    stored, scale, offset = rng.integers(0, 5, N).astype(kind), np.float64(scale), 10.0
    stored[table.xyz[:, 0] > 2] = 3  # in whole voxels
    steps = {"a": (np.array([scale]), np.array([offset]))}
    kept = rule in ("first", "last", "majority", "representative")
    for none in ({}, {"a": np.array([3])}):
        options = {"policy": {"a": rule}, "no_data": none}
        result = downsample(PointTable(table.xyz, {"a": stored}, steps=steps), 2.0, **options)
        values = stored * scale + offset
        if kept:
            options["no_data"] = {name: value * scale + offset for name, value in none.items()}
        elif none:
            options["no_data"], values[stored == 3] = {}, np.nan
        expected = downsample(PointTable(table.xyz, {"a": values}), 2.0, **options)
        np.testing.assert_array_equal(result.values("a"), expected.attributes["a"])
        assert result.steps == (steps if kept else {})
        assert result.columns["a"] == (kind if kept else np.float64)


def column(values, kind) -> PointTable:
    return PointTable(np.zeros((len(values), 3)), {"a": np.array(values, kind)})


@pytest.mark.parametrize(
    ("table", "options", "says"),
    [
        (column([1], "i4"), {"policy": {"b": "min"}}, "no column b, there are a"),
        (column([1], "i4"), {"policy": {"a": "median"}}, "a must be one of mean, sum"),
        (column([1], "i4"), {"keep": "best"}, "keep must be one of centroid"),
        (column([[1, 2]], "i4"), {"policy": {"a": "majority"}}, "takes one value per point"),
        (column([1], "i4"), {"policy": {"a": "unit_mean"}}, "takes floats"),
        (column([1], "f4"), {"policy": {"a": "unit_mean"}}, "nx, ny, nz .* together, got a"),
        (column(["text"], "U4"), {}, "no rule takes <U4, which a has: drop it"),
        (column([100, 100], "i1"), {"policy": {"a": "sum"}}, "sum of a reaches 200, which int8"),
        (column([1] * 200, "i1"), {"policy": {"a": "count"}}, "count of a reaches 200"),
        (column([6e4, 6e4], "f2"), {"policy": {"a": "sum"}}, "reaches 120000.0, which float16"),
        (column([2**32], "i8"), {"policy": {"a": "mean"}}, "4294967296, .*--policy a=min"),
        (column([-(2.0**31)], "f8"), {}, "2.31 or more cannot be added up"),
        (PointTable(np.full((1, 3), 2.0**31)), {}, "a coordinate .* keep the center"),
        (column([1], "i4"), {"levels": 2, "keep": "nearest_center"}, "a keep other than nearest"),
        (column([1], "i4"), {"levels": 2, "layout": "zyx"}, "layout='morton'"),
        (column([1], "i4"), {"levels": 11}, "0 to 10 levels"),
        (column([1], "i4"), {"layout": "hilbert"}, "morton or zyx"),
        (column([1], "i4"), {"seed": 2**63}, "the seed must fit 64 bits"),
    ],
)  # fmt: skip
def test_what_cannot_be_done_is_refused_by_name(table, options, says):
    with pytest.raises(WrongUseError, match=says):
        downsample(table, 1.0, **options)


def test_any_name_does_and_level_is_refused_where_it_would_be_lost():
    values = np.arange(4, dtype=np.int32)
    names = ["", "x", "level", "key", "xyz"]
    xyz = np.array([[0.0, 0, 0], [0, 0, 0], [9, 9, 9], [9, 9, 9]])
    table = PointTable(xyz, dict.fromkeys(names, values))
    cases.check(table, policy=dict(zip(names, ["max", "sum", "mean", "last", "min"], strict=True)))
    with pytest.raises(WrongUseError, match="level"):
        downsample(table, 1.0, levels=1)
    assert "level" in downsample(table, 1.0, levels=1, policy={"level": "drop"}).columns
    assert downsample(column(["text"], "U4"), 1.0, policy={"a": "drop"}).columns == {}


def test_the_order_of_bytes_does_not_matter():
    table = cases.cloud(60, "float64")
    swapped = PointTable(
        table.xyz.astype(">f8"),
        {n: v.astype(v.dtype.newbyteorder(">")) for n, v in table.attributes.items()},
    )
    cases.same(downsample(swapped, 1.0), downsample(table, 1.0))
