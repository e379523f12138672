// SPDX-License-Identifier: Apache-2.0
//
// gather_points and group_points: one gather, whose indices are a list or a list for each query.
#include "csrc/kernels/grouping/gather_points.h"

#include "csrc/kernels/grouping/segment_sum.h"
#include "csrc/ops/core/op.h"
#include "csrc/ops/grouping/neighbor_index.h"

namespace torchvox {
namespace {

// What the two ops differ in.
struct Gather {
  const char* op;
  const char* backward_op;
  int idx_dims;
  const char* idx_layout;
  const char* rows_layout[2];  // of the output: channel-last, channels first
};
constexpr Gather kGather{
    "gather_points", "_gather_points_backward", 2, "[B, M]", {"[B, M, C]", "[B, C, M]"}};
constexpr Gather kGroup{
    "group_points", "_group_points_backward", 3, "[B, M, k]", {"[B, M, k, C]", "[B, C, M, k]"}};

// The shape of the other side: `from` with its axes of points [begin, end) replaced by `sizes`.
c10::SymDimVector with_points(const Tensor& from, int begin, int end, c10::SymIntArrayRef sizes) {
  c10::SymDimVector shape(from.sym_sizes().begin(), from.sym_sizes().begin() + begin);
  shape.append(sizes.begin(), sizes.end());
  shape.append(from.sym_sizes().begin() + end, from.sym_sizes().end());
  return shape;
}

Tensor gather_rows(const Gather& gather, const Tensor& features, const Tensor& idx,
                   bool channels_first) {
  Inputs in(gather.op);
  in.add("features", features, Dtypes::kFloats, channels_first ? "[B, C, N]" : "[B, N, C]");
  in.add("idx", idx, Dtypes::kIndices, gather.idx_layout);
  const int points_axis = channels_first ? 2 : 1;
  GatherPointsArgs args;
  const Tensor out = output(
      args.out, with_points(features, points_axis, points_axis + 1, idx.sym_sizes().slice(1)),
      features.scalar_type(), features);
  if (features.is_meta()) return out;

  Memory memory;
  args.features = memory.of(features);
  args.idx = memory.indices(idx);
  args.element_bytes = features.element_size();
  args.batches = features.size(0);
  args.points = features.size(points_axis);
  args.samples = args.batches > 0 ? idx.numel() / args.batches : 0;
  args.channels = features.size(channels_first ? 1 : 2);
  args.channels_first = channels_first;
  run(gather.op, features, args);
  return out;
}

Tensor sum_rows(const Gather& gather, const Tensor& grad, const Tensor& idx_in,
                const c10::SymInt& num_points, bool channels_first) {
  const char* op = gather.backward_op;
  Inputs in(op);
  in.add("idx", idx_in, Dtypes::kIndices, gather.idx_layout);
  in.add("grad", grad, Dtypes::kFloats, gather.rows_layout[channels_first]);
  const int begin = channels_first ? 2 : 1, end = begin + gather.idx_dims - 1;
  check_size(num_points.sym_ge(0), op, "num_points must be >= 0", num_points);
  c10::SymInt slots = 1;
  for (const c10::SymInt& size : idx_in.sym_sizes().slice(1)) slots = slots * size;
  check_gradient_limit(op, num_points, slots);
  SegmentSumArgs args;
  const Tensor grad_features =
      output(args.out, with_points(grad, begin, end, {num_points}), grad.scalar_type(), grad);
  if (grad.is_meta()) return grad_features;

  Memory memory;
  const Tensor idx = idx_in.contiguous();
  const OwnedInverseIndex owned =
      build_inverse_index(op, idx, grad.size(0), num_points.guard_int(__FILE__, __LINE__));
  args.grad = memory.of(grad);
  args.dtype = dtype_of(grad.scalar_type());
  args.inverse = owned.inverse;
  args.channels = grad.size(channels_first ? 1 : -1);
  args.channels_first = channels_first;
  run(op, grad, args);
  return grad_features;
}

Tensor gather_points(const Tensor& features, const Tensor& idx, bool channels_first) {
  return gather_rows(kGather, features, idx, channels_first);
}

Tensor group_points(const Tensor& features, const Tensor& idx, bool channels_first,
                    const OptionalTensor& batch_offsets, const OptionalTensor& query_batch_offsets,
                    bool local_index) {
  const CloudLayout clouds{batch_offsets, query_batch_offsets, local_index};
  if (!clouds.packed()) return gather_rows(kGroup, features, idx, channels_first);
  const Tensor rows = packed_rows(kGroup.op, features, idx, channels_first, clouds);
  return gather_rows(kGroup, features.unsqueeze(0), rows, false).squeeze(0);
}

template <const Gather& gather>
Tensor backward(const Tensor& grad, const Tensor& idx, c10::SymInt num_points,
                bool channels_first) {
  return sum_rows(gather, grad, idx, num_points, channels_first);
}

void check_gather_gradient(const Call& call) { check_gradient_of_features(call, false, 1); }

void check_group_gradient(const Call& call) {
  const Tensor idx = call.tensor("idx");
  check_gradient_of_features(call, CallLayout(call).clouds.packed(),
                             idx.dim() > 1 ? idx.sym_size(-1) : c10::SymInt(1));
}

c10::IValue rows_of_features(const Call& call) {
  return call.size("features", call["channels_first"].toBool() ? 2 : 1);
}

// Packed rows as one padded cloud.
OptionalTensor group_packed(const Call& call) {
  const CallLayout layout(call);
  if (!layout.clouds.packed()) return std::nullopt;
  const Tensor features = call.tensor("features");
  const Tensor rows = packed_rows(call.op(), features, call.tensor("idx"),
                                  call["channels_first"].toBool(), layout.clouds);
  static const auto padded = typed_op<decltype(group_points)>("torchvox::group_points");
  return padded.call(features.unsqueeze(0), rows, false, std::nullopt, std::nullopt, false)
      .squeeze(0);
}

TORCHVOX_REGISTER_OPS(ops) {
  ops.add("gather_points", gather_points);
  ops.add("group_points", group_points);
  ops.add("_gather_points_backward", backward<kGather>);
  ops.add("_group_points_backward", backward<kGroup>);
  // A gather and its gradient are linear, and each is the gradient of the other: higher derivatives
  // need no further kernel.
  ops.differentiable("gather_points",
                     {.backward = "_gather_points_backward",
                      .derived = {{"num_points", rows_of_features}},
                      .prepare = check_gather_gradient});
  ops.differentiable("group_points",
                     {.backward = "_group_points_backward",
                      .derived = {{"num_points", rows_of_features}},
                      .prepare = check_group_gradient,
                      .compose = group_packed});
  ops.differentiable("_gather_points_backward", {"gather_points"});
  ops.differentiable("_group_points_backward", {"group_points"});
}

}  // namespace
}  // namespace torchvox
