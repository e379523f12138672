# SPDX-License-Identifier: Apache-2.0
"""An ONNX file of `torchvox export` as a function of tensors, with what it says of itself."""

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from torchvox._util.errors import TorchvoxError, WrongUseError, short
from torchvox._util.extras import require
from torchvox.onnx.translate import VERSION

if TYPE_CHECKING:
    from onnxruntime import InferenceSession


class Program:
    """A model in ONNX Runtime. Called with the tensors of the model, it returns its outputs on the
    CPU: one tensor, or a tuple of several.

    path: a file of `torchvox export --format onnx`. device: "cpu", or "cuda" where ONNX Runtime has
    its CUDA provider.
    Attributes: facts, what the file says of itself by name; batch, the number of clouds that it
    takes at once, None for any; of a detector also classes, columns, point_cloud_range and
    column_scale. It may be called from several threads.
    Raises TorchvoxError for a file that is not such a model or of a newer torchvox, WrongUseError
    for the device; a call does for inputs that the file does not take.
    """

    def __init__(self, path: str | Path, device: str | torch.device = "cpu") -> None:
        from torchvox.onnx import CudaSession, session

        runtime = require("onnxruntime", "to run ONNX files")
        self.path = path
        self.gpu: CudaSession | None = None
        try:
            if torch.device(device).type == "cuda":
                self.gpu = CudaSession(path, device)
            self.session: InferenceSession = self.gpu.session if self.gpu else session(path)
        except TorchvoxError:
            raise
        except Exception as error:
            raise TorchvoxError(f"{path} cannot be run by ONNX Runtime: {_reason(error)}") from None
        self.options = runtime.RunOptions()
        self.options.log_severity_level = 4  # what fails is raised, and not printed too
        facts = self.session.get_modelmeta().custom_metadata_map
        self.facts = {key.removeprefix("torchvox."): value for key, value in facts.items()}
        shape = self.session.get_inputs()[0].shape if self.session.get_inputs() else []
        self.batch: int | None = shape[0] if shape and isinstance(shape[0], int) else None
        try:
            newer = int(self.facts.get("domain", VERSION)) > VERSION
            if self.facts.get("task") == "detect":
                self._read_detector()
        except (LookupError, ArithmeticError, ValueError, TypeError, RecursionError) as error:
            words = "its metadata are not those of torchvox export"
            raise TorchvoxError(f"{path} is damaged: {words} ({short(error)})") from None
        if newer:
            version = short(self.facts.get("version", "unknown"))
            raise TorchvoxError(f"{path} is of a newer torchvox ({version}): upgrade torchvox")

    def _read_detector(self) -> None:
        self.classes: list[str] = [str(name) for name in json.loads(self.facts["classes"])]
        self.columns = int(self.facts["columns"])
        limits, scale = (
            [float(value) for value in json.loads(self.facts[name])]
            for name in ("point_cloud_range", "column_scale")
        )
        self.point_cloud_range: list[float] = limits
        self.column_scale: list[float] = scale
        if len(limits) != 6 or not all(map(math.isfinite, limits + scale)):
            raise ValueError("a range and a scale must be finite numbers")

    def __call__(self, *tensors: Tensor) -> Tensor | tuple[Tensor, ...]:
        names = [one.name for one in self.session.get_inputs()]
        if len(names) != len(tensors):
            raise TorchvoxError(f"{self.path} takes {', '.join(names)}, got {len(tensors)} inputs")
        if self.batch is not None and len(tensors[0]) != self.batch:
            raise WrongUseError(
                f"{self.path} takes {self.batch} clouds at once, got {len(tensors[0])}: export it "
                "with another --batch"
            )
        try:
            if self.gpu is not None:
                outputs = tuple(out.cpu() for out in self.gpu(*tensors))
            else:
                arrays = [one.cpu().contiguous().numpy() for one in tensors]
                feeds = dict(zip(names, arrays, strict=True))
                found = self.session.run(None, feeds, self.options)
                outputs = tuple(map(torch.from_numpy, found))
        except Exception as error:  # of ONNX Runtime, whose classes have no other base
            raise TorchvoxError(f"{self.path} does not run: {_reason(error)}") from None
        return outputs if len(outputs) > 1 else outputs[0]


def _reason(error: Exception) -> str:
    """What a node says, or all of it."""
    text = str(error)
    for words in ("Status Message: ", "Exception during initialization: "):
        text = text.rpartition(words)[2]
    return short(text)
