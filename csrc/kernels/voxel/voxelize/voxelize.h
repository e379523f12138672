// SPDX-License-Identifier: Apache-2.0
//
// Entry of voxelize and its gradient. Steps on the GPU, each a launch, or all in the one launch of
// fused.cu:
//
//   insert   points into the table of voxels (table.cuh)        points.cu
//   number   voxels by their first points; ranks of them        number.cu
//   place    points into the segments of their voxels           points.cu
//   reduce   segments to rows, unused rows and counts           reduce.cu
//
// work.cuh defines ids, ranks, rows and segments and has the workspace; voxelize.cu launches. For
// the CPU see voxelize_cpu.h.
#pragma once

#include "csrc/kernels/core/entry.h"
#include "csrc/kernels/core/ordered_sum.h"
#include "csrc/kernels/core/plan_override.h"
#include "csrc/kernels/spatial/voxel_grid.h"

namespace torchvox {

inline const PlanOverride voxel_table_plan{"voxel_table"};  // CUDA: 0 dense, 1 hash, 2 wide hash
inline const PlanOverride voxel_ranking_plan{"voxel_ranking"};  // CUDA: 0 bitmap, 1 radix sort
inline const PlanOverride voxel_partitions_plan{"voxel_partitions"};  // CPU: their number
// CUDA: 0 one kernel per step, 1 one for all steps.
inline const PlanOverride voxel_kernels_plan{"voxel_kernels"};
// CUDA: 0 never uses the kernels for the usual arguments, see assume_common().
inline const PlanOverride voxel_common_plan{"voxel_common"};

enum class VoxelReduce { kNone, kMean, kMax, kMin, kSum };

// The largest or smallest value and its point. The first NaN wins, as in torch.amax; of equal
// values (-0 equals +0) the first stays.
template <class Real>
struct Best {
  Real value = 0;
  int32_t point = -1;

  TORCHVOX_HD void add(Real x, int32_t index, bool smallest) {
    const bool better = smallest ? x < value : x > value;
    if (point < 0 || (!is_nan(value) && (better || is_nan(x)))) {
      value = x;
      point = index;
    }
  }
};

// Columns of `counts`: row 0 is the whole call, row 1 + b is sample b. Columns kPointsStored to
// kPointsNotFinite add up to the number of input points that are not padding.
enum VoxelCount {
  kVoxelsKept,
  kVoxelsFound,
  kPointsStored,
  kPointsOverCap,  // past max_points in voxels that were kept
  kPointsVoxelNotKept,
  kPointsOutOfRange,
  kPointsNotFinite,
  kVoxelCountUnused,
  kVoxelCounts
};

struct VoxelizeArgs {
  CloudBatch points;
  VoxelGrid grid;
  // If given, a point's voxel is that of its key and not a cell of the grid; `points` then has no
  // data and `all_finite` has no meaning.
  const int64_t* keys = nullptr;  // [rows]; negative ones and those of more bits are dropped
  int key_bits = 0;  // above 0: there are keys
  VoxelOrder order = VoxelOrder::kFirst;
  bool all_finite = false;  // a point whose other columns are not all finite is dropped too
  int64_t max_points = -1;  // P, stored points per voxel; -1: no limit
  int64_t max_voxels = -1;  // V, voxels per sample; -1: no limit
  VoxelReduce reduce = VoxelReduce::kNone;
  bool center_relative = false;
  DType out_dtype = DType::kFloat;
  int threads = 1;  // CPU threads that may be used; they change no result

  // Outputs; C = capacity().
  void* features = nullptr;  // [C, P, columns] or [C, columns]; this and others may be null
  int32_t* indices = nullptr;  // [C, 4]: b, z, y, x; null with keys
  int64_t* row_keys = nullptr;  // [C], with keys
  int32_t* num_points = nullptr;  // [C]
  int32_t* point_voxel = nullptr;  // [rows]
  int32_t* counts = nullptr;  // [batches + 1, kVoxelCounts]
  int32_t* first_point = nullptr;  // [C] CUDA, in order kFirst without a cap, or null
  int32_t* point_slot = nullptr;  // [rows] or null; -1: not stored
  int32_t* arg = nullptr;  // [C, columns] point of the value, for max and min, or null

  // Keys are in [0, key_limit()).
  TORCHVOX_HD uint64_t key_limit() const {
    if (key_bits > 0) return uint64_t{1} << key_bits;
    return grid.cells_per_sample() * static_cast<uint64_t>(points.clouds);
  }
  TORCHVOX_HD int64_t capacity() const {
    return max_voxels < 0 ? points.rows : points.clouds * max_voxels;
  }
  // How many of a voxel's n points are stored.
  TORCHVOX_HD int64_t stored(int64_t n) const {
    return max_points >= 0 && max_points < n ? max_points : n;
  }
  // How many of a sample's n voxels are kept.
  TORCHVOX_HD int64_t kept(int64_t n) const {
    return max_voxels >= 0 && max_voxels < n ? max_voxels : n;
  }
  // Values in a row of `features`.
  TORCHVOX_HD int64_t row_values() const {
    return reduce == VoxelReduce::kNone ? max_points * points.columns : points.columns;
  }
  TORCHVOX_HD bool is_best() const {
    return reduce == VoxelReduce::kMax || reduce == VoxelReduce::kMin;
  }
};

TORCHVOX_KERNEL(VoxelizeArgs);

// Gradient of voxelize. Each stored point gathers its share of its voxel's gradient, and every
// other point gets 0; so no atomics are needed and each element is written once.
struct VoxelizeBackwardArgs {
  int64_t rows = 0;  // N
  int64_t columns = 0;  // F
  int64_t capacity = 0;  // C
  int64_t max_points = -1;
  VoxelReduce reduce = VoxelReduce::kNone;
  DType grad_dtype = DType::kFloat;
  DType dtype = DType::kFloat;  // of the points
  const void* grad = nullptr;  // [C, P, F] or [C, F] contiguous
  const int32_t* point_voxel = nullptr;  // [N]
  const int32_t* point_slot = nullptr;  // [N]
  const int32_t* num_points = nullptr;  // [C]
  const int32_t* arg = nullptr;  // [C, F], for max and min
  void* grad_input = nullptr;  // [N, F] contiguous

  // A float64 gradient is rounded once, also for half points.
  bool in_double() const { return dtype == DType::kDouble || grad_dtype == DType::kDouble; }

  // The gradient of a point's column.
  template <class Real>
  TORCHVOX_HD Real value(int64_t point, int64_t column) const {
    const int64_t row = point_voxel[point], slot = point_slot[point];
    if (row < 0 || row >= capacity || slot < 0) return 0;
    if (reduce == VoxelReduce::kNone) {
      if (slot >= max_points) return 0;
      return load_as<Real>(grad, grad_dtype, (row * max_points + slot) * columns + column);
    }
    const int64_t at = row * columns + column;
    const Real g = load_as<Real>(grad, grad_dtype, at);
    if (reduce == VoxelReduce::kMean) return g / static_cast<Real>(num_points[row]);
    if (reduce == VoxelReduce::kSum) return g;
    return arg[at] == point ? g : Real(0);
  }
};

TORCHVOX_KERNEL_WITHOUT_WORKSPACE(VoxelizeBackwardArgs);

}  // namespace torchvox
