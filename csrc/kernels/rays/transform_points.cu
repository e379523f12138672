// SPDX-License-Identifier: Apache-2.0
//
// transform_points on the GPU: one thread per point.
#include "csrc/kernels/core/launch.cuh"
#include "csrc/kernels/rays/transform_points.h"

namespace torchvox {

cudaError_t launch(const TransformPointsArgs& args, void*, const CudaContext& context) {
  return launch_elements<transform_point>(args, args.points.rows, context);
}

}  // namespace torchvox
