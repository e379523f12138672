// SPDX-License-Identifier: Apache-2.0
//
// voxelize on the CPU: the steps `ranks`, `rows` and `points` of voxelize_cpu.h, and the gradient.
#include <algorithm>
#include <cstring>

#include "csrc/kernels/voxel/voxelize/voxelize.h"
#include "csrc/kernels/voxel/voxelize/voxelize_cpu.h"

namespace torchvox {

VoxelCpuWork::VoxelCpuWork(const VoxelizeArgs& args, void* base) {
  const int64_t n = args.points.rows, columns = args.points.columns;
  const int64_t batches = args.points.clouds, forced = voxel_partitions_plan.value();
  const int64_t parts =
      forced == kAutomatic ? std::min<int64_t>(args.threads, n / kCpuPointsPerPartition) : forced;
  partitions = static_cast<int>(std::clamp<int64_t>(parts, 1, kCpuPartitions));
  chunks = (n + kCpuChunk - 1) / kCpuChunk;
  room = n + partitions;
  Workspace space(base);
  run_bound = space.take<uint32_t>(n + chunks);
  run_key = space.take<uint64_t>(n);
  run_partition = space.take<uint8_t>(n);
  chunk_runs = space.take<int64_t>(chunks);
  chunk_partition_runs = space.take<int64_t>(chunks * partitions);
  chunk_partition_voxels = space.take<int64_t>(chunks * partitions);
  chunk_voxels = space.take<int64_t>(chunks);
  partition_begin = space.take<int64_t>(partitions + 1);
  table = space.take<uint32_t>(2 * room);
  voxels = space.take<CpuVoxel>(room);
  if (args.order != VoxelOrder::kFirst) ranked = space.take<KeyedIndex>(2 * n);
  voxel_of = space.take<uint32_t>(n);
  row_of = space.take<int32_t>(room);
  sample_begin = space.take<int64_t>(batches + 1);
  row_begin = space.take<int64_t>(batches + 1);
  tallies = space.take<int64_t>(5 * batches);
  if (args.features != nullptr && args.reduce != VoxelReduce::kNone) {
    with_point_type(args.points.dtype, [&](auto type) {
      using Real = compute_t<decltype(type)>;
      values = space.take<Real>(room * columns);
      if (!args.is_best() && args.stored(n) > kCpuSumBlock) {
        cascades = space.take<CascadeSum<Real>>(n / kCpuSumBlock * columns);
        cascade_of = space.take<uint32_t>(room);
        cascade_count = space.take<int64_t>(1);
      }
    });
    if (args.arg != nullptr) args_of = space.take<int32_t>(room * columns);
  }
  bytes = space.bytes();
}

namespace {

bool copies(const VoxelizeArgs& args) {
  return args.features != nullptr && args.reduce == VoxelReduce::kNone;
}

// Fills voxel_of with all voxels in order of their first points.
void merge_partitions(VoxelCpuWork& work, const ParallelFor& parallel_for) {
  work.voxel_count = 0;
  for (int64_t chunk = 0; chunk < work.chunks; ++chunk) {
    work.chunk_voxels[chunk] = work.voxel_count;
    for (int p = 0; p < work.partitions; ++p) {
      work.voxel_count += work.chunk_partition_voxels[chunk * work.partitions + p];
    }
  }
  for_each_index(parallel_for, work.chunks, 1, [&](int64_t chunk) {
    uint32_t* const next = work.voxel_of + work.chunk_voxels[chunk];
    uint32_t run[kCpuChunk];
    const int voxels =
        work.select_runs(chunk, [&](int64_t r) { return work.run_slot(r) == 0; }, run);
    for (int k = 0; k < voxels; ++k) next[k] = work.run_voxel(run[k]);
  });
}

void find_samples_and_rows(const VoxelizeArgs& args, VoxelCpuWork& work) {
  const int64_t batches = args.points.clouds;
  for (int64_t b = 0; b <= batches; ++b) {
    work.sample_begin[b] =
        std::lower_bound(work.voxel_of, work.voxel_of + work.voxel_count, args.points.offset(b),
                         [&](uint32_t v, int64_t row) { return work.voxels[v].first < row; }) -
        work.voxel_of;
    // Where the caller's offsets do not ascend, rows of two samples must not overlap.
    if (b > 0) work.sample_begin[b] = std::max(work.sample_begin[b], work.sample_begin[b - 1]);
  }
  work.row_begin[0] = 0;
  for (int64_t b = 0; b < batches; ++b) {
    const int64_t voxels = work.sample_begin[b + 1] - work.sample_begin[b];
    work.row_begin[b + 1] = work.row_begin[b] + args.kept(voxels);
  }
  work.rows = work.row_begin[batches];
}

void sort_voxels(const VoxelizeArgs& args, const VoxelCpuWork& work) {
  for (int64_t rank = 0; rank < work.voxel_count; ++rank) {
    const uint32_t voxel = work.voxel_of[rank];
    work.ranked[rank] = {work.voxels[voxel].key, voxel};
  }
  const KeyedIndex* const sorted = radix_sort(work.ranked, work.ranked + work.voxel_count,
                                              work.voxel_count, bits_for(args.key_limit()));
  for (int64_t rank = 0; rank < work.voxel_count; ++rank) work.voxel_of[rank] = sorted[rank].index;
}

// Writes the rows of the ranks [begin, end), which are of sample b.
template <class Values>
void write_rows(const VoxelizeArgs& args, const VoxelCpuWork& work, const Values& values, int64_t b,
                int64_t begin, int64_t end) {
  int64_t all_stored = 0, over_cap = 0, not_kept = 0;
  for (int64_t rank = begin; rank < end; ++rank) {
    const uint32_t v = work.voxel_of[rank];
    const CpuVoxel& voxel = work.voxels[v];
    const int64_t row = work.row_begin[b] + (rank - work.sample_begin[b]);
    const bool kept = row < work.row_begin[b + 1];
    work.row_of[v] = kept ? static_cast<int32_t>(row) : -1;
    if (!kept) {
      not_kept += voxel.count;
      continue;
    }
    const int64_t stored = args.stored(voxel.count);
    all_stored += stored;
    over_cap += voxel.count - stored;
    if (args.keys != nullptr) {
      args.row_keys[row] = static_cast<int64_t>(voxel.key);
    } else {
      int64_t sample;
      const Cell cell = args.grid.cell_of(voxel.key, &sample);
      const int32_t index[4] = {static_cast<int32_t>(sample), cell.z, cell.y, cell.x};
      std::copy_n(index, 4, args.indices + 4 * row);
    }
    args.num_points[row] = static_cast<int32_t>(stored);
    values.store(v, row, static_cast<uint32_t>(stored));
    if (copies(args)) values.pad_slots(row, stored);
  }
  work.add_tally(b, kPointsStored, all_stored);
  work.add_tally(b, kPointsOverCap, over_cap);
  work.add_tally(b, kPointsVoxelNotKept, not_kept);
}

void write_all_rows(const VoxelizeArgs& args, const VoxelCpuWork& work,
                    const ParallelFor& parallel_for) {
  const int64_t* const begins = work.sample_begin;
  const int64_t tasks = (work.voxel_count + kCpuRowsPerTask - 1) / kCpuRowsPerTask;
  with_values(args, work, [&](const auto& values) {
    for_each_index(parallel_for, tasks, 1, [&](int64_t task) {
      int64_t rank = task * kCpuRowsPerTask;
      const int64_t end = std::min(work.voxel_count, rank + kCpuRowsPerTask);
      int64_t b = std::upper_bound(begins, begins + args.points.clouds + 1, rank) - begins - 1;
      for (; rank < end; rank = begins[++b]) {
        write_rows(args, work, values, b, rank, std::min(end, begins[b + 1]));
      }
    });
  });
}

// Writes the slots of the points [begin, end) of a voxel, from `slot` on, and copies the stored
// points into them.
template <class Values>
void write_slots(const VoxelizeArgs& args, const VoxelCpuWork& work, const Values& values,
                 uint32_t voxel, int64_t slot, int64_t begin, int64_t end) {
  const int32_t row = work.row_of[voxel];
  const int64_t limit = row < 0 ? 0 : args.stored(work.voxels[voxel].count);
  const Cell cell = values.center_cell(voxel);
  for (int64_t i = begin; i < end; ++i, ++slot) {
    const bool stored = slot < limit;
    if (args.point_slot != nullptr) args.point_slot[i] = stored ? static_cast<int32_t>(slot) : -1;
    if (copies(args) && stored) values.copy(row, slot, i, cell);
  }
}

// Writes the rows and slots of the points of a chunk.
template <class Values>
void write_chunk(const VoxelizeArgs& args, const VoxelCpuWork& work, const Values& values,
                 int64_t chunk) {
  // A run is written at least 8 wide, a fixed number that most do not exceed; the next one
  // overwrites what is too much.
  constexpr int64_t kWide = 8;
  int32_t rows[kCpuChunk + kWide];
  const int64_t first = chunk * kCpuChunk, runs = work.chunk_runs[chunk];
  for (int64_t run = first; run < first + runs; ++run) {
    const bool dropped = work.run_partition[run] == kCpuNoPartition;
    const int32_t row = dropped ? -1 : work.row_of[work.run_voxel(run)];
    const int64_t begin = work.run_begin(chunk, run), end = work.run_end(chunk, run);
    std::fill_n(rows + (begin - first), kWide, row);
    for (int64_t i = begin + kWide; i < end; ++i) rows[i - first] = row;
  }
  const int64_t end = std::min(args.points.rows, first + kCpuChunk);
  std::copy_n(rows, end - first, args.point_voxel + first);
  if (args.point_slot == nullptr && !copies(args)) return;
  for (int64_t run = first; run < first + runs; ++run) {
    const int64_t begin = work.run_begin(chunk, run), end = work.run_end(chunk, run);
    if (work.run_partition[run] != kCpuNoPartition) {
      write_slots(args, work, values, work.run_voxel(run), work.run_slot(run), begin, end);
    } else if (args.point_slot != nullptr) {
      std::fill(args.point_slot + begin, args.point_slot + end, -1);
    }
  }
}

void fill(void* array, int64_t row_bytes, int64_t begin, int64_t end, int byte) {
  if (array == nullptr || row_bytes == 0 || end <= begin) return;
  std::memset(static_cast<char*>(array) + begin * row_bytes, byte,
              static_cast<size_t>((end - begin) * row_bytes));
}

void fill_unused_rows(const VoxelizeArgs& args, int64_t begin, int64_t end) {
  fill(args.indices, 16, begin, end, 0xff);
  fill(args.row_keys, 8, begin, end, 0xff);
  fill(args.num_points, 4, begin, end, 0);
  fill(args.features, args.row_values() * bytes_of(args.out_dtype), begin, end, 0);
  fill(args.arg, 4 * args.points.columns, begin, end, 0xff);
}

// Each task writes the points of a chunk and a share of the unused rows.
void write_the_rest(const VoxelizeArgs& args, const VoxelCpuWork& work,
                    const ParallelFor& parallel_for) {
  const int64_t tasks = std::max<int64_t>(1, work.chunks);
  const int64_t share = (args.capacity() - work.rows + tasks - 1) / tasks;
  with_values(args, work, [&](const auto& values) {
    for_each_index(parallel_for, tasks, 1, [&](int64_t task) {
      if (task < work.chunks) write_chunk(args, work, values, task);
      const int64_t begin = work.rows + task * share;
      fill_unused_rows(args, begin, std::min(args.capacity(), begin + share));
    });
  });
}

void write_counts(const VoxelizeArgs& args, const VoxelCpuWork& work) {
  int64_t totals[kVoxelCounts] = {};
  for (int64_t b = 0; b < args.points.clouds; ++b) {
    int64_t row[kVoxelCounts] = {work.row_begin[b + 1] - work.row_begin[b],
                                 work.sample_begin[b + 1] - work.sample_begin[b]};
    std::copy_n(work.tallies + 5 * b, 5, row + kPointsStored);
    for (int c = 0; c < kVoxelCounts; ++c) {
      args.counts[(b + 1) * kVoxelCounts + c] = static_cast<int32_t>(row[c]);
      totals[c] += row[c];
    }
  }
  for (int c = 0; c < kVoxelCounts; ++c) args.counts[c] = static_cast<int32_t>(totals[c]);
}

}  // namespace

int64_t workspace_bytes_cpu(const VoxelizeArgs& args) { return VoxelCpuWork(args, nullptr).bytes; }

void run_cpu(const VoxelizeArgs& args, void* workspace, const ParallelFor& parallel_for) {
  VoxelCpuWork work(args, workspace);
  const ParallelFor& run_tasks = work.partitions > 1 ? parallel_for : ParallelFor(serial_for);
  std::fill_n(work.tallies, 5 * args.points.clouds, 0);
  if (work.cascade_count != nullptr) *work.cascade_count = 0;
  find_runs(args, work, run_tasks);
  number_partitions(args, work, run_tasks);
  merge_partitions(work, run_tasks);
  find_samples_and_rows(args, work);
  if (args.order != VoxelOrder::kFirst) sort_voxels(args, work);
  write_all_rows(args, work, run_tasks);
  write_the_rest(args, work, run_tasks);
  write_counts(args, work);
}

void run_cpu(const VoxelizeBackwardArgs& args, void*, const ParallelFor& parallel_for) {
  with_compute_type(args.in_double() ? DType::kDouble : DType::kFloat, [&](auto real) {
    for_each_index(parallel_for, args.rows, 4096, [&](int64_t point) {
      for (int64_t column = 0; column < args.columns; ++column) {
        store_as(args.grad_input, args.dtype, point * args.columns + column,
                 quiet(args.value<decltype(real)>(point, column)));
      }
    });
  });
}

}  // namespace torchvox
