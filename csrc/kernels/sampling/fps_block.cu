// SPDX-License-Identifier: Apache-2.0
#include <utility>

#include "csrc/kernels/sampling/fps_device.cuh"
#include "csrc/kernels/sampling/fps_kernels.cuh"

namespace torchvox {
namespace {

// Best of the block for every thread, with one barrier: the slots are double-buffered by the parity
// of `turn`, so a warp that runs ahead never writes what a late one still reads.
template <int kThreads>
__device__ __forceinline__ FpsBest block_best(const FpsBest& mine, int turn) {
  constexpr int kWarps = kThreads / 32;
  FpsBest best = warp_best(mine);
  if constexpr (kWarps > 1) {
    __shared__ int2 slots[2][kWarps];
    const unsigned lane = threadIdx.x % 32;
    if (lane == 0) slots[turn & 1][threadIdx.x / 32] = make_int2(best.bits, best.code);
    __syncthreads();
    const int2 slot = slots[turn & 1][lane % kWarps];  // repeats change no maximum
    best = warp_best({slot.x, static_cast<uint32_t>(slot.y)});
  }
  return best;
}

// One block per cloud. Thread t keeps the points of the tie codes t + j * kThreads with their
// running minimum distances in registers; all coordinates lie in shared memory, by code, so that
// the winner's are one broadcast away. A sample costs one barrier and no global read.
template <int kThreads, int kPointsPerThread>
__global__ void __launch_bounds__(kThreads)
    block_kernel(const __grid_constant__ FpsArgs args, int64_t above, int64_t room) {
  extern __shared__ float coordinates[];  // [3][room]
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

  float a[kPointsPerThread], b[kPointsPerThread], c[kPointsPerThread], d[kPointsPerThread];
  const float initial = initial_dist2(args);
#pragma unroll
  for (int j = 0; j < kPointsPerThread; ++j) {
    const uint32_t code = threadIdx.x + j * kThreads;
    const bool candidate = code < space && !is_nan(all_a[code]);
    a[j] = candidate ? all_a[code] : 0.0f;
    b[j] = candidate ? all_b[code] : 0.0f;
    c[j] = candidate ? all_c[code] : 0.0f;
    d[j] = candidate ? initial : -1.0f;
  }

  // code / columns by multiplication, exact for these small codes.
  const uint32_t columns = cloud.tie.columns;
  const uint32_t reciprocal = columns > 1 ? 0xffffffffu / columns + 1 : 0;
  const int samples = static_cast<int>(cloud.samples);
  const int starts = static_cast<int>(args.starts < samples ? args.starts : samples);
  FpsBest mine;
  uint32_t cursor = 0;
  for (int s = 0;;) {
    Point3 q{0.0f, 0.0f, 0.0f};
    if (s < starts) {
      const int64_t i = take_start(args, cloud, s, first, cursor);
      if (i >= 0) q = load_point(args, cloud, static_cast<uint32_t>(i));
    } else {
      const FpsBest best = block_best<kThreads>(mine, s);
      if (best.bits <= 0) {
        finish_exhausted(args, cloud, s, first, reinterpret_cast<uint32_t*>(coordinates));
        return;
      }
      q = {all_a[best.code], all_b[best.code], all_c[best.code]};
      if (threadIdx.x == 0) {
        uint32_t i = best.code;
        if (cloud.tie.log2_block != 0) {
          i = cloud.tie.index_of(i, columns > 1 ? __umulhi(i, reciprocal) : i);
        }
        write_sample(args, cloud, s, i, __int_as_float(best.bits));
      }
    }
    if (++s >= samples) return;
    mine = FpsBest{};
#pragma unroll
    for (int j = 0; j < kPointsPerThread; ++j) {
      d[j] = fminf(d[j], dist2(a[j] - q.a, b[j] - q.b, c[j] - q.c));
      const int bits = __float_as_int(d[j]);
      if (bits > mine.bits) {  // strict: the lowest code of the thread
        mine.bits = bits;
        mine.code = threadIdx.x + j * kThreads;
      }
    }
  }
}

using BlockKernel = void (*)(FpsArgs, int64_t, int64_t);

template <int kThreads>
BlockKernel kernel_of(int points_per_thread) {
  switch (points_per_thread) {
    case 1: return block_kernel<kThreads, 1>;
    case 2: return block_kernel<kThreads, 2>;
    case 4: return block_kernel<kThreads, 4>;
    case 8: return block_kernel<kThreads, 8>;
    case 16: return block_kernel<kThreads, 16>;
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
  }
  return nullptr;
}

}  // namespace

cudaError_t launch_fps_block(const FpsArgs& args, const FpsPlan::BlockClass& block, int64_t above,
                             cudaStream_t stream) {
  const BlockKernel kernel = kernel_of(block);
  if (kernel == nullptr) return cudaErrorInvalidValue;
  const int bytes = static_cast<int>(3 * sizeof(float) * block.room());
  if (bytes + 2048 > 48 * 1024) {
    TORCHVOX_CUDA_CHECK(
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
  }
  kernel<<<static_cast<unsigned>(args.clouds), block.threads, bytes, stream>>>(args, above,
                                                                               block.room());
  return cudaGetLastError();
}

}  // namespace torchvox
