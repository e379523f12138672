// SPDX-License-Identifier: Apache-2.0
//
// Searches for neighbors, and groups of them.
#include "csrc/kernels/neighbors/ball_query/ball_query.h"
#include "csrc/kernels/neighbors/group_mlp/group_mlp_max.h"
#include "csrc/kernels/neighbors/knn/knn.h"
#include "csrc/kernels/neighbors/query_and_group.h"
#include "csrc/kernels/neighbors/radius_neighbors.h"
#include "tests/cpp/harness.h"

namespace {

constexpr int64_t kClouds = 2, kPoints = 1500, kQueries = 40, kRows = kClouds * kQueries;

KERNEL_CASE(knn, 0x1e911504b521da18, {"knn_kernel", {0, 1, 2}}, {"knn_order", {0, 1}},
            {"knn_cpu", {0, 1, 2}}) {
  KnnArgs args;
  args.k = 20;
  args.points = padded(side, make_points(kClouds * kPoints, 3, 2, 1), kClouds, 3);
  args.query = padded(side, make_points(kRows, 3, 2, 2), kClouds, 3);
  args.points.lengths = {side.put<int64_t>({kPoints, kPoints / 3}), true};
  args.idx = side.room<int32_t>(kRows * args.k);
  args.dist2 = side.room<float>(kRows * args.k);
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
  args.idx = side.room<int32_t>(kQueries * args.slots);
  args.dist2 = side.room<float>(kQueries * args.slots);
  args.count = side.room<int32_t>(kQueries * args.counts);
  side.run(args);
}

KERNEL_CASE(radius_neighbors, 0xd14532d71bcb3657, {"ball_kernel", {0, 1}}) {
  RadiusNeighborsArgs args;
  args.ball = balls(side);
  args.capacity = 4000;
  args.offsets = side.room<int64_t>(kQueries + 1);
  args.index = side.room<int32_t>(args.capacity);
  args.dist2 = side.room<float>(args.capacity);
  args.count = side.room<int64_t>(1);
  side.run(args);
}

KERNEL_CASE(query_and_group, 0x5e3fbb05456cddc3) {
  constexpr int64_t kSlots = 300;
  QueryAndGroupArgs args;
  args.points = padded(side, make_points(kClouds * kPoints, 3, 2, 5), kClouds, 3);
  args.query = padded(side, make_points(kRows, 3, 2, 6), kClouds, 3);
  args.channels = 13;
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
  backward.grad_slots = side.room<float>(kRows * kSlots * 3);
  backward.grad_query = side.room<float>(kRows * 3);
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

}  // namespace
