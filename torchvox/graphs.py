# SPDX-License-Identifier: Apache-2.0
"""CUDA graphs of models on scans of any size, and of functions of tensors."""

from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple, TypeVar, Union

import torch
from torch import Tensor

T = TypeVar("T")
Model = Callable[[Tensor, Tensor], Any]
BUCKETS = (32_768, 65_536, 131_072, 327_680)


def _captured(
    call: Callable[[], T],
    stream: "torch.cuda.Stream",
    pool: Optional[Tuple[int, int]] = None,
) -> Tuple["torch.cuda.CUDAGraph", T]:
    """A graph of the call on the current device, and the outputs that it writes. stream: by default
    torch.cuda.graph has one per process, on the GPU that was used first."""
    current, side = torch.cuda.current_stream(), torch.cuda.Stream()
    side.wait_stream(current)
    with torch.cuda.stream(side):  # libraries select kernels and allocate in the first calls
        for _ in range(2):
            call()
    current.wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool, stream, capture_error_mode="thread_local"):
        outputs = call()
    return graph, outputs


class Captured:
    """A function of tensors that is captured on a GPU at the first call per set of shapes, then
    replayed: hundreds of small kernels in the host time of one.

    function: takes and returns tensors, without gradients, without host synchronization, and with
        shapes that depend only on those of its arguments. It is simply called on other devices, and
        for further shapes once `most` are captured.

    Outputs are buffers that the next call overwrites.
    """

    def __init__(self, function: Callable[..., Sequence[Tensor]], most: int = 4) -> None:
        self.function, self.most = function, most
        self._graphs: Dict[Any, Tuple[List[Tensor], torch.cuda.CUDAGraph, Sequence[Tensor]]] = {}

    @torch.no_grad()
    def __call__(self, *arguments: Tensor) -> Sequence[Tensor]:
        key = tuple((t.device, t.dtype, t.shape) for t in arguments)
        on_gpu = all(t.is_cuda for t in arguments)
        if not on_gpu or (key not in self._graphs and len(self._graphs) >= self.most):
            return self.function(*arguments)
        if key not in self._graphs:
            buffers = [t.clone() for t in arguments]
            with torch.cuda.device(arguments[0].device):
                self._graphs[key] = (
                    buffers,
                    *_captured(lambda: self.function(*buffers), torch.cuda.Stream()),
                )
        buffers, graph, outputs = self._graphs[key]
        for buffer, argument in zip(buffers, arguments, strict=True):
            buffer.copy_(argument)
        graph.replay()
        return outputs


class _Graph(NamedTuple):
    graph: "torch.cuda.CUDAGraph"
    points: Tensor  # [B, bucket, columns], read by the graph
    outputs: Any  # written by it


class GraphRunner:
    """Runs a model of (points [B, N, columns], num_points [B] int32) by replaying CUDA graphs.

    A graph has one input size. A scan is copied to the buffer of the smallest bucket that holds it,
    and its number of points to the GPU; rows past that number are ignored, so the graph of a bucket
    serves every scan that fits. A bucket is captured once, when it is first needed. The graphs
    share their memory, and a runner is for one thread at a time.

    model: a detector in evaluation mode on a GPU, or any callable with static shapes and without
        host synchronization. columns: of the points; None: model.columns. batch: clouds per call.
    buckets: largest numbers of points, ascending.
    """

    def __init__(
        self,
        model: Model,
        *,
        columns: Optional[int] = None,
        batch: int = 1,
        buckets: Sequence[int] = BUCKETS,
        device: Union[str, torch.device] = "cuda",
    ) -> None:
        self.device = torch.device(device)
        if self.device.type != "cuda":
            raise RuntimeError(f"GraphRunner: device must be a CUDA GPU, got {self.device}")
        if not torch.cuda.is_available():
            raise RuntimeError(
                f"GraphRunner: device must be a CUDA GPU, got {self.device}, and torch finds none"
            )
        sizes = [int(size) for size in buckets]
        if not sizes or sizes != sorted(set(sizes)) or sizes[0] < 2:
            raise ValueError(
                f"GraphRunner: buckets must ascend and hold two points at least, got {sizes}"
            )
        if getattr(model, "training", False):
            raise ValueError("GraphRunner: the model must be in evaluation mode, call eval()")
        self.model = model
        self.columns = int(getattr(model, "columns", 4) if columns is None else columns)
        self.batch = int(batch)
        self.buckets = tuple(sizes)
        with torch.inference_mode(False):  # later calls write to it in any mode
            self.num_points = torch.zeros(self.batch, dtype=torch.int32, device=self.device)
        self.device = self.num_points.device
        # Graphs share memory when they are captured on one stream.
        self._stream = torch.cuda.Stream(self.device)
        self._graphs: Dict[int, _Graph] = {}
        self._pool: Optional[Tuple[int, int]] = None

    @property
    def captured(self) -> Tuple[int, ...]:
        """The buckets that have a graph."""
        return tuple(sorted(self._graphs))

    @torch.no_grad()
    def __call__(self, points: Tensor, num_points: Optional[Tensor] = None) -> Any:
        """Outputs of the model: buffers that the next call, of any bucket, may overwrite, since the
        graphs share their memory. Calls on several streams must wait for each other.

        points: [N, columns], one scan, or [B, N, columns], on any device. num_points: [B] int32 or
        int64 if the clouds are padded; None: every row is a point. Pinned tensors must not change
        until the stream has copied them.
        """
        clouds = points[None] if points.dim() == 2 else points
        if clouds.dim() != 3 or clouds.size(0) != self.batch or clouds.size(2) != self.columns:
            raise ValueError(
                f"GraphRunner: points must be [{self.batch}, N, {self.columns}], got "
                f"{list(points.shape)}"
            )
        if num_points is not None and list(num_points.shape) != [self.batch]:
            raise ValueError(
                f"GraphRunner: num_points must be [{self.batch}], got {list(num_points.shape)}"
            )
        count = clouds.size(1)
        graph = self.prepare(count)
        graph.points[:, :count].copy_(clouds, non_blocking=True)
        if num_points is None:
            self.num_points.fill_(count)
        else:
            self.num_points.copy_(num_points, non_blocking=True)
            self.num_points.clamp_(max=count)  # rows past it are from an older scan
        graph.graph.replay()
        return graph.outputs

    def prepare(self, count: int) -> _Graph:
        """The graph for scans of `count` points, captured now if it is new."""
        bucket = next((size for size in self.buckets if size >= count), None)
        if bucket is None:
            raise ValueError(
                f"GraphRunner: at most {self.buckets[-1]} points fit in a bucket, got {count}"
            )
        if bucket not in self._graphs:
            self._graphs[bucket] = self._capture(bucket)
        return self._graphs[bucket]

    def _capture(self, bucket: int) -> _Graph:
        with torch.inference_mode(False), torch.no_grad(), torch.cuda.device(self.device):
            points = torch.zeros(self.batch, bucket, self.columns, device=self.device)
            if self._pool is None:
                self._pool = torch.cuda.graph_pool_handle()
            graph, outputs = _captured(
                lambda: self.model(points, self.num_points), self._stream, self._pool
            )
        return _Graph(graph, points, outputs)
