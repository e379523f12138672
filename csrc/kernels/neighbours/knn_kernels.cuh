// SPDX-License-Identifier: Apache-2.0
//
// The launchers that knn.cu puts together.
#pragma once

#include "csrc/kernels/core/launch.cuh"
#include "csrc/kernels/neighbours/knn_common.h"

namespace torchvox {

// Any k, dtype, norm and number of axes: a block a query, which selects by the bits of the
// distance.
cudaError_t launch_knn_select(const KnnArgs& args, const CudaContext& context);

}  // namespace torchvox
