# SPDX-License-Identifier: Apache-2.0
"""An ONNX file of `torchvox export` as a function of tensors, with what it says of itself."""

import json
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from torchvox._util.errors import TorchvoxError, WrongUseError
from torchvox._util.extras import require

if TYPE_CHECKING:
    from onnxruntime import InferenceSession


class Program:
    """A model in ONNX Runtime. Called with the tensors of the model, it returns its outputs on the
    CPU: one tensor, or a tuple of several.

    path: a file of `torchvox export --format onnx`. device: "cpu", or "cuda" where ONNX Runtime has
    its CUDA provider.
    Attributes: facts, what the file says of itself by name; of a detector also classes, columns,
    point_cloud_range and column_scale.
    Raises TorchvoxError for a file that is not such a model, WrongUseError for the device.
    """

    def __init__(self, path: str | Path, device: str | torch.device = "cpu") -> None:
        from torchvox.onnx import session

        runtime = require("onnxruntime", "to run ONNX files")
        provider = {"cpu": "CPUExecutionProvider", "cuda": "CUDAExecutionProvider"}
        name = provider[torch.device(device).type]
        if name not in runtime.get_available_providers():
            raise WrongUseError(f"the installed onnxruntime has no {name}: use --device cpu")
        try:
            self.session: InferenceSession = session(path, providers=[name])
        except Exception as error:
            reason = str(error).split("\n")[0]
            raise TorchvoxError(f"{path} cannot be run by ONNX Runtime: {reason}") from None
        facts = self.session.get_modelmeta().custom_metadata_map
        self.facts = {key.removeprefix("torchvox."): value for key, value in facts.items()}
        if self.facts.get("task") == "detect":
            self.classes: list[str] = json.loads(self.facts["classes"])
            self.columns = int(self.facts["columns"])
            self.point_cloud_range: list[float] = json.loads(self.facts["point_cloud_range"])
            self.column_scale: list[float] = json.loads(self.facts["column_scale"])

    def __call__(self, *tensors: Tensor) -> Tensor | tuple[Tensor, ...]:
        names = (one.name for one in self.session.get_inputs())
        feeds = {k: t.cpu().contiguous().numpy() for k, t in zip(names, tensors, strict=True)}
        outputs = tuple(torch.from_numpy(out) for out in self.session.run(None, feeds))
        return outputs if len(outputs) > 1 else outputs[0]
