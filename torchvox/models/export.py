# SPDX-License-Identifier: Apache-2.0
"""Models as programs that need no Python: TorchScript, torch.export, AOTInductor."""

from pathlib import Path
from typing import Callable, Dict, NamedTuple, Tuple, Union

import torch
from torch import Tensor, nn

from torchvox._errors import WrongUseError

FORMATS = {"script": ".script.pt", "export": ".export.pt2", "aoti": ".aoti.pt2"}
CLOUDS = 2
Inputs = Tuple[Tensor, ...]


class Agreement(NamedTuple):
    """same_bits: of every output on every input. difference, greatest: of any output."""

    same_bits: bool
    difference: float
    greatest: float


def example_inputs(model: nn.Module, lengths: Tuple[int, ...], seed: int = 0) -> Inputs:
    """What the program of a model takes: points [B, N, C], category [B] for a part segmenter, and
    lengths [B] int64. N is the greatest length, at least 2; NaN past the lengths."""
    generator = torch.Generator().manual_seed(seed)
    count, device = max(2, *lengths), next(model.parameters()).device
    points = torch.rand(len(lengths), count, model.in_channels, generator=generator) * 2 - 1
    sizes = torch.tensor(lengths)
    points[torch.arange(count) >= sizes[:, None]] = float("nan")
    inputs: Inputs = (points, sizes)
    if hasattr(model, "num_categories"):
        inputs = (points, torch.arange(len(lengths)) % model.num_categories, sizes)
    return tuple(t.to(device) for t in inputs)


def export_program(model: nn.Module, num_points: int = 1024) -> torch.export.ExportedProgram:
    """The torch.export program of a model in evaluation, for any number of clouds and points."""
    clouds, points = torch.export.Dim("clouds", min=1), torch.export.Dim("points", min=2)
    inputs = example_inputs(model, (num_points, num_points - 1))
    shapes: Tuple[Dict[int, object], ...] = ({0: clouds, 1: points},)
    shapes += tuple({0: clouds} for _ in inputs[1:])
    with torch.no_grad():
        return torch.export.export(model.eval(), inputs, dynamic_shapes=shapes)


def export_model(model: nn.Module, path: Union[str, Path], kind: str) -> None:
    """Writes the program of a model, on the device where it is.

    kind: "script", for torch.jit.load; "export", for torch.export.load; "aoti", compiled ahead of
    time by the compiler of this machine, for torch._inductor.aoti_load_package. Each takes the
    tensors of `example_inputs`, from C++ too, after the library of the ops is loaded.
    """
    if kind not in FORMATS:
        raise WrongUseError(f"the format must be one of {', '.join(FORMATS)}, got {kind!r}")
    if kind == "script":
        torch.jit.script(model.eval()).save(str(path))
    elif kind == "export":
        torch.export.save(export_program(model), str(path))
    else:
        program = export_program(model)
        torch._inductor.aoti_compile_and_package(program, package_path=str(path))


def load_program(path: Union[str, Path], kind: str) -> Callable[..., Tensor]:
    """The program in Python, to compare it."""
    if kind == "script":
        return torch.jit.load(str(path))
    if kind == "export":
        return torch.export.load(str(path)).module()
    return torch._inductor.aoti_load_package(str(path))


@torch.no_grad()
def compare(model: nn.Module, program: Callable[..., Tensor], num_points: int = 512) -> Agreement:
    """Runs both over batches of full, short, single-point and empty clouds."""
    same, differences, values = True, [], []
    for lengths in ((num_points,) * 2, (num_points, 0, 1, num_points // 2), (num_points,)):
        inputs = example_inputs(model, lengths, seed=len(lengths))
        mine, other = model(*inputs), program(*inputs)
        other = other[0] if isinstance(other, (list, tuple)) else other
        same = same and torch.equal(mine, other)
        differences.append((mine - other).abs().max().cpu())
        values.append(mine.abs().max().cpu())
    # torch's maximum keeps a NaN, Python's loses it.
    return Agreement(same, float(torch.stack(differences).max()), float(torch.stack(values).max()))
