# SPDX-License-Identifier: Apache-2.0
"""A detector in the manner of mmdetection3d's PointPillars, hard or dynamic, that imports mmcv."""

import torch
from mmcv.ops import DynamicScatter, Voxelization, nms_bev, nms_rotated
from torch import nn
from torch.nn import functional as F

SIZE, BOUNDS, GRID = (0.5, 0.5, 4.0), (0.0, 0.0, -2.0, 8.0, 8.0, 2.0), (16, 16)


class Detector(nn.Module):
    def __init__(self, dynamic):
        super().__init__()
        self.dynamic = dynamic
        points = -1 if dynamic else 4
        self.voxel_layer = Voxelization(list(SIZE), list(BOUNDS), points, (60, 80))
        self.cluster_scatter = DynamicScatter(list(SIZE), list(BOUNDS), True)
        self.pfn_scatter = DynamicScatter(list(SIZE), list(BOUNDS), False)
        self.linear = nn.Linear(9, 16)
        self.backbone = nn.Sequential(nn.Conv2d(16, 16, 3, padding=1), nn.ReLU())
        self.head = nn.Conv2d(16, 6, 1)

    @torch.no_grad()
    def voxelize(self, clouds):
        coors, parts = [], []
        for i, cloud in enumerate(clouds):
            found = self.voxel_layer(cloud)
            cells = found if self.dynamic else found[1]
            coors.append(F.pad(cells, (1, 0), mode="constant", value=i))
            parts.append((cloud,) if self.dynamic else (found[0], found[2]))
        return *(torch.cat(part) for part in zip(*parts, strict=True)), torch.cat(coors)

    def decorate(self, points, mean, coors):
        size, low = points.new_tensor(SIZE[:2]), points.new_tensor(BOUNDS[:2])
        center = (coors[..., [3, 2]].to(points) + 0.5) * size + low
        return torch.cat([points, points[..., :3] - mean, points[..., :2] - center], -1)

    def pillars(self, clouds):
        if self.dynamic:
            points, coors = self.voxelize(clouds)
            inside = coors[:, 1] >= 0
            points, coors = points[inside], coors[inside]
            means, cells = self.cluster_scatter(points, coors)
            keys = [(c.long() * c.new_tensor([4096, 256, 16, 1])).sum(1) for c in (coors, cells)]
            mean = means[torch.searchsorted(keys[1], keys[0]), :3]
            return self.pfn_scatter(F.relu(self.linear(self.decorate(points, mean, coors))), coors)
        voxels, counts, coors = self.voxelize(clouds)
        mean = voxels[..., :3].sum(1, keepdim=True) / counts.view(-1, 1, 1)
        features = self.decorate(voxels, mean, coors[:, None].expand(-1, voxels.shape[1], -1))
        there = torch.arange(voxels.shape[1], device=counts.device) < counts[:, None]
        return F.relu(self.linear(features * there[..., None])).amax(1), coors

    def forward(self, clouds):
        features, coors = self.pillars(clouds)
        canvas = features.new_zeros(len(clouds), 16, *GRID)
        coors = coors.long()
        canvas[coors[:, 0], :, coors[:, 2], coors[:, 3]] = features
        return self.head(self.backbone(canvas))

    @torch.no_grad()
    def detect(self, clouds):
        """Cells of the first cloud that either suppression keeps, all boxes and their scores."""
        score, dx, dy, w, h, angle = self(clouds)[0].flatten(1).unbind(0)
        y, x = torch.meshgrid(*(torch.arange(n, device=score.device) for n in GRID), indexing="ij")
        center = torch.stack([x.flatten() + dx, y.flatten() + dy], 1) * SIZE[0]
        size = torch.stack([w, h], 1).exp()
        boxes = torch.cat([center, size, angle[:, None]], 1)
        corners = torch.cat([center - size / 2, center + size / 2, angle[:, None]], 1)
        kept = nms_bev(corners, score, 0.2, pre_max_size=100, post_max_size=20)
        return nms_rotated(boxes, score, 0.2)[1], kept, boxes, score
