// SPDX-License-Identifier: Apache-2.0
//
// What the steps of voxelize share on the CPU. The terms are those of voxel_work.cuh.
#pragma once

#include <cstdint>

#include "csrc/kernels/core/workspace.h"
#include "csrc/kernels/voxel/voxel_table.h"
#include "csrc/kernels/voxel/voxelize.h"

namespace torchvox {

inline constexpr int64_t kCpuChunk = 4096;  // points a task; never decides a result
// One thread is faster below these: it needs no atomics and a smaller table.
inline constexpr int64_t kCpuParallelRows = 16384;
inline constexpr int kCpuParallelThreads = 4;

struct CpuSegment {
  uint64_t key;
  uint32_t place;
  uint32_t count;
};

struct VoxelCpuWork {
  bool parallel = false;
  int64_t chunks = 0;
  int64_t voxel_limit = 0;
  int64_t cleared_bytes = 0;
  int64_t bytes = 0;
  VoxelTable table;  // one thread: a table of ids; many: as on the GPU

  uint32_t* slot = nullptr;  // [rows] one thread: id of the voxel; many: its slot; kNone32: none
  uint32_t* arrival = nullptr;  // [rows] points of the voxel that came before; one thread: its rank
  uint32_t* perm = nullptr;  // [rows]
  uint32_t* first_point = nullptr;  // [voxel_limit] by id, ascending
  CpuSegment* segments = nullptr;  // [voxel_limit] by id
  uint32_t* rank_of = nullptr;  // [voxel_limit]; null: the id
  uint32_t* id_of = nullptr;  // [voxel_limit] by rank; null: the rank
  int64_t* sample_begin = nullptr;  // [batches + 1]
  int64_t* row_begin = nullptr;  // [batches + 1]
  int64_t* tallies = nullptr;  // [batches, 5]
  uint64_t* chunk_voxels = nullptr;  // [chunks] first points of voxels
  uint64_t* chunk_points = nullptr;  // [chunks] points of those voxels
  int64_t voxels = 0;
  int64_t rows = 0;

  VoxelCpuWork(const VoxelizeArgs& args, void* base);

  uint32_t* ids() const { return static_cast<uint32_t*>(table.data); }
  int64_t row_of(const VoxelizeArgs& args, uint32_t id, int64_t sample) const {
    const int64_t rank = rank_of != nullptr ? rank_of[id] : id;
    if (args.max_voxels < 0) return rank;
    // The end matters for offsets in disorder only: rows of two samples never overlap.
    const int64_t within = rank - sample_begin[sample];
    const bool kept = within >= 0 && within < args.max_voxels && rank < sample_begin[sample + 1];
    return kept ? row_begin[sample] + within : -1;
  }
};

// Walks rows in order and remembers the sample it is in.
class SampleCursor {
 public:
  explicit SampleCursor(const PackedPoints& points) : points_(points) {}
  // The sample of a valid point, -1 for padding.
  int64_t at(int64_t row) {
    if (row < begin_ || row >= end_) {
      sample_ = points_.sample_of(row);
      begin_ = sample_ >= 0 ? (points_.offsets.given() ? points_.offset(sample_) : 0) : row;
      end_ = sample_ >= 0 ? points_.offset(sample_ + 1) : row + 1;
      valid_ =
          sample_ >= 0 && points_.num_valid.given() ? points_.num_valid[sample_] : points_.rows;
    }
    return sample_ >= 0 && row - begin_ < valid_ ? sample_ : -1;
  }

 private:
  const PackedPoints& points_;
  int64_t sample_ = -1;
  int64_t begin_ = 0;
  int64_t end_ = 0;
  int64_t valid_ = 0;
};

// Counts for one sample at a time; adds them to the shared tallies when the sample changes.
class Tally {
 public:
  explicit Tally(int64_t* tallies) : tallies_(tallies) {}
  ~Tally() { flush(); }
  void add(int64_t sample, int column) {
    if (sample != sample_) flush();
    sample_ = sample;
    ++counts_[column - kPointsStored];
  }

 private:
  void flush() {
    for (int c = 0; c < 5; ++c) {
      if (counts_[c] != 0) {
        __atomic_fetch_add(&tallies_[5 * sample_ + c], counts_[c], __ATOMIC_RELAXED);
      }
      counts_[c] = 0;
    }
  }
  int64_t* tallies_;
  int64_t sample_ = -1;
  int64_t counts_[5] = {0, 0, 0, 0, 0};
};

void reduce_rows_cpu(const VoxelizeArgs& args, const VoxelCpuWork& work,
                     const ParallelFor& parallel_for);

}  // namespace torchvox
