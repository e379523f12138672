# SPDX-License-Identifier: Apache-2.0
"""torchvox export: models as programs that need no Python."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Annotated

import torch
import typer

from torchvox._errors import TorchvoxError, WrongUseError
from torchvox.cli.options import Device, DeviceChoice, check_model, check_outputs
from torchvox.cli.work import console, use_device
from torchvox.io import atomic_path

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
# Of the greatest output: another order of the sums of a layer, in the dtype of its weights.
TOLERANCE = {"float32": 1e-4, "bfloat16": 2e-2, "float16": 5e-3}
# Boxes of a detector that may come or go when scores near the threshold or overlaps near the limit
# are rounded differently.
STRAYS = 0.02


def export(
    model: Annotated[
        Path,
        typer.Argument(
            metavar="MODEL", help="A file of torchvox import or torchvox train, or a name."
        ),
    ],
    kind: Annotated[
        str,
        typer.Option(
            "--format", help="script (TorchScript), export (torch.export) or aoti (AOTInductor)."
        ),
    ] = "script",
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="The program; without it beside the model."),
    ] = None,
    fuse: Annotated[
        bool, typer.Option(help="Fuse batch norms into the layers: faster, rounded differently.")
    ] = True,
    merge: Annotated[
        bool, typer.Option(help="Merge the convolutions of a detector's head, when fused.")
    ] = True,
    dtype: Annotated[
        str | None,
        typer.Option(
            help="Of the weights: float32, bfloat16, float16. Without it float32, or that of a "
            "fused file.",
            show_default=False,
        ),
    ] = None,
    device: Device = DeviceChoice.cpu,
) -> None:
    """Write a model as a program: points [B, N, C] and lengths [B] in, scores or boxes out."""
    from torchvox.models import checkpoints
    from torchvox.models import export as programs
    from torchvox.models.detection import PillarDetector
    from torchvox.models.fuse import can_merge, fuse_batch_norms, is_fused, merge_heads
    from torchvox.models.registry import named_file

    if kind not in programs.FORMATS:
        raise WrongUseError(f"--format must be one of {', '.join(programs.FORMATS)}, got {kind!r}")
    if dtype is not None and (dtype not in DTYPES or (dtype != "float32" and not fuse)):
        raise WrongUseError(
            f"--dtype must be one of {', '.join(DTYPES)}, and float32 with --no-fuse, got {dtype!r}"
        )
    check_model(model)
    target = output or model.with_name(model.stem + programs.FORMATS[kind])
    check_outputs([model], {"--output": target})
    where = use_device(device)
    network = checkpoints.load(named_file(model))
    if is_fused(network):
        stored = str(next(network.parameters()).dtype).removeprefix("torch.")
        if dtype not in (None, stored):
            raise WrongUseError(
                f"--dtype {dtype}: {model} is fused with weights of {stored}, take the file that "
                "it was fused from"
            )
        dtype = stored
    elif fuse:
        network = fuse_batch_norms(network, None if dtype in (None, "float32") else DTYPES[dtype])
    detects = isinstance(network, PillarDetector)
    if detects and merge and is_fused(network) and can_merge(network):
        network = merge_heads(network)
    network = network.to(where)
    with (
        atomic_path(target) as draft,
        warnings.catch_warnings(),
    ):  # which replaces the target once it is known to be right
        # Of torch.export, about its own bytes.
        warnings.filterwarnings("ignore", message="The given buffer is not writable")
        programs.export_model(network, draft, kind)
        found = programs.compare(network, programs.load_program(draft, kind))
        allowed = TOLERANCE.get(dtype or "", 1e-4) * max(1.0, found.greatest)
        if not found.difference <= allowed or not found.strays <= STRAYS:  # NaN fails too
            strays = f", and in {100 * found.strays:.1f} % of the boxes" if detects else ""
            raise TorchvoxError(
                f"{target} is not written: the program differs from the model by "
                f"{found.difference:.3g}{strays}"
            )
    words = "the bits of the model" if found.same_bits else f"within {found.difference:.2g} of it"
    if found.strays:
        words += f", {100 * found.strays:.1f} % of the boxes apart"
    inputs, outputs = "points, lengths", "scores"
    if detects:
        inputs, outputs = "points, num_points", "boxes, scores, labels, count, overflow"
    elif hasattr(network, "num_categories"):
        inputs = "points, category, lengths"
    console().print(
        f"wrote {target}: {inputs} -> {outputs}; {words}, over full, short, single-point and empty "
        "clouds",
        soft_wrap=True,
        markup=False,
    )
