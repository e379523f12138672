// SPDX-License-Identifier: Apache-2.0
#include <utility>

#include "csrc/kernels/sampling/fps_device.cuh"
#include "csrc/kernels/sampling/fps_kernels.cuh"

namespace torchvox {
namespace {

// Best of the block for every thread, with one barrier: the slots are double-buffered by the parity
// of `turn`, so a warp that runs ahead never writes what a late one still reads.
template <int kThreads>
__device__ __forceinline__ FpsBest block_best(const FpsBest& mine, int2* slots, int turn) {
  constexpr int kWarps = kThreads / 32;
  FpsBest best = warp_best(mine);
  if constexpr (kWarps > 1) {
    int2* const mine_and_peers = slots + (turn & 1) * kWarps;
    const unsigned lane = threadIdx.x % 32;
    if (lane == 0) mine_and_peers[threadIdx.x / 32] = make_int2(best.bits, best.code);
    __syncthreads();
    const int2 slot = mine_and_peers[lane % kWarps];  // repeats change no maximum
    best = warp_best({slot.x, static_cast<uint32_t>(slot.y)});
  }
  return best;
}

// One block per cloud. Thread t keeps the points of the tie codes t + j * kThreads with their
// running minimum distances in registers; all coordinates lie in shared memory, by code, so that
// the winner's are one broadcast away. A sample costs one barrier and no global access. The largest
// class has no registers for whole points: it keeps the first kAxes coordinates and reads the
// others from shared memory, 8 bytes a point and sample.
template <int kThreads, int kPointsPerThread, int kAxes>
__global__ void __launch_bounds__(kThreads)
    block_kernel(const __grid_constant__ FpsArgs args, int64_t above, int64_t room) {
  extern __shared__ float coordinates[];  // [3][room]
  __shared__ uint2 stage[kStage];
  __shared__ int2 slots[2 * (kThreads / 32)];
  const FpsCloud cloud = FpsCloud::of(args, blockIdx.x);
  const int64_t space = cloud.tie.space();
  if (space <= above || space > room) return;  // another kernel's cloud
  fill_unused(args, cloud);
  if (cloud.samples == 0) return;

  float* const all_a = coordinates;
  float* const all_b = all_a + room;
  float* const all_c = all_b + room;
  uint32_t first_code = kNoCode;
#pragma unroll 1
  for (uint32_t code = threadIdx.x; code < space; code += kThreads) {
    const uint32_t i = cloud.tie.index(code);
    Point3 p{0.0f, 0.0f, 0.0f};
    bool candidate = false;
    if (i < cloud.points) {
      p = load_point(args, cloud, i);
      candidate = is_candidate(args, p);
    }
    all_a[code] = candidate ? p.a : bit_cast<float>(0x7fc00000u);  // NaN: no candidate
    all_b[code] = p.b;
    all_c[code] = p.c;
    if (candidate && first_code == kNoCode) first_code = code;
  }
  first_code = block_min(first_code);
  const int64_t first = first_code == kNoCode ? -1 : int64_t{cloud.tie.index(first_code)};

  constexpr int kKept = kAxes == 3 ? kPointsPerThread : 1;
  float a[kPointsPerThread], b[kKept], c[kKept], d[kPointsPerThread];
  const float initial = initial_dist2(args);
#pragma unroll
  for (int j = 0; j < kPointsPerThread; ++j) {
    const uint32_t code = threadIdx.x + j * kThreads;
    const bool candidate = code < space && !is_nan(all_a[code]);
    a[j] = candidate ? all_a[code] : 0.0f;
    if constexpr (kAxes == 3) {
      b[j] = candidate ? all_b[code] : 0.0f;
      c[j] = candidate ? all_c[code] : 0.0f;
    }
    d[j] = candidate ? initial : -1.0f;
  }

  FpsBest mine;
  const auto measure_from = [&](const Point3& q) {
    mine = FpsBest{};
#pragma unroll
    for (int j = 0; j < kPointsPerThread; ++j) {
      Point3 p{a[j], 0.0f, 0.0f};
      if constexpr (kAxes == 3) {
        p.b = b[j];
        p.c = c[j];
      } else {  // no candidate: anything, even NaN, leaves d at -1
        p.b = all_b[threadIdx.x + j * kThreads];
        p.c = all_c[threadIdx.x + j * kThreads];
      }
      d[j] = fminf(d[j], dist2(p, q));
      const int bits = __float_as_int(d[j]);
      if (bits > mine.bits) {  // strict: the lowest code of the thread
        mine.bits = bits;
        mine.code = threadIdx.x + j * kThreads;
      }
    }
  };

  // The loop over samples is kept free of everything rare: calls in it would move the points of a
  // thread from registers to the stack.
  const int samples = static_cast<int>(cloud.samples);
  const int starts = static_cast<int>(args.starts < samples ? args.starts : samples);
  uint32_t cursor = 0;
  int s = 0;
  for (; s < starts; ++s) {
    const int64_t i = take_start(args, cloud, s, first, cursor);
    if (i >= 0) measure_from(load_point(args, cloud, static_cast<uint32_t>(i)));
  }
  bool exhausted = false;
  while (s < samples && !exhausted) {
    const int begin = s, end = samples - s < kStage ? samples : s + kStage;
    for (; s < end; ++s) {
      const FpsBest best = block_best<kThreads>(mine, slots, s);
      if (best.bits <= 0) break;
      if (threadIdx.x == 0) stage[s - begin] = make_uint2(best.code, best.bits);
      measure_from({all_a[best.code], all_b[best.code], all_c[best.code]});
    }
    write_stage(args, cloud, stage, begin, s);
    exhausted = s < end;
  }
  if (exhausted) {
    finish_exhausted(args, cloud, s, first, reinterpret_cast<uint32_t*>(coordinates));
  }
}

using BlockKernel = void (*)(FpsArgs, int64_t, int64_t);

template <int kThreads>
BlockKernel kernel_of(int points_per_thread) {
  switch (points_per_thread) {
    case 1: return block_kernel<kThreads, 1, 3>;
    case 2: return block_kernel<kThreads, 2, 3>;
    case 4: return block_kernel<kThreads, 4, 3>;
    case 8: return block_kernel<kThreads, 8, 3>;
    case 16: return block_kernel<kThreads, 16, 3>;
  }
  return nullptr;
}

BlockKernel kernel_of(const FpsPlan::BlockClass& block) {
  switch (block.threads) {
    case 32: return kernel_of<32>(block.points_per_thread);
    case 64: return kernel_of<64>(block.points_per_thread);
    case 128: return kernel_of<128>(block.points_per_thread);
    case 256: return kernel_of<256>(block.points_per_thread);
    case 512: return kernel_of<512>(block.points_per_thread);
    case 1024: return block.points_per_thread == 16 ? block_kernel<1024, 16, 1> : nullptr;
  }
  return nullptr;
}

}  // namespace

cudaError_t launch_fps_block(const FpsArgs& args, const FpsPlan::BlockClass& block, int64_t above,
                             cudaStream_t stream) {
  const BlockKernel kernel = kernel_of(block);
  if (kernel == nullptr) return cudaErrorInvalidValue;
  const int bytes = static_cast<int>(3 * sizeof(float) * block.room());
  if (bytes + kBlockStaticBytes > 48 * 1024) {
    TORCHVOX_CUDA_CHECK(
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
  }
  kernel<<<static_cast<unsigned>(args.clouds), block.threads, bytes, stream>>>(args, above,
                                                                               block.room());
  return cudaGetLastError();
}

}  // namespace torchvox
