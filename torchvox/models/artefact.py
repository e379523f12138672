# SPDX-License-Identifier: Apache-2.0
"""An exported model beside the model that it was made from, on scans."""

import math
import statistics
import time
from contextlib import contextmanager
from typing import Any, Callable, Iterator, List, NamedTuple, Optional, Tuple

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from torchvox._util.errors import TorchvoxError, short
from torchvox.models.detection import DetectionNet
from torchvox.models.export import Agreement, Inputs, agreement, task_of, worst_of

# By the dtype of the weights: greatest difference, as a share of the greatest magnitude (at least
# 1), and share of boxes of one without a box of the other nearby.
LIMITS = {"float32": (1e-5, 0.0), "float16": (5e-3, 0.005), "bfloat16": (2e-2, 0.02)}


class Parity(NamedTuple):
    """Of all scans. boxes: of both, None for other networks; strays: how many of them
    have no box of the other nearby. difference, score_difference: the greatest; seconds: medians;
    worst: name of the scan. limit, stray_limit: of difference and strays, for the dtype of the
    artefact's weights."""

    scans: int
    boxes: Optional[int]
    strays: int
    difference: float
    score_difference: float
    same_bits: bool
    seconds_model: float
    seconds_artefact: float
    worst: str
    dtype: str
    limit: float
    stray_limit: int

    @property
    def holds(self) -> bool:
        """Whether both agree within the limits; NaN does not, nor do scans without a box."""
        same = self.difference <= self.limit and self.strays <= self.stray_limit
        return same and self.boxes != 0


class Comparison:
    """Runs a model and its artefact on one scan after the other, without TF32.

    model: in evaluation, on its device; artefact: of `load_form`, there too. score: the least of a
    box that must match one of the other. Raises TorchvoxError for an artefact of another task or
    other classes, columns or range.
    """

    def __init__(self, model: nn.Module, artefact: Any, score: float = 0.1) -> None:
        self.model, self.artefact, self.score = model, artefact, score
        self.detects = isinstance(model, DetectionNet)
        self.device = next(model.parameters()).device
        self.batch = getattr(artefact, "batch", None) or 1  # scans that the artefact takes at once
        self.results: List[Tuple[str, Agreement, float, float]] = []
        names = ("classes", "columns", "point_cloud_range")
        pairs = [(n, *(_plain(getattr(one, n, None)) for one in (model, artefact))) for n in names]
        task = getattr(artefact, "facts", {}).get("task")
        for name, mine, its in [("task", task_of(model), task), *pairs]:
            if None not in (mine, its) and mine != its:
                words = f"{name} of the artefact must be {mine} of the model"
                raise TorchvoxError(f"{words}, got {short(its)}")

    @torch.no_grad()
    def add(self, name: str, inputs: Inputs) -> Agreement:
        """Compares one scan. inputs: of the model, for a batch of one."""
        inputs = tuple(t.to(self.device) for t in inputs)
        repeated = tuple(t.expand(self.batch, *t.shape[1:]).contiguous() for t in inputs)
        with without_tf32():
            for _ in range(1 if self.results else 2):  # the first warms up
                own, seconds = _timed(self.model, inputs)
                try:
                    answer, others = _timed(self.artefact, repeated)
                except TorchvoxError:
                    raise
                except Exception as error:  # a script puts its reason last
                    lines = str(error).strip().splitlines() or [type(error).__name__]
                    reason = lines[-1 if isinstance(error, torch.jit.Error) else 0]
                    raise TorchvoxError(f"the artefact does not run: {short(reason)}") from error
        if self.batch > 1:
            answer = tree_map(lambda one: one[:1], answer)
        result = agreement(own, answer, self.detects, self.score)
        self.results.append((name, result, seconds, others))
        return result

    def parity(self) -> Parity:
        """Of the scans so far, one at least."""

        def order(one: Tuple[str, Agreement, float, float]) -> Tuple[float, ...]:
            return one[1].strays, math.isnan(one[1].difference), one[1].difference

        names, agreements, seconds, others = zip(*self.results, strict=True)
        dtype, whole = dtype_of(self.artefact), worst_of(agreements)
        share, stray_share = LIMITS[dtype]
        return Parity(
            scans=len(names),
            boxes=whole.boxes if self.detects else None,
            strays=sum(round(one.strays * one.boxes) for one in agreements),
            difference=whole.difference,
            score_difference=whole.score_difference,
            same_bits=whole.same_bits,
            seconds_model=statistics.median(seconds),
            seconds_artefact=statistics.median(others),
            worst=max(self.results, key=order)[0],
            dtype=dtype,
            limit=share * max(1.0, whole.greatest),
            stray_limit=int(stray_share * whole.boxes),
        )


def dtype_of(artefact: Any) -> str:
    """Of its weights: float16 of float32 and float16, float32 where it does not say."""
    if (dtype := getattr(artefact, "facts", {}).get("dtype")) in LIMITS:
        return dtype
    parameters = artefact.parameters() if isinstance(artefact, nn.Module) else ()
    names = {str(one.dtype).removeprefix("torch.") for one in parameters}
    return next((name for name in ("bfloat16", "float16") if name in names), "float32")


@contextmanager
def without_tf32() -> Iterator[None]:
    """Products of float32 on a GPU are those of float32."""
    flags = (torch.backends.cuda.matmul, torch.backends.cudnn)
    before = [flag.allow_tf32 for flag in flags]
    try:
        for flag in flags:
            flag.allow_tf32 = False
        yield
    finally:
        for flag, value in zip(flags, before, strict=True):
            flag.allow_tf32 = value


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, (list, tuple)) else value


def _timed(run: Callable[..., Any], inputs: Inputs) -> Tuple[Any, float]:
    """The outputs on the CPU, and the seconds until they are there."""
    start = time.perf_counter()
    answer = tree_map(lambda one: one.cpu() if isinstance(one, Tensor) else one, run(*inputs))
    return answer, time.perf_counter() - start
