// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "csrc/kernels/core/export.h"
#include "csrc/kernels/core/packed_points.h"
#include "csrc/kernels/core/parallel.h"
#include "csrc/kernels/core/target.h"

namespace torchvox {

// The inverse of a gather: which slots of cloud b read its row n. They are, ascending,
// order[b, offsets[b, n]] to order[b, offsets[b, n + 1] - 1]. A slot whose index is outside
// [0, rows) is in no list; the end of order[b] is then left as it is.
//
// A gradient that walks these lists has one fixed order of addition and needs no atomics.
struct SlotListsArgs {
  IndexArray idx;  // [clouds, slots]
  int64_t clouds = 0;
  int64_t rows = 0;  // of each cloud, below 2^31
  int64_t slots = 0;  // of each cloud, below 2^31
  int32_t* offsets = nullptr;  // [clouds, rows + 1]
  int32_t* order = nullptr;  // [clouds, slots]
};

TORCHVOX_EXPORT int64_t workspace_bytes(const SlotListsArgs& args, const Target& target);
TORCHVOX_EXPORT void run_cpu(const SlotListsArgs& args, void* workspace,
                             const ParallelFor& parallel_for);
#ifdef TORCHVOX_CUDA
int64_t workspace_bytes_cuda(const SlotListsArgs& args);
TORCHVOX_EXPORT cudaError_t launch(const SlotListsArgs& args, void* workspace,
                                   const CudaContext& context);
#endif

}  // namespace torchvox
