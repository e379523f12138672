# SPDX-License-Identifier: Apache-2.0
"""torchvox export: models as programs that need no Python."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import torch
import typer

from torchvox._errors import TorchvoxError, WrongUseError
from torchvox.cli.options import Device, DeviceChoice
from torchvox.cli.work import choose_device, console, note

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
# Of the greatest output: another order of the sums of a layer, in the dtype of its weights.
TOLERANCE = {"float32": 1e-4, "bfloat16": 2e-2, "float16": 5e-3}


def export(
    model: Annotated[
        Path, typer.Argument(metavar="MODEL", help="A file of torchvox import or torchvox train.")
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
    fold: Annotated[
        bool, typer.Option(help="Fold batch norms into the layers: faster, rounded differently.")
    ] = True,
    dtype: Annotated[str, typer.Option(help="Of the weights: float32, bfloat16, float16.")] = (
        "float32"
    ),
    device: Device = DeviceChoice.cpu,
) -> None:
    """Write a model as a program: points [B, N, C] and lengths [B] in, scores out."""
    from torchvox.models import checkpoints
    from torchvox.models import export as programs
    from torchvox.models.fold import fold_batch_norms, is_folded

    if kind not in programs.FORMATS:
        raise WrongUseError(f"--format must be one of {', '.join(programs.FORMATS)}, got {kind!r}")
    if dtype not in DTYPES or (dtype != "float32" and not fold):
        raise WrongUseError(
            f"--dtype must be one of {', '.join(DTYPES)}, and float32 with --no-fold, got {dtype!r}"
        )
    where, name = choose_device(device)
    note(f"device: {name}")
    network = checkpoints.load(model)
    if fold and not is_folded(network):
        network = fold_batch_norms(network, None if dtype == "float32" else DTYPES[dtype])
    network = network.to(where)
    target = output or model.with_name(model.name.split(".")[0] + programs.FORMATS[kind])
    programs.export_model(network, target, kind)
    found = programs.compare(network, programs.load_program(target, kind))
    if not found.difference <= TOLERANCE[dtype] * max(1.0, found.greatest):  # NaN fails too
        raise TorchvoxError(f"{target} differs from the model by {found.difference:.3g}")
    words = "the bits of the model" if found.same_bits else f"within {found.difference:.2g} of it"
    inputs = (
        "points, category, lengths" if hasattr(network, "num_categories") else "points, lengths"
    )
    console().print(
        f"wrote {target}: {inputs} -> scores; {words}, over full, short, single-point and empty "
        "clouds",
        soft_wrap=True,
        markup=False,
    )
