# SPDX-License-Identifier: Apache-2.0
"""Models as ONNX files whose nodes are torchvox's own kernels (extra `onnx`)."""

import io
import logging
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from torchvox._library import onnx_library
from torchvox._util.errors import TorchvoxError, WrongUseError
from torchvox._util.extras import require
from torchvox.io.writers import write_whole
from torchvox.onnx.cuda import PROVIDER, CudaSession
from torchvox.onnx.program import Program
from torchvox.onnx.translate import DOMAIN, VERSION, translations

if TYPE_CHECKING:
    from onnxruntime import InferenceSession

__all__ = ["CudaSession", "Program", "add_facts", "export", "has_cuda", "session", "translations"]
OPSET, IR_VERSION = 20, 10


def export(
    module: nn.Module,
    args: tuple[torch.Tensor, ...],
    path: str | Path,
    *,
    dynamic_shapes: Any = None,
    input_names: Sequence[str] | None = None,
    output_names: Sequence[str] | None = None,
    metadata: dict[str, str] | None = None,
) -> None:
    """Writes a module over torchvox's ops as an ONNX file, whole or not at all.

    args: example inputs; points must be float32 or float16. dynamic_shapes: as of torch.export.
    metadata: strings that the file carries beside the version of torchvox and
    the dtype of the weights.
    Raises TorchvoxError for float64 points, and for an op that has no node, by its name.
    """
    require("onnxscript", "to export to ONNX")
    # Of torch about its own exporter, and the packages that it misses.
    log = logging.getLogger("torch.onnx")
    level = log.level
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        log.setLevel(logging.ERROR)
        try:
            program = torch.onnx.export(
                module.eval(),
                args,
                dynamo=True,
                opset_version=OPSET,
                custom_translation_table=translations(),
                dynamic_shapes=dynamic_shapes,
                input_names=input_names,
                output_names=output_names,
                verbose=False,
            )
        except torch.onnx.errors.OnnxExporterError as error:
            cause: BaseException = error
            while cause.__cause__ is not None and not isinstance(cause, TorchvoxError):
                cause = cause.__cause__
            raise TorchvoxError(f"export: {cause}") from error
        finally:
            log.setLevel(level)
    program.model.opset_imports[DOMAIN] = VERSION
    program.model.ir_version = IR_VERSION
    version = str(__import__("torchvox").__version__)
    halves = any(parameter.dtype == torch.float16 for parameter in module.parameters())
    own = {"torchvox.version": version, "torchvox.domain": str(VERSION)}
    own["torchvox.dtype"] = "float16" if halves else "float32"
    program.model.metadata_props.update({**own, **(metadata or {})})

    def save(buffer: io.BytesIO) -> None:
        buffer.write(program.model_proto.SerializeToString(deterministic=True))

    write_whole(path, save)


def add_facts(path: str | Path, facts: dict[str, str]) -> None:
    """Writes further metadata, `torchvox.NAME`, into an ONNX file."""
    onnx = require("onnx", "to write ONNX files")
    model = onnx.load(path)
    for name, value in facts.items():
        model.metadata_props.add(key=f"torchvox.{name}", value=value)
    write_whole(path, lambda buffer: buffer.write(model.SerializeToString(deterministic=True)))


def session(
    path: str | Path,
    *,
    threads: int | None = None,
    providers: Sequence[str] | None = None,
    **provider_options: str,
) -> "InferenceSession":
    """An ONNX Runtime session of a file, the library of torchvox's ops registered. On CUDA, TF32 is
    off for float32 weights; float16 weights run on tensor cores, maps in the order [B, H, W, C].

    threads: of the session; None: all cores. providers: in order of preference; None: the CPU.
    provider_options: of the first provider. What fails is raised, not printed too.
    Raises WrongUseError for a provider that is not there, where ONNX Runtime would go on without.
    """
    runtime = require("onnxruntime", "to run ONNX files")
    options = runtime.SessionOptions()
    options.register_custom_ops_library(onnx_library())
    options.log_severity_level = 4
    if threads is not None:
        options.intra_op_num_threads = threads
    names = list(providers or ["CPUExecutionProvider"])
    check_providers(names, runtime.get_available_providers())

    def open_session(**own: str) -> "InferenceSession":
        settings = [own if name == PROVIDER else {} for name in names]
        settings[0] = {**settings[0], **provider_options}
        one = runtime.InferenceSession(str(path), options, names, settings)
        check_providers(names, one.get_providers())  # ONNX Runtime goes on without one that fails
        return one

    one = open_session(use_tf32="0")
    facts = one.get_modelmeta().custom_metadata_map
    if PROVIDER in names and facts.get("torchvox.dtype") == "float16":
        del one  # and its memory on the GPU
        # Without TF32 it would not use tensor cores for halves either.
        one = open_session(use_tf32="1", prefer_nhwc="1")
    return one


def has_cuda() -> bool:
    """Whether the installed onnxruntime has its CUDA provider."""
    return PROVIDER in require("onnxruntime", "to run ONNX files").get_available_providers()


def check_providers(names: Sequence[str], there: Sequence[str]) -> None:
    """Raises WrongUseError for a provider that is not there."""
    for name in names:
        if name not in there:
            words = "the installed onnxruntime has no"
            raise WrongUseError(f"{words} {name}, or cannot load it: use --device cpu")
