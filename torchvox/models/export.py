# SPDX-License-Identifier: Apache-2.0
"""Models as programs that need no Python: TorchScript, torch.export, AOTInductor, ONNX."""

import hashlib
import json
import warnings
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple, Union

import torch
from torch import Tensor, nn

from torchvox._util.errors import TorchvoxError, WrongUseError
from torchvox.io.writers import write_whole
from torchvox.models.detection import DetectionNet
from torchvox.models.fuse import weight_dtype
from torchvox.models.minkunet import MinkUNet
from torchvox.models.pointnet2 import PointNet2Classifier

FORMATS = {"script": ".script.pt", "export": ".export.pt2", "aoti": ".aoti.pt2", "onnx": ".onnx"}
SUFFIX = {"aoti": ".pt2"}  # that torch insists on
OUTPUTS = ("boxes", "scores", "labels", "count", "overflow")  # of a detector
NEAR = 0.05  # meters, and in score: boxes that are farther apart are not the same one
SCORE = -2  # the column of `_rows`
TURN = 0.1  # of the direction, a unit vector: one that is half a radian off is not the same
Inputs = Tuple[Tensor, ...]


class Agreement(NamedTuple):
    """same_bits: of every output on every input. difference, greatest: of any output; for a
    detector, of boxes and scores that belong together, and strays: boxes of one without a box of
    the other nearby, as a share of the boxes of both."""

    same_bits: bool
    difference: float
    greatest: float
    strays: float = 0.0
    boxes: int = 0
    score_difference: float = 0.0


def example_inputs(model: nn.Module, lengths: Tuple[int, ...], seed: int = 0) -> Inputs:
    """What the program of a model takes: points [B, N, C], category [B] for a part segmenter, and
    lengths [B], int64, or int32 for a detector. N is the greatest length, at least 2; NaN past the
    lengths, and for a network with a range some places NaN and some features infinite."""
    generator = torch.Generator().manual_seed(seed)
    count, device = max(2, *lengths), next(model.parameters()).device
    detects = isinstance(model, DetectionNet)
    width = model.columns if detects else model.in_channels
    points = torch.rand(len(lengths), count, width, generator=generator) * 2 - 1
    if detects or isinstance(model, MinkUNet):
        points = _scan(model, points)
    sizes = torch.tensor(lengths, dtype=torch.int32 if detects else torch.int64)
    points[torch.arange(count) >= sizes[:, None]] = float("nan")
    inputs: Inputs = (points, sizes)
    if hasattr(model, "num_categories"):
        inputs = (points, torch.arange(len(lengths)) % model.num_categories, sizes)
    return tuple(t.to(device) for t in inputs)


def _scan(model: Union[DetectionNet, MinkUNet], points: Tensor) -> Tensor:
    """Points of [-1, 1] in clumps all over the range of a network, a few past it or not finite."""
    low, high = torch.tensor(model.point_cloud_range).view(2, 3)
    points[..., :3] = points[..., :3].pow(3) * 0.55 + 0.5
    points[..., :3] = low + points[..., :3] * (high - low)
    points[..., 3:] = points[..., 3:].abs()
    points[:, 5::97, 1] = float("nan")
    points[:, 8::97, 3:] = float("inf")
    return points


def export_program(model: nn.Module, num_points: int = 1024) -> torch.export.ExportedProgram:
    """The torch.export program of a model in evaluation, for any number of clouds and points."""
    clouds, points = torch.export.Dim("clouds", min=1), torch.export.Dim("points", min=2)
    lengths: Tuple[int, ...] = (num_points, num_points - 1)
    free: Dict[int, object] = {0: clouds}
    inputs = example_inputs(model, lengths)
    shapes = ({**free, 1: points}, *(free for _ in inputs[1:]))
    with torch.no_grad():
        return torch.export.export(model.eval(), inputs, dynamic_shapes=shapes)


def task_of(model: nn.Module) -> str:
    """detect, classify, parts or segment."""
    if isinstance(model, DetectionNet):
        return "detect"
    if isinstance(model, PointNet2Classifier):
        return "classify"
    return "parts" if hasattr(model, "num_categories") else "segment"


def _export_onnx(model: nn.Module, path: Union[str, Path], batch: Optional[int]) -> None:
    from torchvox import onnx

    detects = isinstance(model, DetectionNet)
    if batch is not None and batch < 1:
        raise WrongUseError(f"batch must be 1 or more, got {batch}")
    if weight_dtype(model) == torch.bfloat16:
        raise WrongUseError("weights must be float32 or float16 in ONNX, got bfloat16")
    clouds, points = torch.export.Dim("clouds", min=1), torch.export.Dim("points", min=2)
    free: Dict[int, object] = {0: clouds} if batch is None else {}
    inputs = example_inputs(model, (1024, 1023, *[1024] * ((batch or 2) - 2))[:batch])
    names = ["points", "num_points"] if detects else ["points", "category", "lengths"]
    weights = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        weights.update(name.encode() + tensor.detach().cpu().numpy().tobytes())
    facts = {"weights_sha256": weights.hexdigest(), "task": task_of(model)}
    if detects:
        scale = model.column_scale.tolist() if model.scaled else []
        facts["classes"], facts["columns"] = json.dumps(model.classes), str(model.columns)
        facts["point_cloud_range"] = json.dumps(model.point_cloud_range)
        facts["column_scale"] = json.dumps(scale)
    try:
        onnx.export(
            model,
            inputs,
            path,
            dynamic_shapes=({**free, 1: points}, *(free for _ in inputs[1:])),
            input_names=names if len(names) == len(inputs) else [names[0], names[-1]],
            output_names=OUTPUTS if detects else ["scores"],
            metadata={f"torchvox.{key}": value for key, value in facts.items()},
        )
    except TorchvoxError as error:
        if not str(error).endswith("use a fixed batch"):
            raise
        raise WrongUseError(f"{error}: --batch 1 (batch=1)") from error


def export_model(
    model: nn.Module, path: Union[str, Path], kind: str, batch: Optional[int] = None
) -> None:
    """Writes the program of a model, on the device where it is.

    kind: "script", for torch.jit.load; "export", for torch.export.load; "aoti", compiled ahead of
    time by the compiler of this machine, for torch._inductor.aoti_load_package; "onnx", for ONNX
    Runtime, where torch is not needed (`torchvox.onnx`). Each takes the tensors of
    `example_inputs`, from C++ too, after the library of the ops is loaded.
    batch: of "onnx" alone: a fixed number of clouds; None: any.
    """
    if kind not in FORMATS:
        raise WrongUseError(f"the format must be one of {', '.join(FORMATS)}, got {kind!r}")
    if not str(path).endswith(SUFFIX.get(kind, "")):
        raise WrongUseError(f"the format {kind} is written to a {SUFFIX[kind]} file, got {path}")
    if kind == "onnx":
        _export_onnx(model, path, batch)
        return
    if batch is not None:
        raise WrongUseError(f"a batch can be fixed in the format onnx alone, got {kind}")
    if kind == "script":
        script = torch.jit.script(model.eval())
        write_whole(path, lambda buffer: torch.jit.save(script, buffer))
        return
    program = export_program(model)
    if kind == "export":
        write_whole(path, lambda buffer: torch.export.save(program, buffer))
    else:
        compile_and_package = torch._inductor.aoti_compile_and_package
        write_whole(path, lambda buffer: compile_and_package(program, package_path=buffer))


def load_program(path: Union[str, Path], kind: str) -> Callable[..., Any]:
    """The program in Python, to compare it."""
    if kind == "script":
        return torch.jit.load(str(path))
    if kind == "export":
        with warnings.catch_warnings():  # torch about its own bytes
            warnings.simplefilter("ignore", UserWarning)
            return torch.export.load(str(path)).module()
    if kind == "onnx":
        from torchvox.onnx import Program

        return Program(path)
    return torch._inductor.aoti_load_package(str(path))


@torch.no_grad()
def compare(
    model: nn.Module,
    program: Callable[..., Any],
    num_points: Optional[int] = None,
    batch: Optional[int] = None,
) -> Agreement:
    """Runs both over batches of full, short, single-point and empty clouds.

    batch: that of a program that takes no other.

    Raises TorchvoxError as `agreement` does.
    """
    detects = isinstance(model, DetectionNet)
    count = num_points or (8000 if detects else 512)
    results: List[Agreement] = []
    batches: Tuple[Tuple[int, ...], ...] = ((count,) * 2, (count, 0, 1, count // 2), (count,))
    if batch is not None:
        batches = tuple((length,) * batch for length in (count, count // 2, 1, 0))
    for lengths in batches:
        inputs = example_inputs(model, lengths, seed=len(lengths))
        results.append(agreement(model(*inputs), program(*inputs), detects))
    return worst_of(results)


def worst_of(results: Sequence[Agreement]) -> Agreement:
    """The greatest of each number, and all boxes."""
    rows = [(r.difference, r.greatest, r.strays, r.score_difference) for r in results]
    worst, greatest, strays, score = (
        torch.tensor(rows, dtype=torch.float64).amax(0).tolist()
    )  # keeps a NaN
    same, boxes = all(one.same_bits for one in results), sum(one.boxes for one in results)
    return Agreement(same, worst, greatest, strays, boxes, score)


def agreement(own: Any, answer: object, detects: bool, score: float = 0.0) -> Agreement:
    """Of the outputs of a model and the answer of its program to the same inputs.

    detects: whether they are boxes. score: the least of a box that must match one of the other.
    Raises TorchvoxError for an answer that is not tensors like those of the model.
    """
    if detects:
        return _compare_boxes(tuple(own), _outputs(answer, tuple(own), OUTPUTS), score)
    (other,) = _outputs(answer, (own,), ("scores",))
    worst = (own - other).abs().max()  # torch's maximum keeps a NaN, Python's loses it
    return Agreement(torch.equal(own, other), float(worst), _greatest(own))


def _greatest(values: Tensor) -> float:
    """The greatest magnitude of those that are finite."""
    return float(values.abs().nan_to_num(0, 0).amax()) if values.numel() else 0.0


def _outputs(answer: object, like: Inputs, names: Tuple[str, ...]) -> Inputs:
    """The outputs of a program, as tensors with the places, dtypes and shapes of `like`."""
    outputs = tuple(answer) if isinstance(answer, (list, tuple)) else (answer,)
    if len(outputs) != len(like):
        raise TorchvoxError(
            f"the program must give {len(like)} outputs ({', '.join(names)}), got {len(outputs)}: "
            f"{', '.join(_described(one) for one in outputs)}"
        )
    for name, one, other in zip(names, like, outputs, strict=True):
        if _described(one) != _described(other):
            raise TorchvoxError(
                f"output {name} of the program must be {_described(one)}, got {_described(other)}"
            )
    return outputs


def _described(value: object) -> str:
    if not isinstance(value, Tensor):
        return "None" if value is None else f"a {type(value).__name__}"
    dtype = str(value.dtype).removeprefix("torch.")
    return f"{dtype} {list(value.shape)} on {value.device.type}"


def _compare_boxes(mine: Inputs, other: Inputs, score: float = 0.0) -> Agreement:
    """Boxes may come in another order where scores are nearly equal: each belongs to one of the
    same label nearby, which may score less, and the nearest pairs are made first."""
    same = all(torch.equal(a, b) for a, b in zip(mine, other, strict=True))
    worst = worst_score = 0.0
    strays = boxes = 0
    for b in range(len(mine[0])):
        these, those = (
            _rows(*(output[b].double().cpu() for output in one[:4])) for one in (mine, other)
        )
        needed = [~(rows[:, SCORE] < score) for rows in (these, those)]  # NaN too
        alone = [one.clone() for one in needed]
        for distance, i, j in _pairs(these, those):
            if needed[0][i] or needed[1][j]:
                worst = max(worst, distance)
                worst_score = max(worst_score, float((these[i, SCORE] - those[j, SCORE]).abs()))
            alone[0][i] = alone[1][j] = False
        strays += sum(int(one.sum()) for one in alone)
        boxes += sum(int(one.sum()) for one in needed)
    return Agreement(same, worst, _greatest(mine[0]), strays / max(boxes, 1), boxes, worst_score)


def _pairs(these: Tensor, those: Tensor) -> Iterator[Tuple[float, int, int]]:
    """Distances and indices of rows within NEAR, each row in one pair, the nearest pair first."""
    apart = torch.cdist(these, those, p=float("inf"))  # which takes NaN for no distance
    numbers = these.isfinite().all(1)[:, None] & those.isfinite().all(1)
    near = (numbers & (apart <= NEAR)).nonzero()
    order = apart[near[:, 0], near[:, 1]].argsort(stable=True)
    mine, others = set(), set()
    for i, j in near[order].tolist():
        if i not in mine and j not in others:
            mine.add(i)
            others.add(j)
            yield float(apart[i, j]), i, j


def _rows(boxes: Tensor, scores: Tensor, labels: Tensor, count: Tensor) -> Tensor:
    """[count, 10 or 12]: the boxes of one scan, in numbers that are all near for the same box."""
    n = int(count)
    if not 0 <= n <= len(boxes):
        raise TorchvoxError(f"output count must be from 0 to {len(boxes)}, got {n}")
    yaw = boxes[:, 6:7]
    columns = [boxes[:, :6], TURN * yaw.cos(), TURN * yaw.sin(), boxes[:, 7:]]
    return torch.cat([*columns, scores[:, None], 1e3 * labels[:, None]], 1)[:n]
