// SPDX-License-Identifier: Apache-2.0
//
// A small image of few points by one block: launches are most of the time of such a call.
#include "csrc/kernels/bev/max_height_common.h"
#include "csrc/kernels/bev/scatter.cuh"

namespace torchvox {
namespace {

constexpr int kSmallThreads = 1024;

// A thread takes a point of every 1024, then a cell of every 1024.
template <class T, class Key>
__global__ void __launch_bounds__(kSmallThreads)
    small_kernel(BevMaxHeightArgs args, bool quads, int cells) {
  __shared__ Key keys[kSmallCells];
  __shared__ int32_t sums[2 * kBevCounts];
  for (int i = threadIdx.x; i < cells; i += kSmallThreads) keys[i] = 0;
  const int64_t counts = (args.points.batches + 1) * kBevCounts;
  for (int64_t i = threadIdx.x; i < counts; i += kSmallThreads) args.counts[i] = 0;
  for (int64_t first = 0; first < args.points.rows; first += kSmallThreads) {
    const BevThread thread = load_point<T>(args.points, args.grid, quads, first + threadIdx.x);
    BlockCounts block(args.points, thread, sums);  // waits for the block, and so for the zeros
    bool filled = false;
    if (thread.used()) {
      using Native = typename CudaAtomicType<Key>::type;
      const Key key = height_key(thread.point.z, thread.row, Key{});
      Native* const slot = reinterpret_cast<Native*>(&keys[thread.point.cell]);
      filled = atomicMax(slot, static_cast<Native>(key)) == 0;
    }
    block.add_to(args.counts, filled);
    __syncthreads();
  }
  __syncthreads();
  for (int i = threadIdx.x; i < cells; i += kSmallThreads) write_cell(args, i, keys[i]);
}

template <class Key>
cudaError_t launch_keys(const BevMaxHeightArgs& args, const CudaContext& context) {
  with_point_type(args.points.dtype, [&](auto type) {
    small_kernel<decltype(type), Key><<<1, kSmallThreads, 0, context.stream>>>(
        args, has_quads(args.points), static_cast<int>(cells_of(args)));
  });
  return cudaGetLastError();
}

}  // namespace

cudaError_t launch_small(const BevMaxHeightArgs& args, const CudaContext& context) {
  return has_wide_keys(args, BevPlan::kSmall) ? launch_keys<uint64_t>(args, context)
                                              : launch_keys<uint32_t>(args, context);
}

}  // namespace torchvox
