// SPDX-License-Identifier: Apache-2.0
//
// Gathers, interpolations and segments, and their gradients over an inverse index.
#include "csrc/kernels/grouping/gather_points.h"
#include "csrc/kernels/grouping/interpolate.h"
#include "csrc/kernels/grouping/inverse_index/inverse_index.h"
#include "csrc/kernels/grouping/neighbor_distance.h"
#include "csrc/kernels/grouping/segment_reduce.h"
#include "csrc/kernels/grouping/segment_sum.h"
#include "tests/cpp/harness.h"

namespace {

constexpr int64_t kClouds = 2, kRows = 300, kQueries = 900, kSlots = kQueries * kNearest;
constexpr int64_t kChannels = 5;

// Half of the slots name one of the first rows, which have several chunks then; some name none.
IndexArray make_indices(Side& side) {
  Random random(1);
  std::vector<int32_t> idx = random.integers(kClouds * kSlots, -2, kRows + 2);
  for (size_t i = 0; i < idx.size(); i += 2) idx[i] = static_cast<int32_t>(random.below(3));
  return {side.put(idx), false};
}

InverseIndex invert(Side& side, const IndexArray& idx) {
  InverseIndexArgs args;
  args.idx = idx;
  args.inverse.clouds = kClouds, args.inverse.rows = kRows, args.inverse.slots = kSlots;
  const int64_t bytes = args.inverse.place(nullptr, side.is_device());
  args.inverse.place(side.scratch(bytes), side.is_device());
  side.run(args);
  return args.inverse;
}

KERNEL_CASE(gather_points, 0xb05e08963147ea6c, {"inverse_index", {0, 1}}) {
  GatherPointsArgs args;
  args.features = side.put(Random(2).uniforms(kClouds * kRows * kChannels));
  args.idx = make_indices(side);
  args.batches = kClouds, args.points = kRows, args.samples = kSlots, args.channels = kChannels;
  args.out = side.room<float>(kClouds * kSlots * kChannels);
  side.run(args);

  SegmentSumArgs sum;
  sum.grad = side.put(Random(11).uniforms(kClouds * kSlots * kChannels));
  sum.inverse = invert(side, args.idx), sum.channels = kChannels;
  sum.out = side.room<float>(kClouds * kRows * kChannels);
  side.run(sum);
}

KERNEL_CASE(three_interpolate, 0x5f9f3f17ea78fe94, {"interpolate_cpu", {0, 1, 2}}) {
  InterpolationWeightsArgs weights;
  weights.dist2 = side.put(Random(3).uniforms(kClouds * kSlots, 0, 2));
  weights.queries = kClouds * kQueries;
  weights.out = side.room<float>(kClouds * kSlots);
  side.run(weights);

  InterpolateArgs args;
  args.dtype = DType::kHalf;
  args.features = side.put(Random(4).uniforms<Half>(kClouds * kRows * kChannels));
  args.idx = make_indices(side), args.weight = weights.out;
  args.clouds = kClouds, args.rows = kRows, args.queries = kQueries, args.channels = kChannels;
  args.channels_first = true;
  args.out = side.room<Half>(kClouds * kQueries * kChannels);
  side.run(args);

  SegmentSumArgs sum;
  sum.grad = args.out, sum.dtype = args.dtype, sum.weight = args.weight;
  sum.inverse = invert(side, args.idx), sum.channels = kChannels, sum.channels_first = true;
  sum.out = side.room<Half>(kClouds * kRows * kChannels);
  side.run(sum);

  InterpolateWeightGradArgs grad;
  grad.grad = args.out, grad.features = args.features, grad.dtype = args.dtype;
  grad.idx = args.idx, grad.channels_first = true;
  grad.clouds = kClouds, grad.rows = kRows, grad.queries = kQueries, grad.channels = kChannels;
  grad.grad_weight = side.room<float>(kClouds * kSlots);
  side.run(grad);
}

KERNEL_CASE(neighbor_distance, 0x3cc228c49ee05b72) {
  NeighborDistanceArgs args;
  args.dtype = DType::kDouble;
  args.grad = side.put(Random(5).uniforms<double>(kClouds * kSlots));
  args.points = side.put(Random(6).uniforms<double>(kClouds * kRows * 3));
  args.query = side.put(Random(7).uniforms<double>(kClouds * kQueries * 3));
  args.idx = make_indices(side), args.inverse = invert(side, args.idx);
  args.queries = kQueries, args.k = kNearest;
  side.room<double>(&args.grad_points, kClouds * kRows * 3, &args.grad_query,
                    kClouds * kQueries * 3);
  side.run(args);
}

KERNEL_CASE(neighbor_rows, 0x1de247bb401bdea1) {
  NeighborRowsArgs args;
  args.idx = make_indices(side);
  args.count = {side.put(Random(8).integers(kQueries, -1, 5)), false};
  args.points.packed = args.query.packed = args.local_index = true;
  args.points.clouds = args.query.clouds = 3;
  args.points.rows = kRows, args.query.rows = kQueries;
  args.points.offsets = {side.put<int32_t>({0, 100, 100, 290}), false};
  args.query.offsets = {side.put<int32_t>({10, 300, 600, 900}), false};
  args.k = kNearest;
  args.row = side.room<int32_t>(kSlots);
  side.run(args);
}

// Rows by index in segments of many sizes; then the entries take their segments' values back.
KERNEL_CASE(segments, 0x6911e3bc959b8e55) {
  constexpr int64_t kEntries = 7000;
  for (const Reduction reduce : {Reduction::kMean, Reduction::kMax}) {
    SegmentReduceArgs args;
    args.src = side.put(Random(9).uniforms(5000 * kChannels));
    args.reduce = reduce;
    args.rows = 5000, args.channels = kChannels, args.segments = 7, args.entries = kEntries;
    args.offsets = {side.put<int64_t>({3, 40, 40, 1100, 4200, 4201, 6900, 6990}), true};
    args.index = {side.put(Random(10).integers(kEntries, -2, 5002)), false};
    args.out = side.room<float>(args.segments * kChannels);
    if (is_extreme(reduce)) args.arg = side.room<int32_t>(args.segments * kChannels);
    side.run(args, /*filled=*/true);

    SegmentSpreadArgs spread;
    spread.grad = args.out, spread.reduce = reduce;
    spread.channels = kChannels, spread.segments = args.segments, spread.entries = kEntries;
    spread.offsets = args.offsets, spread.arg = args.arg;
    spread.out = side.room<float>(kEntries * kChannels);
    side.run(spread);
  }
}

}  // namespace
