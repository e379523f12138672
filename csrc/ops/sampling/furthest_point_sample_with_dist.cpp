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
  Inputs in(op);
  in.add("distances", distances, Dtypes::kFloat32, "[B, N, N]");
  check_below(in["B"], kIndexLimit, op, "the number of clouds must be below 2^31", in["B"]);
  check_below(in["N"], kIndexLimit, op, "distances must have N < 2^31", distances.sym_sizes());
  check_size(num_samples.sym_ge(0), op, "num_samples must be >= 0", num_samples);
  in.add("lengths", lengths, Dtypes::kIndices, "[B]");
  check_value(start >= 0, op, "start must be >= 0", start);
  FpsWithDistArgs args;
  args.tie_block = parse_tie_block(op, tie, tie_block);
  if (init_dist) {
    check_value(!std::isnan(*init_dist), op, "init_dist must be a number", *init_dist);
    args.init_dist = static_cast<float>(*init_dist);
  }
  const Tensor idx = output(args.idx, {in["B"], num_samples}, distances);
  if (distances.is_meta()) return idx;

  const Clouds batch(distances, {}, lengths);
  args.distances = batch.view;
  args.samples = idx.size(1);
  args.start = start;
  run(op, batch.points, args);
  return idx;
}

TORCHVOX_REGISTER_OPS(ops) {
  ops.add("furthest_point_sample_with_dist", furthest_point_sample_with_dist, not_differentiable());
  ops.autocast("furthest_point_sample_with_dist", {{}, {"distances"}});
}

}  // namespace
}  // namespace torchvox
