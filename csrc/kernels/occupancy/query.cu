// SPDX-License-Identifier: Apache-2.0
//
// occupancy_query and occupancy_crop on the GPU: one thread per point, one thread per cell.
#include "csrc/kernels/core/launch.cuh"
#include "csrc/kernels/occupancy/query.h"

namespace torchvox {

cudaError_t launch(const OccupancyQueryArgs& args, void*, const CudaContext& context) {
  return launch_elements<query_point>(args, args.points.rows, context);
}

cudaError_t launch(const OccupancyCropArgs& args, void*, const CudaContext& context) {
  return launch_elements<query_cell>(args, args.cells(), context);
}

}  // namespace torchvox
