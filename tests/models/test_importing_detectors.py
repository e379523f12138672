# SPDX-License-Identifier: Apache-2.0
"""Detectors of other programs: every tensor used once, the maps and the boxes theirs."""

import pytest
import torch
import upstream_nets as nets
from upstream import openpcdet, voxels
from upstream.detector_parity import agreement, detector_parity
from upstream_nets import PUBLISHED, SMALL, as_published, small, small_points

from torchvox.models.box_conventions import boxes_from
from torchvox.models.checkpoints import CheckpointError
from torchvox.models.importing import convert, parity


def imported(upstream, **settings):
    content = {
        "meta": {"mmdet3d_version": upstream.release},
        "state_dict": upstream.network.state_dict(),
    }
    return convert(content, settings={**upstream.settings, **settings})


def run(model, points):
    with torch.no_grad():
        boxes, scores, labels, count, _ = model(points[None], torch.tensor([len(points)]).int())
    n = int(count[0])
    return boxes[0, :n], scores[0, :n], labels[0, :n]


@pytest.mark.parametrize("name", SMALL)
def test_an_imported_detector_finds_what_the_original_finds(name):
    upstream = small(name)
    found = imported(upstream)
    assert found.used == upstream.tensors == len(upstream.network.state_dict())
    points = small_points(upstream.columns)
    report = detector_parity(found, points)
    assert report.output > 1
    assert report.worst() <= 1e-4 * report.output
    assert report.boxes.theirs > 5
    assert report.boxes.same == report.boxes.theirs == report.boxes.ours
    assert report.boxes.box < 1e-3
    assert report.trouble(1e-3) is None
    # Beside the network of the test too, not that of the report alone.
    with torch.no_grad():
        theirs = upstream.network.detect(points)
    ours, boxes = run(found.model, points), boxes_from(theirs.boxes, found.layout.boxes)
    same = agreement((boxes, theirs.scores, theirs.labels), ours)
    assert same.same == same.theirs == same.ours > 0
    assert same.score < 1e-4


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_checkpoint_needs_no_settings(name):
    upstream = as_published(name)
    found = imported(upstream)
    assert found.used == upstream.tensors == len(upstream.network.state_dict())
    assert found.layout.name == name.split(" ")[0]
    config = found.model.config()["config"]
    assert config["columns"] == upstream.columns
    assert len(config["column_scale"]) == (0 if "KITTI" in name else 5)
    assert len(config["classes"]) == (3 if "KITTI" in name else 10)
    dynamic = name == "openpcdet nuScenes centers"
    assert config["encoder"]["pad_semantics"] == ("none" if dynamic else "reference")
    assert config["encoder"]["legacy"] is (name == "mmdet3d KITTI")
    assert config["encoder"]["center_axes"] == 3


@pytest.mark.parametrize(
    ("release", "name"),
    [("0.17.1", "mmdet3d_0"), ("1.0.0rc0", "mmdet3d"), ("1.4.0", "mmdet3d"), ("", "mmdet3d")],
)
def test_the_release_of_mmdetection3d_tells_the_convention_of_its_boxes(release, name):
    upstream = small("mmdet3d centers", weights=False)
    content = {"meta": {"mmdet3d_version": release}, "state_dict": upstream.network.state_dict()}
    assert convert(content, settings=upstream.settings).layout.name == name
    insisted = convert(content, "mmdet3d_0", upstream.settings)
    assert insisted.model.config()["config"]["detections"]["box_format"] == "wlh_clockwise"


@torch.no_grad()
@pytest.mark.parametrize("old", [False, True])
@pytest.mark.parametrize("down", [{}, {"stride": (2, 2, 2), "padding": (0, 1, 1)}])
def test_the_plain_sparse_convolution_is_the_dense_one_at_its_rows(down, old):
    """Conv3d of the grid that is 0 elsewhere; rows are where the kernel meets one."""
    torch.manual_seed(0)
    conv, dense = voxels.Conv(voxels.Sizes((), (), old=old), 2, 3, **down), torch.nn.functional
    active = (torch.rand(5, 6, 7) < 0.1).float()
    x = voxels.Rows(torch.randn(int(active.sum()), 2), active.nonzero(), active.shape)
    grid = torch.zeros(2, *active.shape)
    grid[:, active > 0] = x.features.T
    weight = conv.weight.permute((4, 3, 0, 1, 2) if old else (0, 4, 1, 2, 3))
    options = {**{"stride": 1, "padding": 1}, **down}
    found = conv(x)
    expected = dense.conv3d(grid[None], weight, **options)[0][(slice(None), *found.cells.T)]
    torch.testing.assert_close(found.features, expected.T)
    met = dense.conv3d(active[None, None], torch.ones(1, 1, 3, 3, 3), **options)[0, 0] > 0
    assert torch.equal(found.cells, (met if down else active).nonzero())


# ------------------------------------------------------------------------------------- flags


SCORE = {"detections.score": 0.3}
NESTED = {"order": "first", "detections": {"mode": "circle"}}


@pytest.mark.parametrize(
    ("name", "settings", "flag", "value", "how"),
    [
        ("mmdet3d anchors, old", {}, "encoder.center_axes", 2, "inferred from shapes"),
        ("mmdet3d anchors, old", {}, "encoder.legacy", False, "override"),
        ("mmdet3d anchors, old", {}, "encoder.pad_semantics", "reference", "assumed"),
        ("mmdet3d anchors, old", {}, "head.grid", "ends", "override"),
        ("mmdet3d anchors, old", SCORE, "detections.score", 0.3, "override"),
        ("mmdet3d anchors, old", {}, "detections.box_format", "lwh", "assumed"),
        ("openpcdet anchors", NESTED, "detections.mode", "circle", "override"),
        # Two pillar layers of OpenPCDet are taken for dynamic ones.
        ("openpcdet centers, hard", {}, "encoder.pad_semantics", "reference", "override"),
        ("openpcdet centers", {}, "encoder.pad_semantics", "none", "assumed"),
        # A neck of stride one follows from shapes that differ, else from the layout.
        ("openpcdet anchors", {}, "neck.stride_one", "transposed", "inferred from shapes"),
        ("openpcdet anchors", {}, "neck.strides", [1.0, 2.0], "inferred from shapes"),
        ("openpcdet centers", {}, "neck.stride_one", "transposed", "assumed"),
        ("mmdet3d centers", {}, "neck.stride_one", "conv", "assumed"),
        ("mmdet3d centers", {"neck.stride_one": "transposed"}, "neck.stride_one", "transposed",
         "override"),
    ],
)  # fmt: skip
def test_flags_say_what_was_inferred_assumed_and_overridden(name, settings, flag, value, how):
    found = imported(small(name, weights=False), **settings)
    flags = {one.name: (one.value, one.how) for one in found.flags}
    assert flags[flag] == (value, how) and len(flags) == len(found.flags)
    config = found.model.config()["config"]
    for key in flag.split("."):
        config = config[key]
    assert config == value


def test_intensities_of_nuscenes_are_divided_in_the_model_and_the_weights_multiplied():
    upstream = small("mmdet3d centers")
    found = imported(upstream, column_scale=[1.0, 1.0, 1.0, 1 / 255, 1.0])
    assert detector_parity(found, small_points(5)).trouble(1e-4) is None
    assert found.model.config()["config"]["column_scale"][3] == pytest.approx(1 / 255)
    theirs = upstream.network.pts_voxel_encoder.pfn_layers[0].linear.weight
    ours = found.model.encoder.pfn_layers[0].linear.weight
    torch.testing.assert_close(ours[:, 3], theirs[:, 3] * 255)
    assert torch.equal(ours[:, 4:], theirs[:, 4:])


def test_the_report_of_openpcdet_centers_names_the_misplaced_code_weights():
    report = detector_parity(imported(small("openpcdet centers")), small_points(5))
    rows = dict(report.rows())
    assert "code weights" in rows["note"]
    assert rows["tensors"] == f"{report.imported.used} of {report.imported.used} used, each once"
    assert rows["flag head.rot"] == "cos_sin (assumed)"


# ------------------------------------------------------------------------------------- refusals


def without(name, *settings):
    return {k: v for k, v in small(name, weights=False).settings.items() if k not in settings}


@pytest.mark.parametrize(
    ("name", "settings", "words"),
    [
        ("openpcdet anchors", {}, "4 anchors a cell, 2 classes and 10 .*: classes must be given"),
        ("mmdet3d anchors", {}, "4 anchors a cell and 2 classes .*: classes must be given"),
        ("openpcdet heads", {}, "3 classes are not those of a published .*: classes must be given"),
        ("mmdet3d centers", {}, r"tasks of \[1, 2\] classes .*: head.tasks must be given"),
        ("mmdet3d anchors", without("mmdet3d anchors", "pillar_size"), "net: pillar_size must be"),
        ("mmdet3d anchors", {**without("mmdet3d anchors"), "encoder.legasy": True},
         r"unknown key encoder\.legasy: did you mean legacy"),
        ("mmdet3d anchors", {**without("mmdet3d anchors"), "columns": 3},
         "with columns of 3 it has 4 more"),
    ],
)  # fmt: skip
def test_settings_that_are_missing_or_do_not_fit_are_named(name, settings, words):
    with pytest.raises(CheckpointError, match=words):
        convert(small(name, weights=False).network.state_dict(), settings=settings)


def test_networks_that_are_not_published_ones_are_refused():
    sizes = nets.GRID, (nets.CAR, nets.PEDESTRIAN, nets.CYCLIST), nets.ANCHOR_BACKBONE_NECK
    waymo = openpcdet.SingleHead(5, *sizes, (16,))
    with pytest.raises(CheckpointError, match="11 inputs are not those of a published net"):
        convert(waymo.state_dict())
    state = small("mmdet3d centers", weights=False).network.state_dict()
    state = {k: v for k, v in state.items() if "bbox_head" not in k}
    state["pts_bbox_head.conv_cls.weight"] = torch.zeros(140, 384, 1, 1)
    with pytest.raises(CheckpointError, match="anchors that all classes share"):
        convert(state)


@pytest.mark.parametrize(
    ("name", "change", "words"),
    [
        ("openpcdet voxels", {"roi_head.x": torch.zeros(1)}, "nothing takes: roi_head.x"),
        ("openpcdet voxels", {"backbone_3d.conv_input.0.weight": None}, "no backbone_3d.conv_i"),
        ("openpcdet voxels", {"backbone_3d.conv2.0.1.bias": None}, "no backbone_3d.conv2.0.1.bias"),
        ("openpcdet voxels", {"backbone_3d.conv_out.0.weight": torch.zeros(8, 3, 1, 1, 9)},
         r"conv_out.0.weight must be \[8, 3, 1, 1, 10\]"),
        ("openpcdet voxels", {"dense_head.conv_cls.weight": None,
                              "dense_head.rpn_heads.0.x": torch.ones(1)},
         "AnchorHeadMulti over voxels, cannot be imported: import .* with CenterHead"),
        ("openpcdet rows", {"dense_head.heads_list.0.iou.1.bias": torch.zeros(1)},
         "nothing takes: dense_head.heads_list.0.iou.1.bias"),
        ("mmdet3d voxel centers", {"voxel_size": None}, "same tensors: voxel_size must be given"),
        ("det3d voxel centers", {"voxel_size": None}, "the same tensors: voxel_size must be given"),
    ],
)  # fmt: skip
def test_other_networks_of_sparse_convolutions_are_refused(name, change, words):
    upstream = small(name, weights=False)
    both = [{**part, **change} for part in (upstream.network.state_dict(), upstream.settings)]
    state, settings = ({k: v for k, v in part.items() if v is not None} for part in both)
    with pytest.raises(CheckpointError, match=words):
        convert(state, settings={k: v for k, v in settings.items() if k not in state})


def test_settings_without_a_plain_network_are_named():
    upstream = small("openpcdet anchors", weights=False)
    found = imported(upstream, **{"detections.mode": "circle"})
    with pytest.raises(CheckpointError, match="circle is known for heat maps alone"):
        parity(found)


@pytest.mark.parametrize(
    ("name", "shipped"),
    [
        ("openpcdet KITTI", "pointpillars_kitti"),
        ("openpcdet nuScenes multihead", "pointpillars_nuscenes_multihead"),
        ("openpcdet KITTI voxels", "second_kitti"),
        ("openpcdet nuScenes voxels", "centerpoint_voxel_nuscenes"),
        ("openpcdet nuScenes rows", "voxelnext_nuscenes"),
    ],
)
def test_a_published_network_has_the_configuration_that_is_shipped(name, shipped):
    from torchvox.models.detection import detector

    upstream = as_published(name)
    found, expected = imported(upstream), detector(shipped)
    assert found.used == upstream.tensors
    configs = [{**one.config()["config"], "loss": None} for one in (found.model, expected)]
    assert configs[0] == configs[1]  # except the loss: weights do not tell how
