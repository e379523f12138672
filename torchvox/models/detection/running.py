# SPDX-License-Identifier: Apache-2.0
"""A detector to call: one scan in, its boxes out."""

import copy
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable, Iterator, List, NamedTuple, Optional, Tuple, Union, overload

import numpy as np
import torch
from torch import Tensor, nn

from torchvox._build import BUILD_INFO
from torchvox._util.errors import CloudFileError, WrongUseError, expect
from torchvox.graphs import BUCKETS, GraphRunner
from torchvox.io import PointCloud, PointTable, read_cloud
from torchvox.io.table import TableReader
from torchvox.models import checkpoints
from torchvox.models.checkpoints import CheckpointError
from torchvox.models.detection.detector import DetectionNet
from torchvox.models.export import load_program
from torchvox.models.fuse import can_merge, fuse_batch_norms, is_fused, merge_heads
from torchvox.models.registry import get_model_weights, list_models, named_file

# What the columns of a detector past x, y and z are, and whether a scan must have them: one sweep
# alone has no age.
COLUMNS = (("intensity", True), ("time", False))
LEAST = 2  # rows of a buffer
LARGE = (1 << 20, 1 << 22)  # buckets for scans of many sweeps; a graph costs nothing until it runs
Arrays = Tuple[np.ndarray, np.ndarray, np.ndarray, int]  # boxes, scores, labels; overflow
Scan = Union[str, Path, Tensor, np.ndarray, PointCloud, PointTable]


class Box(NamedTuple):
    """An object in the coordinates of its scan: x, y, z of the center and l, w, h in meters, yaw in
    radians about +z from +x; vx, vy in m/s, None from a detector without velocities."""

    class_name: str
    score: float
    x: float
    y: float
    z: float
    l: float  # noqa: E741 (the length)
    w: float
    h: float
    yaw: float
    vx: Optional[float] = None
    vy: Optional[float] = None


@dataclass(frozen=True, eq=False)
class Boxes:
    """The boxes of a scan by falling score: a sequence of `Box`, and the same as arrays, boxes
    [K, 7 or 9] (x, y, z, l, w, h, yaw, vx, vy), scores [K] and labels [K], indices of classes.
    overflow: candidates past the detector's cap."""

    boxes: np.ndarray
    scores: np.ndarray
    labels: np.ndarray
    classes: Tuple[str, ...]
    overflow: int

    def __len__(self) -> int:
        return len(self.scores)

    @overload
    def __getitem__(self, index: int) -> Box: ...

    @overload
    def __getitem__(self, index: slice) -> List[Box]: ...

    def __getitem__(self, index: Union[int, slice]) -> Union[Box, List[Box]]:
        if isinstance(index, slice):
            return list(self)[index]
        name = self.classes[int(self.labels[index])]
        return Box(name, float(self.scores[index]), *self.boxes[index].tolist())

    def __iter__(self) -> Iterator[Box]:
        return (self[i] for i in range(len(self)))


class Detector:
    """A detector to call with one scan at a time: `Detector("center_world_small")(scan)` returns
    its `Boxes`.

    model: a file of `torchvox train`, `import` or `models.save`, the name of a model with weights,
        a TorchScript program of `torchvox export`, or a network in memory, which is copied. Of a
        network batch norms are fused and heads merged; on a GPU it runs in CUDA graphs.
    score: the least of a box; a network has a threshold of its own below that (`detections.score`).
    device: None: that of the network in memory, else the GPU if there is one; the CPU for an ONNX
        file where onnxruntime has no CUDA.

    Attributes: classes, names in the order of the labels; columns of a scan; point_cloud_range, the
    space that it sees, (x0, y0, z0, x1, y1, z1) in meters; score; device. A detector is for one
    thread at a time. Raises CheckpointError for a file that is not a detector.

    >>> detect = torchvox.models.Detector("center_world_small", device="cpu")
    >>> boxes = detect(torchvox.data.generate_scan())
    >>> detect.classes
    ('Car', 'Pedestrian', 'Cyclist')
    """

    def __init__(
        self,
        model: Union[str, Path, nn.Module],
        score: float = 0.3,
        device: Union[str, torch.device, None] = None,
    ) -> None:
        expect(0 <= score <= 1, "Detector: score must be from 0 to 1", score)
        self.score = score
        self.device = _device_of(model) if device is None else torch.device(device)
        name = type(model).__name__ if isinstance(model, nn.Module) else str(named_file(model))
        network = (
            model if isinstance(model, nn.Module) else _network(named_file(model), self.device)
        )
        if not all(hasattr(network, n) for n in ("classes", "columns", "point_cloud_range")):
            raise CheckpointError(f"{name} is not a detector")
        self.classes: Tuple[str, ...] = tuple(network.classes)
        self.columns = int(network.columns)
        self.point_cloud_range: Tuple[float, ...] = tuple(network.point_cloud_range)
        if not 3 <= self.columns <= 3 + len(COLUMNS):
            raise CheckpointError(f"{name} sees {self.columns} columns, where 3 to 5 are known")
        scale: Any = getattr(network, "column_scale", ())  # of the columns; one factor if all are 1
        factor = float(scale[3]) if len(scale) > 3 else 1.0
        # The highest intensity; None once a scan has been compared with it.
        self._intensities = 1 / factor if factor > 0 and self.columns > 3 else None
        self._call: Callable[[Tensor], Arrays]
        if isinstance(network, DetectionNet):
            fast = copy.deepcopy(network) if is_fused(network) else fuse_batch_norms(network)
            network = (merge_heads(fast) if can_merge(fast) else fast).to(self.device).eval()
            if self.device.type == "cuda":
                self._call = _Graphs(network, self.device)
                return
        self._call = lambda points: _called(network, points, self.device)

    @torch.inference_mode()
    def __call__(self, scan: Scan, layout: Optional[str] = None) -> Boxes:
        """The boxes of a scan whose score is `score` at least, the best one first.

        scan: [N, columns] of any float type, a tensor on any device or an array, x, y, z in meters
        around the sensor first, then intensity and time (which may be absent: 0); a PointCloud or a
        PointTable; or the path of a file, with its layout where it does not name its columns
        ("kitti" of a .bin). Warns once if the intensities do not fit the network.
        Raises WrongUseError for a scan of other columns, CloudFileError for a file that cannot be
        read and for coordinates that are not relative to the sensor.
        """
        boxes, scores, labels, overflow = self._call(self.points(scan, layout))
        kept = np.flatnonzero(scores >= self.score)
        kept = kept[np.argsort(-scores[kept], kind="stable")]
        return Boxes(boxes[kept], scores[kept], labels[kept], self.classes, overflow)

    def points(self, scan: Scan, layout: Optional[str] = None) -> Tensor:
        """What the network sees of a scan: [N, columns] float32, where the scan is."""
        if isinstance(scan, (str, Path)):
            scan = read_cloud(scan, layout)
        if isinstance(scan, PointTable):
            scan = TableReader(scan).cloud()
        if isinstance(scan, PointCloud):
            scan = columns_of(scan, self.columns)
        if isinstance(scan, np.ndarray) and scan.dtype.kind in "fiu":
            scan = np.asarray(scan, np.float32, order="C")
            scan = torch.from_numpy(scan if scan.flags.writeable else scan.copy())
        names = ("x", "y", "z", *(name for name, _ in COLUMNS))[: self.columns]
        least = min(self.columns, 3 + sum(needed for _, needed in COLUMNS))
        shape = list(scan.shape) if isinstance(scan, Tensor) else []
        if not isinstance(scan, Tensor) or len(shape) != 2 or not least <= shape[1] <= self.columns:
            rule = f"Detector: scan must be one scan, [N, {self.columns}] of {', '.join(names)}"
            got = shape if isinstance(scan, Tensor) else getattr(scan, "dtype", type(scan).__name__)
            raise WrongUseError(f"{rule}, a tensor, an array, a cloud or a path; got {got}")
        points = scan.float()
        if points.size(1) < self.columns:
            points = nn.functional.pad(points, (0, self.columns - points.size(1)))
        if self._intensities is not None and len(points):
            self._check_intensities(points[:, 3], self._intensities)
            self._intensities = None
        return points

    def _check_intensities(self, column: Tensor, top: float) -> None:
        high = float(torch.where(column.isfinite(), column, 0.0).max())
        if high > 1.5 * top or (top > 1 and 0 < high <= 1):
            words = f"intensities reach {high:g}, where the detector was trained on 0 to {top:g}"
            warnings.warn(f"{words}: scale them, or its boxes are wrong", stacklevel=5)


class _Graphs:
    """A network in CUDA graphs; points cross to the GPU in one copy, outputs back in one that is
    part of the graph."""

    def __init__(self, network: DetectionNet, device: torch.device) -> None:
        self.network = network
        buckets = (*BUCKETS, *LARGE)
        columns = network.columns
        self.runner = GraphRunner(self._run, columns=columns, buckets=buckets, device=device)
        self.points = torch.empty(0, columns)
        self.outputs: Optional[Tensor] = None  # in pinned memory, written by every graph
        self.shape = (0, 0)  # of the boxes

    def _run(self, points: Tensor, num_points: Tensor) -> Tensor:
        outputs = self.network(points, num_points)
        packed = pack(outputs)
        if self.outputs is None:
            self.shape = (outputs[0].size(1), outputs[0].size(2))
            self.outputs = torch.empty(packed.shape, pin_memory=True)
        self.outputs.copy_(packed, non_blocking=True)
        return packed

    def __call__(self, points: Tensor) -> Arrays:
        if not points.is_cuda and not points.is_pinned():
            if len(points) > len(self.points):
                size = len(self.runner.prepare(len(points)).points[0])
                self.points = torch.empty(size, points.size(1), pin_memory=True)
            points = self.points[: len(points)].copy_(points)
        self.runner(points)
        torch.cuda.current_stream(self.runner.device).synchronize()
        assert self.outputs is not None
        return unpack(self.outputs.numpy(), *self.shape)


def pack(outputs: Tuple[Tensor, ...]) -> Tensor:
    """The outputs of a network for one scan as one tensor [n] float32, integers by their bits."""
    return torch.cat([t.view(torch.float32).flatten() for t in outputs])


def unpack(packed: np.ndarray, rows: int, width: int) -> Arrays:
    """The arrays in `pack`, of the rows in use: views of it."""
    first, last = rows * width, rows * (width + 1)
    whole = packed.view(np.int32)
    count, overflow = whole[-2:].tolist()
    boxes, scores, labels = packed[:first].reshape(rows, width), packed[first:last], whole[last:-2]
    return boxes[:count], scores[:count], labels[:count], overflow


def _called(network: Any, points: Tensor, device: torch.device) -> Arrays:
    """Raises CheckpointError for outputs of a foreign program that are not boxes."""
    count = torch.tensor([len(points)], dtype=torch.int32, device=device)
    if len(points) < LEAST:
        points = nn.functional.pad(points, (0, 0, 0, LEAST - len(points)))
    outputs = network(points.to(device)[None], count)
    tensors = tuple(outputs) if isinstance(outputs, (list, tuple)) else ()
    dims = [one.dim() if isinstance(one, Tensor) else -1 for one in tensors]
    if dims == [3, 2, 2, 1, 1] and tensors[0].size(2) in (7, 9):
        boxes, scores, labels, kept, overflow = (t[0].cpu().numpy() for t in tensors)
        n = int(kept)
        if 0 <= n <= min(len(boxes), len(scores), len(labels)):
            boxes, scores, labels = boxes[:n], scores[:n], labels[:n]
            labelled = ((labels >= 0) & (labels < len(network.classes))).all()
            if labelled and np.isfinite(boxes).all() and np.isfinite(scores).all():
                return boxes, scores, labels, int(overflow)
    raise CheckpointError(
        "the program must give boxes [1, K, 7 or 9], scores, labels, count and overflow, with "
        f"finite boxes and labels of its {len(network.classes)} classes in the first rows"
    )


def columns_of(cloud: PointCloud, count: int) -> np.ndarray:
    """[N, count] float32, the columns that a detector sees. Raises WrongUseError for a cloud that
    lacks one, CloudFileError for coordinates far from its sensor."""
    name = cloud.path if cloud.path and cloud.path.name else "the cloud"
    if any(cloud.origin):
        words = "coordinates are not relative to the sensor, which a detector needs"
        raise CloudFileError(f"{name}: {words}")
    rows = np.zeros((len(cloud), count), np.float32)
    rows[:, :3] = cloud.points[:, :3]
    for i, (column, needed) in enumerate(COLUMNS[: count - 3], start=3):
        values = cloud.column(column)
        if values is not None:
            rows[:, i] = values
        elif needed:
            raise WrongUseError(
                f"{name} has no {column} column, which the detector sees: check its layout"
            )
    return rows


def _device_of(model: Union[str, Path, nn.Module]) -> torch.device:
    """Where a network in memory is; for others the current GPU if torchvox can use one."""
    if isinstance(model, nn.Module):
        return next((t.device for t in model.parameters()), torch.device("cpu"))
    usable = bool(BUILD_INFO["cuda"]) and torch.cuda.is_available()
    if usable and named_file(model).suffix == ".onnx":
        from torchvox.onnx import has_cuda

        usable = has_cuda()
    return torch.device("cuda", torch.cuda.current_device()) if usable else torch.device("cpu")


def _script(path: Union[str, Path], device: torch.device) -> Any:
    try:
        return torch.jit.load(str(path), map_location=device).eval()
    except RuntimeError as error:
        reason = str(error).strip().split("\n")[0]
        raise CheckpointError(f"{path} cannot be read as a program: {reason}") from None


def _onnx(path: Path, device: torch.device) -> Any:
    from torchvox.onnx import Program

    return Program(path, device)


def _network(path: Path, device: torch.device) -> Any:
    """A program, or the network of a checkpoint. Raises CheckpointError."""
    if not path.is_file():
        names = ", ".join(name for name in list_models("detect") if get_model_weights(name))
        raise CheckpointError(f"{path} is not a file, nor a detector with weights: {names}")
    if path.suffix == ".onnx":
        return _onnx(path, device)
    is_script = checkpoints.kind_of_program(path) == "script"
    return _script(path, device) if is_script else checkpoints.load(path)


def load_form(
    path: Union[str, Path], device: torch.device, trust_code: bool = False, detector: bool = True
) -> Any:
    """A model as it is kept, unchanged: a checkpoint of torchvox.models, the name of a model with
    weights, an ONNX file, a TorchScript program, or one of torch.export or AOTInductor, which may
    hold any code and so needs trust_code. detector: it must be one, as far as it says what it is.
    Raises CheckpointError, WrongUseError."""
    path = named_file(path)
    onnx = Path(path).suffix == ".onnx"
    kind = None if onnx else checkpoints.kind_of_program(path)
    if kind in ("export", "aoti"):
        if not trust_code:
            raise WrongUseError(f"{path} may hold any code: if you trust it, give --trust-code")
        return load_program(path, kind)
    model: Any = _onnx(Path(path), device) if onnx else None
    if model is None:
        model = _script(path, device) if kind else checkpoints.load(path).to(device)
    if detector and not hasattr(model, "point_cloud_range"):
        raise CheckpointError(f"{path} is not a detector")
    return model
