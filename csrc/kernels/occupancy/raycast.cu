// SPDX-License-Identifier: Apache-2.0
//
// occupancy_raycast on the GPU: one thread per ray.
#include "csrc/kernels/core/launch.cuh"
#include "csrc/kernels/occupancy/raycast.h"

namespace torchvox {

cudaError_t launch(const OccupancyRaycastArgs& args, void*, const CudaContext& context) {
  return launch_elements<cast_ray, 128>(args, args.rays.points.rows, context);
}

}  // namespace torchvox
