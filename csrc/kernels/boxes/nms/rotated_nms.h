// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "csrc/kernels/boxes/nms/nms.h"

namespace torchvox {

// NMS of boxes in any order: by falling score, equal scores by rising index. Boxes whose score is
// not finite are left out.
struct RotatedNmsArgs {
  NmsArgs nms;  // counts and order are this call's own
  const float* scores = nullptr;  // [segments, capacity]
  IndexArray lengths;  // [segments]: boxes that there are

  TORCHVOX_HD int64_t length(int64_t segment) const {
    const int64_t n = lengths.given() ? lengths[segment] : nms.capacity;
    return n < 0 ? 0 : (n > nms.capacity ? nms.capacity : n);
  }
};

TORCHVOX_EXPORT int64_t workspace_bytes(const RotatedNmsArgs& args, const Target& target);
TORCHVOX_EXPORT void run_cpu(const RotatedNmsArgs& args, void* workspace,
                             const ParallelFor& parallel_for);
#ifdef TORCHVOX_CUDA
TORCHVOX_EXPORT cudaError_t launch(const RotatedNmsArgs& args, void* workspace,
                                   const CudaContext& context);
#endif

}  // namespace torchvox
