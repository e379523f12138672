// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "csrc/kernels/voxel/voxelize/backward.h"

namespace torchvox {
namespace {

template <class Real>
void gather(const VoxelizeBackwardArgs& args, int64_t begin, int64_t end) {
  for (int64_t point = begin; point < end; ++point) {
    for (int64_t column = 0; column < args.columns; ++column) {
      store_as(args.grad_input, args.dtype, point * args.columns + column,
               args.value<Real>(point, column));
    }
  }
}

}  // namespace

int64_t workspace_bytes(const VoxelizeBackwardArgs&, const Target&) { return 0; }

void run_cpu(const VoxelizeBackwardArgs& args, void*, const ParallelFor& parallel_for) {
  constexpr int64_t kChunk = 4096;
  parallel_for((args.rows + kChunk - 1) / kChunk, [&](int64_t first, int64_t last) {
    const int64_t begin = first * kChunk, end = std::min(args.rows, last * kChunk);
    if (args.in_double()) {
      gather<double>(args, begin, end);
    } else {
      gather<float>(args, begin, end);
    }
  });
}

}  // namespace torchvox
