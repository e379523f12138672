// SPDX-License-Identifier: Apache-2.0
#include "csrc/kernels/sampling/gather_points.h"

#include <ATen/ops/empty.h>
#include <torch/library.h>

#include "csrc/ops/core/autograd.h"
#include "csrc/ops/core/checks.h"
#include "csrc/ops/core/device.h"

namespace torchvox {
namespace {

using at::Tensor;

const char* layout_of(bool channels_first) { return channels_first ? "[B, C, N]" : "[B, N, C]"; }

void check_gather(const char* op, const char* name, const char* layout, const Tensor& features,
                  const Tensor& idx) {
  check_value(features.dim() == 3, op, {name, " must be ", layout}, features.sym_sizes());
  check_type(is_coordinate_type(features.scalar_type()), op,
             {name, " must be float16, bfloat16, float32 or float64"}, features.scalar_type());
  check_integers(op, "idx", idx);
  check_value(idx.dim() == 2, op, "idx must be [B, M]", idx.sym_sizes());
  check_size(idx.sym_size(0).sym_eq(features.sym_size(0)), op,
             {"idx must be [B, M] with the B of ", name}, idx.sym_sizes());
  TORCH_CHECK(
      idx.device() == features.device(),
      refusal(op,
              "idx must be on the device of " + std::string(name) + ", " + features.device().str(),
              idx.device()));
}

Tensor gather_points(const Tensor& features_in, const Tensor& idx_in, bool channels_first) {
  const char* op = "gather_points";
  check_gather(op, "features", layout_of(channels_first), features_in, idx_in);
  const int points_axis = channels_first ? 2 : 1, channels_axis = channels_first ? 1 : 2;
  c10::SymDimVector shape(features_in.sym_sizes());
  shape[points_axis] = idx_in.sym_size(1);
  Tensor out = empty_beside(shape, features_in.scalar_type(), features_in);
  if (features_in.is_meta()) return out;

  const Tensor features = features_in.contiguous(), idx = idx_in.contiguous();
  GatherPointsArgs args;
  args.features = features.const_data_ptr();
  args.idx = index_array(idx);
  args.out = out.mutable_data_ptr();
  args.element_bytes = features.element_size();
  args.batches = features.size(0);
  args.points = features.size(points_axis);
  args.samples = idx.size(1);
  args.channels = features.size(channels_axis);
  args.channels_first = channels_first;
  run(op, features, args);
  return out;
}

const auto& voxel_csr_op() {
  static const auto op =
      typed_op<std::tuple<Tensor, Tensor>(const Tensor&, c10::SymInt)>("torchvox::voxel_csr");
  return op;
}

Tensor gather_points_backward(const Tensor& grad_in, const Tensor& idx_in, c10::SymInt num_points,
                              bool channels_first) {
  const char* op = "_gather_points_backward";
  check_gather(op, "grad", channels_first ? "[B, C, M]" : "[B, M, C]", grad_in, idx_in);
  const int samples_axis = channels_first ? 2 : 1, channels_axis = channels_first ? 1 : 2;
  check_size(grad_in.sym_size(samples_axis).sym_eq(idx_in.sym_size(1)), op,
             "grad must have the M of idx", grad_in.sym_sizes());
  check_size(num_points.sym_ge(0), op, "num_points must not be negative", num_points);
  for (const c10::SymInt& rows : {grad_in.sym_size(0) * num_points, idx_in.sym_numel()}) {
    check_below(rows, int64_t{1} << 31, op,
                "a batch must have fewer than 2^31 points and 2^31 samples", rows);
  }
  c10::SymDimVector shape(grad_in.sym_sizes());
  shape[samples_axis] = num_points;
  Tensor grad_features = at::empty_symint(shape, grad_in.options());
  if (grad_in.is_meta()) return grad_features;

  const Tensor grad = grad_in.contiguous(), idx = idx_in.contiguous();
  const int64_t points = num_points.guard_int(__FILE__, __LINE__);
  const Tensor row = at::empty({idx.numel()}, idx.options().dtype(at::kInt));
  GatherRowsArgs rows;
  rows.idx = index_array(idx);
  rows.row = row.mutable_data_ptr<int32_t>();
  rows.batches = idx.size(0);
  rows.points = points;
  rows.samples = idx.size(1);
  run(op, grad, rows);
  const auto [offsets, order] = voxel_csr_op().call(row, rows.batches * points);

  GatherPointsBackwardArgs args;
  args.grad = grad.const_data_ptr();
  args.dtype = dtype_of(grad.scalar_type());
  args.offsets = offsets.const_data_ptr<int32_t>();
  args.order = order.const_data_ptr<int32_t>();
  args.grad_features = grad_features.mutable_data_ptr();
  args.batches = rows.batches;
  args.points = points;
  args.samples = rows.samples;
  args.channels = grad.size(channels_axis);
  args.channels_first = channels_first;
  run(op, grad, args);
  return grad_features;
}

// The kernels of a backend take plain integers; the dispatcher unpacks them.
Tensor gather_points_backward_int(const Tensor& grad, const Tensor& idx, int64_t num_points,
                                  bool channels_first) {
  return gather_points_backward(grad, idx, num_points, channels_first);
}

void register_kernels(torch::Library& m) {
  m.impl("gather_points", gather_points);
  m.impl("_gather_points_backward", gather_points_backward_int);
}

TORCH_LIBRARY_IMPL(torchvox, CPU, m) { register_kernels(m); }
TORCH_LIBRARY_IMPL(torchvox, CUDA, m) {
  if (kBuiltWithCuda) register_kernels(m);
}
TORCH_LIBRARY_IMPL(torchvox, Meta, m) {
  m.impl("gather_points", gather_points);
  m.impl("_gather_points_backward", gather_points_backward);
}

}  // namespace
}  // namespace torchvox
