// SPDX-License-Identifier: Apache-2.0
//
// Entry of gather_points and group_points, which are the same gather.
#pragma once

#include "csrc/kernels/core/entry.h"

namespace torchvox {

// out[b, s] = features[b, idx[b, s]], a zero row where the index is outside [0, points). The
// samples may be neighbors of queries, [queries, k], which are one list here.
// Channel-last: features [batches, points, channels]. Channels first: [batches, channels, points].
struct GatherPointsArgs {
  const void* features = nullptr;  // contiguous
  IndexArray idx;  // [batches, samples]
  void* out = nullptr;  // [batches, samples, channels] or [batches, channels, samples]
  int64_t element_bytes = 4, batches = 0, points = 0, samples = 0, channels = 0;
  bool channels_first = false;
};

TORCHVOX_KERNEL_WITHOUT_WORKSPACE(GatherPointsArgs);

}  // namespace torchvox
