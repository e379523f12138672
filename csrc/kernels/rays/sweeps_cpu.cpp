// SPDX-License-Identifier: Apache-2.0
//
// merge_sweeps and crop_points on the CPU, in ranges of rows.
#include "csrc/kernels/rays/sweeps.h"

namespace torchvox {
namespace {

constexpr int64_t kRowsPerTask = 4096;
int64_t tasks_of(int64_t rows) { return rows / kRowsPerTask + 1; }

// body(task, cloud, begin, end) for the ranges of each cloud.
template <class Body>
void for_ranges(const ParallelFor& parallel_for, int64_t clouds, int64_t rows, const Body& body) {
  for_each_index(parallel_for, clouds * tasks_of(rows), 1, [&](int64_t task) {
    const int64_t cloud = task / tasks_of(rows), begin = task % tasks_of(rows) * kRowsPerTask;
    body(task, cloud, begin, std::min(begin + kRowsPerTask, rows));
  });
}

// Writes row i of a sweep, or zeros; returns its column of the counts, kSweepRows for zeros.
SweepCount merge_row(const MergeSweepsArgs& args, const Sweep& sweep, int64_t position, int64_t i) {
  const bool exists = i < sweep.rows;
  const int64_t to = packed_row(exists, sweep.first + (exists ? i : sweep.rows),
                                position * args.sweeps.rows + i, args.rows());
  float* const out = args.points + to * args.columns();
  if (!exists) {
    std::fill_n(out, args.columns(), 0.0F);
    return kSweepRows;
  }
  const float* const in = sweep_row(args, sweep.slot, i);
  float q[3];
  const SweepCount column = move_point(args, sweep.slot, i, in, q);
  for (int64_t c = 0; c < args.columns(); ++c) {
    out[c] = merged_value(args, sweep.slot, in, q, c);
  }
  return column;
}

template <int kColumns>
void count_seen(int32_t* counts, int64_t cloud, const int32_t (&seen)[kColumns]) {
  for (int k = 1; k < kColumns; ++k) count_rows<kColumns>(counts, cloud, k, seen[k]);
}

}  // namespace

void run_cpu(const MergeSweepsArgs& args, void*, const ParallelFor& parallel_for) {
  std::fill_n(args.counts, (1 + args.sweeps.clouds) * kSweepCounts, 0);
  Sweep sweeps[kMostSweeps];
  *args.num_points = 0;
  for (int64_t k = 0; k < args.positions; ++k) {
    sweeps[k] = sweep_at(args, k);
    sweeps[k].first = *args.num_points;
    *args.num_points += sweeps[k].rows;
  }
  const auto merge = [&](int64_t, int64_t position, int64_t begin, int64_t end) {
    const Sweep sweep = sweeps[position];
    int32_t seen[kSweepCounts] = {};
    for (int64_t i = begin; i < end; ++i) ++seen[merge_row(args, sweep, position, i)];
    count_seen(args.counts, sweep.slot, seen);
  };
  for_ranges(parallel_for, args.positions, args.sweeps.rows, merge);
}

void run_cpu(const CropPointsArgs& args, void* memory, const ParallelFor& parallel_for) {
  auto* const kept = static_cast<int32_t*>(memory);  // of each range; then, before it in its cloud
  const int64_t clouds = args.points.clouds, rows = args.points.rows;
  const int64_t columns = args.points.columns;
  std::fill_n(args.counts, (1 + clouds) * kCropCounts, 0);
  const auto count = [&](int64_t task, int64_t b, int64_t begin, int64_t end) {
    int32_t seen[kCropCounts] = {};
    for (int64_t i = begin; i < end; ++i) ++seen[args.column(b, i)];
    kept[task] = seen[kCropKept];
    count_seen(args.counts, b, seen);
  };
  for_ranges(parallel_for, clouds, rows, count);
  for (int64_t task = 0; task < clouds * tasks_of(rows); ++task) {
    int32_t& before = args.num_points[task / tasks_of(rows)];
    if (task % tasks_of(rows) == 0) before = 0;
    std::swap(kept[task], before);
    before += kept[task];
  }
  const auto write = [&](int64_t task, int64_t b, int64_t begin, int64_t end) {
    for (int64_t i = begin, before = kept[task]; i < end; ++i) {
      const bool keeps = args.column(b, i) == kCropKept;
      float* const out = args.out + (b * rows + packed_row(keeps, before, i, rows)) * columns;
      keeps ? std::copy_n(args.row(b, i), columns, out) : std::fill_n(out, columns, 0.0F);
      before += keeps;
    }
  };
  for_ranges(parallel_for, clouds, rows, write);
}

}  // namespace torchvox
