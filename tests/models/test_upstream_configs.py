# SPDX-License-Identifier: Apache-2.0
"""Configurations of other programs: what they say of a network is not assumed."""

import copy

import pytest
import yaml
from upstream.detector_parity import detector_parity
from upstream_nets import small, small_points

from torchvox.models.checkpoints import CheckpointError
from torchvox.models.importing import convert, mmdet3d_config, openpcdet_config
from torchvox.models.importing.sources.mmdet3d import literals
from torchvox.models.importing.sources.openpcdet import misplaced_code_weights

BY = "declared by its configuration"


VOXELS = """
DATA_CONFIG:
  POINT_CLOUD_RANGE: [0, -8, -3, 16, 8, 1]
  DATA_PROCESSOR:
    - NAME: mask_points_and_boxes_outside_range
    - NAME: transform_points_to_voxels
      VOXEL_SIZE: [0.5, 0.5, 4]
      MAX_POINTS_PER_VOXEL: 8
      MAX_NUMBER_OF_VOXELS: {train: 100, test: 200}
"""
ANCHORS = yaml.safe_load(f"""{VOXELS}
CLASS_NAMES: [van, person]
MODEL:
  VFE: {{NAME: PillarVFE}}
  DENSE_HEAD:
    USE_DIRECTION_CLASSIFIER: True
    DIR_OFFSET: 0.6
    DIR_LIMIT_OFFSET: 0.0
    ANCHOR_GENERATOR_CONFIG:
      - {{class_name: person, anchor_sizes: [[0.8, 0.6, 1.7]], anchor_rotations: [0, 1.57],
         anchor_bottom_heights: [-0.6], align_center: True}}
      - {{class_name: van, anchor_sizes: [[4.5, 1.8, 2.0]], anchor_rotations: [0, 1.57],
         anchor_bottom_heights: [-1.7], align_center: True}}
  POST_PROCESSING:
    SCORE_THRESH: 0.2
    NMS_CONFIG: {{MULTI_CLASSES_NMS: False, NMS_THRESH: 0.05, NMS_PRE_MAXSIZE: 300,
                 NMS_POST_MAXSIZE: 20}}
""")
CENTERS = yaml.safe_load(f"""{VOXELS}
CLASS_NAMES: [van, person, sign]
MODEL:
  VFE: {{NAME: DynPillarVFE}}
  DENSE_HEAD:
    CLASS_NAMES_EACH_HEAD: [[van], [person, sign]]
    SEPARATE_HEAD_CFG: {{HEAD_ORDER: [center, center_z, dim, rot, vel]}}
    LOSS_CONFIG: {{LOSS_WEIGHTS: {{code_weights: [1., 1., 1., 1., 1., 1., 0.2, 0.2, 1., 1.]}}}}
    POST_PROCESSING:
      SCORE_THRESH: 0.15
      NMS_CONFIG: {{NMS_THRESH: 0.1, NMS_PRE_MAXSIZE: 90, NMS_POST_MAXSIZE: 9}}
      POST_CENTER_LIMIT_RANGE: [-20, -20, -10, 20, 20, 10]
      MAX_OBJ_PER_SAMPLE: 60
""")
ORDER = CENTERS["MODEL"]["DENSE_HEAD"]["SEPARATE_HEAD_CFG"]["HEAD_ORDER"]


def declared(upstream, source):
    found = convert(upstream.network.state_dict(), declared=source)
    assert detector_parity(found, small_points(upstream.columns)).trouble(1e-4) is None
    return found, {flag.name: (flag.value, flag.how) for flag in found.flags}


def test_anchors_grid_and_thresholds_of_openpcdet_are_declared():
    found, flags = declared(small("openpcdet anchors"), openpcdet_config(ANCHORS))
    config = found.model.config()["config"]
    assert config["classes"] == ["van", "person"]
    assert [box["bottom"] for box in config["head"]["anchors"]] == [-1.7, -0.6]
    assert config["max_pillars"] == [100, 200] and config["max_points"] == 8
    for name, value in (
        ("head.grid", "centers"),
        ("head.direction.offset", 0.6),
        ("encoder.pad_semantics", "reference"),
        ("detections.pre", 300),
        ("detections.nms", [0.05]),
    ):
        assert flags[name] == (value, BY)
    assert flags["backbone.strides"] == ([2, 2], "assumed")


def test_centers_of_openpcdet_are_declared_and_their_misplaced_weights_noted():
    upstream = small("openpcdet centers")
    found, flags = declared(upstream, openpcdet_config(CENTERS))
    assert flags["max_pillars"] == ([-1, -1], BY)
    assert flags["detections.pre"][0] == 60 and flags["detections.post"][0] == 9
    assert found.notes == (
        "trained with code weights of another order: 0.2 on rot, 1.0 on vel; its rot is worse than "
        "the net can be",
    )
    right = copy.deepcopy(CENTERS)
    weights = right["MODEL"]["DENSE_HEAD"]["LOSS_CONFIG"]["LOSS_WEIGHTS"]
    weights["code_weights"] = [1.0] * 8 + [0.2, 0.2]
    assert declared(upstream, openpcdet_config(right))[0].notes == ()


@pytest.mark.parametrize(
    ("order", "weights", "wrong"),
    [
        (ORDER, [1.0] * 6 + [0.2, 0.2, 1.0, 1.0], "rot"),
        (ORDER, [1.0] * 8 + [0.2, 0.2], ""),
        (["center", "center_z", "dim", "vel", "rot"], [1.0] * 6 + [0.2, 0.2, 1.0, 1.0], ""),
        (ORDER, [1.0] * 10, ""),
        (ORDER[:-1], [1.0] * 8, ""),
        (ORDER, [], ""),
        ([*ORDER, "iou"], [1.0] * 6 + [0.2, 0.2, 1.0, 1.0], ""),
    ],
)
def test_code_weights_belong_to_the_parts_in_the_order_of_the_head(order, weights, wrong):
    note = misplaced_code_weights(order, weights)
    assert (f"0.2 on {wrong}," in note) if wrong else note == ""


def test_other_contents_are_refused_in_a_sentence():
    for content, words in (
        ({"CLASS_NAMES": ["Car"]}, "no MODEL with a DENSE_HEAD"),
        ({"MODEL": {"DENSE_HEAD": {"ANCHOR_GENERATOR_CONFIG": [{}]}}}, "as OpenPCDet's: 'anchor"),
        ({"MODEL": {"DENSE_HEAD": {}}, "DATA_CONFIG": 7}, "not built as OpenPCDet's"),
    ):
        with pytest.raises(CheckpointError, match=words):
            openpcdet_config(content)


TWO_SIZES = copy.deepcopy(ANCHORS["MODEL"]["DENSE_HEAD"]["ANCHOR_GENERATOR_CONFIG"])
TWO_SIZES[0]["anchor_sizes"] *= 2


@pytest.mark.parametrize(
    ("part", "change", "words"),
    [
        ("DENSE_HEAD", {"ANCHOR_GENERATOR_CONFIG": TWO_SIZES}, "person: anchors of one size"),
        ("VFE", {"NAME": "DynamicPillarVFESimple2D"}, "DynamicPillarVFESimple2D is unknown"),
        ("VFE", {"WITH_DISTANCE": True}, "WITH_DISTANCE True is unknown"),
        ("VFE", {"USE_ABSLOTE_XYZ": False}, "USE_ABSLOTE_XYZ False is unknown"),
        ("POST_PROCESSING", {"NMS_CONFIG": {"NMS_TYPE": "nms_normal_gpu"}}, "NMS_TYPE nms_normal"),
        ("DENSE_HEAD", {"SEPARATE_REG_CONFIG": {"REG_LIST": ["size:3"]}}, "REG_LIST .* is"),
    ],
)
def test_what_no_tensor_shows_and_is_otherwise_than_known_is_refused(part, change, words):
    content = copy.deepcopy(ANCHORS)
    content["MODEL"][part].update(change)
    with pytest.raises(CheckpointError, match=words):
        openpcdet_config(content)


def test_strides_are_declared_by_the_configuration():
    """Waymo's PointPillar has 1, 2, 2, which no tensor tells from the 2, 2, 2 of KITTI's."""
    content = copy.deepcopy(ANCHORS)
    content["MODEL"]["BACKBONE_2D"] = {"LAYER_STRIDES": [1, 2], "UPSAMPLE_STRIDES": [1, 2]}
    found, flags = declared(small("openpcdet anchors"), openpcdet_config(content))
    assert flags["backbone.strides"] == ([1, 2], BY)
    assert flags["neck.strides"] == ([1, 2], BY)
    assert found.model.decoder.tasks[0].boxes.shape[:2] == (32, 32)  # of the grid, undiminished
    text = "model = dict(pts_backbone=dict(layer_strides=[1, 2, 2]),"
    text += " pts_neck=dict(upsample_strides=[1, 2, 4]))"
    strides = {"backbone.strides": [1, 2, 2], "neck.strides": [1, 2, 4]}
    assert mmdet3d_config(text).settings == strides


# -------------------------------------------------------------------------------- mmdetection3d

MMDET3D = """
_base_ = ['../base.py']
class_names = ['van', 'person']
voxel_size = [0.5, 0.5, 4]
model = dict(
    type='VoxelNet',
    voxel_layer=dict(max_num_points=8, point_cloud_range=[0, -8, -3, 16, 8, 1],
                     voxel_size=voxel_size, max_voxels=(100, 200)),
    voxel_encoder=dict(type='PillarFeatureNet', legacy=False),
    neck=dict(type='SECONDFPN'),
    bbox_head=dict(
        type='Anchor3DHead',
        anchor_generator=dict(
            type='Anchor3DRangeGenerator',
            ranges=[[0, -8, -1.7, 18, 8, -1.7], [0, -8, -0.6, 18, 8, -0.6]],
            sizes=[[4.5, 1.8, 2.0], [0.8, 0.6, 1.7]],
            rotations=[0, 1.57]),
        dir_offset=-0.7854),
    test_cfg=dict(nms_pre=90, nms_thr=0.02, score_thr=0.2, max_num=12))
lr = 0.001 if True else print('never')
import os
"""


@pytest.mark.parametrize("key", ["config", "cfg"])  # of mmcv, of mmengine
def test_the_configuration_in_a_checkpoint_of_mmdetection3d_is_read(key):
    upstream = small("mmdet3d anchors")
    meta = {"mmdet3d_version": "1.0.0rc1", key: MMDET3D}
    found = convert({"meta": meta, "state_dict": upstream.network.state_dict()})
    assert detector_parity(found, small_points(4)).trouble(1e-4) is None
    flags = {flag.name: (flag.value, flag.how) for flag in found.flags}
    for name, value in (
        ("encoder.legacy", False),
        ("head.grid", "ends"),
        ("head.area", [0, -8, 18, 8]),
        ("head.direction.offset", -0.7854),
        ("pillar_size", [0.5, 0.5, 4]),
        ("max_pillars", [100, 200]),
        ("detections.post", 12),
    ):
        assert flags[name] == (value, BY)
    overridden = convert({"meta": meta, "state_dict": upstream.network.state_dict()}, settings={
        "encoder": {"legacy": True}})  # fmt: skip
    assert {f.name: f.how for f in overridden.flags}["encoder.legacy"] == "override"


def test_what_a_configuration_leaves_to_another_file_is_not_declared():
    """As in configs/centerpoint/: the file of the model, with legacy=False, is a _base_ of it."""
    text = """
_base_ = ['../_base_/models/centerpoint_pillar02_second_secfpn_nus.py']
model = dict(pts_voxel_encoder=dict(point_cloud_range=[-51.2, -51.2, -5, 51.2, 51.2, 3]),
             pts_bbox_head=dict(bbox_coder=dict(max_num=70)), pts_neck=dict(in_channels=[64]))
"""
    declared = mmdet3d_config(text).settings
    assert declared == {"point_cloud_range": [-51.2, -51.2, -5, 51.2, 51.2, 3]}
    whole = mmdet3d_config("model = dict(voxel_encoder=dict(type='PillarFeatureNet'))").settings
    assert whole == {"encoder.pad_semantics": "reference", "encoder.legacy": True}


def test_centers_of_mmdetection3d_are_declared():
    text = """
model = dict(
    data_preprocessor=dict(voxel_layer=dict(max_num_points=8, voxel_size=[0.5, 0.5, 4],
                                            point_cloud_range=[0, -8, -3, 16, 8, 1],
                                            max_voxels=(100, 200))),
    pts_voxel_encoder=dict(type='PillarFeatureNet', legacy=False),
    pts_neck=dict(use_conv_for_no_stride=True),
    pts_bbox_head=dict(
        tasks=[dict(num_class=1, class_names=['van']),
               dict(num_class=2, class_names=['person', 'sign'])],
        bbox_coder=dict(max_num=70, score_threshold=0.12,
                        post_center_range=[-20, -20, -9, 20, 20, 9])),
    test_cfg=dict(pts=dict(nms_type='circle', min_radius=[4, 0.85], pre_max_size=1000,
                           post_max_size=11)))
"""
    found, flags = declared(small("mmdet3d centers"), mmdet3d_config(text))
    rules = found.model.config()["config"]["detections"]
    expected = {"mode": "circle", "nms": [4, 0.85], "pre": 70, "post": 11}
    assert {name: rules[name] for name in expected} == expected
    assert flags["neck.stride_one"] == ("conv", BY)


def test_only_literals_are_understood_and_nothing_is_run(tmp_path):
    target = tmp_path / "made"
    text = f"""
a = dict(b=[1, -2.5, 'x'], c=(True, None))
d = dict(**a)
e = __import__('os').mkdir({str(target)!r})
f = [open({str(target)!r}, 'w')]
g = {{'h': a}}
"""
    found = literals(text)
    assert found["a"] == {"b": [1, -2.5, "x"], "c": [True, None]}
    assert found["g"] == {"h": found["a"]}
    assert "e" not in found and "f" not in found
    assert not target.exists()
    assert literals("model = dict(") == {}
    assert literals("a = [1]\na = open('x')") == {}
    for deep in ("(" * 5000, "-" * 200_000 + "1", "+".join(["1"] * 50_000)):
        assert literals(f"a = {deep}") == {}
    assert mmdet3d_config("").settings == {}
    with pytest.raises(CheckpointError, match="not built as mmdetection3d's"):
        mmdet3d_config("model = dict(bbox_head=7)")
    with pytest.raises(CheckpointError, match="of type RadarFeatureNet is unknown"):
        mmdet3d_config(MMDET3D.replace("PillarFeatureNet", "mmdet3d.models.RadarFeatureNet"))
    dynamic = mmdet3d_config(MMDET3D.replace("PillarFeatureNet", "mmdet3d.DynamicPillarFeatureNet"))
    assert dynamic.settings["encoder.pad_semantics"] == "none"
    upright = MMDET3D.replace("nms_pre=90", "use_rotate_nms=False, nms_pre=90")
    with pytest.raises(CheckpointError, match="use_rotate_nms=False is unknown"):
        mmdet3d_config(upright)


def test_configurations_of_voxels_are_declared():
    size = [0.25, 0.25, 0.2]
    content = copy.deepcopy(ANCHORS)
    content["DATA_CONFIG"]["DATA_PROCESSOR"][1]["VOXEL_SIZE"] = size
    content["MODEL"] |= {
        "VFE": {"NAME": "MeanVFE"},
        "BACKBONE_3D": {"NAME": "VoxelBackBone8x"},
        "BACKBONE_2D": {"LAYER_STRIDES": [1, 2], "UPSAMPLE_STRIDES": [1, 2]},
    }
    text = MMDET3D.replace("voxel_size = [0.5, 0.5, 4]", f"voxel_size = {size}")
    text = text.replace("type='PillarFeatureNet', legacy=False", "type='HardSimpleVFE'")
    text = text.replace("neck=dict(", "middle_encoder=dict(type='SparseEncoder'), neck=dict(")
    for name, source in (
        ("openpcdet voxels", openpcdet_config(content)),
        ("mmdet3d voxels", mmdet3d_config(text)),
    ):
        _, flags = declared(small(name), source)
        assert flags["voxel_size"] == (size, BY) and flags["max_voxels"] == ([100, 200], BY)
        assert flags["sparse.last_pad"] == (0, "assumed")
        assert flags["backbone.strides"][0] == [1, 2] and flags["detections.score"] == (0.2, BY)
    content["MODEL"]["VFE"] = {"NAME": "DynMeanVFE"}
    assert openpcdet_config(content).settings["max_voxels"] == [-1, -1]
    wide = {"NAME": "VoxelResBackBone8xVoxelNeXt", "SPCONV_KERNEL_SIZES": [3, 5]}
    for other, words in (
        (wide, "KERNEL_SIZES other than 3"),
        ({"NAME": "UNetV2"}, "UNetV2 is unk"),
    ):
        content["MODEL"]["BACKBONE_3D"] = other
        with pytest.raises(CheckpointError, match=words):
            openpcdet_config(content)
