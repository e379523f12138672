# SPDX-License-Identifier: Apache-2.0
"""Replaces `pointops._C`, under the peer's own Python: functions that write into the caller's
tensors, their sizes first."""

import torchvox
from torchvox.compat import pointops
from torchvox.compat._errors import stubs
from torchvox.compat._shared import compiled, offsets_of_ends, rows_of, scattered

__all__ = [
    "aggregation_backward_cuda", "aggregation_forward_cuda", "farthest_point_sampling_cuda",
    "grouping_backward_cuda", "grouping_forward_cuda", "interpolation_backward_cuda",
    "interpolation_forward_cuda", "knn_query_cuda", "subtraction_backward_cuda",
    "subtraction_forward_cuda",
]  # fmt: skip
NOT_COVERED = """
attention_fusion_step_backward_cuda attention_fusion_step_forward_cuda
attention_relation_step_backward_cuda attention_relation_step_forward_cuda ball_query_cuda
random_ball_query_cuda
"""
__getattr__ = stubs("pointops._C", NOT_COVERED)


def _nearest(nsample, xyz, new_xyz, offset, new_offset):
    """Squared distances, 1e10 where there is no neighbor."""
    return list(pointops.nearest(nsample, xyz, offset, new_xyz, new_offset))


def _sample(xyz, offset, new_offset, idx):
    """tmp is left as it is."""
    fps, ends = torchvox.furthest_point_sample_ragged, offsets_of_ends(new_offset)
    return fps(xyz, offsets_of_ends(offset), ends, idx.numel(), convention="pointops").idx


def _group_backward(grad_output, idx, grad_input):
    return scattered(grad_output, idx, len(grad_input))


def _interpolate(input, idx, weight):
    return (rows_of(input, idx) * weight.unsqueeze(-1)).sum(1)


def _interpolate_backward(grad_output, idx, weight, grad_input):
    return scattered(grad_output.unsqueeze(1) * weight.unsqueeze(-1), idx, len(grad_input))


def _subtract_backward(idx, grad_output, grad_input2):
    return [grad_output.sum(1), -scattered(grad_output, idx, len(grad_input2))]


def _aggregate_backward(c, w_c, input, position, weight, idx, grad_output, grad_input):
    grad = grad_output.unsqueeze(1)
    weighted = grad * weight.repeat(1, 1, c // w_c)
    by_channel = (grad * (rows_of(input, idx) + position)).unflatten(2, (c // w_c, w_c))
    return [scattered(weighted, idx, len(grad_input)), weighted, by_channel.sum(2)]


# fmt: off
knn_query_cuda = compiled(
    "knn_query_cuda(m, nsample, xyz, new_xyz, offset, new_offset -> idx, dist2)", _nearest)
farthest_point_sampling_cuda = compiled(
    "farthest_point_sampling_cuda(b, n, xyz, offset, new_offset, tmp -> idx)", _sample)
grouping_forward_cuda = compiled(
    "grouping_forward_cuda(m, nsample, c, input, idx -> output)", pointops.grouping2)
grouping_backward_cuda = compiled(
    "grouping_backward_cuda(m, nsample, c, grad_output, idx -> grad_input)", _group_backward)
interpolation_forward_cuda = compiled(
    "interpolation_forward_cuda(n, c, k, input, idx, weight -> output)", _interpolate)
interpolation_backward_cuda = compiled(
    "interpolation_backward_cuda(n, c, k, grad_output, idx, weight -> grad_input)",
    _interpolate_backward)
subtraction_forward_cuda = compiled(
    "subtraction_forward_cuda(n, nsample, c, input1, input2, idx -> output)", pointops.subtraction)
subtraction_backward_cuda = compiled(
    "subtraction_backward_cuda(n, nsample, c, idx, grad_output -> grad_input1, grad_input2)",
    _subtract_backward)
aggregation_forward_cuda = compiled(
    "aggregation_forward_cuda(n, nsample, c, w_c, input, position, weight, idx -> output)",
    pointops.aggregation)
aggregation_backward_cuda = compiled(
    "aggregation_backward_cuda(n, nsample, c, w_c, input, position, weight, idx, grad_output"
    " -> grad_input, grad_position, grad_weight)", _aggregate_backward)
