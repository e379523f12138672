// SPDX-License-Identifier: Apache-2.0
//
// The points of a ball query on the host: in planes of one coordinate each, in index order and, for
// cells, a second time by bucket.
#pragma once

#include <algorithm>

#include "csrc/kernels/neighbors/ball_query/rule.h"

namespace torchvox {

inline constexpr int kChunk = 64;  // points of a box, and those whose distances are found at a time
inline constexpr int kVector = 16;  // of them by one instruction, at best

struct Planes {
  float *a, *b, *c;  // [points]

  void set(int64_t i, const Point3& p) const { a[i] = p.a, b[i] = p.b, c[i] = p.c; }
  Point3 get(int64_t i) const { return {a[i], b[i], c[i]}; }
  // With room for a vector that begins in them and ends behind them.
  static Planes take(Workspace& workspace, int64_t count) {
    Planes planes;
    for (float** plane : {&planes.a, &planes.b, &planes.c}) {
      *plane = workspace.take<float>(count + kVector);
    }
    return planes;
  }
  void end(int64_t count) const {
    for (float* plane : {a, b, c}) std::fill_n(plane + count, kVector, NAN);
  }
};

struct CpuBall {
  const BallQueryArgs& args;
  bool cells;
  BallGrid grid;
  Planes in_order;  // by row among all points
  Planes low, high;  // boxes of kChunk points each, in order
  Planes by_bucket;
  int32_t* row;  // by bucket: the row among all points
  uint32_t* begins;  // [buckets + 1]

  // Carves the workspace; over null, to learn its size.
  CpuBall(const BallQueryArgs& args, BallPlan plan, Workspace& workspace)
      : args(args), cells(plan == BallPlan::kCells) {
    if (plan == BallPlan::kGeneric) return;
    const int64_t points = args.points.total_rows();
    in_order = Planes::take(workspace, points);
    if (!cells) return;
    constexpr int kLeastTableBits = 6, kMostTableBits = 22;
    grid = BallGrid::of(args, kLeastTableBits, kMostTableBits);
    by_bucket = Planes::take(workspace, points);
    low = Planes::take(workspace, (points + kChunk - 1) / kChunk);
    high = Planes::take(workspace, (points + kChunk - 1) / kChunk);
    row = workspace.take<int32_t>(points);
    begins = workspace.take<uint32_t>((int64_t{1} << grid.bits) + 1);
  }
};

inline void load_points(const CpuBall& ball, const ParallelFor& parallel_for) {
  const BallQueryArgs& args = ball.args;
  constexpr int64_t kChunksPerTask = 128;
  const int64_t points = args.points.total_rows();
  ball.in_order.end(points);
  if (ball.cells) ball.by_bucket.end(points);
  for_each_index(parallel_for, (points + kChunk - 1) / kChunk, kChunksPerTask, [&](int64_t chunk) {
    Point3 low{INFINITY, INFINITY, INFINITY}, high{-INFINITY, -INFINITY, -INFINITY};
    for (int64_t row = chunk * kChunk; row < std::min((chunk + 1) * kChunk, points); ++row) {
      const int64_t at =
          args.points.packed ? row * args.points.row_stride : args.points.find(row).element;
      const Point3 p = load_row(args, args.points.data, at);
      ball.in_order.set(row, p);
      if (is_nan(p.a)) continue;
      low = {std::min(low.a, p.a), std::min(low.b, p.b), std::min(low.c, p.c)};
      high = {std::max(high.a, p.a), std::max(high.b, p.b), std::max(high.c, p.c)};
    }
    if (ball.cells) ball.low.set(chunk, low), ball.high.set(chunk, high);
  });
}

// A counting sort by bucket, stable.
inline void fill_cells(const CpuBall& ball) {
  const BallQueryArgs& args = ball.args;
  const int64_t buckets = int64_t{1} << ball.grid.bits;
  std::fill_n(ball.begins, buckets + 1, 0u);
  const auto for_each_point = [&](const auto& body) {
    int64_t i = 0;  // never back, even where the offsets do: no point comes twice
    for (int64_t b = 0; b < args.points.clouds; ++b) {
      const BallCloud cloud = BallCloud::of(args, b);
      for (i = std::max(i, cloud.first); i < cloud.first + cloud.points; ++i) {
        const Point3 p = ball.in_order.get(i);
        if (!is_nan(p.a)) body(i, p, ball.grid.bucket(b, p));
      }
    }
  };
  for_each_point([&](int64_t, const Point3&, uint32_t bucket) { ++ball.begins[bucket + 1]; });
  for (int64_t i = 0; i < buckets; ++i) ball.begins[i + 1] += ball.begins[i];
  for_each_point([&](int64_t i, const Point3& p, uint32_t bucket) {
    const uint32_t at = ball.begins[bucket]++;
    ball.by_bucket.set(at, p);
    ball.row[at] = static_cast<int32_t>(i);
  });
  for (int64_t i = buckets; i > 0; --i) ball.begins[i] = ball.begins[i - 1];
  ball.begins[0] = 0;
}

}  // namespace torchvox
