// SPDX-License-Identifier: Apache-2.0
//
// occupancy_decay_ on the GPU: one warp per region.
#include "csrc/kernels/occupancy/decay.h"

namespace torchvox {

cudaError_t launch(const DecayArgs& args, void*, const CudaContext& context) {
  TORCHVOX_CUDA_CHECK(
      cudaMemsetAsync(args.counts, 0, kStateCounts * sizeof(int64_t), context.stream));
  return launch_rows<decay_region>(args, args.state.capacity + 1, context);
}

}  // namespace torchvox
