// SPDX-License-Identifier: Apache-2.0
//
// Gradient of voxelize. Each stored point gathers its share of its voxel's gradient, every other
// point gets 0: no atomics, each element written once.
#pragma once

#include <cstdint>

#include "csrc/kernels/core/export.h"
#include "csrc/kernels/core/packed_points.h"
#include "csrc/kernels/core/parallel.h"
#include "csrc/kernels/core/target.h"
#include "csrc/kernels/voxel/voxelize/reduce.h"

namespace torchvox {

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

  template <class Real>
  TORCHVOX_HD Real value(int64_t point, int64_t column) const {
    const int64_t row = point_voxel[point];
    const int64_t slot = point_slot[point];
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

TORCHVOX_EXPORT int64_t workspace_bytes(const VoxelizeBackwardArgs& args, const Target& target);
TORCHVOX_EXPORT void run_cpu(const VoxelizeBackwardArgs& args, void* workspace,
                             const ParallelFor& parallel_for);

#ifdef TORCHVOX_CUDA
TORCHVOX_EXPORT cudaError_t launch(const VoxelizeBackwardArgs& args, void* workspace,
                                   const CudaContext& context);
#endif

}  // namespace torchvox
