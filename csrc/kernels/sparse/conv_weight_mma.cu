// SPDX-License-Identifier: Apache-2.0
//
// Sums of a segment for the gradient of sparse_conv's weight, in halves on tensor cores (PTX
// mma.sync m16n8k16, sm_80 and later).
//
// A sum starts at +0. The segment's rows that have the offset are added in fp32 in their order, by
// slices of 16, one product of the tensor cores each; zeros fill the last slice. So no tile and no
// wave changes a bit. A block lists these pairs, then takes stages of them: gradients and features
// are copied while earlier stages are multiplied.
#include <cuda_pipeline.h>

#include "csrc/kernels/core/launch.cuh"
#include "csrc/kernels/core/tensor_cores.cuh"
#include "csrc/kernels/core/warp.cuh"
#include "csrc/kernels/sparse/conv.h"

namespace torchvox {
namespace {

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
    int32_t found[kSteps];
    for (int i = 0; i < kSteps; ++i) {
      found[i] = begin + first + i * 32 < end ? entries[first + i * 32] : -1;
    }
    uint32_t count = 0, all;
    for (int i = 0; i < kSteps; ++i) {
      present[i] = __ballot_sync(kFullWarp, found[i] >= 0 && found[i] < limit);
      count += __popc(present[i]);
    }
    uint32_t place = block_prefix(lane == 0 ? count : 0u, counts, &all);
    place = __shfl_sync(kFullWarp, place, 0);
    for (int i = 0; i < kSteps; ++i) {
      if (present[i] >> lane & 1) {
        const uint32_t to = place + __popc(present[i] & lanes_below(lane));
        sources[to] = found[i];
        rows[to] = static_cast<uint16_t>(first + i * 32);
      }
      place += __popc(present[i]);
    }
    __syncthreads();
    return static_cast<int>(all);
  }
};

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800

// Where eight channels of a pair lie: ldmatrix reads eight lines without bank conflicts.
template <int kChannels>
__device__ constexpr int chunk_at(int pair, int chunk) {
  const int phase = kChannels < 64 ? pair * kChannels / 64 % (kChannels / 8) : pair % 8;
  return pair * kChannels * 2 + (chunk ^ phase) * 16;
}

// A thread's part of the copies of gradients or features: a chunk of every kStep-th pair.
template <class T, class Tile, int kChannels>
struct PairCopy {
  static constexpr int kChunks = kChannels / 8, kStep = Tile::kThreads / kChunks;
  static constexpr int kCount = Tile::kPairs / kStep;
  static_assert(kStep % 8 == 0 && kCount * kStep == Tile::kPairs);

  const int pair = threadIdx.x / kChunks, chunk = threadIdx.x % kChunks;
  const int place = chunk_at<kChannels>(pair, chunk);
  const uint32_t channels;
  const int count;  // of the chunk's channels
  const bool whole;  // chunks are whole and aligned
  const T* data;  // the chunk of line 0

  __device__ __forceinline__ PairCopy(const void* lines, int64_t channels, int64_t first)
      : channels(static_cast<uint32_t>(channels)),
        count(static_cast<int>(min(channels - first - chunk * 8, int64_t{8}))),
        whole(channels % 8 == 0 && reinterpret_cast<uintptr_t>(lines) % 16 == 0),
        data(static_cast<const T*>(lines) + (count > 0 ? first + chunk * 8 : 0)) {}

  // Copies pairs first .. first + kPairs - 1, whose lines are `lines`, of `pairs`. Channels that
  // the tensor does not have are left as they are: they reach no weight.
  template <class Line>
  __device__ __forceinline__ void copy(const Line* lines, int first, int pairs, char* stage) const {
    const int end = count > 0 ? ceil_div(pairs, 16) * 16 : 0;
    const auto move = [&](int i, Line line) {
      const int p = first + pair + i * kStep;
      const bool present = p < pairs;
      const T* from = data + uint64_t{static_cast<uint32_t>(present ? line : 0)} * channels;
      char* to = stage + place + i * kStep * kChannels * 2;
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

// The sums of a warp. Of a tile of 16 outputs and 8 inputs, lane 4 * g + t has outputs g and g + 8
// and inputs 2 * t and 2 * t + 1.
template <class T, class Tile>
struct WeightSums {
  static constexpr int kOutTiles = Tile::kWarpOuts / 16, kInTiles = Tile::kWarpIns / 8;
  static constexpr int kInWarps = Tile::kIns / Tile::kWarpIns;
  float at[kOutTiles][kInTiles][4] = {};
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int first_out = warp / kInWarps * Tile::kWarpOuts;
  const int first_in = warp % kInWarps * Tile::kWarpIns;
  // Where the lane's lines begin in a slice.
  const int grads = chunk_at<Tile::kOuts>(lane / 16 * 8 + lane % 8, first_out / 8 + lane / 8 % 2);
  const int features = chunk_at<Tile::kIns>(lane % 16, first_in / 8 + lane / 16);

  // Adds the products of a slice of the stage at this shared address.
  __device__ __forceinline__ void add(uint32_t stage, int slice) {
    uint32_t a[kOutTiles][4], b[kInTiles / 2][4];
    const uint32_t grads_at = stage + slice * 32 * Tile::kOuts;
    const uint32_t features_at = stage + Tile::kGradBytes + slice * 32 * Tile::kIns;
    for (int i = 0; i < kOutTiles; ++i) load_transposed(a[i], grads_at + (grads ^ i * 32));
    for (int i = 0; i < kInTiles / 2; ++i) load_transposed(b[i], features_at + (features ^ i * 32));
#pragma unroll
    for (int n = 0; n < kOutTiles * kInTiles; ++n) {
      const int i = n / kInTiles, j = n % kInTiles;
      Words<T>::multiply(at[i][j], a[i], b[j / 2][j % 2 * 2], b[j / 2][j % 2 * 2 + 1]);
    }
  }
  // to: the block's first sum. outs, ins: channels from there on.
  __device__ __forceinline__ void write(float* to, int64_t pitch, int64_t outs, int64_t ins) const {
    const bool even = (pitch | ins) % 2 == 0 && reinterpret_cast<uintptr_t>(to) % 8 == 0;
#pragma unroll
    for (int i = 0; i < kOutTiles * 2 * kInTiles; ++i) {
      const int tile = i % kInTiles, half = i / kInTiles;
      const int out = first_out + half * 8 + lane / 4, in = first_in + tile * 8 + lane % 4 * 2;
      const float* sums = at[half / 2][tile] + half % 2 * 2;
      const int64_t count = out < outs ? ins - in : 0;
      float* place = to + out * pitch + in;
      if (even && count > 0) *reinterpret_cast<float2*>(place) = make_float2(sums[0], sums[1]);
      for (int e = 0; e < 2 && !even && e < count; ++e) place[e] = sums[e];
    }
  }
};

#endif

// One block per offset, segment of a wave and tile of the weight. Reads the table, gradients and
// features; writes the sums of a segment. first: segment of the wave.
template <class T, class Tile>
__global__ void __launch_bounds__(Tile::kThreads, Tile::kBlocks)
    weight_mma_kernel(const __grid_constant__ SparseConvWeightArgs args, int64_t first,
                      float* sums) {
#if __CUDA_ARCH__ >= 800
  extern __shared__ __align__(128) char memory[];
  let_next_begin();
  const int64_t ins = args.in_channels, outs = args.out_channels;
  const int64_t in_tiles = ceil_div<int64_t>(ins, Tile::kIns), tile = blockIdx.x;
  const int64_t out0 = tile / in_tiles * Tile::kOuts, in0 = tile % in_tiles * Tile::kIns;
  const int64_t segment = blockIdx.y, rank = blockIdx.z;
  // Offsets near the center come first: most often they have the most pairs.
  const int64_t offset = args.table.volume / 2 + (rank % 2 == 1 ? -(rank + 1) / 2 : rank / 2);
  const int64_t begin = (first + segment) * kSparseSegment;
  if (begin >= args.table.valid()) return;  // not read either

  auto& pairs = *reinterpret_cast<SegmentPairs*>(memory + Tile::kStages * Tile::kStageBytes);
  const int count = pairs.find<Tile::kThreads>(args.table, offset, begin);
  const PairCopy<T, Tile, Tile::kOuts> grads(static_cast<const T*>(args.grad) + begin * outs, outs,
                                             out0);
  const PairCopy<T, Tile, Tile::kIns> features(args.features, ins, in0);
  const auto copy = [&](int stage) {
    const int from = stage * Tile::kPairs;
    if (from < count) {
      char* to = memory + stage % Tile::kStages * Tile::kStageBytes;
      grads.copy(pairs.rows, from, count, to);
      features.copy(pairs.sources, from, count, to + Tile::kGradBytes);
    }
    __pipeline_commit();
  };
  WeightSums<T, Tile> total;
  const bool multiplies =
      total.warp < Tile::kWarps && out0 + total.first_out < outs && in0 + total.first_in < ins;
  for (int stage = 0; stage < Tile::kStages - 1; ++stage) copy(stage);
  for (int stage = 0, left = count; left > 0; ++stage, left -= Tile::kPairs) {
    __pipeline_wait_prior(Tile::kStages - 2);
    __syncthreads();
    copy(stage + Tile::kStages - 1);
    const uint32_t from = shared_address(memory + stage % Tile::kStages * Tile::kStageBytes);
    const int used = multiplies ? min(left, Tile::kPairs) : 0;
#pragma unroll
    for (int slice = 0; slice < Tile::kPairs / 16; ++slice) {
      if (slice * 16 < used) total.add(from, slice);
    }
  }
  if (multiplies) {
    const int64_t pitch = args.table.volume * ins;
    total.write(sums + segment * args.weights() + out0 * pitch + offset * ins + in0, pitch,
                outs - out0, ins - in0);
  }
#endif
}

template <class T, class Tile>
cudaError_t launch_weight_tile(const SparseConvWeightArgs& args, int64_t first, int64_t segments,
                               float* sums, const CudaContext& context) {
  const auto kernel = weight_mma_kernel<T, Tile>;
  constexpr int kBytes = Tile::kStages * Tile::kStageBytes + static_cast<int>(sizeof(SegmentPairs));
  TORCHVOX_CUDA_CHECK(
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes));
  const int64_t tiles = ceil_div<int64_t>(args.out_channels, Tile::kOuts) *
      ceil_div<int64_t>(args.in_channels, Tile::kIns);
  const dim3 blocks(grid_x(tiles), grid_x(segments), grid_x(args.table.volume));
  return launch_sharing(kernel, blocks, Tile::kThreads, kBytes, context.stream, args, first, sums);
}

using WeightTile16 = WeightTile<16, 16, 16, 16, 64, 128, 3, 8>;
using WeightTile32 = WeightTile<32, 32, 16, 16, 128, 64, 4, 5>;
using WeightTile64 = WeightTile<64, 64, 32, 32, 128, 32, 4, 4>;
using WeightTile128 = WeightTile<128, 128, 64, 32, 256, 32, 4, 2>;

// Large tiles move fewer bytes; small ones keep every multiprocessor busy when rows are few.
template <class T>
cudaError_t launch_typed(const SparseConvWeightArgs& args, int64_t first, int64_t segments,
                         float* sums, const CudaContext& context) {
  const int64_t most = std::max(args.out_channels, args.in_channels);
  const int64_t blocks = ceil_div<int64_t>(args.out_channels, WeightTile128::kOuts) *
      ceil_div<int64_t>(args.in_channels, WeightTile128::kIns) * segments * args.table.volume;
  const bool large = most > 64 && blocks >= context.target.multiprocessors;
  const auto launch = large ? launch_weight_tile<T, WeightTile128>
      : most <= 16          ? launch_weight_tile<T, WeightTile16>
      : most <= 32          ? launch_weight_tile<T, WeightTile32>
                            : launch_weight_tile<T, WeightTile64>;
  return launch(args, first, segments, sums, context);
}

}  // namespace

cudaError_t launch_sparse_weight_mma(const SparseConvWeightArgs& args, int64_t first,
                                     int64_t segments, float* sums, const CudaContext& context) {
  return args.dtype == DType::kHalf ? launch_typed<Half>(args, first, segments, sums, context)
                                    : launch_typed<BFloat16>(args, first, segments, sums, context);
}

}  // namespace torchvox
