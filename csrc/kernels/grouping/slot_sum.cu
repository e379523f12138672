// SPDX-License-Identifier: Apache-2.0
#include "csrc/kernels/core/launch.cuh"
#include "csrc/kernels/grouping/slot_sum_common.h"

namespace torchvox {
namespace {

constexpr int kThreads = 256;

// One thread an element: the lanes of a warp share their slots in the channel-last layout and read
// whole rows.
template <class T>
__global__ void __launch_bounds__(kThreads) sum_kernel(SlotSumArgs args, int64_t count) {
  for (int64_t i = global_thread(); i < count; i += global_stride()) slot_sum<T>(args, i);
}

}  // namespace

cudaError_t launch(const SlotSumArgs& args, void*, const CudaContext& context) {
  const int64_t count = args.clouds * args.rows * args.channels;
  if (count == 0) return cudaSuccess;
  const unsigned blocks = blocks_for(count, kThreads, context.target);
  with_point_type(args.dtype, [&](auto type) {
    sum_kernel<decltype(type)><<<blocks, kThreads, 0, context.stream>>>(args, count);
  });
  return cudaGetLastError();
}

}  // namespace torchvox
