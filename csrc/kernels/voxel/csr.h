// SPDX-License-Identifier: Apache-2.0
//
// Entry of voxel_csr. voxel_scatter reduces the lists that it makes, see segment_reduce.h.
#pragma once

#include "csrc/kernels/core/entry.h"

namespace torchvox {

// Lists the points of each row: those of row r are perm[offsets[r] .. offsets[r + 1]), ascending. A
// point whose row is outside [0, rows) is dropped; the tail of perm is -1.
struct VoxelCsrArgs {
  const int32_t* point_voxel = nullptr;  // [points]
  int64_t points = 0, rows = 0;
  int32_t* offsets = nullptr;  // [rows + 1]
  int32_t* perm = nullptr;  // [points]
};

TORCHVOX_KERNEL(VoxelCsrArgs);

}  // namespace torchvox
