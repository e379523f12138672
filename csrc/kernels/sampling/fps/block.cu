// SPDX-License-Identifier: Apache-2.0
//
// Furthest point sampling of clouds that fit into the registers of one block: one block per cloud,
// up to 16 points per thread. Points are read once or twice; after that only samples are written.
#include "csrc/kernels/sampling/fps/candidates.cuh"
#include "csrc/kernels/sampling/fps/kernels.cuh"
#include "csrc/kernels/spatial/curves.h"

namespace torchvox {
namespace {

constexpr int kAxisBits = 4;
constexpr int kCells = 1 << (3 * kAxisBits);

// Turns the counts of buckets into where each begins. Called by the whole block.
template <int kThreads>
__device__ __forceinline__ void scan_buckets(uint32_t* buckets) {
  constexpr int kEach = kCells / kThreads;
  __shared__ uint32_t per_warp[kThreads / 32];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  uint32_t count[kEach], sum = 0;
#pragma unroll
  for (int k = 0; k < kEach; ++k) {
    count[k] = buckets[threadIdx.x * kEach + k];
    sum += count[k];
  }
  uint32_t before = warp_inclusive(sum);
  if (lane == 31) per_warp[warp] = before;
  __syncthreads();
  before -= sum;
  for (int w = 0; w < warp; ++w) before += per_warp[w];
#pragma unroll
  for (int k = 0; k < kEach; ++k) {
    buckets[threadIdx.x * kEach + k] = before;
    before += count[k];
  }
  __syncthreads();
}

// Loads the points with the tie codes t + j * kThreads; returns the lowest code of the thread's
// candidates.
template <int kThreads, int kPoints>
__device__ __forceinline__ uint32_t load_by_code(const FpsArgs& args, const FpsCloud& cloud,
                                                 FpsCandidateBuffer<kPoints>& buffer) {
  const float initial = initial_dist2(args);
  const uint32_t space = cloud.tie.space();
  uint32_t first_code = kNoCode;
#pragma unroll
  for (int j = 0; j < kPoints; ++j) {
    const uint32_t code = threadIdx.x + j * kThreads;
    buffer.code[j] = code;
    buffer.a[j] = buffer.b[j] = buffer.c[j] = 0.0f;
    buffer.d[j] = -1.0f;
    const uint32_t i = code < space ? cloud.tie.index(code) : cloud.points;
    if (i >= cloud.points) continue;
    const Point3 p = load_point(args, cloud, i);
    if (!is_candidate(args, p)) continue;
    buffer.a[j] = p.a;
    buffer.b[j] = p.b;
    buffer.c[j] = p.c;
    buffer.d[j] = initial;
    first_code = min(first_code, code);
  }
  return first_code;
}

// Shared memory of a block for its points: words for the marks of exhausted clouds, or buckets and
// codes to order the points by.
size_t block_bytes(int64_t room, bool ordered) {
  const size_t marks = sizeof(uint32_t) * room;
  const size_t order = ordered ? sizeof(uint32_t) * kCells + sizeof(uint16_t) * room : 0;
  return marks > order ? marks : order;
}

// Redistributes the candidates in the order of a Hilbert curve, so that those of a warp lie close
// together, and returns the warp's box. Points of one cell come in any order, which does not affect
// results.
template <int kThreads, int kPoints>
__device__ __forceinline__ PointBox order_in_space(const FpsArgs& args, const FpsCloud& cloud,
                                                   FpsCandidateBuffer<kPoints>& buffer,
                                                   uint32_t* buckets) {
  uint16_t* const codes = reinterpret_cast<uint16_t*>(buckets + kCells);
  for (int b = threadIdx.x; b < kCells; b += kThreads) buckets[b] = 0;
  PointBox box = PointBox::empty();
  uint32_t candidates = 0;
#pragma unroll
  for (int j = 0; j < kPoints; ++j) {
    if (buffer.d[j] < 0.0f) continue;
    box.extend(make_float4(buffer.a[j], buffer.b[j], buffer.c[j], 0.0f));
    ++candidates;
  }
  const float low[3] = {from_ordered_bits(block_min(ordered_bits(box.low_a))),
                        from_ordered_bits(block_min(ordered_bits(box.low_b))),
                        from_ordered_bits(block_min(ordered_bits(box.low_c)))};
  const float high[3] = {from_ordered_bits(~block_min(~ordered_bits(box.high_a))),
                         from_ordered_bits(~block_min(~ordered_bits(box.high_b))),
                         from_ordered_bits(~block_min(~ordered_bits(box.high_c)))};
  const float scale = scale_of(low, high, 1u << kAxisBits);
  uint32_t cell[kPoints];
#pragma unroll
  for (int j = 0; j < kPoints; ++j) {
    cell[j] = hilbert_code(cell_of(buffer.a[j], low[0], scale, 1u << kAxisBits),
                           cell_of(buffer.b[j], low[1], scale, 1u << kAxisBits),
                           cell_of(buffer.c[j], low[2], scale, 1u << kAxisBits), kAxisBits);
    if (buffer.d[j] >= 0.0f) atomicAdd(&buckets[cell[j]], 1);
  }
  __syncthreads();
  scan_buckets<kThreads>(buckets);
#pragma unroll
  for (int j = 0; j < kPoints; ++j) {
    if (buffer.d[j] < 0.0f) continue;
    codes[atomicAdd(&buckets[cell[j]], 1)] = static_cast<uint16_t>(buffer.code[j]);
  }

  candidates = block_sum(candidates);
  const uint32_t per_warp = (candidates + kThreads / 32 - 1) / (kThreads / 32);
  const uint32_t begin = threadIdx.x / 32 * per_warp, end = min(begin + per_warp, candidates);
  const float initial = initial_dist2(args);
  box = PointBox::empty();
#pragma unroll
  for (int j = 0; j < kPoints; ++j) {
    const uint32_t k = begin + 32 * j + threadIdx.x % 32;
    buffer.code[j] = kNoCode;
    buffer.d[j] = -1.0f;
    if (k >= end) continue;
    const uint32_t code = codes[k];
    const Point3 p = load_point(args, cloud, cloud.tie.index(code));
    buffer.code[j] = code;
    buffer.a[j] = p.a;
    buffer.b[j] = p.b;
    buffer.c[j] = p.c;
    buffer.d[j] = initial;
    box.extend(make_float4(p.a, p.b, p.c, 0.0f));
  }
  return warp_box(box);
}

// One block per cloud: reads its points into registers, writes its samples. Points are in the order
// of their tie codes or (kOrdered) along a Hilbert curve: then only warps that a sample can change
// measure it.
template <int kThreads, int kPoints, bool kOrdered>
__global__ void __launch_bounds__(kThreads)
    block_kernel(const __grid_constant__ FpsArgs args, int64_t above, int64_t room) {
  using Shortlist = FpsShortlist<kOrdered ? 2 : 1, 256>;
  extern __shared__ uint32_t words[];  // block_bytes
  __shared__ Shortlist shortlist;
  const FpsCloud cloud = FpsCloud::of(args, blockIdx.x);
  const int64_t space = cloud.tie.space();
  if (space <= above || space > room) return;  // another kernel's cloud
  fill_unused(args, cloud);
  if (cloud.samples == 0) return;

  FpsCandidateBuffer<kPoints> buffer;
  const uint32_t first_code = block_min(load_by_code<kThreads>(args, cloud, buffer));
  const int64_t first = first_code == kNoCode ? -1 : int64_t{cloud.tie.index(first_code)};
  PointBox box{};
  if constexpr (kOrdered) {
    static_assert(kThreads * kPoints <= 1 << 16);  // codes
    box = order_in_space<kThreads>(args, cloud, buffer, words);
  }
  if (threadIdx.x < 3) shortlist.count[threadIdx.x] = 0;
  __syncthreads();

  // The loop over samples is kept free of everything rare: calls in it would move the points of a
  // thread from registers to the stack.
  const int samples = static_cast<int>(cloud.samples);
  const int starts = static_cast<int>(args.starts < samples ? args.starts : samples);
  uint32_t cursor = 0;
  int s = 0;
#pragma unroll 1
  for (; s < starts; ++s) {
    const int64_t i = take_start(args, cloud, s, first, cursor);
    if (i < 0) continue;
    const Point3 q = load_point(args, cloud, static_cast<uint32_t>(i));
    buffer.measure_from(make_float4(q.a, q.b, q.c, 0.0f));
  }
  ShortlistDepth depth;
  bool exhausted = false;
#pragma unroll 1
  while (s < samples && !exhausted) {
    const int staged = drain_buffer<kThreads, kOrdered>(
        buffer, box, shortlist, 1, static_cast<uint32_t>(space) - 1, samples - s, depth);
    const int end = s + min(staged, samples - s);
    write_samples(args, cloud, shortlist, s, end);
    s = end;
    exhausted = staged == 0;
  }
  if (exhausted) finish_exhausted(args, cloud, s, first, words);
}

using BlockKernel = void (*)(FpsArgs, int64_t, int64_t);

// Points per thread from which on (2,048 points in all) ordering pays.
constexpr int kLeastOrdered = 4;

// The kernel of a class of kBlockTable.
BlockKernel kernel_of(const FpsPlan::BlockClass& block) {
  switch (block.threads << 8 | block.points_per_thread) {
    case 256 << 8 | 1: return block_kernel<256, 1, false>;
    case 256 << 8 | 2: return block_kernel<256, 2, false>;
    case 512 << 8 | 2: return block_kernel<512, 2, false>;
    case 512 << 8 | 4: return block_kernel<512, 4, true>;
    case 512 << 8 | 8: return block_kernel<512, 8, true>;
    case 512 << 8 | 16: return block_kernel<512, 16, true>;
  }
  return nullptr;
}

}  // namespace

cudaError_t launch_fps_block(const FpsArgs& args, const FpsPlan::BlockClass& block, int64_t above,
                             cudaStream_t stream) {
  const BlockKernel kernel = kernel_of(block);
  if (kernel == nullptr) return cudaErrorInvalidValue;
  const size_t bytes = block_bytes(block.room(), block.points_per_thread >= kLeastOrdered);
  return launch_sharing(kernel, static_cast<unsigned>(args.points.clouds), block.threads, bytes,
                        stream, args, above, block.room());
}

}  // namespace torchvox
