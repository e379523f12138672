// SPDX-License-Identifier: Apache-2.0
//
// box_decode on the GPU: one thread per box reads its regressed values, direction logits and anchor
// and writes 7 or 9 floats.
#include "csrc/kernels/core/launch.cuh"
#include "csrc/kernels/detection/box_decode.h"

namespace torchvox {

cudaError_t launch(const BoxDecodeArgs& args, void*, const CudaContext& context) {
  return with_map_type(args.dtype, [&](auto type) {
    return launch_elements<decode_row<decltype(type)>, 128>(args, args.rows, context);
  });
}

}  // namespace torchvox
