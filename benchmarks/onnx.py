# SPDX-License-Identifier: Apache-2.0
"""Every detector, scan to boxes, in ONNX Runtime beside the same network in torch: eager on the
CPU, in a CUDA graph on a GPU, where ONNX Runtime captures one too, inputs and outputs on the device
(eager_us is then the time of a call of the session). They run with `--only ONNX`.
"""

import copy
import importlib.util
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from benchmarks.clouds import Clouds
from benchmarks.detectors import seeded_model, ten_sweeps
from benchmarks.suite import Case, Facts, Outputs, Problem, bytes_of, expect, name_of
from benchmarks.suite import Implementation as Other
from torchvox import models
from torchvox.models.artefact import without_tf32
from torchvox.models.export import agreement, export_model
from torchvox.models.fuse import can_merge

STRAYS, APART = 0.02, 0.05  # share of boxes that may come or go; meters and score


class Network(Problem):
    """A network, fused and merged."""

    @torch.no_grad()
    def run(self) -> Outputs:
        with without_tf32():
            return tuple(self["fast"](*self["scan"]))

    def facts(self) -> Facts:
        return {"points": self["scan"][0].size(1), "dtype": name_of(self["dtype"])}

    def moved_bytes(self) -> tuple[int, int]:
        return bytes_of(self["scan"], [self["fast"]]), bytes_of(self.outputs)

    def check(self, outputs: Outputs) -> str:
        expect(bool(outputs[0].isfinite().all()), "a box is not finite")
        boxes = int(outputs[3][0])
        expect(boxes > 0, "no boxes")
        return f"{boxes} boxes"

    def others(self) -> Iterator[Other]:
        if importlib.util.find_spec("onnxruntime") and importlib.util.find_spec("onnxscript"):
            yield Other("ONNX Runtime", self.in_onnx, self.compare, replays=True)

    def in_onnx(self) -> Outputs:
        if "call" not in self.arguments:
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder) / "model.onnx"
                export_model(copy.deepcopy(self["fast"]).cpu(), path, "onnx", batch=1)
                on = on_cpu if self.device.type == "cpu" else on_gpu
                self.arguments = {**self.arguments, "call": on(path, self["scan"])}
        return self["call"]()

    def compare(self, result: Any) -> str:
        with torch.no_grad():
            both = [tuple(out.cpu() for out in outputs) for outputs in (self.outputs, result)]
        pairs = agreement(*both, True, 0.1)
        words = f"{100 * pairs.strays:.2g} % of {pairs.boxes} boxes alone"
        expect(pairs.strays <= STRAYS and pairs.difference <= APART, words)
        return f"{words}, others within {pairs.difference:.1e}"


def on_cpu(path: Path, scan: Outputs) -> Callable[[], Outputs]:
    from torchvox import onnx

    session = onnx.session(path, threads=torch.get_num_threads())
    feeds = dict(zip(("points", "num_points"), (t.numpy() for t in scan), strict=True))
    return lambda: tuple(map(torch.from_numpy, session.run(None, feeds)))


def on_gpu(path: Path, scan: Outputs) -> Callable[[], Outputs]:
    """A session that captures its graph on a stream of its own at the first call."""
    from torchvox import onnx

    run = onnx.CudaSession(path, graph=True)
    run(*scan)
    return lambda: run(*(run.inputs or ()))


def row(config: str, dtype: torch.dtype) -> Case:
    def inputs(data: Clouds) -> dict[str, Any]:
        aged = models.get_model(config).columns == 5
        points, source = (ten_sweeps if aged else Clouds.kitti)(data)
        count = torch.tensor([len(points)], dtype=torch.int32, device=points.device)
        scan = (points[None].contiguous(), count)
        model = seeded_model(config, [], scan, measure_norms=True)
        fused = models.fuse_batch_norms(model, None if dtype == torch.float32 else dtype)
        fast = models.merge_heads(fused) if can_merge(fused) else fused
        return {"fast": fast, "scan": scan, "source": source}

    name = f"{config} {name_of(dtype)} in ONNX"
    return Case(name, "ONNX", inputs, {"dtype": dtype}, kind=Network, on_demand=True)


def cases(device: str) -> list[Case]:
    dtypes = [torch.float32] if device == "cpu" else [torch.float32, torch.float16]
    return [row(config, dtype) for config in models.list_models("detect") for dtype in dtypes]
