// SPDX-License-Identifier: Apache-2.0
//
// Searches for neighbors, groups of them, and furthest point sampling.
#include "csrc/kernels/neighbors/ball_query/ball_query.h"
#include "csrc/kernels/neighbors/group_mlp/group_mlp_max.h"
#include "csrc/kernels/neighbors/knn/knn.h"
#include "csrc/kernels/neighbors/query_and_group.h"
#include "csrc/kernels/neighbors/radius_neighbors.h"
#include "csrc/kernels/sampling/fps/furthest_point_sample.h"
#include "csrc/kernels/sampling/furthest_point_sample_with_dist.h"
#include "tests/cpp/harness.h"

namespace {

constexpr int64_t kClouds = 2, kPoints = 1500, kQueries = 40, kRows = kClouds * kQueries;

KERNEL_CASE(knn, 0x1e911504b521da18, {"knn_kernel", {0, 1, 2}}, {"knn_order", {0, 1}},
            {"knn_cpu", {0, 1, 2}}) {
  KnnArgs args;
  args.k = 20, args.points = padded(side, make_points(kClouds * kPoints, 3, 2, 1), kClouds, 3);
  args.query = padded(side, make_points(kRows, 3, 2, 2), kClouds, 3);
  args.points.lengths = {side.put<int64_t>({kPoints, kPoints / 3}), true};
  side.room(&args.idx, kRows * args.k, &args.dist2, kRows * args.k);
  side.run(args);
}

BallQueryArgs balls(Side& side) {
  BallQueryArgs args;
  args.points = packed(side, make_points(kPoints, 3, 2, 3), 3, {0, 700, 700, kPoints});
  args.query = packed(side, make_points(kQueries, 3, 2, 4), 3, {3, 20, 22, kQueries});
  args.radius[0] = ball_radius(DType::kFloat, 0.7, nullptr, 0, 0, false);
  return args;
}

KERNEL_CASE(ball_query, 0x341cbed785f32706, {"ball_kernel", {0, 1}}, {"ball_cpu", {0, 1, 2}}) {
  BallQueryArgs args = balls(side);
  args.radius[1] = ball_radius(DType::kFloat, 1.2, nullptr, 0.5, 0.01, true);  // a shell
  args.radii = 2, args.counts = 2, args.slots = 28;
  args.radius[0].k = 8, args.radius[1].k = 20, args.radius[1].slot = 8;
  side.room(&args.idx, kQueries * args.slots, &args.dist2, kQueries * args.slots, &args.count,
            kQueries * args.counts);
  side.run(args);
}

KERNEL_CASE(radius_neighbors, 0xd14532d71bcb3657, {"ball_kernel", {0, 1}}) {
  RadiusNeighborsArgs args;
  args.ball = balls(side), args.capacity = 4000;
  side.room(&args.offsets, kQueries + 1, &args.index, args.capacity, &args.dist2, args.capacity,
            &args.count, 1);
  side.run(args);
}

KERNEL_CASE(query_and_group, 0x5e3fbb05456cddc3) {
  constexpr int64_t kSlots = 300;
  QueryAndGroupArgs args;
  args.points = padded(side, make_points(kClouds * kPoints, 3, 2, 5), kClouds, 3);
  args.query = padded(side, make_points(kRows, 3, 2, 6), kClouds, 3), args.channels = 13;
  args.features = side.put(Random(7).uniforms(kClouds * kPoints * args.channels));
  args.idx = side.put(Random(8).integers(kRows * kSlots, -1, kPoints + 1));
  args.slots = kSlots;
  args.radii = {2, {100, kSlots}, {0.3, 0.7}};
  args.grouped = side.room<float>(kRows * kSlots * args.columns());
  side.run(args);

  QueryAndGroupBackwardArgs backward;
  backward.grad = args.grouped;
  backward.rows = kRows, backward.slots = kSlots, backward.columns = args.columns();
  backward.first = args.first_axis(), backward.radii = args.radii;
  side.room(&backward.grad_slots, kRows * kSlots * 3, &backward.grad_query, kRows * 3);
  side.run(backward);
}

// The sum of floats that the GPU computes without tensor cores has the bits of the CPU.
KERNEL_CASE(group_mlp_max, 0x430c751344926d90, {"group_mlp_cpu", {0, 1, 2}}) {
  constexpr int64_t kChannels = 13, kSlots = 37, kWidth = 33;
  GroupMlpArgs args;
  args.points = padded(side, Random(9).uniforms(kClouds * kPoints * 3), kClouds, 3);
  args.query = padded(side, Random(10).uniforms(kRows * 3), kClouds, 3);
  args.features = side.put(Random(11).uniforms(kClouds * kPoints * kChannels));
  args.channels = kChannels;
  args.idx = side.put(Random(12).integers(kRows * kSlots, -1, kPoints + 1));
  args.slots = args.idx_stride = kSlots;
  args.count = side.put(Random(13).integers(kRows, -1, kSlots + 2));
  args.layers = 2;
  int64_t in = 3 + kChannels;
  for (MlpLayer* layer = args.layer; layer < args.layer + 2; ++layer) {
    *layer = {side.put(Random(14).uniforms(in * kWidth, -0.3f, 0.3f)),
              side.put(Random(15).uniforms(kWidth, -0.1f, 0.1f)), in, kWidth};
    in = kWidth;
  }
  args.out = side.room<float>(kRows * kWidth);
  side.run(args);
}

// One large cloud among small ones.
KERNEL_CASE(furthest_point_sample, 0xc430b4eef99be07c, {"fps_kernel", {1, 2}},
            {"fps_members", {1, 5, 12}}, {"fps_cpu", {0, 1, 2}}) {
  FpsArgs args;
  args.points = packed(side, make_points(9500, 3, 6, 1), 3, {1, 6, 6, 300, 9300});
  args.out_offsets = {side.put<int64_t>({2, 5, 5, 120, 250}), true};
  args.start_idx = {side.put<int64_t>({0, 3, 17, -1}), true};
  args.nonfinite_last = true, args.tie_block = 1024, args.samples = 255;
  side.room(&args.idx, args.samples, &args.dist2, args.samples);
  side.run(args);
}

KERNEL_CASE(furthest_point_sample_with_dist, 0xad621d92add0e70a) {
  constexpr int64_t kClouds = 3, kPoints = 300, kSamples = 40;
  FpsWithDistArgs args;
  args.distances = padded(side, make_points(kClouds * kPoints, kPoints, 40, 2), kClouds, kPoints);
  args.distances.lengths = {side.put<int64_t>({kPoints, kPoints / 2, 0}), true};
  args.samples = kSamples, args.start = 3, args.tie_block = 1024;
  args.idx = side.room<int32_t>(kClouds * kSamples);
  side.run(args);
}

}  // namespace
