// SPDX-License-Identifier: Apache-2.0
//
// Launch plans that tests may force.
#pragma once

#include <cstdint>

#include "csrc/kernels/core/target.h"

namespace torchvox {

// Launch decisions that tests may force, process-wide. No value changes a result, where no
// other is said: that is what the tests prove with them.
enum class Plan {
  kVoxelTable,  // CUDA: 0 dense, 1 hash, 2 hash with two-word slots
  kVoxelRanking,  // CUDA, sorted orders: 0 bitmap, 1 radix sort
  kVoxelPartitions,  // CPU: partitions of the voxels
  kVoxelKernels,  // CUDA: 0 a kernel a step, 1 all steps in one cooperative kernel, where it can
  kVoxelCommon,  // CUDA: 0 general kernels, 1 those for the usual arguments, where they fit
  kFpsKernel,  // 0 one block in registers, 1 lazy tiles, 2 generic
  kFpsThreads,  // threads per block
  kFpsPointsPerThread,  // points per thread
  kFpsMembers,  // lazy tiles: blocks that share a cloud
  kFpsCpu,  // 0 baseline, 1 AVX2 + FMA, 2 AVX-512; not above what the processor has
  kBevTable,  // CUDA: 0 all cells, 1 cleared, 2 begun by points, 3 in one block, where it fits
  kBallKernel,  // 0 all points in index order, 1 cells around the queries
  kBallCpu,  // as kFpsCpu
  kGroupMlp,  // CUDA, 16-bit layers: 0 portable, 1 tensor cores; they differ in rounding
  kGroupMlpCpu,  // as kFpsCpu
  kKnnKernel,  // 0 scan, 1 tiles, 2 select (CUDA); where it takes the call
  kKnnOrder,  // CUDA: 0 one block a cloud, where it can, 1 a sort of all
  kKnnCpu,  // as kFpsCpu
  kInverseIndex,  // CUDA: 0 counting sort where it fits, 1 radix sort
  kInterpolateCpu,  // as kFpsCpu
  kNmsOrder,  // CUDA, argsort of scores: 0 by counting, 1 by radix sort
  kDecodeKernels,  // CUDA: 0 a kernel a step, 1 all up to NMS in one cooperative one, where it can
  kPillarLists,  // CUDA: 0 of fixed length, 1 packed
  kPillarCommon,  // CUDA: 0 general kernels, 1 those for the usual arguments, where they fit
  kPillarCpu,  // as kFpsCpu
  kCount
};

inline constexpr int64_t kAutomatic = -1;

TORCHVOX_EXPORT int64_t plan_override(Plan plan);
TORCHVOX_EXPORT void set_plan_override(Plan plan, int64_t value);
TORCHVOX_EXPORT const char* plan_name(Plan plan);

}  // namespace torchvox
