# SPDX-License-Identifier: Apache-2.0
"""Stands for `pointops._C`, under the peer's own Python: functions that write into the caller's
tensors, their sizes first."""

import torchvox
from torchvox.compat import pointops
from torchvox.compat._errors import stubs
from torchvox.compat._shared import offsets_of_ends, put, rows_of, scattered

__all__ = [
    "aggregation_backward_cuda", "aggregation_forward_cuda", "farthest_point_sampling_cuda",
    "grouping_backward_cuda", "grouping_forward_cuda", "interpolation_backward_cuda",
    "interpolation_forward_cuda", "knn_query_cuda", "subtraction_backward_cuda",
    "subtraction_forward_cuda",
]  # fmt: skip
NOT_COVERED = (
    "attention_fusion_step_backward_cuda", "attention_fusion_step_forward_cuda",
    "attention_relation_step_backward_cuda", "attention_relation_step_forward_cuda",
    "ball_query_cuda", "random_ball_query_cuda",
)  # fmt: skip


__getattr__ = stubs("pointops._C", NOT_COVERED)


def _write(name, out, value):
    put(f"pointops._C.{name}: the output", out, value)


def knn_query_cuda(m, nsample, xyz, new_xyz, offset, new_offset, idx, dist2):
    """Squared distances, 1e10 where there is no neighbor."""
    for out, value in zip(
        (idx, dist2), pointops.nearest(nsample, xyz, offset, new_xyz, new_offset), strict=True
    ):
        _write("knn_query_cuda", out, value)


def farthest_point_sampling_cuda(b, n, xyz, offset, new_offset, tmp, idx):
    """`tmp` is left as it is."""
    fps, ends = torchvox.furthest_point_sample_ragged, offsets_of_ends(new_offset)
    found = fps(xyz, offsets_of_ends(offset), ends, idx.numel(), convention="pointops").idx
    _write("farthest_point_sampling_cuda", idx, found)


def grouping_forward_cuda(m, nsample, c, input, idx, output):
    _write("grouping_forward_cuda", output, rows_of(input, idx))


def grouping_backward_cuda(m, nsample, c, grad_output, idx, grad_input):
    _write("grouping_backward_cuda", grad_input, scattered(grad_output, idx, len(grad_input)))


def interpolation_forward_cuda(n, c, k, input, idx, weight, output):
    weighted = rows_of(input, idx) * weight.unsqueeze(-1)
    _write("interpolation_forward_cuda", output, weighted.sum(1))


def interpolation_backward_cuda(n, c, k, grad_output, idx, weight, grad_input):
    weighted = grad_output.unsqueeze(1) * weight.unsqueeze(-1)
    _write("interpolation_backward_cuda", grad_input, scattered(weighted, idx, len(grad_input)))


def subtraction_forward_cuda(n, nsample, c, input1, input2, idx, output):
    _write("subtraction_forward_cuda", output, pointops.subtraction(input1, input2, idx))


def subtraction_backward_cuda(n, nsample, c, idx, grad_output, grad_input1, grad_input2):
    _write("subtraction_backward_cuda", grad_input1, grad_output.sum(1))
    _write("subtraction_backward_cuda", grad_input2, -scattered(grad_output, idx, len(grad_input2)))


def aggregation_forward_cuda(n, nsample, c, w_c, input, position, weight, idx, output):
    _write("aggregation_forward_cuda", output, pointops.aggregation(input, position, weight, idx))


def aggregation_backward_cuda(
    n, nsample, c, w_c, input, position, weight, idx, grad_output, grad_input, *grads
):
    """grads: of position, of weight."""
    grad = grad_output.unsqueeze(1)
    weighted = grad * weight.repeat(1, 1, c // w_c)
    by_channel = (grad * (rows_of(input, idx) + position)).unflatten(2, (c // w_c, w_c))
    _write("aggregation_backward_cuda", grad_input, scattered(weighted, idx, len(grad_input)))
    for out, value in zip(grads, (weighted, by_channel.sum(2)), strict=True):
        _write("aggregation_backward_cuda", out, value)
