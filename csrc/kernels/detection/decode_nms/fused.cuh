// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "csrc/kernels/detection/decode_nms/work.cuh"

namespace torchvox {

// All steps up to ordered rows, in one cooperative launch.
cudaError_t detect_fused(const DetectArgs& args, const DetectWork& work,
                         const CudaContext& context);

}  // namespace torchvox
