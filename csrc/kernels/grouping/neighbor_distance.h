// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "csrc/kernels/grouping/inverse_index/inverse_index.h"

namespace torchvox {

// Gradients of the distances of queries to their neighbours, p - q being point less query:
//   norm 2: d = |p - q|^2, each slot gives the point (2 grad) * (p - q) on each axis
//   norm 1: d = sum of |p - q|, each slot gives it grad * sign(p - q)
// and the query the opposite. Slots are added in the order of kSumChunk.
struct NeighbourDistanceArgs {
  const void* grad = nullptr;  // [clouds, queries, k], fp64 for fp64 points, else fp32
  const void* points = nullptr;  // [clouds, rows, dims]
  const void* query = nullptr;  // [clouds, queries, dims]
  DType dtype = DType::kFloat;  // of both
  IndexArray idx;  // [clouds, queries, k]; outside [0, rows): no neighbour
  SlotLists lists;  // of idx; its clouds and rows are those of the call. Lists only for grad_points
  void* grad_points = nullptr;  // as points, or null where it is not wanted
  void* grad_query = nullptr;  // as query, or null
  int norm = 2;
  int64_t queries = 0;  // of each cloud
  int64_t k = 0;
  int64_t dims = 3;
};

TORCHVOX_EXPORT int64_t workspace_bytes(const NeighbourDistanceArgs& args, const Target& target);
TORCHVOX_EXPORT void run_cpu(const NeighbourDistanceArgs& args, void* workspace,
                             const ParallelFor& parallel_for);
#ifdef TORCHVOX_CUDA
int64_t workspace_bytes_cuda(const NeighbourDistanceArgs& args);
TORCHVOX_EXPORT cudaError_t launch(const NeighbourDistanceArgs& args, void* workspace,
                                   const CudaContext& context);
#endif

}  // namespace torchvox
