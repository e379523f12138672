// SPDX-License-Identifier: Apache-2.0
//
// The plan of a ball query, from sizes and radii alone, and the bounds of a ball.
#include "csrc/kernels/neighbors/ball_query/rule.h"

#include <algorithm>

namespace torchvox {
namespace {

// Distances, in all, from which on cells pay for being built.
constexpr int64_t kCudaTests = int64_t{1} << 25;
constexpr int64_t kCudaLeastPoints = 2048;  // of a cloud
constexpr int64_t kCudaMostPoints = int64_t{1} << 15;  // a warp passes over no more of them
constexpr int64_t kCpuPoints = 1024;
constexpr int64_t kCpuPointsOfSeveral = 8192;  // radii: the least of them hardly ever has k hits
constexpr int64_t kCpuQueries = 64;  // of a cloud
constexpr int64_t kMostSorted = 512;  // hits that are sorted by counting the smaller ones

template <class C>
BallRadius bounds(double radius, const double* radius2, double min_radius, double core_dist2,
                  bool closed) {
  const C r = static_cast<C>(radius), low = static_cast<C>(min_radius);
  const C r2 = radius2 ? static_cast<C>(*radius2) : r * r;
  const C last = closed ? r2 : std::nextafter(r2, -std::numeric_limits<C>::infinity());
  BallRadius ball;
  ball.outer = std::max(last, static_cast<C>(core_dist2));
  ball.inner = low * low;
  return ball;
}

}  // namespace

BallRadius ball_radius(DType dtype, double radius, const double* radius2, double min_radius,
                       double core_dist2, bool closed) {
  return dtype == DType::kDouble ? bounds<double>(radius, radius2, min_radius, core_dist2, closed)
                                 : bounds<float>(radius, radius2, min_radius, core_dist2, closed);
}

BallPlan make_ball_plan(const BallQueryArgs& args, const Target& target) {
  if (args.generic()) return BallPlan::kGeneric;
  bool bounded =
      args.points.total_rows() < (int64_t{1} << 31) && args.points.clouds < (int64_t{1} << 31);
  int64_t most = 0;
  for (int r = 0; r < args.radii; ++r) {
    bounded = bounded && args.radius[r].outer < std::numeric_limits<double>::infinity();
    most = std::max(most, args.radius[r].k);
  }
  if (target.cuda) bounded = bounded && most <= kMostSorted;
  if (!bounded) return BallPlan::kScan;
  const int64_t forced = ball_kernel_plan.value();
  if (forced != kAutomatic) return forced == 1 ? BallPlan::kCells : BallPlan::kScan;
  const int64_t clouds = std::max<int64_t>(args.points.clouds, 1);
  const int64_t points = args.points.total_rows() / clouds, queries = args.rows() / clouds;
  const bool cells = target.cuda
      ? points >= kCudaMostPoints ||
          (points >= kCudaLeastPoints && points * queries >= kCudaTests / clouds)
      : points >= (args.radii > 1 ? kCpuPointsOfSeveral : kCpuPoints) && queries >= kCpuQueries;
  return cells ? BallPlan::kCells : BallPlan::kScan;
}

}  // namespace torchvox
