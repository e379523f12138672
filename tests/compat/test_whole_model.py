# SPDX-License-Identifier: Apache-2.0
"""A PointNet++ that imports pointnet2_ops trains on torchvox as on plain torch."""

import itertools

import pytest
import torch
from torch import nn

import torchvox.compat
from tests.compat import loops

SCRIPT = """
import torch
from torch import nn
from pointnet2_ops.pointnet2_modules import PointnetFPModule, PointnetSAModule, PointnetSAModuleMSG

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.sa = nn.ModuleList([
            PointnetSAModuleMSG(
                npoint=24, radii=[0.3, 0.5], nsamples=[6, 8], mlps=[[3, 8], [3, 8, 8]], use_xyz=True
            ),
            PointnetSAModule(npoint=8, radius=0.8, nsample=8, mlp=[16, 16], use_xyz=True),
        ])
        self.fp = nn.ModuleList([PointnetFPModule(mlp=[19, 8]), PointnetFPModule(mlp=[32, 16])])
        self.whole = PointnetSAModule(mlp=[8, 8], use_xyz=True)
        self.head = nn.Linear(8, 5)

    def forward(self, xyz, features):
        levels = [(xyz, features)]
        for module in self.sa:
            levels.append(module(*levels[-1]))
        for i in (1, 0):
            (fine, skip), (coarse, deep) = levels[i], levels[i + 1]
            levels[i] = fine, self.fp[i](fine, coarse, skip, deep)
        return self.head(self.whole(*levels[0])[1].squeeze(-1))

def train(net, xyz, features, labels, steps=3):
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(net(xyz, features), labels)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses
"""


def mlp(widths):
    layers = []
    for a, b in itertools.pairwise(widths):
        layers += [nn.Conv2d(a, b, 1, bias=False), nn.BatchNorm2d(b), nn.ReLU()]
    return nn.Sequential(*layers)


class Level(nn.Module):
    """Set abstraction by loops and indexing."""

    def __init__(self, centers, balls, widths):
        super().__init__()
        self.centers, self.balls = centers, balls
        self.mlps = nn.ModuleList(mlp([w[0] + 3, *w[1:]]) for w in widths)

    def forward(self, xyz, features):
        rows = torch.cat([xyz, features.transpose(1, 2)], -1)
        if not self.centers:
            return None, self.mlps[0](rows.transpose(1, 2)[:, :, None]).amax(3)
        taken = torch.tensor([loops.fps(cloud, self.centers, 512, True) for cloud in xyz])
        batch = torch.arange(len(xyz))[:, None]
        new, out = xyz[batch, taken], []
        for (radius, k), layers in zip(self.balls, self.mlps, strict=True):
            balls = [
                [loops.ball(c, q, radius, k) for q in n] for c, n in zip(xyz, new, strict=True)
            ]
            group = rows[batch[..., None], torch.tensor(balls)]
            group = torch.cat([group[..., :3] - new[:, :, None], group[..., 3:]], -1)
            out.append(layers(group.permute(0, 3, 1, 2)).max(3)[0])
        return new, torch.cat(out, 1)


class Back(nn.Module):
    def __init__(self, widths):
        super().__init__()
        self.mlp = mlp(widths)

    def forward(self, fine, coarse, skip, deep):
        dist, idx = torch.cdist(fine, coarse, compute_mode="donot_use_mm_for_euclid_dist").sort(-1)
        weight = 1 / (dist[..., :3] + 1e-8)
        weight = weight / weight.sum(-1, keepdim=True)
        near = deep.transpose(1, 2)[torch.arange(len(fine))[:, None, None], idx[..., :3]]
        rows = torch.cat([(near * weight[..., None]).sum(2).transpose(1, 2), skip], 1)
        return self.mlp(rows[..., None])[..., 0]


def test_a_training_script_gives_the_losses_of_plain_torch(fresh):
    torch.manual_seed(0)
    xyz, features, labels = torch.rand(4, 64, 3), torch.rand(4, 3, 64), torch.tensor([0, 1, 2, 3])
    script: dict = {}
    with torchvox.compat.installed("pointnet2_ops"):
        exec(SCRIPT, script)
    net, other = script["Net"](), script["Net"]()
    other.sa = nn.ModuleList(
        [Level(24, [(0.3, 6), (0.5, 8)], [[3, 8], [3, 8, 8]]), Level(8, [(0.8, 8)], [[16, 16]])]
    )
    other.fp = nn.ModuleList([Back([19, 8]), Back([32, 16])])
    other.whole = Level(None, [None], [[8, 8]])
    other.load_state_dict(net.state_dict())  # strict: the names are the same
    losses = script["train"](net, xyz, features, labels)
    assert losses[-1] < losses[0]
    assert losses == pytest.approx(script["train"](other, xyz, features, labels), rel=1e-4)
