// SPDX-License-Identifier: Apache-2.0
#include "csrc/kernels/pillars/moments.h"

#include <limits>

#include "csrc/ops/core/op.h"
#include "csrc/ops/pillars/checks.h"

namespace torchvox {
namespace {

// Shared memory of a block holds some rows of the triangle.
constexpr int64_t kMostColumns = 24;

Tensor pillar_moments(const Tensor& points, const Tensor& indices, const Tensor& num_points,
                      const Tensor& point_voxel, const Tensor& point_slot,
                      c10::ArrayRef<double> voxel_size, c10::ArrayRef<double> range,
                      int64_t max_points, int64_t center_axes, bool legacy,
                      std::string_view pad_semantics) {
  const char* op = "pillar_moments";
  const PillarInputs in{points, indices, num_points, point_voxel, point_slot};
  Inputs inputs(op);
  in.add_to(inputs);
  check_size(points.sym_size(1).sym_le(kMostColumns), op, "points must have at most 24 columns",
             points.sym_sizes());
  PillarMomentsArgs args;
  PillarOptions{voxel_size, range, max_points, center_axes, legacy, pad_semantics}.put(op,
                                                                                       args.map);
  const c10::SymInt size = points.sym_size(1) + (4 + center_axes);
  Tensor moments = output(args.moments, {size * (size + 1) / 2}, points);
  if (points.is_meta()) return moments;
  const PillarTensors tensors(in);
  tensors.put(args.map, std::numeric_limits<int32_t>::max());
  run(op, points, args);
  return moments;
}

TORCHVOX_REGISTER_OPS(ops) { ops.add("pillar_moments", pillar_moments, inference_only()); }

}  // namespace
}  // namespace torchvox
