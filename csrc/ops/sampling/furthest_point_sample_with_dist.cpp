// SPDX-License-Identifier: Apache-2.0
#include "csrc/kernels/sampling/furthest_point_sample_with_dist.h"

#include "csrc/ops/core/op.h"

namespace torchvox {
namespace {

Tensor furthest_point_sample_with_dist(const Tensor& distances, c10::SymInt num_samples,
                                       const OptionalTensor& lengths, int64_t start,
                                       std::string_view tie, int64_t tie_block,
                                       std::optional<double> init_dist) {
  const char* op = "furthest_point_sample_with_dist";
  const char* square = "distances must be [B, N, N]";
  check_type(distances.scalar_type() == at::kFloat, op, "distances must be float32",
             distances.scalar_type());
  check_value(distances.dim() == 3, op, square, distances.sym_sizes());
  check_size(distances.sym_size(1).sym_eq(distances.sym_size(2)), op, square,
             distances.sym_sizes());
  const c10::SymInt clouds = distances.sym_size(0);
  check_below(clouds, kIndexLimit, op, "the number of clouds must be below 2^31", clouds);
  check_below(distances.sym_size(1), kIndexLimit, op, "distances must have N < 2^31",
              distances.sym_sizes());
  check_size(num_samples.sym_ge(0), op, "num_samples must be >= 0", num_samples);
  check_vector(op, "lengths", lengths, "the distances", distances, clouds, "[B]");
  check_value(start >= 0, op, "start must be >= 0", start);
  FpsWithDistArgs args;
  args.tie_block = parse_tie_block(op, tie, tie_block);
  if (init_dist) {
    check_value(!std::isnan(*init_dist), op, "init_dist must be a number", *init_dist);
    args.init_dist = static_cast<float>(*init_dist);
  }
  const Tensor idx = empty_beside({clouds, num_samples}, at::kInt, distances);
  if (distances.is_meta()) return idx;

  const Clouds batch(distances, {}, lengths);
  args.distances = batch.view;
  args.samples = idx.size(1);
  args.start = start;
  args.idx = idx.mutable_data_ptr<int32_t>();
  run(op, batch.points, args);
  return idx;
}

TORCHVOX_REGISTER_OPS(ops) {
  ops.add("furthest_point_sample_with_dist", furthest_point_sample_with_dist);
  ops.autograd("furthest_point_sample_with_dist", not_differentiable());
  ops.autocast("furthest_point_sample_with_dist", {{}, {"distances"}});
}

}  // namespace
}  // namespace torchvox
