# SPDX-License-Identifier: Apache-2.0
"""Configurations of detectors: strict, and every error names its place."""

from dataclasses import replace

import pytest
import yaml

from torchvox._util.errors import WrongUseError
from torchvox._util.values import from_plain, plain
from torchvox.models import CenterPointPillarsConfig, PointPillars, PointPillarsConfig
from torchvox.models.detection import detector
from torchvox.models.detection.config import CenterPointVoxelConfig

KITTI, CENTERS = "pointpillars_kitti", "centerpoint_pillars_nuscenes"
SECOND, MULTIHEAD = "second_kitti", "pointpillars_nuscenes_multihead"
ROWS = "voxelnext_nuscenes"


@pytest.mark.parametrize(
    ("name", "override", "words"),
    [
        (KITTI, "model.args.max_point=3", "unknown key max_point: did you mean max_points?"),
        (KITTI, "model.args.head.anchor=3", "unknown key head.anchor: did you mean anchors?"),
        (KITTI, "model.kind=pillars", "model.kind must be one of pointpillars"),
        (KITTI, "task=classify", "task must be detect"),
        (KITTI, "model.args.max_points=many", "max_points must be a whole number, got 'many'"),
        (KITTI, "model.args.head.anchors=3", "head.anchors must be a list"),
        (KITTI, "model.args.pillar_size=[0.16, 0.16]", "pillar_size must have 3 values"),
        (KITTI, "model.args.pillar_size=[0.16, 0.16, 1]", "must span the height of the range"),
        (KITTI, "model.args.pillar_size=[0.17, 0.16, 4]", "multiple of 8 cells"),
        (KITTI, "model.args.classes=[Car, Car, Van]", "classes must differ"),
        (KITTI, "model.args.classes=[Car, Van]", "one entry per class, 2, got 3"),
        (KITTI, "model.args.columns=2", "at least 3, got 2"),
        (KITTI, "model.args.column_scale=[1, 1]", "one factor per column, 4"),
        (KITTI, "model.args.column_scale=[2, 1, 1, 1]", "must be 1 for x, y and z"),
        (KITTI, "model.args.neck.strides=[1, 2, 2]", "bring all maps to one size"),
        (KITTI, "model.args.detections.group=clas", "none, class, task"),
        (KITTI, "model.args.detections.nms=[0.1, 0.2]", "one per group, 1, got 2"),
        (KITTI, "model.args.head=null", "head must hold keys and values, got None"),
        (KITTI, "model.args.encoder.legacy=maybe", "encoder.legacy must be true or false"),
        (KITTI, "model.args.max_points=0", "max_points must be above 0"),
        (KITTI, "model.args.column_scale=[1, 1, 1, .nan]", "column_scale must be finite"),
        (KITTI, "model.args.point_cloud_range=[9, 0, 0, 1, 1, 1]", "lower bound below its upper"),
        (KITTI, "model.args.encoder.channels=[63, 64]", "encoder.channels before the last"),
        (KITTI, "model.args.backbone.layers=[-1, 1, 1]", "backbone.layers must be at least 0"),
        (KITTI, "model.args.backbone.momentum=2", "backbone.momentum must be from 0 to 1"),
        (KITTI, "model.args.neck.strides=[0.4, 0.8, 1.6]", "neck.strides must be n or 1 / n"),
        (KITTI, "model.args.visibility={channels: []}", "visibility.channels must name at least"),
        (KITTI, "model.args.detections.best_class=true", "best_class is for heat maps alone"),
        (KITTI, "model.args.detections.shared_pre=true", "group must be class with shared_pre"),
        (CENTERS, "model.args.detections.shared_pre=true", "shared_pre is for anchors alone"),
        (CENTERS, "model.args.head.tasks=[[], [car]]", "with a class at least"),
        (MULTIHEAD, "model.args.head.branches={cls: 10}", "cannot name a branch 'cls'"),
        (MULTIHEAD, "model.args.head.branches={items: 10}", "cannot name a branch 'items'"),
        (MULTIHEAD, "model.args.head.branches={reg: 0, z: 10}", "branches.reg must be above 0"),
        (CENTERS, "model.args.head.tasks=[[car]]", "must name every class once"),
        (CENTERS, "model.args.classes=[]", "at least one class"),
        (SECOND, "model.args.pillar_size=[1, 1, 1]", "unknown key pillar_size"),
        (SECOND, "model.args.voxel_size=[0.05, 0.05, 0.5]", "must have more cells along z"),
        (SECOND, "model.args.voxel_size=[0.05, 0.08, 0.1]", "multiple of 16 cells"),
        (SECOND, "model.args.voxel_size=[0, 0.05, 0.1]", "voxel_size must be above 0"),
        (SECOND, "model.args.max_voxels=[0, 1]", "max_voxels must be above 0"),
        (SECOND, "model.args.sparse.layers=[1, 2]", "sparse must have as many layers as channels"),
        (SECOND, "model.args.sparse.max_rows=[9]", "one number per level, 4, got [9]"),
        (ROWS, "model.args.backbone={}", "unknown key backbone"),
        (ROWS, "model.args.sparse.joined=6", "joined must be below the number of levels, 6, got 6"),
        (ROWS, "model.args.sparse.joined=4", "channels must end with 4 equal ones"),
        (ROWS, "model.args.head.kernel=2", "head.kernel must be one of 1, 3, got 2"),
        (SECOND, "model.args.sparse.block=dense", "sparse.block must be one of conv, residual"),
    ],
)
def test_what_is_wrong_is_named(name, override, words):
    with pytest.raises(WrongUseError, match=name) as error:
        detector(name, [override])
    assert words in str(error.value)
    assert "\n" not in str(error.value)


def test_what_a_part_leaves_out_is_the_default_of_its_detector():
    given = {"classes": ["car"], "point_cloud_range": [0, 0, 0, 8, 8, 4], "voxel_size": [0.25] * 3}
    head = {"tasks": [["car"]]}
    config = from_plain(CenterPointVoxelConfig, {**given, "head": head, "sparse": {"last_pad": 1}})
    assert config.sparse == replace(CenterPointVoxelConfig.sparse, last_pad=1)


def test_a_missing_key_and_an_unknown_name_are_errors(tmp_path):
    with pytest.raises(ValueError, match="classes is missing"):
        PointPillars({"head": {"anchors": []}})
    with pytest.raises(WrongUseError, match="did you mean pointpillars_kitti"):
        detector("pointpillar_kitti")
    (tmp_path / "a.yaml").write_text("task: detect\n")
    with pytest.raises(WrongUseError, match="model is missing"):
        detector(tmp_path / "a.yaml")


def test_a_file_may_be_based_on_a_shipped_configuration(tmp_path):
    own = {"base": KITTI, "model": {"args": {"max_points": 20, "encoder": {"channels": [32]}}}}
    (tmp_path / "own.yaml").write_text(yaml.safe_dump(own))
    model = detector(tmp_path / "own.yaml", ["model.args.detections.score=0.3"])
    config = model.config()["config"]
    assert config["max_points"] == 20 and config["encoder"]["channels"] == [32]
    assert config["detections"]["score"] == 0.3 and config["max_pillars"] == [16000, 40000]


@pytest.mark.parametrize(
    ("name", "kind"), [(KITTI, PointPillarsConfig), (CENTERS, CenterPointPillarsConfig)]
)
def test_plain_values_and_configurations_are_two_forms_of_one_thing(name, kind):
    values = detector(name).config()["config"]
    config = from_plain(kind, values)
    assert plain(config) == values and yaml.safe_load(yaml.safe_dump(values)) == values
    assert from_plain(kind, config) is config and hash(config.encoder)


@pytest.mark.parametrize(
    ("anchor", "words"),
    [
        ({"size": [1, 1, 0]}, r"head\.anchors\.1\.size must be above 0"),
        ({"rotations": []}, r"head\.anchors\.1\.rotations must hold one"),
        ({"bottom": None}, r"head\.anchors\.1\.bottom must be a number, got None"),
        ({"sise": [1, 1, 1]}, r"unknown key head\.anchors\.1\.sise: did you mean size"),
    ],
)
def test_an_anchor_that_does_not_fit_is_named_by_its_number(anchor, words):
    values = detector(KITTI).config()["config"]
    values["head"]["anchors"][1] |= anchor
    with pytest.raises(ValueError, match=words):
        PointPillars(values)


def test_numbers_may_be_words_and_whole_numbers_floats_as_yaml_writes_them():
    values = detector(KITTI).config()["config"]
    values["encoder"]["eps"], values["max_points"] = "1e-4", 20.0
    values["head"]["code_size"] = 7.0
    config = PointPillars(values).config()["config"]
    assert config["encoder"]["eps"] == 1e-4 and config["max_points"] == 20
    assert type(config["max_points"]) is type(config["head"]["code_size"]) is int


def test_bounds_of_centers_may_be_open():
    limits = "model.args.detections.center_range=[-9, -9, -.inf, 9, 9, .inf]"
    assert detector(CENTERS, [limits]).decoder.center_range[5] == float("inf")
