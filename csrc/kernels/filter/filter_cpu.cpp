// SPDX-License-Identifier: Apache-2.0
//
// The operators on voxel keys on the CPU, in tasks of rows.
#include <algorithm>

#include "csrc/kernels/filter/exact_sum.h"
#include "csrc/kernels/filter/voxel_downsample.h"
#include "csrc/kernels/filter/voxel_group.h"
#include "csrc/kernels/filter/voxel_key.h"
#include "csrc/kernels/spatial/radix_sort.h"

namespace torchvox {

void run_cpu(const VoxelKeysArgs& args, void*, const ParallelFor& parallel_for) {
  const CloudBatch& points = args.points;
  const int64_t stride = args.counts_stride;
  if (stride == kKeyCounts) std::fill_n(args.counts, (points.clouds + 1) * stride, 0);
  with_key_types(args, [&](auto type, auto real) {
    const auto add = [&](int64_t sample, int32_t(&counts)[kKeyCounts]) {
      for (int c = 0; c < kKeyCounts; ++c) {
        if (counts[c] == 0) continue;
        __atomic_fetch_add(&args.counts[c], counts[c], __ATOMIC_RELAXED);
        __atomic_fetch_add(&args.counts[(sample + 1) * stride + c], counts[c], __ATOMIC_RELAXED);
        counts[c] = 0;
      }
    };
    for_each_range(parallel_for, points.rows, 4096, [&](int64_t begin, int64_t end) {
      const VoxelKeysArgs own = args;  // a copy that, for the compiler, no written key can change
      int32_t counts[kKeyCounts] = {};  // of sample `last`
      int64_t last = -1;
      for (int64_t row = begin; row < end; ++row) {
        const int64_t sample = own.points.packed_owner(row);
        if (sample != last) {
          if (last >= 0) add(last, counts);
          last = sample;
        }
        KeyCount column;
        own.keys[row] = kNoVoxelKey;
        if (sample < 0) continue;
        own.keys[row] =
            own.template locate_row<decltype(type), decltype(real)>(row, sample, &column);
        ++counts[column];
      }
      if (last >= 0) add(last, counts);
    });
  });
}

namespace {

struct SortGroup {
  KeyedIndex* items;  // [2 * points]
  int32_t* row_of;  // [points]: the row of a run in the order of keys

  SortGroup(const VoxelGroupArgs& args, Workspace& workspace)
      : items(workspace.take<KeyedIndex>(2 * args.points)),
        row_of(workspace.take<int32_t>(args.points)) {}
};

void finish(const VoxelGroupArgs& args, int64_t rows, int64_t points) {
  std::fill(args.row_keys + rows, args.row_keys + args.points, -1);
  std::fill(args.offsets + rows, args.offsets + args.points + 1, static_cast<int32_t>(points));
  std::fill(args.perm + points, args.perm + args.points, -1);
  args.counts[0] = static_cast<int32_t>(rows);
  args.counts[1] = static_cast<int32_t>(points);
}

void group_by_sort(const VoxelGroupArgs& args, const SortGroup& work) {
  int64_t count = 0;
  for (int64_t i = 0; i < args.points; ++i) {
    const uint64_t key = static_cast<uint64_t>(args.keys[i]);
    args.point_voxel[i] = -1;
    if (args.is_key(key)) work.items[count++] = {key, static_cast<uint32_t>(i)};
  }
  const KeyedIndex* const sorted =
      radix_sort(work.items, work.items + args.points, count, args.key_bits);
  // Numbers the runs, each noted at its first point.
  int32_t rows = 0;
  for (int64_t i = 0; i < count; ++i) {
    if (i > 0 && sorted[i].key == sorted[i - 1].key) continue;
    args.point_voxel[sorted[i].index] = rows++;
  }
  int32_t next = 0;
  for (int64_t i = 0; i < args.points && !args.by_key; ++i) {
    if (args.point_voxel[i] >= 0) work.row_of[args.point_voxel[i]] = next++;
  }
  // Sizes of the rows, from them their offsets, then their points.
  const auto each_run = [&](const auto& body) {
    int32_t row = 0;
    for (int64_t begin = 0, end; begin < count; begin = end, ++row) {
      for (end = begin + 1; end < count && sorted[end].key == sorted[begin].key;) ++end;
      body(args.by_key ? row : work.row_of[row], begin, end);
    }
  };
  args.offsets[0] = 0;
  each_run([&](int32_t row, int64_t begin, int64_t end) {
    args.offsets[row + 1] = static_cast<int32_t>(end - begin);
    args.row_keys[row] = static_cast<int64_t>(sorted[begin].key);
  });
  for (int32_t row = 0; row < rows; ++row) args.offsets[row + 1] += args.offsets[row];
  each_run([&](int32_t row, int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      args.perm[args.offsets[row] + i - begin] = static_cast<int32_t>(sorted[i].index);
      args.point_voxel[sorted[i].index] = row;
    }
  });
  finish(args, rows, count);
}

}  // namespace

int64_t workspace_bytes_cpu(const VoxelGroupArgs& args) {
  if (args.backend == GroupBackend::kSort) return carved_bytes<SortGroup>(args);
  Workspace workspace;
  const HashGroup group(args, workspace);
  return workspace.bytes() + workspace_bytes_cpu(group.voxelize);
}

void run_cpu(const VoxelGroupArgs& args, void* memory, const ParallelFor& parallel_for) {
  Workspace workspace(memory);
  if (args.backend == GroupBackend::kSort) return group_by_sort(args, SortGroup(args, workspace));
  const HashGroup group(args, workspace);
  run_cpu(group.voxelize, static_cast<char*>(memory) + workspace.bytes(), parallel_for);
  const int32_t rows = group.voxelize.counts[kVoxelsKept];
  args.offsets[0] = 0;
  for (int32_t row = 0; row < rows; ++row) {
    args.offsets[row + 1] = args.offsets[row] + group.voxelize.num_points[row];
  }
  for_each_index(parallel_for, args.points, 8192,
                 [&](int64_t point) { place_in_row(args, group.voxelize, point); });
  finish(args, rows, args.offsets[rows]);
}

int64_t workspace_bytes_cpu(const VoxelSumArgs&) { return 0; }

void run_cpu(const VoxelSumArgs& args, void*, const ParallelFor& parallel_for) {
  with_value_type(args.type, [&](auto type) {
    using T = decltype(type);
    for_each_index(parallel_for, args.rows, 512, [&](int64_t row) {
      const int64_t begin = args.begin_of(row), end = std::max(begin, args.end_of(row));
      for (int64_t c = 0; c < args.columns; ++c) {
        ExactSum<T> sum;
        for (int64_t place = begin; place < end; ++place) args.add(place, c, &sum);
        args.store(row, c, sum, end - begin);
      }
    });
  });
}

int64_t workspace_bytes_cpu(const VoxelDownsampleArgs& args) {
  Workspace workspace;
  const DownsampleSteps steps(args, workspace);
  return workspace.bytes() + workspace_bytes_cpu(steps.group);
}

void run_cpu(const VoxelDownsampleArgs& args, void* memory, const ParallelFor& parallel_for) {
  Workspace workspace(memory);
  DownsampleSteps steps(args, workspace);
  std::fill_n(args.counts, args.num_counts(), 0);
  run_cpu(steps.keys, nullptr, parallel_for);
  run_cpu(steps.group, static_cast<char*>(memory) + workspace.bytes(), parallel_for);
  const int64_t points = args.points(), rows = steps.group.counts[0];
  steps.mean.rows = rows;
  run_cpu(steps.mean, nullptr, parallel_for);
  // One row more than there are, for the counts; then the unused rows.
  for_each_index(parallel_for, rows + 1, 512, [&](int64_t i) { write_grouped_row(steps, i); });
  const size_t bytes = with_value_type(args.type, [](auto value) { return sizeof(value); });
  const size_t unused = static_cast<size_t>(points - rows) * steps.mean.columns * bytes;
  char* const means = static_cast<char*>(args.means);
  std::fill_n(means + rows * steps.mean.columns * bytes, unused, 0);  // there may be no means
  std::fill(args.indices + 4 * rows, args.indices + 4 * points, -1);
  std::fill(args.num_points + rows, args.num_points + points, 0);
  std::fill(args.representative + rows, args.representative + points, -1);
}

}  // namespace torchvox
