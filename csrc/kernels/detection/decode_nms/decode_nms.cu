// SPDX-License-Identifier: Apache-2.0
//
// Decode + top-k + NMS on the GPU, one kernel per step, or all steps up to ordered rows in one
// cooperative launch: most selections end at the first level, and for one scan the launches of the
// further levels would take most of the time.
#include "csrc/kernels/detection/decode_nms/select.cuh"

namespace torchvox {
namespace {

// Numbers of the warps of a grid as units of work, so that neighboring units go to different
// blocks.
__device__ __forceinline__ int64_t first_unit() {
  return int64_t{threadIdx.x / 32} * gridDim.x + blockIdx.x;
}
__device__ __forceinline__ int64_t unit_stride() { return int64_t{blockDim.x / 32} * gridDim.x; }

// One block per multiprocessor, which walks chunks, candidates and ranks in turn, with a barrier
// over the grid between steps. Reads the maps; writes ordered rows, ready for NMS.
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

// Launches all steps up to ordered rows at once.
cudaError_t decode_fused(const DecodeNmsArgs& args, const DecodeWork& work,
                         const CudaContext& context) {
  void* parameters[] = {const_cast<DecodeNmsArgs*>(&args), const_cast<DecodeWork*>(&work)};
  return with_map_type(args.dtype, [&](auto type) {
    return cudaLaunchCooperativeKernel(reinterpret_cast<const void*>(fused_kernel<decltype(type)>),
                                       context.target.multiprocessors, kFusedThreads, parameters, 0,
                                       context.stream);
  });
}

constexpr int kItemThreads = 128;

// One block per chunk: reads the score maps, writes score codes and a histogram of their first
// digits; the first block clears the counters of the later steps.
template <class T>
__global__ void __launch_bounds__(kDecodeThreads)
    score_kernel(const __grid_constant__ DecodeNmsArgs args,
                 const __grid_constant__ DecodeWork work) {
  __shared__ SelectShared shared;
  let_next_begin();
  if (blockIdx.x == 0) clear_counters(work, args.batches * work.selections);
  score_chunk<T>(args, work, SelectChunk(args, work, blockIdx.x), shared);
}

// One block per chunk: reads the histogram of a level and the chunk's codes, lists candidates above
// the cut, and counts those at the cut by their next digit.
__global__ void __launch_bounds__(kDecodeThreads)
    refine_kernel(const __grid_constant__ DecodeNmsArgs args,
                  const __grid_constant__ DecodeWork work, int level) {
  __shared__ SelectShared shared;
  let_next_begin();
  wait_for_previous();
  refine_chunk(work, SelectChunk(args, work, blockIdx.x), level, shared,
               args.batches * work.selections);
}

// One block per chunk: lists those of the candidates with the score of the last cut that still fit.
__global__ void __launch_bounds__(kDecodeThreads)
    tie_kernel(const __grid_constant__ DecodeNmsArgs args,
               const __grid_constant__ DecodeWork work) {
  __shared__ SelectShared shared;
  let_next_begin();
  wait_for_previous();
  list_ties(work, SelectChunk(args, work, blockIdx.x), shared, args.batches * work.selections);
}

// One thread per listed candidate: reads its values of the maps, writes its box, label and key.
template <class T>
__global__ void __launch_bounds__(kItemThreads)
    decode_kernel(const __grid_constant__ DecodeNmsArgs args,
                  const __grid_constant__ DecodeWork work, int64_t blocks_each) {
  let_next_begin();
  wait_for_previous();
  const int64_t selection = blockIdx.x / blocks_each;
  const int64_t i = (blockIdx.x - selection * blocks_each) * kItemThreads + threadIdx.x;
  if (i < listed_of(work, selection)) decode_listed<T>(args, work, selection, i);
}

// One warp per four candidates of a segment: reads the keys of all, writes the four rows at their
// places.
__global__ void __launch_bounds__(32 * kRankWarps)
    rank_kernel(const __grid_constant__ DecodeNmsArgs args, const __grid_constant__ DecodeWork work,
                int64_t blocks_each) {
  let_next_begin();
  wait_for_previous();
  const int64_t segment = blockIdx.x / blocks_each;
  const int64_t tile = blockIdx.x - segment * blocks_each;
  rank_listed(args, work, segment, tile * kRankTile + threadIdx.x / 32 * kRankEach);
}

// One thread per kept box, per row of the result and per sample: writes the rows in use, the unused
// rows, and the counts.
__global__ void __launch_bounds__(kItemThreads)
    write_kernel(const __grid_constant__ DecodeNmsArgs args,
                 const __grid_constant__ DecodeWork work, int64_t items) {
  wait_for_previous();
  for (int64_t item = global_thread(); item < items; item += global_stride()) {
    write_item(args, work, item);
  }
}

unsigned grid(int64_t blocks) { return static_cast<unsigned>(blocks); }

// Launches the steps up to ordered rows one by one.
template <class T>
cudaError_t launch_steps(const DecodeNmsArgs& args, const DecodeWork& work,
                         const CudaContext& context) {
  const int64_t all = args.batches * work.selections, tasks = all * work.chunks;
  if (tasks > 0) {
    TORCHVOX_CUDA_CHECK(
        launch_blocks(score_kernel<T>, grid(tasks), kDecodeThreads, context.stream, args, work));
    for (int level = 0; level < kLevels; ++level) {
      TORCHVOX_CUDA_CHECK(
          launch_after(refine_kernel, grid(tasks), kDecodeThreads, context, args, work, level));
    }
    TORCHVOX_CUDA_CHECK(launch_after(tie_kernel, grid(tasks), kDecodeThreads, context, args, work));
  }
  const int64_t decodes = ceil_div<int64_t>(work.listed_capacity, kItemThreads);
  if (decodes == 0) return cudaSuccess;
  TORCHVOX_CUDA_CHECK(launch_after(decode_kernel<T>, grid(all * decodes), kItemThreads, context,
                                   args, work, decodes));
  const int64_t tiles = ceil_div<int64_t>(work.listed_capacity, kRankTile);
  return launch_after(rank_kernel, grid(work.rows.segments * tiles), 32 * kRankWarps, context, args,
                      work, tiles);
}

}  // namespace

int64_t workspace_bytes_cuda(const DecodeNmsArgs& args, const Target& target) {
  return DecodeWork(args, target, nullptr).bytes;
}

cudaError_t launch(const DecodeNmsArgs& args, void* workspace, const CudaContext& context) {
  if (args.batches == 0) return cudaSuccess;
  const DecodeWork work(args, context.target, workspace);
  TORCHVOX_CUDA_CHECK(
      cudaMemsetAsync(work.barriers, 0xff, static_cast<size_t>(work.set_bytes), context.stream));
  if (work.chunks > 0 && work.fused) {
    TORCHVOX_CUDA_CHECK(decode_fused(args, work, context));
  } else if (work.chunks > 0) {
    TORCHVOX_CUDA_CHECK(with_map_type(
        args.dtype, [&](auto type) { return launch_steps<decltype(type)>(args, work, context); }));
  }
  if (work.rows.any()) {
    TORCHVOX_CUDA_CHECK(launch_nms_chunks(work.nms, work.scratch, context));
  }
  const int64_t items =
      work.rows.segments * work.rows.most + args.batches * args.rows() + args.batches;
  return launch_items_after(write_kernel, items, kItemThreads, context, args, work, items);
}

}  // namespace torchvox
