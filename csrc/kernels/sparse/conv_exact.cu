// SPDX-License-Identifier: Apache-2.0
//
// sparse_conv on the GPU, in exact chains of fused multiply-adds.
//
//   pack_kernel      weights in the type of the sums, output channels side by side
//   conv_kernel      values of 64 rows and a tile of output channels, whose sums are in registers;
//                    offsets that no row has are left out, products of absent rows predicated off
#include <cuda_pipeline.h>

#include "csrc/kernels/core/launch.cuh"
#include "csrc/kernels/core/warp.cuh"
#include "csrc/kernels/sparse/conv.h"

namespace torchvox {
namespace {

constexpr int kPackThreads = 256;
constexpr int kRows = 64;  // of a block of conv_kernel
constexpr int kThreads = 128;  // a warp per 16 of them
constexpr int kMostVolume = kThreads;
// A thread adds up four rows, 4 apart: of its warp's 16 rows those from lane / 8 on.
constexpr int kThreadRows = 4;

struct ConvWork {
  int tile;  // output channels of a block: 16, 32, or 64 unless in float64
  int tiles;
  int64_t columns;  // output channels and padding to whole tiles
  int64_t channels;  // input channels and padding to whole packs
  bool packs;  // features are packed, too
  void* weight;  // [tiles, volume, in_channels, tile] in the type of the sums
  void* features;  // [sources, channels] in that type
  bool follows;  // the launch before makes the order

  ConvWork(const SparseConvArgs& args, bool follows, Workspace& workspace) : follows(follows) {
    const bool is_wide = args.dtype == DType::kDouble;
    const int most = is_wide ? 32 : 64;
    for (tile = 16; tile < most && tile < args.out_channels;) tile *= 2;
    tiles = static_cast<int>(ceil_div<int64_t>(args.out_channels, tile));
    columns = int64_t{tiles} * tile;
    channels = ceil_div<int64_t>(args.in_channels, 4) * 4;
    packs = args.in_channels != channels || (!is_wide && args.dtype != DType::kFloat) ||
        reinterpret_cast<uintptr_t>(args.features) % 16 != 0;
    const int64_t bytes = is_wide ? 8 : 4;
    weight = workspace.take<char>(args.table.volume * args.in_channels * columns * bytes);
    features = workspace.take<char>(packs ? args.table.sources * channels * bytes : 0);
    if (!packs) features = const_cast<void*>(args.features);
  }
};

// One thread per packed weight, then per packed feature. Waits at its end, so that what follows it
// also follows the kernels of the order.
template <class T>
__global__ void __launch_bounds__(kPackThreads)
    pack_kernel(const __grid_constant__ SparseConvArgs args,
                const __grid_constant__ ConvWork work) {
  using Real = compute_t<T>;
  let_next_begin();
  const int64_t weights = args.table.volume * args.in_channels * work.columns;
  for (int64_t i = global_thread(); i < weights; i += global_stride()) {
    const int64_t line = divide(i, work.tile), row = divide(line, args.in_channels);
    const int64_t tile = divide(row, args.table.volume), k = row - tile * args.table.volume;
    const int64_t in = line - row * args.in_channels;
    const int64_t out = tile * work.tile + i - line * work.tile;
    static_cast<Real*>(work.weight)[i] = out < args.out_channels
        ? widen(static_cast<const T*>(
              args.weight.data)[args.weight.at(out, k, in, args.table.volume)])
        : Real(0);
  }
  const int64_t features = work.packs ? args.table.valid_sources() * work.channels : 0;
  for (int64_t i = global_thread(); i < features; i += global_stride()) {
    const int64_t row = divide(i, work.channels), in = i - row * work.channels;
    static_cast<Real*>(work.features)[i] = in < args.in_channels
        ? widen(static_cast<const T*>(args.features)[row * args.in_channels + in])
        : Real(0);
  }
  wait_for_previous();
}

// A few numbers that are moved at once.
template <class Real, int kCount>
struct alignas(kCount * sizeof(Real) < 16 ? kCount * sizeof(Real) : 16) Pack {
  Real value[kCount];
};

// Shared memory of a block of conv_kernel, at most 45 KB.
template <class Real, int kTile>
struct ConvShared {
  static constexpr int kDepth = kTile == 64 ? 32 : 16;  // input channels at a time
  static constexpr int kStages = kTile == 64 ? 2 : 3;  // chunks of them in flight
  static constexpr int kPitch = kDepth + 16 / sizeof(Real);  // spreads rows over the banks
  struct Stage {
    Real weight[kDepth][kTile];
    Real features[kRows][kPitch];
  };
  Stage stages[kStages];
  uint64_t present[kMostVolume];  // which rows have an offset
  int32_t rows[kRows];  // of the table, or -1
  int32_t sources[2][kRows];  // rows of features at the offset that is copied and at the next
  int16_t offsets[kMostVolume];  // those that a row of the block has
  int count;  // of them
  int prefix[32];  // room of block_prefix()
};

// Names the rows of a block and lists the offsets that they have.
template <class Shared>
__device__ void find_offsets(const SparseTable& table, const int32_t* order, int64_t first,
                             Shared& shared) {
  const int64_t valid = table.valid(), limit = table.valid_sources();
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32;
  const int64_t row = first + thread;
  if (thread < kRows) {
    const bool exists = row < table.rows;
    const int64_t named = exists && order ? order[row] : row;
    shared.rows[thread] =
        exists && named >= 0 && named < table.rows ? static_cast<int32_t>(named) : -1;
  }
  __syncthreads();
  const int32_t rows[] = {shared.rows[lane], shared.rows[32 + lane]};
  for (int k = thread / 32; k < table.volume; k += kThreads / 32) {
    uint64_t present = 0;
    for (int j = 0; j < 2; ++j) {
      const bool has = rows[j] >= 0 && rows[j] < valid && table.at(k, rows[j], limit) >= 0;
      present |= uint64_t{__ballot_sync(kFullWarp, has)} << (32 * j);
    }
    if (lane == 0) shared.present[k] = present;
  }
  __syncthreads();
  int count;
  const int on = thread < table.volume && shared.present[thread] != 0;
  const int place = block_prefix(on, shared.prefix, &count);
  if (on) shared.offsets[place] = static_cast<int16_t>(thread);
  if (thread == 0) shared.count = count;
  __syncthreads();
}

// What a thread copies into shared memory, 16 bytes at a time: weights and features of one present
// offset, kDepth input channels after another, then of the next.
template <class Real, int kTile>
struct CopySource {
  using Shared = ConvShared<Real, kTile>;
  static constexpr int kPack = 16 / sizeof(Real), kLine = Shared::kDepth / kPack;
  static constexpr int kWeights = ceil_div(Shared::kDepth * kTile / kPack, kThreads);
  static constexpr int kRowStep = kThreads / kLine, kFeatures = kRows / kRowStep;
  static_assert(kThreads % kLine == 0 && kRows % kRowStep == 0, "whole steps");
  const SparseConvArgs& args;
  const ConvWork& work;
  Shared& shared;
  const int64_t tile;
  const Real* weight;
  int32_t later;  // threads below kRows: what their row reads at offset at + 1
  int at = -1;  // the next offset
  int in = 0, depth = 0;  // channels copied and left of the one before
  int stage = 0;  // to be filled

  // What the row of this thread reads at an offset of the block, or -1.
  __device__ __forceinline__ int32_t source_at(int place) const {
    if (threadIdx.x >= kRows || place >= shared.count) return -1;
    const int k = shared.offsets[place];
    const bool has = shared.present[k] >> threadIdx.x & 1;
    return has ? args.table.entries[k * args.table.rows + shared.rows[threadIdx.x]] : -1;
  }
  // Goes to the next offset, whose sources are known behind the next barrier; reads one ahead.
  __device__ __forceinline__ void advance() {
    ++at;
    if (threadIdx.x < kRows) shared.sources[at % 2][threadIdx.x] = later;
    later = source_at(at + 1);
  }
  // Starts the next copy, if there is one; a group of the pipeline in any case.
  __device__ __forceinline__ void copy() {
    if (depth <= 0 && at < shared.count) {
      weight = static_cast<const Real*>(work.weight) + threadIdx.x * kPack +
          (tile * args.table.volume + shared.offsets[at]) * args.in_channels * kTile;
      in = 0;
      depth = static_cast<int>(args.in_channels);
      advance();
    }
    if (depth > 0) {
      auto& to = shared.stages[stage];
#pragma unroll
      for (int j = 0; j < kWeights; ++j) {
        const int i = (threadIdx.x + j * kThreads) * kPack;
        if (i < min(depth, Shared::kDepth) * kTile) {
          __pipeline_memcpy_async(&to.weight[0][0] + i, weight + j * kThreads * kPack, 16);
        }
      }
      const int channel = threadIdx.x % kLine * kPack;
      const Real* features = static_cast<const Real*>(work.features) + in + channel;
#pragma unroll
      for (int j = 0; j < kFeatures; ++j) {
        const int row = threadIdx.x / kLine + j * kRowStep;
        const int32_t source = shared.sources[(at + 1) % 2][row];
        if (source >= 0 && channel < depth) {
          __pipeline_memcpy_async(&to.features[row][channel], features + source * work.channels,
                                  16);
        }
      }
      weight += Shared::kDepth * kTile;
      in += Shared::kDepth;
      depth -= Shared::kDepth;
      stage = stage + 1 < Shared::kStages ? stage + 1 : 0;
    }
    __pipeline_commit();
  }
};

// The sums of a thread: of kThreadRows rows and kTile / 8 channels, kWide of them side by side.
template <class Real, int kTile>
struct ThreadSums {
  using Shared = ConvShared<Real, kTile>;
  static constexpr int kCols = kTile / 8, kWide = kCols < 4 ? kCols : 4;
  Real sums[kThreadRows][kCols];
  const int row = threadIdx.x / 32 * 16 + threadIdx.x % 32 / 8;
  const unsigned column = threadIdx.x % 8 * kWide;

  // The channel of the tile of sum c.
  __device__ __forceinline__ unsigned channel(int c) const {
    return column + c / kWide * 8 * kWide + c % kWide;
  }
  // Adds the products of the first `depth` input channels of a stage to those rows from
  // `row` on whose bits are set.
  __device__ __forceinline__ void add(const typename Shared::Stage& stage, int depth,
                                      unsigned present) {
#pragma unroll
    for (int in = 0; in < depth; in += 4) {
      Pack<Real, 4> x[kThreadRows];
#pragma unroll
      for (int r = 0; r < kThreadRows; ++r) {
        x[r] = *reinterpret_cast<const Pack<Real, 4>*>(&stage.features[row + 4 * r][in]);
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if (in + i >= depth) break;
#pragma unroll
        for (int c = 0; c < kCols; c += kWide) {
          const Real* line = &stage.weight[in + i][channel(c)];
          const auto w = *reinterpret_cast<const Pack<Real, kWide>*>(line);
#pragma unroll
          for (int j = 0; j < kThreadRows * kWide; ++j) {
            Real& sum = sums[j / kWide][c + j % kWide];
            if (present >> (4 * (j / kWide)) & 1) {
              sum = fma_rn(x[j / kWide].value[i], w.value[j % kWide], sum);
            }
          }
        }
      }
    }
  }
};

// One block per kRows rows of the order and kTile output channels, blocks of the same rows side by
// side. Reads the table, the packed weights and the features of neighbors, which pass through
// stages of shared memory; writes values. What a stage holds for an absent row is never used.
template <class T, int kTile>
__global__ void __launch_bounds__(kThreads) conv_kernel(const __grid_constant__ SparseConvArgs args,
                                                        const __grid_constant__ ConvWork work) {
  using Real = compute_t<T>;
  using Shared = ConvShared<Real, kTile>;
  extern __shared__ __align__(16) char memory[];
  auto& shared = *reinterpret_cast<Shared*>(memory);
  const unsigned group = blockIdx.x / work.tiles, tile = blockIdx.x - group * work.tiles;
  find_offsets(args.table, args.schedule, int64_t{group} * kRows, shared);

  ThreadSums<Real, kTile> mine;
#pragma unroll
  for (int c = 0; c < mine.kCols; ++c) {
    const unsigned channel = tile * kTile + mine.channel(c);
    const bool has_bias = args.bias && channel < args.out_channels;
    const Real start = has_bias ? widen(static_cast<const T*>(args.bias)[channel]) : Real(0);
#pragma unroll
    for (int r = 0; r < kThreadRows; ++r) mine.sums[r][c] = start;
  }
  CopySource<Real, kTile> next{args, work, shared, tile, nullptr, -1};
  next.later = next.source_at(0);
  next.advance();
#pragma unroll
  for (int i = 1; i < Shared::kStages; ++i) {
    __syncthreads();
    next.copy();
  }
  int stage = 0;
  for (int at = 0; at < shared.count; ++at) {
    const uint64_t present = shared.present[shared.offsets[at]];
    const auto of_warp = static_cast<uint16_t>(present >> (threadIdx.x / 32 * 16));
    const auto of_thread = static_cast<unsigned>(present >> mine.row);
    for (auto depth = static_cast<int>(args.in_channels); depth > 0; depth -= Shared::kDepth) {
      __pipeline_wait_prior(Shared::kStages - 2);
      __syncthreads();
      next.copy();
      const auto& products = shared.stages[stage];
      if (of_warp && depth >= Shared::kDepth) {
        mine.add(products, Shared::kDepth, of_thread);
      } else if (of_warp) {
        mine.add(products, depth, of_thread);
      }
      stage = stage + 1 < Shared::kStages ? stage + 1 : 0;
    }
  }

  const int64_t valid = args.table.valid();
#pragma unroll
  for (int r = 0; r < kThreadRows; ++r) {
    const int64_t row = shared.rows[mine.row + 4 * r];
    if (row < 0) continue;
#pragma unroll
    for (int c = 0; c < mine.kCols; ++c) {
      const unsigned channel = tile * kTile + mine.channel(c);
      if (channel < args.out_channels) {
        static_cast<T*>(args.out)[row * args.out_channels + channel] =
            row < valid ? finished<T>(args, row, channel, mine.sums[r][c]) : narrow<T>(Real(0));
      }
    }
  }
}

template <class T, int kTile>
cudaError_t launch_conv(const SparseConvArgs& args, const ConvWork& work,
                        const CudaContext& context) {
  constexpr size_t kBytes = sizeof(ConvShared<compute_t<T>, kTile>);
  static_assert(kBytes <= 48 << 10, "more must be asked for");
  const int64_t blocks = ceil_div<int64_t>(args.table.rows, kRows) * work.tiles;
  const int64_t weights = args.table.volume * args.in_channels * work.columns;
  const int64_t features = work.packs ? args.table.sources * work.channels : 1;
  const int64_t items = std::max(weights, features);
  TORCHVOX_CUDA_CHECK(
      work.follows ? launch_items_after(pack_kernel<T>, items, kPackThreads, context, args, work)
                   : launch_items(pack_kernel<T>, items, kPackThreads, context, args, work));
  // A plain launch: blocks that begin while packing drains would crowd on the first SMs to be free.
  return launch_sharing(conv_kernel<T, kTile>, grid_x(blocks), kThreads, kBytes, context.stream,
                        args, work);
}

}  // namespace

int64_t sparse_exact_bytes(const SparseConvArgs& args, const Target&) {
  return carved_bytes<ConvWork>(args, false);
}
cudaError_t launch_sparse_exact(const SparseConvArgs& args, bool follows, void* memory,
                                const CudaContext& context) {
  const auto work = carve<ConvWork>(memory, args, follows);
  return with_point_type(args.dtype, [&](auto type) {
    using T = decltype(type);
    if constexpr (!std::is_same_v<T, double>) {
      if (work.tile == 64) return launch_conv<T, 64>(args, work, context);
    }
    return work.tile == 32 ? launch_conv<T, 32>(args, work, context)
                           : launch_conv<T, 16>(args, work, context);
  });
}

}  // namespace torchvox
