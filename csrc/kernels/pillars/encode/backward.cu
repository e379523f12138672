// SPDX-License-Identifier: Apache-2.0
//
// Gradients of pillar_encode on the GPU: one warp 32 rows by 32 channels, a lane a channel, sums in
// registers in double; then the tree of tree_sum.cuh. Winners and gradients are read once, a
// winning point once a channel.
#include "csrc/kernels/pillars/encode/encode.h"
#include "csrc/kernels/pillars/tree_sum.cuh"

namespace torchvox {
namespace {

constexpr int kThreads = 128;
constexpr int kAhead = 4;  // rows read at once

// One warp 32 rows and 32 channels, a lane a channel: the rows one after another, a column of the
// weight and the bias a register each. kColumns = 0: one column a pass, any number of them.
template <class T, class Real, int kColumns>
__global__ void __launch_bounds__(kThreads)
    gradient_kernel(PillarEncodeBackwardArgs args, double* sums) {
  constexpr int kSums = kColumns > 0 ? kColumns + 7 : 1;
  const int64_t columns = args.map.decorated();
  const int64_t chunks = ceil_div<int64_t>(args.outputs, 32);
  const int64_t groups = ceil_div<int64_t>(args.map.rows.rows, kTreeWidth);
  for (int64_t warp = global_thread() / 32; warp < groups * chunks; warp += global_stride() / 32) {
    const int64_t group = warp / chunks, channel = 32 * (warp % chunks) + threadIdx.x % 32;
    if (channel >= args.outputs) continue;
    const int64_t first = group * kTreeWidth;
    const int64_t end =
        first + kTreeWidth < args.map.rows.rows ? first + kTreeWidth : args.map.rows.rows;
    for (int64_t pass = 0; pass < (kColumns > 0 ? 1 : columns + 1); ++pass) {
      double sum[kSums] = {};
      for (int64_t row = first; row < end; row += kAhead) {
        RowGradient<T, Real, kColumns> share[kAhead];
#pragma unroll
        for (int k = 0; k < kAhead; ++k) share[k].find(args, row + k, end, channel);
#pragma unroll
        for (int k = 0; k < kAhead; ++k) share[k].read(args, row + k, channel);
#pragma unroll
        for (int k = 0; k < kAhead; ++k) share[k].add(args, pass, sum);
      }
      double* to = sums + group * args.outputs * (columns + 1) + channel * (columns + 1);
      if constexpr (kColumns > 0) {
#pragma unroll
        for (int c = 0; c < kColumns + 6; ++c) {
          if (c < columns) to[c] = sum[c];
        }
        to[columns] = sum[kColumns + 6];
      } else {
        to[pass] = sum[0];
      }
    }
  }
}

__global__ void __launch_bounds__(kThreads)
    finish_kernel(PillarEncodeBackwardArgs args, const double* sums, int64_t rows) {
  wait_for_previous();
  const int64_t width = args.map.decorated() + 1;
  for (int64_t i = global_thread(); i < args.outputs * width; i += global_stride()) {
    store_gradient(args, i, tree_total(sums, rows, args.outputs * width, i));
  }
}

TreeLevels tree_of(const PillarEncodeBackwardArgs& args, Workspace& workspace) {
  return TreeLevels(ceil_div<int64_t>(args.map.rows.rows, kTreeWidth),
                    args.outputs * (args.map.decorated() + 1), workspace);
}

template <class T, class Real>
void (*gradient_kernel_for(int64_t columns))(PillarEncodeBackwardArgs, double*) {
  if constexpr (std::is_same_v<T, float> && std::is_same_v<Real, float>) {
    const bool common = pillar_common_plan.value() != 0;
    if (common && columns == 4) return gradient_kernel<float, float, 4>;
    if (common && columns == 5) return gradient_kernel<float, float, 5>;
  }
  return gradient_kernel<T, Real, 0>;
}

}  // namespace

int64_t workspace_bytes_cuda(const PillarEncodeBackwardArgs& args, const Target&) {
  Workspace workspace;
  tree_of(args, workspace);
  return workspace.bytes();
}

cudaError_t launch(const PillarEncodeBackwardArgs& args, void* memory, const CudaContext& context) {
  Workspace workspace(memory);
  const TreeLevels tree = tree_of(args, workspace);
  const int64_t warps =
      ceil_div<int64_t>(args.map.rows.rows, kTreeWidth) * ceil_div<int64_t>(args.outputs, 32);
  TORCHVOX_CUDA_CHECK(with_pillar_types(args.map.dtype, args.wide, [&](auto type, auto real) {
    const auto kernel = gradient_kernel_for<decltype(type), decltype(real)>(args.map.columns);
    return launch_items(kernel, 32 * warps, kThreads, context, args, tree.first());
  }));
  TORCHVOX_CUDA_CHECK(tree.launch(context));
  const int64_t values = args.outputs * (args.map.decorated() + 1);
  return launch_items_after(finish_kernel, values, kThreads, context, args, tree.last(),
                            tree.last_rows());
}

}  // namespace torchvox
