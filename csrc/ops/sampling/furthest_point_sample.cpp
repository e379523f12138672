// SPDX-License-Identifier: Apache-2.0
#include "csrc/kernels/sampling/fps/furthest_point_sample.h"

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
FpsArgs parse_options(const char* op, const Tensor& points, const c10::SymInt& clouds,
                      const Options& options) {
  FpsArgs args;
  args.tie_block = parse_tie_block(op, options.tie, options.tie_block);
  args.order = parse_dist_order(op, options.dist_order);
  args.repeat = parse_word(op, "exhausted", options.exhausted, "distinct", "repeat");
  args.nonfinite_last = parse_word(op, "nonfinite", options.nonfinite, "skip", "last");
  check_value(!(args.repeat && args.nonfinite_last), op,
              "nonfinite must be 'skip' with exhausted='repeat'", "'last'");
  args.skip_origin = options.skip_origin;
  if (options.skip_origin) {
    check_size(points.sym_size(-1).sym_eq(3), op, "skip_origin must be used with points of D = 3",
               points.sym_sizes());
  }
  if (options.init_dist2) {
    check_value(*options.init_dist2 >= 0, op, "init_dist2 must be >= 0", *options.init_dist2);
    args.init_dist2 = *options.init_dist2;
  }
  check_value(options.start >= 0, op, "start must be >= 0", options.start);
  args.start = options.start;
  if (options.start_idx) {
    const Tensor& start_idx = *options.start_idx;
    const char* rule = "start_idx must be [B], or [B, s] with s >= 1";
    check_integers(op, "start_idx", start_idx);
    check_device(op, "start_idx", start_idx, points);
    check_value(start_idx.dim() == 1 || start_idx.dim() == 2, op, rule, start_idx.sym_sizes());
    check_size(start_idx.sym_size(0).sym_eq(clouds), op, rule, start_idx.sym_sizes());
    if (start_idx.dim() == 2) {
      check_size(start_idx.sym_size(1).sym_ge(1), op, rule, start_idx.sym_sizes());
    }
  }
  check_count(op, "the number of clouds", clouds);
  return args;
}

struct Outputs {
  Tensor idx;
  Tensor dist2;
};

Outputs empty_outputs(const Tensor& points, c10::SymIntArrayRef shape) {
  const at::ScalarType type = points.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  return {empty_beside(shape, at::kInt, points), empty_beside(shape, type, points)};
}

// Fills in the data and runs.
void finish(const char* op, FpsArgs& args, const Clouds& points, const OptionalTensor& start_idx_in,
            const Outputs& out) {
  const OptionalTensor start_idx = contiguous(start_idx_in);
  args.points = points.view;
  if (points.view.columns != 3) args.order = DistOrder::kLoop;
  args.start_idx = index_array(start_idx);
  if (start_idx && start_idx->dim() == 2) args.starts = start_idx->size(1);
  args.idx = out.idx.mutable_data_ptr<int32_t>();
  args.dist2 = out.dist2.mutable_data_ptr();
  run(op, points.points, args);
}

std::tuple<Tensor, Tensor> furthest_point_sample(
    const Tensor& points, c10::SymInt num_samples, const OptionalTensor& lengths,
    const OptionalTensor& counts_in, int64_t start, const OptionalTensor& start_idx,
    std::string_view tie, int64_t tie_block, std::string_view dist_order,
    std::string_view exhausted, std::string_view nonfinite, bool skip_origin,
    std::optional<double> init_dist2) {
  const char* op = "furthest_point_sample";
  check_rows(op, "points", points, 3, "[B, N, D]");
  const c10::SymInt clouds = points.sym_size(0);
  FpsArgs args = parse_options(op, points, clouds,
                               {start, start_idx, tie, tie_block, dist_order, exhausted, nonfinite,
                                skip_origin, init_dist2});
  check_below(points.sym_size(1), kIndexLimit, op, "points must have N < 2^31", points.sym_sizes());
  check_count(op, "num_samples", num_samples);
  check_vector(op, "lengths", lengths, "the points", points, clouds, "[B]");
  check_vector(op, "counts", counts_in, "the points", points, clouds, "[B]");
  Outputs out = empty_outputs(points, {clouds, num_samples});
  if (points.is_meta()) return {out.idx, out.dist2};

  const OptionalTensor counts = contiguous(counts_in);
  args.samples = num_samples.guard_int(__FILE__, __LINE__);
  args.counts = index_array(counts);
  finish(op, args, Clouds(points, {}, lengths), start_idx, out);
  return {out.idx, out.dist2};
}

std::tuple<Tensor, Tensor> furthest_point_sample_ragged(
    const Tensor& points, const Tensor& batch_offsets, const Tensor& out_offsets_in,
    c10::SymInt max_total, int64_t start, const OptionalTensor& start_idx, std::string_view tie,
    int64_t tie_block, std::string_view dist_order, std::string_view exhausted,
    std::string_view nonfinite, bool skip_origin, std::optional<double> init_dist2,
    bool local_index) {
  const char* op = "furthest_point_sample_ragged";
  check_rows(op, "points", points, 2, "[T, D]");
  const c10::SymInt clouds = check_offsets(op, batch_offsets, "the points", points);
  check_vector(op, "out_offsets", out_offsets_in, "the points", points, clouds + 1,
               "[B + 1], as batch_offsets");
  FpsArgs args = parse_options(op, points, clouds,
                               {start, start_idx, tie, tie_block, dist_order, exhausted, nonfinite,
                                skip_origin, init_dist2});
  check_below(points.sym_size(0), kIndexLimit, op, "points must have T < 2^31", points.sym_sizes());
  check_count(op, "max_total", max_total);
  Outputs out = empty_outputs(points, {max_total});
  if (points.is_meta()) return {out.idx, out.dist2};

  const Tensor out_offsets = out_offsets_in.contiguous();
  args.samples = max_total.guard_int(__FILE__, __LINE__);
  args.out_offsets = index_array(out_offsets);
  args.local_index = local_index;
  finish(op, args, Clouds(points, batch_offsets, {}), start_idx, out);
  return {out.idx, out.dist2};
}

TORCHVOX_REGISTER_OPS(ops) {
  ops.add("furthest_point_sample", furthest_point_sample);
  ops.autograd("furthest_point_sample", not_differentiable());
  ops.add("furthest_point_sample_ragged", furthest_point_sample_ragged);
  ops.autograd("furthest_point_sample_ragged", not_differentiable());
}

}  // namespace
}  // namespace torchvox
