// SPDX-License-Identifier: Apache-2.0
//
// Sums of a segment for the gradient of sparse_conv's weight, in halves on tensor cores (sm_80 and
// later): what the plans for mma.sync and wgmma share.
//
// A sum starts at +0. The segment's rows that have the offset are added in fp32 in their order, by
// slices of 16, one product of the tensor cores each; zeros fill the last slice. So no tile and no
// wave changes a bit. A block lists these pairs, then takes stages of them: gradients and features
// are copied while earlier stages are multiplied.
#pragma once

#include <cuda_pipeline.h>

#include "csrc/kernels/core/launch.cuh"
#include "csrc/kernels/core/tensor_cores.cuh"
#include "csrc/kernels/core/warp.cuh"
#include "csrc/kernels/sparse/conv.h"

namespace torchvox {
// Output and input channels of a block and of a warp; pairs of a stage; stages in flight; blocks of
// a multiprocessor.
template <int kOuts_, int kIns_, int kWarpOuts_, int kWarpIns_, int kThreads_, int kPairs_,
          int kStages_, int kBlocks_>
struct WeightTile {
  static constexpr int kOuts = kOuts_, kIns = kIns_, kWarpOuts = kWarpOuts_, kWarpIns = kWarpIns_;
  static constexpr int kThreads = kThreads_, kPairs = kPairs_;
  static constexpr int kStages = kStages_, kBlocks = kBlocks_;
  static constexpr int kWarps = kOuts / kWarpOuts * (kIns / kWarpIns);  // that multiply
  static constexpr int kGradBytes = kPairs * kOuts * 2;
  static constexpr int kStageBytes = kGradBytes + kPairs * kIns * 2;
  static_assert(kWarps * 32 <= kThreads && kSparseSegment % kPairs == 0);
};

// The pairs of a segment and offset, in the order of rows.
struct SegmentPairs {
  int32_t sources[kSparseSegment];
  uint16_t rows[kSparseSegment];  // of the segment
  uint32_t counts[32];  // of each warp

  // Returns their number. Called by the threads of the block.
  template <int kThreads>
  __device__ __forceinline__ int find(const SparseTable& table, int64_t offset, int64_t begin) {
    constexpr int kSteps = kSparseSegment / kThreads;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int first = warp * kSteps * 32 + lane;
    const int32_t* entries = table.entries + offset * table.rows + begin;
    const int64_t limit = table.valid_sources(), end = min(begin + kSparseSegment, table.valid());
    unsigned present[kSteps];
    int32_t own[kSteps];
    for (int i = 0; i < kSteps; ++i) {
      own[i] = begin + first + i * 32 < end ? entries[first + i * 32] : -1;
    }
    uint32_t count = 0, all;
    for (int i = 0; i < kSteps; ++i) {
      present[i] = __ballot_sync(kFullWarp, own[i] >= 0 && own[i] < limit);
      count += __popc(present[i]);
    }
    uint32_t place = block_prefix(lane == 0 ? count : 0u, counts, &all);
    place = __shfl_sync(kFullWarp, place, 0);
    for (int i = 0; i < kSteps; ++i) {
      if (present[i] >> lane & 1) {
        const uint32_t to = place + __popc(present[i] & lanes_below(lane));
        sources[to] = own[i];
        rows[to] = static_cast<uint16_t>(first + i * 32);
      }
      place += __popc(present[i]);
    }
    __syncthreads();
    return static_cast<int>(all);
  }
};

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800

// Bytes of a pair's line of up to 64 channels. The lines of all pairs of a stage with the first of
// them are followed by those with the next.
template <int kChannels>
inline constexpr int kLineBytes = (kChannels < 64 ? kChannels : 64) * 2;

// Where eight channels of a pair lie: ldmatrix and wgmma read eight lines without bank conflicts.
template <int kChannels, int kPairs>
__device__ constexpr int chunk_at(int pair, int chunk) {
  constexpr int kLine = kLineBytes<kChannels>;
  const int phase = kChannels < 64 ? pair * kChannels / 64 % (kChannels / 8) : pair % 8;
  return (chunk * 16 / kLine * kPairs + pair) * kLine + (chunk % (kLine / 16) ^ phase) * 16;
}

// A thread's part of the copies of gradients or features: a chunk of every kStep-th pair.
template <class T, class Tile, int kChannels>
struct PairCopy {
  static constexpr int kChunks = kChannels / 8, kStep = Tile::kThreads / kChunks;
  static constexpr int kCount = Tile::kPairs / kStep;
  static_assert(kStep % 8 == 0 && kCount * kStep == Tile::kPairs);

  const int pair = threadIdx.x / kChunks, chunk = threadIdx.x % kChunks;
  const int place = chunk_at<kChannels, Tile::kPairs>(pair, chunk);
  const uint32_t channels;
  const int count;  // of the chunk's channels
  const bool whole;  // chunks are whole and aligned
  const T* data;  // the chunk of line 0

  __device__ __forceinline__ PairCopy(const void* lines, int64_t channels, int64_t first)
      : channels(static_cast<uint32_t>(channels)),
        count(static_cast<int>(min(channels - first - chunk * 8, int64_t{8}))),
        whole(channels % 8 == 0 && reinterpret_cast<uintptr_t>(lines) % 16 == 0),
        data(static_cast<const T*>(lines) + (count > 0 ? first + chunk * 8 : 0)) {}

  // Copies pairs first .. first + kPairs - 1, whose lines are `lines`, of `pairs`, and zeros to
  // whole groups of kGroup. Channels that the tensor does not have are left as they are: they reach
  // no weight.
  template <int kGroup, class Line>
  __device__ __forceinline__ void copy(const Line* lines, int first, int pairs, char* stage) const {
    const int end = count > 0 ? ceil_div(pairs, kGroup) * kGroup : 0;
    const auto move = [&](int i, Line line) {
      const int p = first + pair + i * kStep;
      const bool present = p < pairs;
      const T* from = data + uint64_t{static_cast<uint32_t>(present ? line : 0)} * channels;
      char* to = stage + place + i * kStep * kLineBytes<kChannels>;
      if (whole && p < end) copy_or_clear(shared_address(to), from, present);
#pragma unroll
      for (int c = 0; c < 8 && !whole && p < end; ++c) {
        reinterpret_cast<T*>(to)[c] = present && c < count ? from[c] : T{0};
      }
    };
    lines += first + pair;
    if (whole) {
      Line line[kCount];
      for (int i = 0; i < kCount; ++i) line[i] = lines[i * kStep];
      for (int i = 0; i < kCount; ++i) move(i, line[i]);
    } else {
#pragma unroll 1
      for (int i = 0; i < kCount; ++i) move(i, lines[i * kStep]);
    }
  }
};

// Writes sums of a thread to the block's, whose channels go on for outs and ins. Of a tile of kStep
// outputs and 8 inputs it has outputs out and out + 8 and inputs in and in + 1.
template <int kStep, int kTiles, int kInTiles>
__device__ __forceinline__ void write_sums(const float (&at)[kTiles][kInTiles][4], float* to,
                                           int64_t pitch, int64_t outs, int64_t ins, int out,
                                           int in) {
  const bool even = (pitch | ins) % 2 == 0 && reinterpret_cast<uintptr_t>(to) % 8 == 0;
  to += out * pitch + in;
#pragma unroll
  for (int i = 0; i < kTiles * 2 * kInTiles; ++i) {
    const int tile = i / kInTiles / 2, half = i / kInTiles % 2, j = i % kInTiles;
    const float* sums = at[tile][j] + half * 2;
    const int64_t row = tile * kStep + half * 8;
    const int64_t count = out + row < outs ? ins - in - j * 8 : 0;
    float* place = to + row * pitch + j * 8;
    if (even && count > 0) *reinterpret_cast<float2*>(place) = make_float2(sums[0], sums[1]);
    for (int e = 0; e < 2 && !even && e < count; ++e) place[e] = sums[e];
  }
}

#endif

// One block per offset, segment of a wave and tile of the weight. Reads the table, gradients and
// features; writes the sums of a segment.
template <class T, class Tile, class Sums>
__global__ void __launch_bounds__(Tile::kThreads, Tile::kBlocks)
    weight_pairs_kernel(const __grid_constant__ SparseConvWeightArgs args,
                        const __grid_constant__ SparseWave wave) {
#if __CUDA_ARCH__ >= 800
  extern __shared__ __align__(1024) char memory[];
  let_next_begin();
  const int64_t ins = args.in_channels, outs = args.out_channels;
  const int64_t in_tiles = ceil_div<int64_t>(ins, Tile::kIns), tile = blockIdx.x;
  const int64_t out0 = tile / in_tiles * Tile::kOuts, in0 = tile % in_tiles * Tile::kIns;
  const int64_t segment = blockIdx.y, rank = blockIdx.z;
  // Offsets near the center come first: most often they have the most pairs.
  const int64_t offset = args.table.volume / 2 + (rank % 2 == 1 ? -(rank + 1) / 2 : rank / 2);
  const int64_t begin = (wave.first + segment) * kSparseSegment;
  if (begin >= args.table.valid()) return wait_for_previous();  // not read either

  auto& pairs = *reinterpret_cast<SegmentPairs*>(memory + Tile::kStages * Tile::kStageBytes);
  const int count = pairs.find<Tile::kThreads>(args.table, offset, begin);
  const PairCopy<T, Tile, Tile::kOuts> grads(static_cast<const T*>(args.grad) + begin * outs, outs,
                                             out0);
  const PairCopy<T, Tile, Tile::kIns> features(args.features, ins, in0);
  const auto copy = [&](int stage) {
    const int from = stage * Tile::kPairs;
    if (from < count) {
      char* to = memory + stage % Tile::kStages * Tile::kStageBytes;
      grads.template copy<Sums::kGroup>(pairs.rows, from, count, to);
      features.template copy<Sums::kGroup>(pairs.sources, from, count, to + Tile::kGradBytes);
    }
    __pipeline_commit();
  };
  Sums total;
  const bool multiplies =
      total.first_out < min(outs - out0, int64_t{Tile::kOuts}) && total.first_in < ins - in0;
  for (int stage = 0; stage < Tile::kStages - 1; ++stage) copy(stage);
  for (int stage = 0, left = count; left > 0; ++stage, left -= Tile::kPairs) {
    __pipeline_wait_prior(Tile::kStages - 2);
    total.wait();
    __syncthreads();
    copy(stage + Tile::kStages - 1);
    const uint32_t from = shared_address(memory + stage % Tile::kStages * Tile::kStageBytes);
    total.add(from, multiplies ? left : 0);
  }
  total.wait();
  if (multiplies) {
    const int64_t pitch = args.table.volume * ins;
    total.write(wave.sums + segment * args.weights() + out0 * pitch + offset * ins + in0, pitch,
                outs - out0, ins - in0);
  }
  wait_for_previous();  // so that what follows this also follows that
#endif
}

// Tiles of the weight.
template <class Tile>
int64_t weight_tiles(const SparseConvWeightArgs& args) {
  return ceil_div<int64_t>(args.out_channels, Tile::kOuts) *
      ceil_div<int64_t>(args.in_channels, Tile::kIns);
}
// Whether tiles of more than 64 channels, which move fewer bytes, keep every multiprocessor busy.
template <class Tile>
bool pays(const SparseConvWeightArgs& args, const SparseWave& wave, const Target& target) {
  return std::max(args.out_channels, args.in_channels) > 64 &&
      weight_tiles<Tile>(args) * wave.segments * args.table.volume >= target.multiprocessors;
}

template <class T, class Tile, template <class, class> class Sums>
cudaError_t launch_weight_tile(const SparseConvWeightArgs& args, const SparseWave& wave,
                               const CudaContext& context) {
  const auto kernel = weight_pairs_kernel<T, Tile, Sums<T, Tile>>;
  constexpr int kBytes = Tile::kStages * Tile::kStageBytes + static_cast<int>(sizeof(SegmentPairs));
  TORCHVOX_CUDA_CHECK(
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes));
  const dim3 blocks(grid_x(weight_tiles<Tile>(args)), grid_x(wave.segments),
                    grid_x(args.table.volume));
  constexpr int kThreads = Tile::kThreads;
  return wave.follows
      ? launch_after_sharing(kernel, blocks, kThreads, kBytes, context, args, wave)
      : launch_sharing(kernel, blocks, kThreads, kBytes, context.stream, args, wave);
}

}  // namespace torchvox
