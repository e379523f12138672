// SPDX-License-Identifier: Apache-2.0
//
// What the steps of voxelize share on the CPU.
//
// Neighbors in the input tend to share a voxel, so runs of such points are looked up, not points.
// Voxels are split into partitions by a hash of their keys, and one task does all that a
// partition needs, its runs in input order. So a voxel's first point, the slots of its points and
// the order of its sums come by themselves, without atomics and without sorting; one thread is one
// partition. The number of partitions decides no result.
//
//   runs        the keys of all points, as runs of equal ones    in chunks of points
//   partitions  the voxels of every partition and their sums     in partitions
//   ranks       all voxels in output order, hence their rows     in chunks of points
//   rows        what the outputs hold of each row                in rows
//   points      what the outputs hold of each point              in chunks of points
#pragma once

#include <cstdint>

#include "csrc/kernels/core/workspace.h"
#include "csrc/kernels/voxel/voxelize/voxelize.h"

namespace torchvox {

inline constexpr int64_t kCpuChunk = 1024;  // points a task
inline constexpr int64_t kCpuRowsPerTask = 512;
// The task of a partition reads that of every run: with more than this it would do little else.
inline constexpr int kCpuPartitions = 16;
inline constexpr int64_t kCpuPointsPerPartition = 8192;
inline constexpr uint32_t kCpuSumBlock = 32;  // values in the finest block of CascadeSum

inline constexpr uint8_t kCpuNoPartition = 0xff;
inline constexpr uint64_t kCpuNoKey = ~uint64_t{0};

struct CpuVoxel {
  uint64_t key;
  uint32_t count;  // points
  uint32_t first;  // point
};

struct VoxelCpuWork {
  int partitions = 1;
  int64_t chunks = 0;
  int64_t bytes = 0;

  // Runs, those of a chunk from chunk * kCpuChunk on.
  uint32_t* run_bound = nullptr;  // [rows + chunks] chunk by chunk: its begin, the ends of its runs
  uint64_t* run_key = nullptr;  // [rows] once numbered: voxel << 32 | slot of first point
  uint8_t* run_partition = nullptr;  // [rows]
  int64_t* chunk_runs = nullptr;  // [chunks]
  int64_t* chunk_partition_runs = nullptr;  // [chunks, partitions]
  int64_t* chunk_partition_voxels = nullptr;  // [chunks, partitions] voxels that begin there
  int64_t* chunk_voxels = nullptr;  // [chunks] voxels whose first point lies before

  // Voxels are numbered partition by partition, with gaps: a partition has a number for each of its
  // runs and, before these, one for no voxel.
  int64_t room = 0;  // rows + partitions
  int64_t* partition_begin = nullptr;  // [partitions + 1]
  uint32_t* table = nullptr;  // [2 * room] hash tables, partition by partition
  CpuVoxel* voxels = nullptr;  // [room]

  // Running values of sums and extremes, see values_cpu.h.
  void* values = nullptr;  // [room, columns] by voxel
  int32_t* args_of = nullptr;  // [room, columns] by voxel; null: not wanted
  void* cascades = nullptr;  // [rows / 32, columns] of voxels above 32 points
  int64_t* cascades_taken = nullptr;
  uint32_t* cascade_of = nullptr;  // [room] by voxel

  struct Ranked {
    uint64_t key;
    uint32_t voxel;
  };
  Ranked* ranked = nullptr;  // [2 * rows] scratch of sorted orders
  uint32_t* voxel_of = nullptr;  // [rows] by rank
  int32_t* row_of = nullptr;  // [room] by voxel; -1: past max_voxels
  int64_t* sample_begin = nullptr;  // [batches + 1] voxels in the samples before
  int64_t* row_begin = nullptr;  // [batches + 1]
  int64_t* tallies = nullptr;  // [batches, 5]
  int64_t found = 0;  // voxels
  int64_t rows = 0;  // voxels kept

  VoxelCpuWork(const VoxelizeArgs& args, void* base);

  // Lists the runs of a chunk for which wanted(run), in order. Without branches: they would be
  // mispredicted again and again.
  template <class Wanted>
  int select_runs(int64_t chunk, const Wanted& wanted, uint32_t (&list)[kCpuChunk]) const {
    const int64_t base = chunk * kCpuChunk;
    int size = 0;
    for (int64_t r = base; r < base + chunk_runs[chunk]; ++r) {
      list[size] = static_cast<uint32_t>(r);
      size += wanted(r);
    }
    return size;
  }
  // The points [begin, end) of a run of the chunk.
  int64_t run_begin(int64_t chunk, int64_t run) const { return run_bound[run + chunk]; }
  int64_t run_end(int64_t chunk, int64_t run) const { return run_bound[run + chunk + 1]; }
  // Of a run, from number_partitions() on.
  uint32_t run_voxel(int64_t run) const { return static_cast<uint32_t>(run_key[run] >> 32); }
  uint32_t run_slot(int64_t run) const { return static_cast<uint32_t>(run_key[run]); }

  void add_tally(int64_t sample, VoxelCount column, int64_t count) const {
    if (count == 0) return;
    __atomic_fetch_add(&tallies[5 * sample + column - kPointsStored], count, __ATOMIC_RELAXED);
  }
};

// Some 64 bits that any bit of the key may change.
inline uint64_t mix_key(uint64_t key) {
  key *= 0xff51afd7ed558ccdull;
  key ^= key >> 33;
  key *= 0xc4ceb9fe1a85ec53ull;
  return key ^ key >> 29;
}
// Scales the low 32 of these bits to [0, count).
inline uint64_t scale_bits(uint64_t bits, uint64_t count) {
  return (bits & 0xffffffffu) * count >> 32;
}

// The first two steps; between them they fill everything down to cascade_of.
void find_runs(const VoxelizeArgs& args, const VoxelCpuWork& work, const ParallelFor& parallel_for);
void number_partitions(const VoxelizeArgs& args, const VoxelCpuWork& work,
                       const ParallelFor& parallel_for);

}  // namespace torchvox
