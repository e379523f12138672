// SPDX-License-Identifier: Apache-2.0
//
// A counting sort of the slots of each cloud by row, for clouds whose rows can be counted in shared
// memory. Slots are split into partitions, one a block, and these into runs, one a warp; every
// count is an integer, and a slot's place is the number of those before it, so no order of
// execution shows.
//
//   count  the slots of each row in a partition             counts[cloud, partition, row]
//   scan   counts become places; segments begin here; long rows get their tasks
//   place  a warp walks its run in order; votes rank the lanes that name one row
#pragma once

#include "csrc/kernels/core/launch.cuh"
#include "csrc/kernels/grouping/inverse_index/inverse_index.h"

namespace torchvox {

// What the sums need to know of a row, whose segment is [begin, end): which groups begin after it,
// and, when it is long, a task for each of its chunks. The tasks of a row stand together; which row
// comes first is of no consequence. One thread a row.
__device__ inline void schedule_row(const InverseIndex& inverse, int64_t cloud, int64_t row,
                                    uint32_t begin, uint32_t end) {
  int32_t* const group_rows = inverse.group_rows + cloud * (inverse.groups() + 1);
  const auto next = static_cast<int32_t>(row + 1);
  int64_t group = (int64_t{begin} + row) / kGroupKeys + 1;
  int64_t last = (int64_t{end} + row + 1) / kGroupKeys;
  if (row == 0) group_rows[0] = 0;
  if (row + 1 == inverse.rows) last = inverse.groups();
  for (; group <= last; ++group) group_rows[group] = next;

  const uint32_t slots = end - begin;
  if (slots <= kSumChunk) return;
  const int chunks = static_cast<int>((slots + kSumChunk - 1) / kSumChunk);
  const int first = atomicAdd(inverse.long_rows.count, chunks);
  for (int chunk = 0; chunk < chunks; ++chunk) {
    inverse.long_rows.tasks[first + chunk] = {static_cast<int32_t>(cloud),
                                              static_cast<int32_t>(row), chunk, first};
  }
  inverse.long_rows.arrived[first] = 0;
}

inline constexpr int kPlaceThreads = 512;  // at most
inline constexpr int kScanThreads = 256;
inline constexpr int kScanRows = 4 * kScanThreads;  // of a block of the scan

struct CountPlan {
  bool fits = false;
  int warps = 1;  // of a block that places; each counts all rows of the tile on its own
  int64_t tiles = 1;  // of rows, each with its own blocks
  int64_t tile_rows = 0;
  int64_t partitions = 1;  // of a cloud's slots
  int64_t partition_slots = 0;
  int64_t warp_slots = 0;  // of a warp
  int64_t row_stride = 0;  // of counts: rows, rounded up to whole 16 bytes
  int64_t chunks = 0;  // of kScanRows rows, one a block of the scan

  static CountPlan of(const InverseIndex& inverse, const Target& target);
  size_t count_bytes() const { return static_cast<size_t>(tile_rows) * sizeof(uint32_t); }
  size_t place_bytes() const { return static_cast<size_t>(warps * tile_rows) * sizeof(uint16_t); }
};

struct CountWork {
  uint32_t* counts;  // [clouds, partitions, row_stride]
  uint32_t* chunk_totals;  // [clouds, partitions, chunks]
  int64_t bytes;

  CountWork(const InverseIndex& inverse, const CountPlan& plan, void* base) {
    Workspace workspace(base);
    counts = workspace.take<uint32_t>(inverse.clouds * plan.partitions * plan.row_stride);
    chunk_totals = workspace.take<uint32_t>(inverse.clouds * plan.partitions * plan.chunks);
    bytes = workspace.bytes();
  }
};

cudaError_t launch_count(const InverseIndexArgs& args, const CountPlan& plan, void* workspace,
                         const CudaContext& context);

}  // namespace torchvox
