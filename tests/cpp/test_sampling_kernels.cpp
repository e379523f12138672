// SPDX-License-Identifier: Apache-2.0
//
// Furthest point sampling, over points and over given distances.
#include "csrc/kernels/sampling/fps/furthest_point_sample.h"
#include "csrc/kernels/sampling/furthest_point_sample_with_dist.h"
#include "tests/cpp/harness.h"

namespace {

// One large cloud among small ones.
KERNEL_CASE(furthest_point_sample, 0xc430b4eef99be07c, {"fps_kernel", {1, 2}},
            {"fps_members", {1, 5, 12}}, {"fps_cpu", {0, 1, 2}}) {
  FpsArgs args;
  args.points = packed(side, make_points(9500, 3, 6, 1), 3, {1, 6, 6, 300, 9300});
  args.out_offsets = {side.put<int64_t>({2, 5, 5, 120, 250}), true};
  args.start_idx = {side.put<int64_t>({0, 3, 17, -1}), true};
  args.nonfinite_last = true;
  args.tie_block = 1024;
  args.samples = 255;
  args.idx = side.room<int32_t>(args.samples);
  args.dist2 = side.room<float>(args.samples);
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
