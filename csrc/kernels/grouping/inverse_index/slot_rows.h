// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "csrc/kernels/core/export.h"
#include "csrc/kernels/core/packed_points.h"
#include "csrc/kernels/core/parallel.h"
#include "csrc/kernels/core/target.h"

namespace torchvox {

// Neighbour lists made plain: row[q, j] is the row of the features that slot j of query q names, -1
// where it names none. A slot names none when it is past the query's count, or when its index lies
// outside its cloud.
//
// With ptr and query_ptr, the clouds lie one after another: cloud b owns the rows ptr[b] to
// ptr[b + 1] and the queries query_ptr[b] to query_ptr[b + 1]. Whatever the offsets hold, rows stay
// inside [0, rows).
struct SlotRowsArgs {
  IndexArray idx;  // [queries, k]
  IndexArray count;  // [queries]; not given: every slot counts
  IndexArray ptr;  // [clouds + 1]; not given: one range [0, rows) for all
  IndexArray query_ptr;  // [clouds + 1], given with ptr
  bool local_index = false;  // with ptr: indices count from the first row of their cloud
  int64_t clouds = 0;
  int64_t queries = 0;
  int64_t k = 1;
  int64_t rows = 0;
  int32_t* row = nullptr;  // [queries, k]
};

TORCHVOX_EXPORT int64_t workspace_bytes(const SlotRowsArgs& args, const Target& target);
TORCHVOX_EXPORT void run_cpu(const SlotRowsArgs& args, void* workspace,
                             const ParallelFor& parallel_for);
#ifdef TORCHVOX_CUDA
TORCHVOX_EXPORT cudaError_t launch(const SlotRowsArgs& args, void* workspace,
                                   const CudaContext& context);
#endif

}  // namespace torchvox
