// SPDX-License-Identifier: Apache-2.0
//
// sparse_conv on the GPU, in exact chains of fused multiply-adds.
//
//   pack_kernel      weights in the type of the sums, output channels side by side
//   conv_kernel      values of 128 rows and a tile of output channels, whose sums are in shared
//                    memory; for each offset the rows that have it move together to registers
#include <cuda_pipeline.h>

#include "csrc/kernels/core/launch.cuh"
#include "csrc/kernels/core/warp.cuh"
#include "csrc/kernels/sparse/conv.h"

namespace torchvox {
namespace {

constexpr int kThreads = 256;

constexpr int kRows = 128;  // of a block of conv_kernel
constexpr int kBlock = 256;  // its threads: 32 for its rows, 8 for its channels
constexpr int kChannelThreads = 8;

struct ConvWork {
  int tile;  // output channels of a block: 16, 32, or 64 unless in float64
  int64_t columns;  // output channels and padding to whole tiles
  int64_t channels;  // input channels and padding to whole packs
  bool packs;  // features are packed, too
  void* weight;  // [volume, in_channels, columns] in the type of the sums
  void* features;  // [sources, channels] in that type

  ConvWork(const SparseConvArgs& args, Workspace& workspace) {
    const bool is_wide = args.dtype == DType::kDouble;
    const int most = is_wide ? 32 : 64;  // 64 KB of shared memory, all that sm_75 has
    for (tile = 16; tile < most && tile < args.out_channels;) tile *= 2;
    columns = ceil_div<int64_t>(args.out_channels, tile) * tile;
    channels = ceil_div<int64_t>(args.in_channels, 4) * 4;
    packs = args.in_channels != channels || (!is_wide && args.dtype != DType::kFloat) ||
        reinterpret_cast<uintptr_t>(args.features) % 16 != 0;
    const int64_t bytes = is_wide ? 8 : 4;
    weight = workspace.take<char>(args.table.volume * args.in_channels * columns * bytes);
    features = workspace.take<char>(packs ? args.table.sources * channels * bytes : 0);
    if (!packs) features = const_cast<void*>(args.features);
  }
};

// One thread per packed weight, then per packed feature.
template <class T>
__global__ void __launch_bounds__(kThreads) pack_kernel(const __grid_constant__ SparseConvArgs args,
                                                        const __grid_constant__ ConvWork work) {
  using Real = compute_t<T>;
  let_next_begin();
  const int64_t weights = args.table.volume * args.in_channels * work.columns;
  for (int64_t i = global_thread(); i < weights; i += global_stride()) {
    const int64_t line = divide(i, work.columns), out = i - line * work.columns;
    const int64_t k = divide(line, args.in_channels), in = line - k * args.in_channels;
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
}

// The rows of a block that have an offset, side by side.
struct RowList {
  int count;
  int16_t rows[kRows];
  int32_t sources[kRows];
};

// Shared memory of a block of conv_kernel.
template <class Real, int kTile>
struct ConvShared {
  static constexpr int kDepth = 64 / sizeof(Real);  // input channels at a time
  static constexpr int kPitch = kDepth + 16 / sizeof(Real);  // spreads rows over the banks
  Real sums[kRows][kTile];
  Real weight[2][kDepth][kTile];
  Real features[2][kRows][kPitch];  // of a list
  RowList lists[3];  // of the offset at work and of two later ones
  int count;  // of offsets
  int16_t offsets[128];  // those that a row of the block has
};

// The rows that the rows of a lane read at an offset, or -1.
struct LaneRows {
  int32_t sources[kRows / 32];

  __device__ void load(const SparseTable& table, int offset, int64_t first, int64_t valid,
                       int64_t limit) {
#pragma unroll
    for (int j = 0; j < kRows / 32; ++j) {
      const int64_t row = first + 32 * j + threadIdx.x % 32;
      sources[j] = row < valid ? table.at(offset, row, limit) : -1;
    }
  }
  // Called by one warp.
  __device__ void store(RowList& list) const {
    const int lane = threadIdx.x % 32;
    int count = 0;
#pragma unroll
    for (int j = 0; j < kRows / 32; ++j) {
      const unsigned all = __ballot_sync(kFullWarp, sources[j] >= 0);
      if (sources[j] >= 0) {
        const int place = count + __popc(all & lanes_below(lane));
        list.rows[place] = static_cast<int16_t>(32 * j + lane);
        list.sources[place] = sources[j];
      }
      count += __popc(all);
    }
    if (lane == 0) list.count = count;
  }
};

// Lists the offsets that rows of the block have.
template <class Shared>
__device__ void find_offsets(const SparseTable& table, int64_t first, int64_t valid, int64_t limit,
                             Shared& shared) {
  const int volume = static_cast<int>(table.volume), lane = threadIdx.x % 32;
  for (int k = threadIdx.x / 32; k < volume; k += kBlock / 32) {
    LaneRows rows;
    rows.load(table, k, first, valid, limit);
    bool present = false;
#pragma unroll
    for (const int32_t source : rows.sources) present = present || source >= 0;
    present = __any_sync(kFullWarp, present) != 0;
    if (lane == 0) shared.offsets[k] = present;
  }
  __syncthreads();
  if (threadIdx.x < 32) {  // no step reads a flag that an earlier one has overwritten
    int count = 0;
    for (int base = 0; base < volume; base += 32) {
      const bool present = base + lane < volume && shared.offsets[base + lane] != 0;
      const unsigned all = __ballot_sync(kFullWarp, present);
      if (present) {
        shared.offsets[count + __popc(all & lanes_below(lane))] = static_cast<int16_t>(base + lane);
      }
      count += __popc(all);
      __syncwarp();
    }
    if (lane == 0) shared.count = count;
  }
  __syncthreads();
}

// A few numbers that are moved at once.
template <class Real, int kCount>
struct alignas(kCount * sizeof(Real) < 16 ? kCount * sizeof(Real) : 16) Pack {
  Real value[kCount];
};

// What a thread copies into shared memory next, 16 bytes at a time: weights and features of one
// offset, kDepth input channels after another.
template <class Real, int kTile>
struct CopySource {
  using Shared = ConvShared<Real, kTile>;
  static constexpr int kPack = 16 / sizeof(Real), kLine = Shared::kDepth / kPack;
  static constexpr int kWeightLine = kTile / kPack;
  static constexpr int kWeights = (Shared::kDepth * kWeightLine + kBlock - 1) / kBlock;
  static constexpr int kRowStep = kBlock / kLine, kFeatures = kRows / kRowStep;
  const Real* features[kFeatures];  // null: none
  const Real* weight;
  int depth;  // channels left

  __device__ void begin(const SparseConvArgs& args, const ConvWork& work, const RowList& list,
                        int offset) {
    const Real* rows = static_cast<const Real*>(work.features) + threadIdx.x % kLine * kPack;
#pragma unroll
    for (int j = 0; j < kFeatures; ++j) {
      const int place = threadIdx.x / kLine + j * kRowStep;
      features[j] = place < list.count ? rows + list.sources[place] * work.channels : nullptr;
    }
    weight = static_cast<const Real*>(work.weight) +
        (offset * args.in_channels + threadIdx.x / kWeightLine) * work.columns +
        int64_t{blockIdx.y} * kTile + threadIdx.x % kWeightLine * kPack;
    depth = static_cast<int>(args.in_channels);
  }
  // Starts the copy of the next channels.
  __device__ __forceinline__ void copy(const ConvWork& work, Shared& shared, int buffer) {
    const int in = threadIdx.x / kWeightLine, channel = threadIdx.x % kLine * kPack;
    Real* to = &shared.weight[buffer][0][0] + threadIdx.x * kPack;
#pragma unroll
    for (int j = 0; j < kWeights; ++j) {
      constexpr int kStep = kBlock / kWeightLine;
      if (in + j * kStep < min(depth, Shared::kDepth)) {
        __pipeline_memcpy_async(to + j * kBlock * kPack, weight + j * kStep * work.columns, 16);
      }
    }
    Real* row = &shared.features[buffer][threadIdx.x / kLine][channel];
#pragma unroll
    for (int j = 0; j < kFeatures; ++j) {
      if (features[j] && channel < depth) {
        __pipeline_memcpy_async(row + j * kRowStep * Shared::kPitch, features[j], 16);
        features[j] += Shared::kDepth;
      }
    }
    __pipeline_commit();
    weight += Shared::kDepth * work.columns;
    depth -= Shared::kDepth;
  }
};

// The sums of a thread: of four rows of a list and kTile / 8 channels.
template <class Real, int kTile>
struct ThreadSums {
  using Shared = ConvShared<Real, kTile>;
  static constexpr int kCols = kTile / kChannelThreads, kWide = kCols < 4 ? kCols : 4;
  static constexpr int kParts = kCols / kWide;  // a part of the tile each
  using Part = Pack<Real, kWide>;
  Real sums[4][kCols];
  const int row = threadIdx.x / kChannelThreads * 4;
  const int column = threadIdx.x % kChannelThreads * kWide;

  template <class Body>
  __device__ __forceinline__ void each(Shared& shared, const RowList& list, const Body& body) {
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      if (row + r >= list.count) return;
      Real* line = shared.sums[list.rows[row + r]] + column;
#pragma unroll
      for (int part = 0; part < kParts; ++part) {
        body(*reinterpret_cast<Part*>(line + part * kChannelThreads * kWide),
             sums[r] + part * kWide);
      }
    }
  }
  __device__ __forceinline__ void load(Shared& shared, const RowList& list) {
    each(shared, list, [](Part& from, Real* to) {
#pragma unroll
      for (int i = 0; i < kWide; ++i) to[i] = from.value[i];
    });
  }
  __device__ __forceinline__ void store(Shared& shared, const RowList& list) {
    each(shared, list, [](Part& to, Real* from) {
#pragma unroll
      for (int i = 0; i < kWide; ++i) to.value[i] = from[i];
    });
  }
  // Adds the products of four input channels from `in` on, or of the first `depth`.
  template <bool kWhole>
  __device__ __forceinline__ void add(const Shared& shared, int buffer, int in, int depth) {
    Pack<Real, 4> x[4];
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      x[r] = *reinterpret_cast<const Pack<Real, 4>*>(&shared.features[buffer][row + r][in]);
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (!kWhole && i >= depth) break;
#pragma unroll
      for (int part = 0; part < kParts; ++part) {
        const Real* line = &shared.weight[buffer][in + i][column + part * kChannelThreads * kWide];
        const Part w = *reinterpret_cast<const Part*>(line);
#pragma unroll
        for (int r = 0; r < 4; ++r) {
#pragma unroll
          for (int c = 0; c < kWide; ++c) {
            Real& sum = sums[r][part * kWide + c];
            sum = fma_rn(x[r].value[i], w.value[c], sum);
          }
        }
      }
    }
  }
  __device__ __forceinline__ void add_all(const Shared& shared, int buffer, int depth) {
    if (depth >= Shared::kDepth) {
#pragma unroll
      for (int in = 0; in < Shared::kDepth; in += 4) add<true>(shared, buffer, in, 4);
      return;
    }
    for (int in = 0; in < depth; in += 4) add<false>(shared, buffer, in, depth - in);
  }
};

// One block per 128 rows and kTile output channels. Reads the table, the packed weights and the
// features of neighbors, double-buffered in shared memory; writes values. Places behind the end of
// a list are computed with what is in memory and never stored.
template <class T, int kTile>
__global__ void __launch_bounds__(kBlock, sizeof(compute_t<T>) == 8 ? 1 : 3)
    conv_kernel(const __grid_constant__ SparseConvArgs args,
                const __grid_constant__ ConvWork work) {
  using Real = compute_t<T>;
  using Shared = ConvShared<Real, kTile>;
  extern __shared__ __align__(16) char memory[];
  auto& shared = *reinterpret_cast<Shared*>(memory);
  const SparseTable& table = args.table;
  const int64_t first = int64_t{blockIdx.x} * kRows, column = int64_t{blockIdx.y} * kTile;
  const int64_t valid = table.valid(), limit = table.valid_sources();
  const int64_t channel = column + threadIdx.x % kTile;
  const bool has_bias = args.bias && channel < args.out_channels;
  const Real start = has_bias ? widen(static_cast<const T*>(args.bias)[channel]) : Real(0);
  for (int r = threadIdx.x / kTile; r < kRows; r += kBlock / kTile) {
    shared.sums[r][threadIdx.x % kTile] = start;
  }
  find_offsets(table, first, valid, limit, shared);

  const int chunks = static_cast<int>(ceil_div<int64_t>(args.in_channels, Shared::kDepth));
  const int offsets = chunks > 0 ? shared.count : 0;
  LaneRows rows;  // of the first warp: for the list after the next one
  const auto load_rows = [&](int at) {
    if (at < offsets) rows.load(table, shared.offsets[at], first, valid, limit);
    return at < offsets;
  };
  for (int at = 0; at < 2 && threadIdx.x < 32; ++at) {
    if (load_rows(at)) rows.store(shared.lists[at]);
  }
  __syncthreads();
  wait_for_previous();
  ThreadSums<Real, kTile> mine;
  CopySource<Real, kTile> next;
  int buffer = 0;
  if (offsets > 0) {
    next.begin(args, work, shared.lists[0], shared.offsets[0]);
    next.copy(work, shared, 0);
    __pipeline_wait_prior(0);
  }
  __syncthreads();
  for (int at = 0; at < offsets; ++at) {
    const RowList& list = shared.lists[at % 3];
    const bool lists = threadIdx.x < 32 && load_rows(at + 2);
    if (mine.row < list.count) mine.load(shared, list);
    for (int chunk = chunks - 1; chunk >= 0; --chunk, buffer = 1 - buffer) {
      const int depth = next.depth + Shared::kDepth;
      if (chunk > 0) {
        next.copy(work, shared, 1 - buffer);
      } else if (at + 1 < offsets) {
        next.begin(args, work, shared.lists[(at + 1) % 3], shared.offsets[at + 1]);
        next.copy(work, shared, 1 - buffer);
      }
      if (mine.row < list.count) mine.add_all(shared, buffer, depth);
      if (chunk == 0) {
        if (mine.row < list.count) mine.store(shared, list);
        if (lists) rows.store(shared.lists[(at + 2) % 3]);
      }
      __pipeline_wait_prior(0);
      __syncthreads();
    }
  }

  if (channel >= args.out_channels) return;
  for (int r = threadIdx.x / kTile; r < kRows && first + r < table.rows; r += kBlock / kTile) {
    const int64_t row = first + r;
    static_cast<T*>(args.out)[row * args.out_channels + channel] = row < valid
        ? finished<T>(args, row, channel, shared.sums[r][threadIdx.x % kTile])
        : narrow<T>(Real(0));
  }
}

template <class T, int kTile>
cudaError_t launch_conv(const SparseConvArgs& args, const ConvWork& work,
                        const CudaContext& context) {
  const int64_t blocks = ceil_div<int64_t>(args.table.rows, kRows);
  const auto tiles = static_cast<unsigned>(work.columns / kTile);
  if (blocks * tiles == 0) return cudaSuccess;
  const int64_t weights = args.table.volume * args.in_channels * work.columns;
  const int64_t features = work.packs ? args.table.sources * work.channels : 1;
  TORCHVOX_CUDA_CHECK(
      launch_items(pack_kernel<T>, std::max(weights, features), kThreads, context, args, work));
  constexpr size_t kBytes = sizeof(ConvShared<compute_t<T>, kTile>);
  if (kBytes > 48 << 10) {
    TORCHVOX_CUDA_CHECK(cudaFuncSetAttribute(conv_kernel<T, kTile>,
                                             cudaFuncAttributeMaxDynamicSharedMemorySize,
                                             static_cast<int>(kBytes)));
  }
  return launch_after_sharing(conv_kernel<T, kTile>, dim3(grid_x(blocks), tiles), dim3(kBlock),
                              kBytes, context, args, work);
}

}  // namespace

int64_t workspace_bytes_cuda(const SparseConvArgs& args, const Target&) {
  return carved_bytes<ConvWork>(args);
}
cudaError_t launch(const SparseConvArgs& args, void* memory, const CudaContext& context) {
  const auto work = carve<ConvWork>(memory, args);
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
