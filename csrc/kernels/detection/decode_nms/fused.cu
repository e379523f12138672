// SPDX-License-Identifier: Apache-2.0
//
// All steps up to ordered rows in one cooperative launch, a block a multiprocessor: most selections
// end at the first level, and what the launches of the others cost is most of the time of one scan.
#include "csrc/kernels/detection/decode_nms/select.cuh"

namespace torchvox {
namespace {

// Unit u of a kind of work: the warps of all blocks, a warp of each block at a time.
__device__ __forceinline__ int64_t first_unit() {
  return int64_t{threadIdx.x / 32} * gridDim.x + blockIdx.x;
}
__device__ __forceinline__ int64_t unit_stride() { return int64_t{blockDim.x / 32} * gridDim.x; }

template <class T>
__global__ void __launch_bounds__(kFusedThreads, 1)
    fused_kernel(const __grid_constant__ DecodeNmsArgs args,
                 const __grid_constant__ DecodeWork work) {
  __shared__ SelectShared shared;
  const int64_t all = args.batches * work.selections, tasks = all * work.chunks;
  const auto each_chunk = [&](auto body) {
    for (int64_t task = blockIdx.x; task < tasks; task += gridDim.x) {
      __syncthreads();  // the chunk before is done with shared memory
      body(SelectChunk(args, work, task));
    }
  };
  int barrier = 0;
  const auto wait_for_all = [&] {
    work.barriers[barrier].arrive();
    work.barriers[barrier++].wait();
  };

  if (blockIdx.x == 0) clear_counters(work, all);
  each_chunk([&](const SelectChunk& chunk) { score_chunk<T>(args, work, chunk, shared); });
  wait_for_all();
  let_next_begin();
  bool finished = false;
  for (int level = 0; level < kLevels && !finished; ++level) {
    each_chunk([&](const SelectChunk& chunk) { refine_chunk(work, chunk, level, shared, all); });
    wait_for_all();
    finished = work.unfinished[level] == 0;
  }
  if (!finished) {
    each_chunk([&](const SelectChunk& chunk) { list_ties(work, chunk, shared, all); });
    wait_for_all();
  }

  const int64_t decodes = ceil_div<int64_t>(work.listed_capacity, 32);
  for (int64_t unit = first_unit(); unit < all * decodes; unit += unit_stride()) {
    const int64_t selection = unit / decodes;
    const int64_t i = (unit - selection * decodes) * 32 + threadIdx.x % 32;
    if (i < listed_of(work, selection)) decode_listed<T>(args, work, selection, i);
  }
  wait_for_all();
  const int64_t ranks = ceil_div<int64_t>(work.listed_capacity, kRankEach);
  for (int64_t unit = first_unit(); unit < work.rows.segments * ranks; unit += unit_stride()) {
    const int64_t segment = unit / ranks;
    rank_listed(args, work, segment, (unit - segment * ranks) * kRankEach);
  }
}

}  // namespace

cudaError_t decode_fused(const DecodeNmsArgs& args, const DecodeWork& work,
                         const CudaContext& context) {
  void* parameters[] = {const_cast<DecodeNmsArgs*>(&args), const_cast<DecodeWork*>(&work)};
  return with_map_type(args.dtype, [&](auto type) {
    return cudaLaunchCooperativeKernel(reinterpret_cast<const void*>(fused_kernel<decltype(type)>),
                                       context.target.multiprocessors, kFusedThreads, parameters, 0,
                                       context.stream);
  });
}

}  // namespace torchvox
