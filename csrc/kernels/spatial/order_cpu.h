// SPDX-License-Identifier: Apache-2.0
//
// The spatial order on the host, cut into tiles of kCpuTile points.
#pragma once

#include <cstdint>
#include <vector>

#include "csrc/kernels/spatial/candidates.h"
#include "csrc/kernels/spatial/curves.h"

namespace torchvox {

#define TORCHVOX_INLINE inline __attribute__((always_inline))

inline constexpr int kCpuTile = 64;

// The candidates of a cloud, neighbors together.
std::vector<uint32_t> spatial_order_cpu(const CandidatePoints& args, const CandidateCloud& cloud);

}  // namespace torchvox
