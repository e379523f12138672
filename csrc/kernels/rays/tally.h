// SPDX-License-Identifier: Apache-2.0
//
// Counts of rays by their status.
#pragma once

#include "csrc/kernels/rays/input.h"

namespace torchvox {

// Adds to one of several 64-bit counts that threads share.
TORCHVOX_HD void add_count(int64_t* count, int64_t n) {
  if (n != 0) atomic_add(reinterpret_cast<uint64_t*>(count), static_cast<uint64_t>(n));
}

#ifdef __CUDACC__
// Counts skipped rays, each in its column. Called by every thread of the block.
__device__ __forceinline__ void count_skipped(RayStatus status, int64_t* counts) {
  for (int column = kRayNotFinite; column <= kRayOutside; ++column) {
    const int n = __syncthreads_count(status == column);
    if (threadIdx.x == 0) add_count(&counts[column], n);
  }
}
#endif

// Counts the rays of one thread; added to the shared counts at the end of a task.
struct RayTally {
  int64_t rays[kRayOutside + 2] = {};  // by status + 1

  TORCHVOX_HD void add(RayStatus status) {
    // Without an index that depends on data, so that a GPU keeps the array in registers.
    for (int i = 0; i < kRayOutside + 2; ++i) rays[i] += i == status + 1;
  }
  TORCHVOX_HD int64_t of(int status) const { return rays[status + 1]; }
  TORCHVOX_HD int64_t given() const {
    return of(kRayWalked) + of(kRayNotFinite) + of(kRayFiltered) + of(kRayOutside);
  }
  void flush(int64_t* counts) const {
    for (int column = kRayNotFinite; column <= kRayOutside; ++column) {
      add_count(&counts[column], rays[column + 1]);
    }
  }
};

}  // namespace torchvox
