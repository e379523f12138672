# SPDX-License-Identifier: Apache-2.0
"""torchvox export: models as programs that need no Python."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from torchvox._util.errors import TorchvoxError, WrongUseError
from torchvox.cli import options
from torchvox.cli.options import argument, check_outputs, option, option_class
from torchvox.cli.work import console, use_device
from torchvox.io import atomic_path

if TYPE_CHECKING:
    from torchvox.models.export import Agreement

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
# Share of the largest output: layers may sum in another order, in the dtype of their weights.
TOLERANCE = {"float32": 1e-4, "bfloat16": 2e-2, "float16": 5e-3}
# Share of a detector's boxes that may come or go: scores near the threshold and overlaps near the
# limit are rounded differently.
STRAYS = 0.02


@option_class
class ExportOptions:
    model: Path = argument(
        ...,
        "A file from torchvox import or train, or a name such as center_world_small.",
        metavar="MODEL",
    )
    kind: str = option(
        "script",
        "script (TorchScript), export (torch.export), aoti (AOTInductor) or onnx (ONNX Runtime).",
        "--format",
    )
    batch: int | None = option(
        None, "Number of clouds that an ONNX file takes at once.", min=1, show_default="any number"
    )
    output: Path | None = option(
        None, "Output file.", "--output", "-o", show_default="next to the model"
    )
    fuse: bool = option(
        True, "Fuse batch norms into the layers: faster, with other roundings.", "--fuse/--no-fuse"
    )
    merge: bool = option(
        True, "Merge the convolutions of a detector's head, if fused.", "--merge/--no-merge"
    )
    dtype: str | None = option(
        None,
        "Type of the weights: float32, bfloat16 or float16.",
        show_default="that of a fused file, else float32",
    )
    device: options.Device = "cpu"


@options.command
def export(args: ExportOptions) -> None:
    """Export a model as a program: points [B, N, C] and lengths [B] in, scores or boxes out.

    Examples:
        torchvox export runs/mine/best.ckpt
        torchvox export model.pt --format aoti --dtype bfloat16 --device cuda
    """
    from torchvox.models import export as programs
    from torchvox.models.detection import DetectionNet

    formats, kind, dtype = programs.FORMATS, args.kind, args.dtype
    if kind not in formats:
        raise WrongUseError(f"--format must be one of {', '.join(formats)}, got {kind!r}")
    if dtype is not None and (dtype not in DTYPES or (dtype != "float32" and not args.fuse)):
        raise WrongUseError(
            f"--dtype must be one of {', '.join(DTYPES)}, and float32 with --no-fuse, got {dtype!r}"
        )
    options.check_model(args.model)
    target = args.output or args.model.with_name(args.model.stem + formats[kind])
    check_outputs([args.model], {"--output": target})
    device = use_device("cpu" if kind == "onnx" else args.device)  # an ONNX file has no device
    network, dtype = _network(args)
    network = network.to(device)
    # The target is replaced only once the program is known to be right.
    with atomic_path(target) as draft, warnings.catch_warnings():
        # torch.export warns about its own bytes
        warnings.filterwarnings("ignore", message="The given buffer is not writable")
        programs.export_model(network, draft, kind, args.batch)
        comparison = programs.compare(network, programs.load_program(draft, kind), batch=args.batch)
        _check(target, comparison, dtype)
        if kind == "onnx":
            from torchvox.onnx import add_facts

            add_facts(draft, {"parity": json.dumps(comparison._asdict())})
    apart = f"within {comparison.difference:.2g} of it"
    words = "the bits of the model" if comparison.same_bits else apart
    if not comparison.boxes and isinstance(network, DetectionNet):
        words = "not compared, for the model has no box"
    if comparison.strays:
        words += f", {100 * comparison.strays:.1f} % of the boxes apart"
    console().print(
        f"wrote {target}: {_signature(network)}; {words}, over full, short, single-point and empty "
        "clouds",
        soft_wrap=True,
        markup=False,
    )


def _network(args: ExportOptions) -> tuple[torch.nn.Module, str | None]:
    """The model as it is exported, fused and merged, and the dtype of its weights."""
    from torchvox.models.detection import DetectionNet
    from torchvox.models.fuse import (
        can_merge,
        fuse_batch_norms,
        is_fused,
        merge_heads,
        weight_dtype,
    )

    network, dtype = stored_network(args.model), args.dtype
    if is_fused(network):
        stored = str(weight_dtype(network)).removeprefix("torch.")
        if dtype not in (None, stored):
            raise WrongUseError(
                f"--dtype {dtype}: {args.model} is fused with weights of {stored}; export the file "
                "that it was fused from"
            )
        dtype = stored
    elif args.fuse:
        network = fuse_batch_norms(network, None if dtype in (None, "float32") else DTYPES[dtype])
    if isinstance(network, DetectionNet) and args.merge and is_fused(network):
        network = merge_heads(network) if can_merge(network) else network
    return network, dtype


def stored_network(model: Path) -> torch.nn.Module:
    """The network of a file of torchvox import or train, or of a name, on the CPU."""
    from torchvox.models import checkpoints
    from torchvox.models.registry import named_file

    path = Path(named_file(model))
    if path.suffix == ".ckpt":
        from torchvox.train import load_checkpoint

        return load_checkpoint(path).model
    return checkpoints.load(path)


def _check(target: Path, comparison: Agreement, dtype: str | None) -> None:
    """Raises TorchvoxError for a program that differs too much from its model."""
    limit = TOLERANCE.get(dtype or "", 1e-4) * max(1.0, comparison.greatest)
    if not comparison.difference <= limit or not comparison.strays <= STRAYS:  # NaN fails too
        strays = comparison.strays
        boxes = f", and in {100 * strays:.1f} % of the boxes" if strays else ""
        raise TorchvoxError(
            f"{target} is not written: the program differs from the model by "
            f"{comparison.difference:.3g}{boxes}"
        )


def _signature(network: torch.nn.Module) -> str:
    from torchvox.models.detection import DetectionNet

    if isinstance(network, DetectionNet):
        return "points, num_points -> boxes, scores, labels, count, overflow"
    category = "category, " * hasattr(network, "num_categories")
    return f"points, {category}lengths -> scores"
