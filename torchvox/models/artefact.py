# SPDX-License-Identifier: Apache-2.0
"""An exported model beside the model that it was made from, on scans."""

import statistics
import time
from contextlib import contextmanager
from typing import Any, Callable, Iterator, List, NamedTuple, Tuple

import torch
from torch import Tensor, nn

from torchvox._util.errors import TorchvoxError, short
from torchvox.models.detection import DetectionNet
from torchvox.models.export import Agreement, Inputs, agreement, worst_of

# By the dtype of the weights: greatest difference, as a share of the greatest magnitude (at least
# 1), and share of boxes of one without a box of the other nearby.
LIMITS = {"float32": (1e-5, 0.0), "float16": (5e-3, 0.005), "bfloat16": (2e-2, 0.02)}


class Parity(NamedTuple):
    """Of all scans. boxes: of both; strays: how many of them have no box of the other nearby.
    difference, score_difference: the greatest; seconds: medians; worst: name of the scan."""

    scans: int
    boxes: int
    strays: int
    difference: float
    score_difference: float
    greatest: float
    same_bits: bool
    seconds_model: float
    seconds_artefact: float
    worst: str

    def limits(self, dtype: str) -> Tuple[float, float]:
        """The greatest difference, and the most strays, for weights of a dtype."""
        share, strays = LIMITS[dtype]
        return share * max(1.0, self.greatest), strays * self.boxes

    def holds(self, dtype: str) -> bool:
        """Whether both are within the limits; NaN is not."""
        difference, strays = self.limits(dtype)
        return self.difference <= difference and self.strays <= strays


class Comparison:
    """Runs a model and its artefact on one scan after the other, without TF32.

    model: in evaluation, on its device; artefact: of `load_form`, there too. score: the least of a
    box that needs its like in the other. Raises TorchvoxError for an artefact of other classes,
    columns or range.
    """

    def __init__(self, model: nn.Module, artefact: Any, score: float = 0.1) -> None:
        self.model, self.artefact, self.score = model, artefact, score
        self.detects = isinstance(model, DetectionNet)
        self.device = next(model.parameters()).device
        self.batch = getattr(artefact, "batch", None) or 1  # scans that the artefact takes at once
        self.results: List[Tuple[str, Agreement, float, float]] = []
        for name in ("classes", "columns", "point_cloud_range"):
            mine = getattr(model, name, None)
            its = getattr(artefact, name, mine)
            if mine is not None and _plain(its) != _plain(mine):
                raise TorchvoxError(
                    f"{name} of the artefact must be {mine} of the model, got {its}"
                )

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
            answer = tuple(t[:1] for t in answer) if isinstance(answer, tuple) else answer[:1]
        result = agreement(own, answer, self.detects, self.score)
        self.results.append((name, result, seconds, others))
        return result

    def parity(self) -> Parity:
        """Of the scans so far, one at least."""
        agreements = [result for _, result, _, _ in self.results]
        all_, last = worst_of(agreements), self.results[0]
        for one in self.results:  # more strays, then a greater difference, of which NaN is one
            mine, greatest = one[1], last[1]
            if mine.strays > greatest.strays or (
                mine.strays == greatest.strays and not mine.difference <= greatest.difference
            ):
                last = one
        return Parity(
            len(agreements),
            all_.boxes,
            sum(round(one.strays * one.boxes) for one in agreements),
            all_.difference,
            all_.score_difference,
            all_.greatest,
            all_.same_bits,
            statistics.median(one[2] for one in self.results),
            statistics.median(one[3] for one in self.results),
            last[0],
        )


def dtype_of(artefact: Any) -> str:
    """Of its weights: float16 of float32 and float16, float32 where it does not say."""
    if (said := getattr(artefact, "facts", {}).get("dtype")) is not None:
        return said if said in LIMITS else "float32"
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


def _timed(run: Callable[..., Any], inputs: Inputs) -> Tuple[Any, float]:
    """The outputs on the CPU, and the seconds until they are there."""
    start = time.perf_counter()
    answer = run(*inputs)
    is_list = isinstance(answer, (list, tuple))
    outputs = tuple(_on_cpu(one) for one in answer) if is_list else _on_cpu(answer)
    return outputs, time.perf_counter() - start


def _on_cpu(value: Any) -> Any:
    return value.cpu() if isinstance(value, Tensor) else value


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, (list, tuple)) else value
