// SPDX-License-Identifier: Apache-2.0
//
// voxel_csr on the CPU, by a counting sort.
#include <algorithm>

#include "csrc/kernels/voxel/csr.h"

namespace torchvox {

int64_t workspace_bytes_cpu(const VoxelCsrArgs& args) {
  return args.rows * static_cast<int64_t>(sizeof(int32_t));
}

// A counting sort: two passes over the points, one over the rows.
void run_cpu(const VoxelCsrArgs& args, void* workspace, const ParallelFor&) {
  int32_t* next = static_cast<int32_t*>(workspace);
  std::fill_n(next, args.rows, 0);
  const auto row_of = [&](int64_t i) {
    const int64_t row = args.point_voxel[i];
    return row >= 0 && row < args.rows ? row : int64_t{-1};
  };
  for (int64_t i = 0; i < args.points; ++i) {
    if (row_of(i) >= 0) ++next[row_of(i)];
  }
  int32_t first = 0;
  for (int64_t row = 0; row < args.rows; ++row) {
    args.offsets[row] = first;
    first += next[row];
    next[row] = args.offsets[row];
  }
  args.offsets[args.rows] = first;
  for (int64_t i = 0; i < args.points; ++i) {
    if (row_of(i) >= 0) args.perm[next[row_of(i)]++] = static_cast<int32_t>(i);
  }
  std::fill_n(args.perm + first, args.points - first, -1);
}

}  // namespace torchvox
