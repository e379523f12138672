// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "csrc/kernels/neighbors/knn/common.h"

namespace torchvox {

// How a call runs, from sizes that the host knows. No plan changes a result.
enum class KnnKernel : int64_t {
  kScan,  // measures every point; CUDA: a warp a few queries
  kTiles,  // visits those tiles of a spatial order that may hold a neighbour
  kSelect  // CUDA: a block a query, for whatever the others do not take
};

// CUDA: neighbours that a thread's registers hold, and a warp's; more are left to kSelect.
inline constexpr int64_t kFewListed = 4;
inline constexpr int64_t kMostListed = 128;

KnnKernel choose_knn_kernel(const KnnArgs& args, const Target& target);

}  // namespace torchvox
