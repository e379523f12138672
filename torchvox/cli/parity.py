# SPDX-License-Identifier: Apache-2.0
"""torchvox parity: an exported model beside the model that it was made from."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import typer

from torchvox._build import BUILD_INFO
from torchvox._util.errors import TorchvoxError
from torchvox._util.extras import require
from torchvox.cli import options
from torchvox.cli.commands import write_json
from torchvox.cli.detect import noted_points
from torchvox.cli.exporting import stored_network
from torchvox.cli.options import argument, check_outputs, option, option_class
from torchvox.cli.work import attempt_each, console, milliseconds, table_of, use_device
from torchvox.data.readers import objects
from torchvox.io import PointCloud

if TYPE_CHECKING:
    from torchvox.models.artefact import Parity
    from torchvox.models.export import Inputs


@option_class
class ParityOptions(options.ScanOptions):
    model: Path = argument(
        ...,
        "A file from torchvox import or train, or a name such as center_world_small.",
        metavar="MODEL",
    )
    artefact: Path = argument(..., "A file that torchvox export made of it.", metavar="ARTEFACT")
    paths: list[Path] = argument(..., "Scans, or folders of them.", metavar="SCANS...")
    layout: options.Layout = None
    score: float = option(
        0.1, "Compare the boxes of at least this score.", min=0.0, max=1.0, metavar="X"
    )
    json: options.Json = None
    trust_code: bool = option(
        False, "Allow an artefact of torch.export or AOTInductor (runs its code)."
    )
    device: options.Device = "cpu"


@options.command
def parity(args: ParityOptions) -> None:
    """Compare an exported model with its model on your scans: boxes or scores, and times.

    The exit code is 1 if they differ by more than rounding.

    Examples:
        torchvox parity center_world_small center_world_small.onnx scans/ --layout kitti
        torchvox parity best.ckpt best.export.pt2 scans/ --trust-code --json parity.json
    """
    from torchvox.models.artefact import Comparison
    from torchvox.models.detection.running import load_form

    options.check_model(args.model)
    options.check_model(args.artefact)
    files = args.clouds(args.paths)
    check_outputs([*files, args.model, args.artefact], {"--json": args.json})
    read = options.cloud_reader(files, args.layout)
    device = use_device(args.device, args.artefact)
    model = stored_network(args.model).to(device)
    artefact = load_form(args.artefact, device, args.trust_code, detector=False)
    comparison, inputs = Comparison(model, artefact, args.score), _reader(model)

    def work(number: int) -> None:
        comparison.add(files[number].name, inputs(read(files[number]), number))

    failed = attempt_each(files, work)
    if not comparison.results:
        raise typer.Exit(1)
    result = comparison.parity()
    _print(args, result)
    write_json(args.json, _facts(args, result, artefact, device))
    if result.boxes == 0:
        raise TorchvoxError(
            f"no scan has a box with a score of {args.score:g} or more, so nothing was compared: "
            "give scans with objects, or a lower --score"
        )
    if not result.holds:
        alone = f"{result.strays:,} of {result.boxes:,} boxes have no match"
        apart = f"{result.difference:.2g} apart where {result.limit:.2g} is the limit"
        raise TorchvoxError(
            f"{args.artefact} differs from {args.model}, most in {result.worst}: "
            f"{alone if result.strays > result.stray_limit else apart}"
        )
    if failed:
        raise typer.Exit(1)


def _reader(model: torch.nn.Module) -> Callable[[PointCloud, int], Inputs]:
    """What makes the inputs of a model from a cloud and its number."""
    from torchvox.models import Detector, MinkUNet
    from torchvox.models.detection import DetectionNet
    from torchvox.models.detection.running import LEAST, columns_of

    detector = Detector(model, device="cpu") if isinstance(model, DetectionNet) else None
    columns: Any = getattr(model, "in_channels", None)

    def rows(cloud: PointCloud) -> torch.Tensor:
        if detector is not None:
            return noted_points(detector, cloud)
        if isinstance(model, MinkUNet):
            return torch.from_numpy(columns_of(cloud, columns))
        clean = objects.finite_points(cloud)
        table = np.zeros((len(clean), columns), np.float32)
        table[:, :3] = objects.unit_sphere(clean)
        more = clean.points[:, 3:columns]
        table[:, 3 : 3 + more.shape[1]] = np.where(np.isfinite(more), more, 0)
        return torch.from_numpy(table)

    def inputs(cloud: PointCloud, number: int) -> Inputs:
        points = rows(cloud)
        dtype = torch.int64 if detector is None else torch.int32
        lengths = torch.tensor([len(points)], dtype=dtype)
        if len(points) < LEAST:
            points = torch.nn.functional.pad(points, (0, 0, 0, LEAST - len(points)))
        kinds = getattr(model, "num_categories", None)
        category = () if kinds is None else (torch.tensor([number % kinds]),)
        return (points[None], *category, lengths)

    return inputs


def _print(args: ParityOptions, result: Parity) -> None:
    rows = [("scans", f"{result.scans:,}", "")]
    if result.boxes:
        rows += [
            ("boxes, model and artefact", f"{result.boxes:,}", ""),
            ("unmatched boxes", f"{result.strays:,}", f"{result.stray_limit:,}"),
            ("greatest difference of scores", f"{result.score_difference:.2g}", ""),
        ]
    rows += [
        ("greatest difference", f"{result.difference:.2g}", f"{result.limit:.2g}"),
        ("same bits", "yes" if result.same_bits else "no", ""),
        ("time of the model", milliseconds(1e3 * result.seconds_model), ""),
        ("time of the artefact", milliseconds(1e3 * result.seconds_artefact), ""),
    ]
    title = f"{args.artefact} beside {args.model}, weights of {result.dtype}"
    numbers, out = ("value", "at most"), console()
    out.print(title, soft_wrap=True, markup=False, style="bold")
    out.print(table_of("", ("", *numbers), rows, right=numbers))
    words = "they agree" if result.holds else "they differ"
    if result.boxes == 0:
        words = "no box was compared"
    out.print(f"{words}; worst scan: {result.worst}", soft_wrap=True, markup=False)


def _facts(
    args: ParityOptions, result: Parity, artefact: object, device: torch.device
) -> dict[str, object]:
    """For JSON, which has no NaN."""
    on_gpu, own = device.type == "cuda", getattr(artefact, "facts", {})
    tf32 = on_gpu and own.get("dtype") == "float16"  # of ONNX Runtime alone
    versions = {"torchvox": BUILD_INFO["version"], "torch": str(torch.__version__)}
    if hasattr(artefact, "session"):
        versions["onnxruntime"] = require("onnxruntime", "to run ONNX files").__version__
    return {
        **{k: None if v != v else v for k, v in result._asdict().items()},
        "holds": result.holds,
        "score": args.score,
        "device": torch.cuda.get_device_name(device) if on_gpu else "cpu",
        "host": "ONNX Runtime" if hasattr(artefact, "session") else "torch",
        "tf32": tf32,
        "versions": versions,
        "weights_sha256": own.get("weights_sha256"),
    }
