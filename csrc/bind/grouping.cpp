// SPDX-License-Identifier: Apache-2.0
#include "csrc/bind/reduction.h"
#include "csrc/kernels/grouping/gather_points.h"
#include "csrc/kernels/grouping/interpolate.h"
#include "csrc/kernels/neighbors/knn/knn.h"

namespace torchvox::bind {
namespace {

Call plan_gather_points(GatherPointsArgs args, Inputs& in) {
  DType dtype = DType::kFloat;
  args.features = in.floats("features", args.channels_first ? "[B, C, N]" : "[B, N, C]", &dtype);
  args.idx = in.indices("idx", "[B, M]");
  args.element_bytes = bytes_of(dtype);
  args.batches = in['B'];
  args.points = in['N'];
  args.samples = in['M'];
  args.channels = in['C'];
  const Shape shape =
      args.channels_first ? Shape{in['B'], in['C'], in['M']} : Shape{in['B'], in['M'], in['C']};
  return call(args, {{element_of(dtype), shape}}, &GatherPointsArgs::out);
}

Call plan_interpolate_features(InterpolateArgs args, Inputs& in) {
  KnnArgs nearest;
  nearest.points = in.padded("points", "[B, N, D >= 1]", "lengths");
  nearest.query = in.padded("query", "[B, M, D]", "query_lengths");
  check(nearest.query.dtype == nearest.points.dtype, in.op(), "query must have the type of points",
        "another");
  nearest.k = kNearest;
  if (in['D'] != 3) nearest.order = DistOrder::kLoop;
  args.features = in.floats("features", "[B, N, C]", &args.dtype);
  args.from_dist2 = true;
  args.clouds = in['B'];
  args.rows = in['N'];
  args.queries = in['M'];
  args.channels = in['C'];
  return {{{element_of(args.dtype), {in['B'], in['M'], in['C']}}},
          [args, nearest](std::span<void* const> out, const Host& host) {
            KnnArgs knn = nearest;
            InterpolateArgs own = args;
            const int64_t slots = knn.queries() * kNearest;
            const Memory dist2 = host.allocate(4 * slots), idx = host.allocate(4 * slots);
            knn.dist2 = dist2.get();
            knn.idx = static_cast<int32_t*>(idx.get());
            run(knn, host);
            own.idx = {knn.idx};
            own.weight = knn.dist2;
            own.out = out[0];
            run(own, host);
          }};
}

Call plan_segment_reduce(SegmentReduceArgs args, Inputs& in) {
  args.src = in.floats("src", "[N, C]", &args.dtype);
  args.offsets = in.indices("offsets", "[R + 1]");
  args.index = in.indices("index", "[E]");
  args.rows = in['N'];
  args.channels = in['C'];
  args.segments = in['R'];
  args.entries = args.index.given() && args.rows > 0 ? in['E'] : args.rows;
  const int64_t most = std::max({args.rows, args.segments, args.entries});
  check(most < kIndexLimit - 1, in.op(),
        "src, offsets and index must have fewer than 2^31 - 1 rows", most);
  return {reduction_outputs(args),
          [args](std::span<void* const> out, const Host& host) { run_reduction(args, out, host); }};
}

}  // namespace

Planner bind_segment_reduce(const Attributes& attributes) {
  SegmentReduceArgs args;
  args.reduce = reduction("SegmentReduce", attributes);
  return planner("SegmentReduce", attributes, {"src", "offsets", "index?"}, args,
                 plan_segment_reduce);
}

Planner bind_gather_points(const Attributes& attributes) {
  GatherPointsArgs args;
  args.channels_first = attributes.flag("channels_first");
  return planner("GatherPoints", attributes, {"features", "idx"}, args, plan_gather_points);
}

Planner bind_interpolate_features(const Attributes& attributes) {
  const char* op = "InterpolateFeatures";
  InterpolateArgs args;
  args.rule.squared = choice<bool>(op, attributes, "weight", {{"dist", false}, {"dist2", true}});
  args.rule.eps = attributes.number("eps");
  return planner(op, attributes, {"query", "points", "features", "lengths?", "query_lengths?"},
                 args, plan_interpolate_features);
}

}  // namespace torchvox::bind
