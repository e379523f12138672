// SPDX-License-Identifier: Apache-2.0
//
// The last step of voxel_downsample on the GPU: one thread a row.
#include <algorithm>

#include "csrc/kernels/core/launch.cuh"
#include "csrc/kernels/filter/voxel_downsample.h"

namespace torchvox {

cudaError_t launch(const DownsampleRowsArgs& args, void*, const CudaContext& context) {
  const size_t bytes = static_cast<size_t>(args.clouds + 1) * kDownsampleCounts * sizeof(int32_t);
  TORCHVOX_CUDA_CHECK(cudaMemsetAsync(args.counts, 0, bytes, context.stream));
  return launch_elements<write_downsample_row>(args, std::max(args.points, args.clouds) + 1,
                                               context);
}

}  // namespace torchvox
