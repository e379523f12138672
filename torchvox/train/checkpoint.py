# SPDX-License-Identifier: Apache-2.0
"""Checkpoints: tensors and plain types only, loadable with weights_only=True.

A checkpoint is Lightning's, with one more entry "torchvox": the resolved configuration, the
meaning of the labels, what made it (package version, source revision, digest of the op schemas)
and the metrics at that time.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from torchvox._util.errors import TorchvoxError, WrongUseError, short
from torchvox._util.values import from_plain, plain
from torchvox.models import checkpoints
from torchvox.models.checkpoints import CheckpointError
from torchvox.models.registry import DEFAULT, get_model, list_models, named_file
from torchvox.models.sizes import check_network, check_values
from torchvox.train.builders import DETECTORS, build_model, labels_of
from torchvox.train.config import Config, load_config, make_config
from torchvox.train.tasks import BUILDERS, Labels

FORMAT = 1
PREFIX = "model."


@dataclass(frozen=True)
class Checkpoint:
    """A model with what it takes to use it. model: in evaluation mode."""

    model: nn.Module
    config: Config
    labels: Labels
    about: dict[str, Any]


def describe(config: Config, labels: Labels) -> dict[str, Any]:
    """The entry "torchvox" of a checkpoint, less the metrics."""
    from torchvox._build import BUILD_INFO

    return {
        "format": FORMAT,
        "version": BUILD_INFO["version"],
        "revision": BUILD_INFO["commit"],
        "op_schemas": schema_digest(),
        "config": config.plain(),
        "labels": plain(labels),
    }


def schema_digest() -> str:
    """A digest of the schemas of all ops: equal digests mean equal interfaces."""
    schemas = torch._C._jit_get_all_schemas()
    lines = sorted(str(schema) for schema in schemas if schema.name.startswith("torchvox::"))
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]


def load_checkpoint(
    path: str | Path, device: torch.device | str = "cpu", trust_code: bool = False
) -> Checkpoint:
    """Load what `torchvox train` wrote, or a model by its name with the weights that are shipped.
    Raises WrongUseError, CheckpointError.

    trust_code: import and call the "module:Class" that the file names as its model. Without, a file
    can name the models of torchvox alone, so that a foreign one runs no code.
    """
    if not Path(path).exists() and str(path) in list_models():
        config, model = load_config(str(path)), get_model(str(path), DEFAULT)
        return Checkpoint(model.to(device), config, labels_of(config), {})
    if not Path(path).is_file():
        raise WrongUseError(f"checkpoint {path} does not exist")
    about, weights = _read(path)
    try:
        newer, version = bool(about["format"] > FORMAT), short(about["version"])
        kind = str(about["config"]["model"]["kind"])
        check_values([about["config"], about["labels"]])
        labels = from_plain(Labels, about["labels"])
    except (KeyError, TypeError, AttributeError, RuntimeError, ValueError) as error:
        raise CheckpointError(f"{_incomplete(path)} ({short(error)})") from None
    if newer:
        raise CheckpointError(f"{path} is of a newer torchvox ({version}): upgrade torchvox")
    if kind not in BUILDERS and kind not in DETECTORS and not trust_code:
        raise WrongUseError(
            f"{path} names code of its own as its model, {short(repr(kind))}: if you trust the "
            "file, load it with trust_code=True (--trust-code)"
        )
    config = make_config(about["config"], str(path))
    try:
        if kind in BUILDERS or kind in DETECTORS:
            check_network(lambda: build_model(config, labels), weights)
        model = build_model(config, labels)
    except (ValueError, RuntimeError) as error:
        if isinstance(error, TorchvoxError):
            raise
        raise CheckpointError(f"{path} does not fit its configuration: {short(error)}") from None
    _load_weights(model, weights, path)
    return Checkpoint(model.to(device).eval(), config, labels, about)


def load_weights(model: nn.Module, path: str | Path) -> None:
    """Give a model the weights of a checkpoint; the rest of the file is ignored."""
    _load_weights(model, _read(path)[1], path)


def start_from(model: nn.Module, path: str | Path, classes: Sequence[str]) -> list[str]:
    """Give a model the tensors of a checkpoint, or of a model of torchvox.models (a file, or a name
    with shipped weights), that agree in name and shape; none of the head where the file names other
    classes. Returns the names of the other tensors. Raises CheckpointError if
    all do."""
    path = named_file(path)
    content = checkpoints.read(path)
    try:
        if str(content.get("format")) == checkpoints.FORMAT:
            if content["fused"]:
                raise CheckpointError(f"train.init: {path} is fused: take what it was fused from")
            weights, named = content["state_dict"], content["config"].get("config", {})
        else:
            about, weights = _read(path)
            named = about["labels"]
        other_head = list(named.get("classes", classes)) != list(classes)
        own = model.state_dict()
        taken = {
            name: value
            for name, value in weights.items()
            if name in own and value.shape == own[name].shape
            if not (other_head and name.startswith("head."))
        }
    except (KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"train.init: {path} holds no weights ({short(error)})") from None
    if not taken:
        raise CheckpointError(f"train.init: {path} has no tensor of the name and shape of ours")
    model.load_state_dict(taken, strict=False)
    return [name for name in own if name not in taken]


def _read(path: str | Path) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    """The entry "torchvox" and the weights of the model."""
    content = checkpoints.read(path)
    try:
        if str(content.get("format")) == checkpoints.FORMAT:
            raise CheckpointError(
                f"{path} is a model for torchvox export and detect: give the best.ckpt of its "
                "training run"
            )
        weights = content["state_dict"].items()
        own = {k[len(PREFIX) :]: v for k, v in weights if k.startswith(PREFIX)}
        return content["torchvox"], own
    except (KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{_incomplete(path)} ({short(error)})") from None


def _incomplete(path: str | Path) -> str:
    return f"{path} is not a checkpoint of torchvox train: its entries are incomplete"


def _load_weights(model: nn.Module, weights: dict[str, torch.Tensor], path: str | Path) -> None:
    try:
        model.load_state_dict(weights)
    except (RuntimeError, TypeError, AttributeError) as error:  # of other shapes, or no tensors
        raise CheckpointError(f"{path} does not fit its configuration: {short(error)}") from None
