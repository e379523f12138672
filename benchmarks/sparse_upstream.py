# SPDX-License-Identifier: Apache-2.0
"""Networks of sparse convolutions, and the same over spconv and spconv-triton: CenterPoint's behind
the voxels, and a training step of SECOND, which runs with `--only "train SECOND"`. Libraries get
exact rows, torchvox a quarter more."""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

from benchmarks import suite
from benchmarks.clouds import Clouds, seeded
from benchmarks.detectors import TrainingStep, training_row
from benchmarks.sparse import Layer, checked_way, first, layer_of
from benchmarks.suite import Case, Implementation, Outputs, Target, Way, faster, graph, peer
from torchvox import models
from torchvox.compat import spconv_pytorch
from torchvox.models.detection.config import RESIDUAL
from torchvox.models.detection.sparse_backbone import SparseBackbone
from torchvox.nn.sparse import SparseBatchNorm, SparseReLU, SparseTensor, sparse_tensor
from torchvox.nn.sparse_blocks import FusedSparseBlock
from torchvox.nn.sparse_conv import SparseConv3d, SparseConvolution

CHANNELS = 16  # of the first level of CenterPoint's
ROOM = 1.25  # rows of capacity per row in use, behind each convolution with a stride


class Network(nn.Module):
    """A sparse network of torchvox in the layers of a library with spconv's interface, with the
    same weights. A `SparseTensor` to that library's tensor; `net`: from tensor to tensor."""

    def __init__(self, library: Any, net: nn.Module) -> None:
        super().__init__()
        self.tensor, self.level = library.SparseConvTensor, 0
        self.net = self.converted(library, net)

    def converted(self, library: Any, module: nn.Module) -> nn.Module:
        conv = getattr(module, "conv", module)
        if isinstance(conv, SparseConvolution):
            self.level += isinstance(conv, SparseConv3d)
            return layer_of(library, conv, f"level {self.level}", getattr(module, "relu", False))
        if isinstance(module, SparseBatchNorm):
            norm = nn.BatchNorm1d(module.num_features, module.eps, module.momentum)
            norm.load_state_dict(module.state_dict())
            return norm.to(module.weight.device)
        if isinstance(module, SparseReLU):
            return nn.ReLU()
        if not isinstance(module, FusedSparseBlock):
            children = (self.converted(library, child) for child in module.children())
            return library.SparseSequential(*children)

        class Block(library.SparseModule):
            def forward(self, x: Any) -> Any:
                y = self.convs(x)
                return y.replace_feature((y.features + x.features).relu_())

        block, both = Block(), (module.conv1, module.conv2.conv)
        block.convs = library.SparseSequential(*(self.converted(library, conv) for conv in both))
        return block

    def forward(self, x: SparseTensor) -> Any:
        rows = int(x.num_valid.flatten()[0])
        grid = x.indices[:rows].contiguous(), x.spatial_shape, x.batch_size
        return self.net(self.tensor(x.features[:rows], *grid))


class Backbone(Layer):
    """The levels behind the first convolution, batch norms fused. Rows of the last level."""

    def run(self) -> Outputs:
        x = sparse_tensor(self["features"], self["indices"], self["spatial_shape"], 1)
        for level in self["levels"]:
            x = level(x)
        return x.features, x.indices


@peer("spconv.pytorch", "sparse backbone")
@peer("spconv_triton.pytorch", "sparse backbone", device="cuda")
def spconv(library: Any, problem: Backbone) -> Way:
    cpu = problem.device.type == "cpu"  # where a bias is for training alone
    net = Network(library, problem["levels"]).train(cpu).net

    @torch.no_grad()
    def call() -> Any:
        grid = problem["indices"], problem["spatial_shape"], 1
        y = net(library.SparseConvTensor(problem["features"], *grid))
        return y.features, y.indices

    return checked_way(problem, library, call)


def backbone_row(name: str, sweeps: int, dtype: torch.dtype, *targets: Target) -> Case:
    def inputs(clouds: Clouds) -> dict[str, Any]:
        call = first(clouds, sweeps)
        indices, shape = call["indices"], call["spatial_shape"]
        features = torch.randn(len(indices), CHANNELS, generator=seeded())
        net = SparseBackbone(CHANNELS, RESIDUAL)
        for conv in net.modules():
            if isinstance(conv, SparseConvolution):  # outputs of the size of inputs
                conv.weight.data.normal_(0, (10 * conv.in_channels) ** -0.5, generator=seeded())
        levels = models.fuse_batch_norms(net, dtype).levels.to(indices.device)
        x = sparse_tensor(features, indices, shape, 1)
        for conv in levels.modules():
            if isinstance(conv, SparseConv3d):
                grid, *_ = conv.strided_rows(x)
                rows = int(grid.num_valid.flatten()[0])
                conv.max_rows = int(ROOM * rows) + 1
                none = features.new_zeros(rows, 0)
                x = sparse_tensor(none, grid.indices[:rows], grid.spatial_shape, 1)
        return {**call, "features": features.to(dtype), "levels": levels}

    options = {"stride": 2, "backward": False}
    return Case(f"sparse {name}", "sparse backbone", inputs, options, targets, Backbone)


class SecondStep(TrainingStep):
    """Of SECOND, with the sparse convolutions as a stage of their own."""

    config = "second_world"
    stages = ("augmentation", "voxels", "sparse convolutions", *TrainingStep.stages[2:])

    def step(self, mark: Callable[[], None] = lambda: None) -> Outputs:
        hook = self.model.sparse_backbone.register_forward_pre_hook(lambda *_: mark())
        try:
            return super().step(mark)
        finally:
            hook.remove()

    def way(self, library: Any) -> Way:
        """The step of the same model over another library. Its first canvas is compared."""
        twin, batch = type(self)(self.op, self.arguments), self["batches"][0]
        model, scans = twin.model, (batch["points"], batch["num_points"])
        with torch.no_grad():
            mine = model.canvas(*scans)
            model.sparse_backbone = Network(library, model.sparse_backbone)
            model.dense = library.ToDense()
            said = suite.close([model.canvas(*scans)], [mine], 1e-2)

        def check(_: Outputs) -> str:
            return f"canvas {said}, stages_ms {twin.stages_ms()}"

        return Way(twin.run, check=check, name=library.__name__.split(".")[0])

    def others(self) -> Iterator[Implementation]:
        call, _, check, _ = self.way(spconv_pytorch)
        yield Implementation("over torchvox.compat", call, check)


@peer("spconv.pytorch", "SECOND training", device="cuda")
@peer("spconv_triton.pytorch", "SECOND training", device="cuda")
def second(library: Any, problem: SecondStep) -> Way:
    """Under autocast it computes in float16, whatever autocast's dtype."""
    return problem.way(library)


def cases(device: str) -> list[Case]:
    if device == "cpu":
        small = training_row("", 2, small=True, net="SECOND", kind=SecondStep)
        return [backbone_row("CenterPoint backbone, 43k voxels", 1, torch.float32), small]
    rows = [("43k", 1, 600), ("111k", 3, 900)]
    goals = {us: (graph(us), faster("kernel_us", "spconv")) for *_, us in rows}
    return [
        *(
            backbone_row(f"CenterPoint backbone, {size} voxels", sweeps, torch.half, *goals[us])
            for size, sweeps, us in rows
        ),
        training_row("", 16, net="SECOND", kind=SecondStep, reach=50.0),
    ]
