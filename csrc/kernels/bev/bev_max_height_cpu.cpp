// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstring>

#include "csrc/kernels/bev/bev_max_height_common.h"

namespace torchvox {
namespace {

constexpr int64_t kPointsPerTask = 8192;
constexpr int64_t kCellsPerTask = 65536;

int64_t tasks(int64_t count, int64_t per_task) { return (count + per_task - 1) / per_task; }

// Raises *cell to `key`; true when the cell was empty. A maximum does not depend on the order.
template <class Key>
bool raise_cell(Key* cell, Key key) {
  Key old = __atomic_load_n(cell, __ATOMIC_RELAXED);
  while (old < key) {
    if (__atomic_compare_exchange_n(cell, &old, key, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
      return old == 0;
    }
  }
  return false;
}

template <class T, class Key>
void scatter(const BevMaxHeightArgs& args, const BevTable<Key>& table, int64_t begin, int64_t end) {
  int32_t local[kBevCounts] = {};
  int64_t local_sample = -1;
  const auto flush = [&] {
    for (int c = 0; c < kBevCounts; ++c) {
      if (local[c]) {
        __atomic_fetch_add(&table.counters[local_sample * kBevCounts + c], local[c],
                           __ATOMIC_RELAXED);
      }
      local[c] = 0;
    }
  };
  for (int64_t row = begin; row < end; ++row) {
    const int64_t sample = args.points.valid_sample(row);
    if (sample < 0) continue;
    if (sample != local_sample) {
      flush();
      local_sample = sample;
    }
    const BevPoint point = locate_point<T>(args.points, args.grid, row, sample);
    ++local[count_of(point.fate)];
    if (point.fate == BevFate::kUsed &&
        raise_cell(&table.keys[point.cell], height_key(point.z, row, Key{}))) {
      ++local[kBevCellsFilled];
    }
  }
  flush();
}

void write_counts(const BevMaxHeightArgs& args, const int32_t* counters) {
  for (int c = 0; c < kBevCounts; ++c) {
    int32_t total = 0;
    for (int64_t b = 0; b < args.points.batches; ++b) {
      const int32_t count = counters[b * kBevCounts + c];
      args.counts[(b + 1) * kBevCounts + c] = count;
      total += count;
    }
    args.counts[c] = total;
  }
}

template <class Key>
void run(const BevMaxHeightArgs& args, void* workspace, const ParallelFor& parallel_for) {
  const BevTable<Key> table(args, workspace);
  std::memset(workspace, 0, table.bytes);
  with_point_type(args.points.dtype, [&](auto type) {
    parallel_for(tasks(args.points.rows, kPointsPerTask), [&](int64_t first, int64_t last) {
      scatter<decltype(type)>(args, table, first * kPointsPerTask,
                              std::min(last * kPointsPerTask, args.points.rows));
    });
  });
  const int64_t cells = args.points.batches * args.grid.cells();
  parallel_for(tasks(cells, kCellsPerTask), [&](int64_t first, int64_t last) {
    const int64_t end = std::min(last * kCellsPerTask, cells);
    for (int64_t i = first * kCellsPerTask; i < end; ++i) write_cell(args, i, table.keys[i]);
  });
  write_counts(args, table.counters);
}

}  // namespace

int64_t workspace_bytes(const BevMaxHeightArgs& args, const Target&) {
  return args.top_index ? BevTable<uint64_t>(args, nullptr).bytes
                        : BevTable<uint32_t>(args, nullptr).bytes;
}

void run_cpu(const BevMaxHeightArgs& args, void* workspace, const ParallelFor& parallel_for) {
  if (args.top_index) {
    run<uint64_t>(args, workspace, parallel_for);
  } else {
    run<uint32_t>(args, workspace, parallel_for);
  }
}

int64_t workspace_bytes(const BevMaxHeightBackwardArgs&, const Target&) { return 0; }

void run_cpu(const BevMaxHeightBackwardArgs& args, void*, const ParallelFor& parallel_for) {
  with_point_type(args.points.dtype, [&](auto type) {
    parallel_for(tasks(args.points.rows, kPointsPerTask), [&](int64_t first, int64_t last) {
      const int64_t end = std::min(last * kPointsPerTask, args.points.rows);
      for (int64_t row = first * kPointsPerTask; row < end; ++row) {
        write_point_gradient<decltype(type)>(args, row);
      }
    });
  });
}

}  // namespace torchvox
