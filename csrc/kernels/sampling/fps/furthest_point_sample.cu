// SPDX-License-Identifier: Apache-2.0
//
// The launches of a call on the GPU, and the generic kernel for calls that the fast ones do not
// take.
#include <algorithm>
#include <type_traits>

#include "csrc/kernels/sampling/fps/device.cuh"
#include "csrc/kernels/sampling/fps/kernels.cuh"

namespace torchvox {
namespace {

constexpr int kThreads = 512;
constexpr int kWarps = kThreads / 32;

// Scratch memory of the clouds that the generic kernel takes at once.
struct GenericScratch {
  void* dist2;  // [points], in the compute type
  uint32_t* mark;  // [points]

  GenericScratch(const FpsArgs& args, const FpsPlan& plan, Workspace& workspace) {
    const int64_t points = points_at_once(args, plan);
    dist2 = args.points.dtype == DType::kDouble ? static_cast<void*>(workspace.take<double>(points))
                                                : workspace.take<float>(points);
    mark = workspace.take<uint32_t>(points);
  }
};

template <class C>
using SignedBits = std::conditional_t<sizeof(C) == 8, int64_t, int32_t>;

template <class C>
struct GenericBest {
  SignedBits<C> bits;
  uint32_t code, index;
};

template <class C>
__device__ __forceinline__ GenericBest<C> better(const GenericBest<C>& x, const GenericBest<C>& y) {
  return y.bits > x.bits || (y.bits == x.bits && y.code < x.code) ? y : x;
}

template <class C>
__device__ __forceinline__ GenericBest<C> warp_best(GenericBest<C> best) {
  for (int step = 16; step > 0; step /= 2) {
    const GenericBest<C> other{__shfl_xor_sync(kFullWarp, best.bits, step),
                               __shfl_xor_sync(kFullWarp, best.code, step),
                               __shfl_xor_sync(kFullWarp, best.index, step)};
    best = better(best, other);
  }
  return best;
}

// One block per cloud, for any number of axes, dtype and size. Distances stay in global memory, and
// every sample reads the whole cloud; one thread writes each sample.
template <class T>
__global__ void __launch_bounds__(kThreads)
    generic_kernel(const __grid_constant__ FpsArgs args, GenericScratch scratch,
                   int64_t first_cloud) {
  using C = compute_t<T>;
  __shared__ GenericBest<C> slots[2][kWarps];
  const FpsCloud cloud = FpsCloud::of(args, first_cloud + blockIdx.x);
  fill_unused(args, cloud);
  if (cloud.samples == 0) return;
  const int64_t segment = args.points.packed ? cloud.first : int64_t{blockIdx.x} * args.points.rows;
  const T* const points = static_cast<const T*>(args.points.data) + cloud.base;
  C* const dist2s = static_cast<C*>(scratch.dist2) + segment;
  const C initial = static_cast<C>(args.init_dist2) + C{0};

  uint32_t first_code = kNoCode;
  for (uint32_t i = threadIdx.x; i < cloud.points; i += kThreads) {
    const bool candidate = is_candidate_row(args, points + i * args.points.row_stride);
    dist2s[i] = candidate ? initial : C{-1};
    if (candidate) first_code = min(first_code, cloud.tie.code(i));
  }
  first_code = block_min(first_code);
  const int64_t first = first_code == kNoCode ? -1 : int64_t{cloud.tie.index(first_code)};

  const int samples = static_cast<int>(cloud.samples);
  const int starts = static_cast<int>(args.starts < samples ? args.starts : samples);
  constexpr SignedBits<C> kLowest = SignedBits<C>{1} << (8 * sizeof(C) - 1);
  GenericBest<C> mine{kLowest, kNoCode, 0};
  uint32_t cursor = 0;
  for (int s = 0;;) {
    int64_t chosen;
    if (s < starts) {
      chosen = take_start(args, cloud, s, first, cursor);
    } else {
      const GenericBest<C> of_warp = warp_best<C>(mine);
      if (threadIdx.x % 32 == 0) slots[s & 1][threadIdx.x / 32] = of_warp;
      __syncthreads();
      const GenericBest<C> best = warp_best<C>(slots[s & 1][threadIdx.x % kWarps]);
      if (best.bits <= 0) {
        finish_exhausted(args, cloud, s, first, scratch.mark + segment);
        return;
      }
      chosen = best.index;
      if (threadIdx.x == 0) write_sample(args, cloud, s, chosen, bit_cast<C>(best.bits));
    }
    if (++s >= samples) return;
    if (chosen < 0) continue;  // not a candidate: nothing to measure
    const T* const q = points + chosen * args.points.row_stride;
    mine = {kLowest, kNoCode, 0};
    for (uint32_t i = threadIdx.x; i < cloud.points; i += kThreads) {
      C d = dist2s[i];
      if (!(d > C{0})) {  // already 0, or -1 for a point that is not a candidate: never changes
        if (d < C{0}) continue;
      } else {
        const C now =
            dist2_rows(args.order, args.points.columns, points + i * args.points.row_stride, q);
        if (now < d) {
          d = now;
          dist2s[i] = now;
        }
      }
      const auto bits = bit_cast<SignedBits<C>>(d);
      if (bits < mine.bits) continue;
      const uint32_t code = cloud.tie.code(i);
      if (bits > mine.bits || code < mine.code) mine = {bits, code, i};
    }
  }
}

constexpr int kFillThreads = 256;

// One thread per slot: writes -1 to packed slots of no cloud, before the first and after the last
// offset.
__global__ void __launch_bounds__(kFillThreads)
    fill_outside_kernel(const __grid_constant__ FpsArgs args) {
  const FpsCloud nowhere{};
  const int64_t begin = clamp_index(args.out_offsets[0], 0, args.samples);
  const int64_t end = clamp_index(args.out_offsets[args.points.clouds], begin, args.samples);
  for (int64_t j = global_thread(); j < args.samples; j += global_stride()) {
    if (j < begin || j >= end) write_sample(args, nowhere, j, -1, 0.0f);
  }
}

}  // namespace

int64_t workspace_bytes_cuda(const FpsArgs& args, const Target& target) {
  const FpsPlan plan = make_fps_plan(args, target);
  Workspace workspace;
  if (plan.large == FpsPlan::Large::kLazy) {
    const SpatialOrder order(args, plan.clouds_at_once, plan.block_room(), workspace);
    LazyScratch(plan, order, workspace);
  }
  if (plan.large == FpsPlan::Large::kGeneric) GenericScratch(args, plan, workspace);
  return workspace.bytes();
}

cudaError_t launch(const FpsArgs& args, void* memory, const CudaContext& context) {
  if (args.samples == 0) return cudaSuccess;
  const cudaStream_t stream = context.stream;
  if (args.points.packed) {
    TORCHVOX_CUDA_CHECK(
        launch_items(fill_outside_kernel, args.samples, kFillThreads, context, args));
  }
  if (args.points.clouds == 0) return cudaSuccess;

  const FpsPlan plan = make_fps_plan(args, context.target);
  int64_t above = -1;
  for (const FpsPlan::BlockClass& block : plan.classes) {
    TORCHVOX_CUDA_CHECK(launch_fps_block(args, block, above, stream));
    above = block.room();
  }
  if (plan.large == FpsPlan::Large::kNone) return cudaSuccess;
  Workspace workspace(memory);
  // launch_part(first cloud, clouds) for the clouds that share the workspace, again and again.
  const auto each_part = [&](const auto& launch_part) {
    for (int64_t b = 0; b < args.points.clouds; b += plan.clouds_at_once) {
      TORCHVOX_CUDA_CHECK(launch_part(b, std::min(plan.clouds_at_once, args.points.clouds - b)));
    }
    return cudaSuccess;
  };
  if (plan.large == FpsPlan::Large::kGeneric) {
    const GenericScratch scratch(args, plan, workspace);
    return each_part([&](int64_t b, int64_t clouds) {
      return with_point_type(args.points.dtype, [&](auto type) {
        return launch_blocks(generic_kernel<decltype(type)>, static_cast<unsigned>(clouds),
                             kThreads, stream, args, scratch, b);
      });
    });
  }
  SpatialOrder order(args, plan.clouds_at_once, plan.block_room(), workspace);
  const LazyScratch scratch(plan, order, workspace);
  return each_part([&](int64_t b, int64_t clouds) {
    order.first_cloud = b;
    order.clouds = clouds;
    if (!args.points.packed) order.points = clouds * args.points.rows;
    TORCHVOX_CUDA_CHECK(make_spatial_order(args, order, stream));
    return launch_fps_lazy(args, plan, order, scratch, stream);
  });
}

}  // namespace torchvox
