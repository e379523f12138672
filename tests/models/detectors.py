# SPDX-License-Identifier: Apache-2.0
"""Small detectors whose boxes depend on the points, and scans for them."""

import torch

from torchvox import models
from torchvox.models.detection import detector

KITTI = [
    "model.args.point_cloud_range=[0, -10.24, -3, 20.48, 10.24, 1]",
    "model.args.backbone={layers: [1, 1, 1], channels: [16, 24, 32]}",
    "model.args.neck={channels: [16, 16, 16]}",
    "model.args.detections={post: 60}",
]
NUSCENES = [
    "model.args.point_cloud_range=[-12.8, -12.8, -5, 12.8, 12.8, 3]",
    "model.args.backbone={layers: [1, 1, 1], channels: [16, 24, 32]}",
    "model.args.neck={channels: [16, 16, 16], strides: [0.5, 1, 2]}",
    "model.args.head.shared=16",
    "model.args.head.width=16",
]
# Two tasks instead of six.
TASKS = [
    "model.args.head.tasks=[[car, truck, construction_vehicle, bus, trailer], "
    "[barrier, motorcycle, bicycle, pedestrian, traffic_cone]]"
]
DYNAMIC = ["model.args.max_points=-1", "model.args.max_pillars=[-1, -1]"]
SMALL = {
    "anchors": ("pointpillars_kitti", KITTI),
    "anchors, dynamic": (
        "pointpillars_kitti",
        [*KITTI, *DYNAMIC, "model.args.encoder={pad_semantics: none}"],
    ),
    "anchors, visibility": (
        "pointpillars_kitti",
        [*KITTI, "model.args.visibility={channels: [free, occupied, slices:2], height: 0.5}"],
    ),
    "tasks": ("pointpillars_nuscenes_multihead", [*NUSCENES, *TASKS]),
    "centers": ("centerpoint_pillars_nuscenes", [*NUSCENES, *TASKS]),
    "centers, two layers": (
        "centerpoint_pillars_nuscenes",
        [*NUSCENES, *TASKS, "model.args.encoder={channels: [32, 32]}"],
    ),
}
THIN = [
    "model.args.sparse={layers: [1, 1, 1], channels: [8, 8, 16], out_channels: 16, "
    "max_rows: [9000, 6000, 6000]}",
    "model.args.backbone={layers: [1, 1], strides: [1, 2], channels: [16, 24]}",
    "model.args.neck={strides: [1, 2], channels: [16, 16]}",
]
SMALL |= {
    "anchors, voxels": (
        "second_kitti",
        [
            *(THIN + KITTI[:1] + KITTI[3:]),
            "model.args.voxel_size=[0.16, 0.16, 0.2]",
            "model.args.max_voxels=[6000, 6000]",
        ],
    ),
    "centers, voxels": (
        "centerpoint_voxel_nuscenes",
        [
            *(THIN + NUSCENES[:1] + NUSCENES[3:] + TASKS),
            "model.args.voxel_size=[0.2, 0.2, 0.4]",
            "model.args.max_voxels=[6000, 6000]",
        ],
    ),
}
SMALL["centers, rows"] = (
    "voxelnext_nuscenes",
    [
        "model.args.sparse={layers: [1, 1, 1, 1], channels: [8, 8, 16, 16], joined: 2, "
        "out_channels: 16, max_rows: [9000, 6000, 3000, 6000]}",
        *SMALL["centers, voxels"][1][3:],
        "model.args.head.kernel=3",
    ],
)
LAST = ("head.cls", "cls.out", "hm.out")  # the convolutions that give logits
PASSING, LOGIT = 200, -2.2  # so many candidates of a scan pass the threshold of 0.1


def small(name, *more):
    """A detector with seeded weights and statistics, in evaluation."""
    config, changes = SMALL[name]
    torch.manual_seed(0)
    return stirred(detector(config, [*changes, *more]))


@torch.no_grad()
def stirred(model):
    """Norms with statistics of their own, scores that vary over the map and often pass."""
    generator = torch.Generator().manual_seed(1)
    for name, tensor in model.state_dict().items():
        noise = torch.randn(tensor.shape, generator=generator)
        if name.endswith(("running_var", "norm.weight")):
            tensor.copy_(0.8 + 0.4 * noise.abs())
        elif name.endswith(("running_mean", "norm.bias")):
            tensor.copy_(0.2 * noise)
    model.eval()
    heads = [m for name, m in model.named_modules() if name.endswith(LAST)]
    for head in heads:
        head.weight.mul_(5.0)
    logits = torch.cat([m.flatten() for m in model.maps(*scan(model, 5000))[0]])
    passing = logits.topk(PASSING).values[-1]
    for head in heads:
        head.bias += LOGIT - passing
    return model


def scan(model, *lengths, seed=0):
    """points [B, N, columns], num_points [B]: clumps in range, points past it and NaN rows."""
    return models.export.example_inputs(model, lengths, seed)


def fused(model, dtype=None):
    return models.merge_heads(models.fuse_batch_norms(model, dtype))
