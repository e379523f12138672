// SPDX-License-Identifier: Apache-2.0
//
// Furthest point sampling of points, and of matrices of distances.
#include "csrc/kernels/sampling/fps/furthest_point_sample.h"

#include "csrc/kernels/sampling/furthest_point_sample_with_dist.h"
#include "csrc/ops/core/op.h"

namespace torchvox {
namespace {

// What the batched and the ragged op have in common.
struct Options {
  int64_t start;
  const OptionalTensor& start_idx;
  std::string_view tie;
  int64_t tie_block;
  std::string_view dist_order;
  std::string_view exhausted;
  std::string_view nonfinite;
  bool skip_origin;
  std::optional<double> init_dist2;
};

// Checks every option and sets what does not need the data.
FpsArgs parse_options(Inputs& in, const Options& options) {
  const char* op = in.op();
  FpsArgs args;
  args.tie_block = parse_tie_block(op, options.tie, options.tie_block);
  args.order = parse_dist_order(op, options.dist_order);
  args.repeat = parse_word(op, "exhausted", options.exhausted, "distinct", "repeat");
  args.nonfinite_last = parse_word(op, "nonfinite", options.nonfinite, "skip", "last");
  check_value(!(args.repeat && args.nonfinite_last), op,
              "nonfinite must be 'skip' with exhausted='repeat'", "'last'");
  args.skip_origin = options.skip_origin;
  if (options.skip_origin) {
    check_size(in["D"].sym_eq(3), op, "skip_origin must be used with points of D = 3", in["D"]);
  }
  if (options.init_dist2) {
    check_value(*options.init_dist2 >= 0, op, "init_dist2 must be >= 0", *options.init_dist2);
    args.init_dist2 = *options.init_dist2;
  }
  check_value(options.start >= 0, op, "start must be >= 0", options.start);
  args.start = options.start;
  in.add("start_idx", options.start_idx, Dtypes::kIndices, "[B] or [B, s >= 1]");
  check_count(op, "the number of clouds", in["B"]);
  return args;
}

// Makes the outputs, idx and dist2, fills in the data and runs.
std::tuple<Tensor, Tensor> sample(const char* op, FpsArgs& args, c10::SymIntArrayRef shape,
                                  const c10::SymInt& samples, const Tensor& points_in,
                                  const OptionalTensor& offsets, const OptionalTensor& lengths,
                                  const OptionalTensor& counts, const OptionalTensor& out_offsets,
                                  const OptionalTensor& start_idx) {
  const Tensor idx = output(args.idx, shape, points_in);
  const Tensor dist2 = output(args.dist2, shape, distance_type(points_in), points_in);
  if (points_in.is_meta()) return {idx, dist2};

  const Clouds points(points_in, offsets, lengths);
  Memory memory;
  args.points = points.view;
  args.samples = samples.guard_int(__FILE__, __LINE__);
  args.counts = memory.indices(counts);
  args.out_offsets = memory.indices(out_offsets);
  if (points.view.columns != 3) args.order = DistOrder::kLoop;
  args.start_idx = memory.indices(start_idx);
  if (start_idx && start_idx->dim() == 2) args.starts = start_idx->size(1);
  run(op, points.points, args);
  return {idx, dist2};
}

std::tuple<Tensor, Tensor> furthest_point_sample(
    const Tensor& points, c10::SymInt num_samples, const OptionalTensor& lengths,
    const OptionalTensor& counts, int64_t start, const OptionalTensor& start_idx,
    std::string_view tie, int64_t tie_block, std::string_view dist_order,
    std::string_view exhausted, std::string_view nonfinite, bool skip_origin,
    std::optional<double> init_dist2) {
  const char* op = "furthest_point_sample";
  Inputs in(op);
  in.add("points", points, Dtypes::kFloats, "[B, N, D >= 1]");
  FpsArgs args = parse_options(in,
                               {start, start_idx, tie, tie_block, dist_order, exhausted, nonfinite,
                                skip_origin, init_dist2});
  check_below(in["N"], kIndexLimit, op, "points must have N < 2^31", points.sym_sizes());
  check_count(op, "num_samples", num_samples);
  in.add("lengths", lengths, Dtypes::kIndices, "[B]");
  in.add("counts", counts, Dtypes::kIndices, "[B]");
  return sample(op, args, {in["B"], num_samples}, num_samples, points, {}, lengths, counts, {},
                start_idx);
}

std::tuple<Tensor, Tensor> furthest_point_sample_ragged(
    const Tensor& points, const Tensor& batch_offsets, const Tensor& out_offsets,
    c10::SymInt max_total, int64_t start, const OptionalTensor& start_idx, std::string_view tie,
    int64_t tie_block, std::string_view dist_order, std::string_view exhausted,
    std::string_view nonfinite, bool skip_origin, std::optional<double> init_dist2,
    bool local_index) {
  const char* op = "furthest_point_sample_ragged";
  Inputs in(op);
  in.add("points", points, Dtypes::kFloats, "[T, D >= 1]");
  in.add("batch_offsets", batch_offsets, Dtypes::kIndices, "[B + 1]");
  in.add("out_offsets", out_offsets, Dtypes::kIndices, "[B + 1]");
  FpsArgs args = parse_options(in,
                               {start, start_idx, tie, tie_block, dist_order, exhausted, nonfinite,
                                skip_origin, init_dist2});
  check_below(in["T"], kIndexLimit, op, "points must have T < 2^31", points.sym_sizes());
  check_count(op, "max_total", max_total);
  args.local_index = local_index;
  return sample(op, args, {max_total}, max_total, points, batch_offsets, {}, {}, out_offsets,
                start_idx);
}

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
  ops.add("furthest_point_sample", furthest_point_sample, not_differentiable());
  ops.add("furthest_point_sample_ragged", furthest_point_sample_ragged, not_differentiable());
  ops.add("furthest_point_sample_with_dist", furthest_point_sample_with_dist, not_differentiable());
  ops.autocast("furthest_point_sample_with_dist", {{}, {"distances"}});
}

}  // namespace
}  // namespace torchvox
