// SPDX-License-Identifier: Apache-2.0
//
// sparse_conv in halves on tensor cores (PTX mma.sync m16n8k16, sm_80 and later).
//
//   pack_operands_kernel  weights in the order in which blocks read them; features whose channels
//                         are not a multiple of eight
//   mma_kernel            values of a tile of scheduled rows and output channels, in registers
//
// A block keeps what its rows read in shared memory. Then it takes stages of 64 input channels, of
// one offset or of several: their features and weights are copied while earlier stages are
// multiplied. A warp skips what none of its rows has.
#include <cuda_pipeline.h>

#include "csrc/kernels/core/warp.cuh"
#include "csrc/kernels/sparse/conv_tensor.cuh"

namespace torchvox {
namespace {

constexpr int kThreads = 128;
constexpr int kStageDepth = 64;  // input channels of a stage

// What the rows of a block read, and the offsets that any of them has.
template <int kRows>
struct TileRows {
  uint16_t offsets[kThreads];  // ascending; bit 8 + j: the j-th 32 rows have it
  uint8_t present[kThreads];
  int sums[32];
  int32_t rows[kRows];  // of the table, or -1

  // Fills this and `sources`, [volume, kRows]: the row that each reads, or -1; returns the number
  // of offsets. first: place in the schedule. kSlab: rows that are multiplied together.
  template <int kSlab>
  __device__ int find(const SparseTable& table, const SparseSchedule& schedule, int64_t first,
                      int32_t* sources) {
    static_assert(kSlab <= 32 || kSlab == 64);
    constexpr int kTile = SparseSchedule::kTile;
    const int lane = threadIdx.x % 32, volume = static_cast<int>(table.volume);
    const auto limit = static_cast<uint32_t>(table.valid_sources());
    const int32_t* from = schedule.sources + first / kTile * volume * kTile + first % kTile + lane;
    if (threadIdx.x < kRows) rows[threadIdx.x] = row_at(table, schedule, first + threadIdx.x);
#pragma unroll 7
    for (int k = threadIdx.x / 32; k < volume; k += kThreads / 32) {
      unsigned groups = 0;
      for (int j = 0; j < kRows / 32; ++j) {
        const int32_t source = from[k * kTile + 32 * j];
        const bool has = static_cast<uint32_t>(source) < limit;
        sources[k * kRows + 32 * j + lane] = has ? source : -1;
        groups |= (__any_sync(kFullWarp, has) ? 1u : 0u) << j;
      }
      if constexpr (kSlab == 64) groups = ((groups | groups >> 1) & 0x55) * 3;
      if (lane == 0) present[k] = static_cast<uint8_t>(groups);
    }
    __syncthreads();
    const unsigned groups = threadIdx.x < volume ? present[threadIdx.x] : 0;
    int count;
    const int place = block_prefix(groups ? 1 : 0, sums, &count);
    if (groups) offsets[place] = static_cast<uint16_t>(threadIdx.x | groups << 8);
    __syncthreads();
    return count;
  }
};

// Rows and output channels of a block and of a warp; stages in flight; blocks of a multiprocessor.
template <int kRows_, int kTile_, int kWarpRows_, int kWarpTile_, int kStages_, int kBlocks_>
struct MmaTile {
  static constexpr int kRows = kRows_, kTile = kTile_, kStages = kStages_, kBlocks = kBlocks_;
  static constexpr int kWarpRows = kWarpRows_, kWarpTile = kWarpTile_;
  static constexpr int kColumnWarps = kTile / kWarpTile;
  static_assert(kThreads == 32 * kColumnWarps * (kRows / kWarpRows));
  static constexpr int kFeatureBytes = kRows * kStageDepth * 2;
  static constexpr int kStageBytes = kFeatureBytes + kTile * kStageDepth * 2;

  static int shared_bytes(int64_t volume) {
    return kStages * kStageBytes + static_cast<int>(sizeof(TileRows<kRows>) + volume * kRows * 4);
  }
};

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800

// A walk over the units of the offsets that a block has.
struct UnitWalk {
  int at = 0, unit = 0;  // in the list of offsets; of the offset

  __device__ __forceinline__ void advance(int steps, int units) {
    for (unit += steps; unit >= units; ++at) unit -= units;
  }
};

// A thread's part of the copies: of one slot of each stage, which has kDepth channels of an offset,
// a chunk of every kThreads / 8-th row, and of the weights.
template <class Tile, int kDepth>
struct StageCopy {
  static constexpr int kSlots = kStageDepth / kDepth, kChunks = kDepth / 8;
  static constexpr int kRowStep = kThreads / 8, kFeatures = Tile::kRows / kRowStep;
  static constexpr int kStep = kThreads / kSlots, kSlotWeights = Tile::kTile * kChunks;
  static_assert(32 % kRowStep == 0);

  const int slot = threadIdx.x % 8 / kChunks, chunk = threadIdx.x % kChunks;
  const int row = threadIdx.x / 8, thread = row * kChunks + chunk;  // of the slot
  const int features_to =
      (slot * Tile::kRows + row) * kDepth * 2 + (chunk ^ phase_of(row % 8, kDepth)) * 16;
  const int weights_to = Tile::kFeatureBytes + (slot * kSlotWeights + thread) * 16;
  UnitWalk walk{0, slot};

  // images: of the first offset. count: of the offsets of the block.
  __device__ __forceinline__ void copy(const SparseOperands& from, const uint4* images,
                                       const uint16_t* offsets, int count, const int32_t* sources,
                                       uint32_t stage) {
    walk.advance(0, from.units);
    if (walk.at < count) {
      const uint32_t entry = offsets[walk.at];
      const int k = entry & 0x7f, channel = walk.unit * kDepth + chunk * 8;
      const bool inside = channel < from.channels;
      const auto pitch = static_cast<uint32_t>(from.channels * 2);
      const char* features = static_cast<const char*>(from.features) + (inside ? channel * 2 : 0);
      int32_t source[kFeatures];
      for (int j = 0; j < kFeatures; ++j) {
        source[j] = sources[k * Tile::kRows + row + j * kRowStep];
      }
      for (int j = 0; j < kFeatures; ++j) {
        const auto line = static_cast<uint32_t>(max(source[j], 0));
        if (entry >> (8 + j * kRowStep / 32) & 1) {  // else nobody reads them
          copy_or_clear(stage + features_to + j * kRowStep * kDepth * 2,
                        features + uint64_t{line} * pitch, inside && source[j] >= 0);
        }
      }
      const uint4* weights = images + (int64_t{k} * from.units + walk.unit) * kSlotWeights + thread;
      for (int j = 0; j * kStep < kSlotWeights; ++j) {
        if (kSlotWeights % kStep == 0 || thread + j * kStep < kSlotWeights) {
          copy_or_clear(stage + weights_to + j * kStep * 16, weights + j * kStep, true);
        }
      }
      walk.unit += kSlots;
    }
    __pipeline_commit();
  }
};

// The sums of a warp: of tiles of 16 rows, as start_sums() has them.
template <class T, class Tile>
struct WarpSums {
  static constexpr int kRowTiles = Tile::kWarpRows / 16, kLineTiles = Tile::kWarpTile / 8;
  static constexpr int kGroup = group_of(Tile::kTile);
  float at[kRowTiles][kLineTiles][4];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int first_row = warp / Tile::kColumnWarps * Tile::kWarpRows;
  const int first_line = warp % Tile::kColumnWarps * Tile::kWarpTile;
  const int first_channel = first_line + lane % 4 * (kGroup / 4);  // of the tile

  // Adds the products of a slot, whose features and weights are at these shared addresses.
  template <int kDepth>
  __device__ __forceinline__ void add(uint32_t features, uint32_t weights) {
    const int phase = phase_of(lane % 8, kDepth);
    features += (first_row + lane % 16) * kDepth * 2;
    weights += (first_line + lane % 8 + lane / 16 * 8) * kDepth * 2;
#pragma unroll
    for (int slice = 0; slice < kDepth / 16; ++slice) {
      uint32_t a[kRowTiles][4], b[kLineTiles / 2][4];
      const int a_chunk = (lane / 16 ^ phase ^ 2 * slice) * 16;
      const int b_chunk = (lane / 8 % 2 ^ phase ^ 2 * slice) * 16;
      for (int r = 0; r < kRowTiles; ++r) {
        load_matrices(a[r], features + a_chunk + r * 16 * kDepth * 2);
      }
      for (int j = 0; j < kLineTiles / 2; ++j) {
        load_matrices(b[j], weights + b_chunk + j * 16 * kDepth * 2);
      }
#pragma unroll
      for (int i = 0; i < kRowTiles * kLineTiles; ++i) {
        const int r = i / kLineTiles, j = i % kLineTiles;
        Words<T>::multiply(at[r][j], a[r], b[j / 2][j % 2 * 2], b[j / 2][j % 2 * 2 + 1]);
      }
    }
  }
};

#endif

// One block per tile; those of the same rows are neighbors. Reads the schedule, packed operands and
// residuals; writes values.
template <class T, class Tile, int kDepth>
__global__ void __launch_bounds__(kThreads, Tile::kBlocks)
    mma_kernel(const __grid_constant__ SparseConvArgs args,
               const __grid_constant__ SparseOperands from) {
#if __CUDA_ARCH__ >= 800
  extern __shared__ __align__(128) char memory[];
  constexpr int kBytes = Tile::kStages * Tile::kStageBytes;
  auto& rows = *reinterpret_cast<TileRows<Tile::kRows>*>(memory + kBytes);
  auto* sources = reinterpret_cast<int32_t*>(&rows + 1);
  const auto group = static_cast<unsigned>(blockIdx.x / from.columns);
  const auto column = static_cast<int>(blockIdx.x - group * from.columns);
  if (from.follows) wait_for_previous();
  const SparseSchedule schedule(args.table.volume, args.table.rows, args.schedule);
  const int count = rows.template find<Tile::kWarpRows>(args.table, schedule,
                                                        int64_t{group} * Tile::kRows, sources);
  wait_for_previous();

  using Copy = StageCopy<Tile, kDepth>;
  WarpSums<T, Tile> sums;
  for (int r = 0; r < sums.kRowTiles; ++r) {
    start_sums<sums.kGroup>(sums.at[r], from.bias + column * Tile::kTile + sums.first_channel);
  }
  const uint32_t shared = shared_address(memory);
  const auto after = [&](uint32_t stage) {
    return stage + Tile::kStageBytes < shared + kBytes ? stage + Tile::kStageBytes : shared;
  };
  if (from.units > 0) {
    const uint4* images =
        from.weight + args.table.volume * column * from.units * Copy::kSlotWeights;
    Copy next;
    UnitWalk walk;
    uint32_t filled = shared, used = shared;  // stages
    for (int i = 0; i < Tile::kStages - 1; ++i, filled = after(filled)) {
      next.copy(from, images, rows.offsets, count, sources, filled);
    }
    for (; walk.at < count; filled = after(filled), used = after(used)) {
      __pipeline_wait_prior(Tile::kStages - 2);
      __syncthreads();
      next.copy(from, images, rows.offsets, count, sources, filled);
      for (int slot = 0; slot < Copy::kSlots; ++slot, walk.advance(1, from.units)) {
        if (walk.at < count && rows.offsets[walk.at] >> (8 + sums.first_row / 32) & 1) {
          sums.template add<kDepth>(used + slot * Tile::kRows * kDepth * 2,
                                    used + Tile::kFeatureBytes + slot * Tile::kTile * kDepth * 2);
        }
      }
    }
  }
  const int64_t valid = args.table.valid();
#pragma unroll
  for (int r = 0; r < sums.kRowTiles; ++r) {
    const int32_t* row = rows.rows + sums.first_row + r * 16 + sums.lane / 4;
    store_sums<T, sums.kGroup>(args, sums.at[r], {row[0], row[8]}, valid,
                               int64_t{column} * Tile::kTile + sums.first_channel);
  }
#endif
}

using Tile16 = MmaTile<64, 16, 16, 16, 3, 6>;
using Tile32 = MmaTile<64, 32, 16, 32, 3, 5>;
using Tile64 = MmaTile<64, 64, 32, 32, 3, 4>;
using Tile128 = MmaTile<128, 128, 64, 64, 2, 2>;

// Output channels of a block. Large tiles move fewer bytes; small ones keep every multiprocessor
// busy when rows are few.
int tile_of(const SparseConvArgs& args, const Target& target) {
  if (args.out_channels <= 64) {
    return args.out_channels <= 16 ? 16 : args.out_channels <= 32 ? 32 : 64;
  }
  const int64_t blocks = ceil_div<int64_t>(args.table.rows, Tile128::kRows) *
      ceil_div<int64_t>(args.out_channels, Tile128::kTile);
  const int bytes = Tile128::shared_bytes(args.table.volume) + 1024;
  const bool fits = Tile128::kBlocks * bytes <= target.shared_bytes + 1024;
  return fits && blocks >= target.multiprocessors ? 128 : 64;
}
int depth_of(const SparseConvArgs& args) {
  const int64_t last = args.in_channels % 64;  // channels of the last unit of 64
  return args.in_channels <= 16 ? 16 : last > 0 && last <= 32 ? 32 : 64;
}

template <class T, class Tile>
cudaError_t launch_tile(const SparseConvArgs& args, const SparseOperands& from,
                        const CudaContext& context) {
  const auto kernel = from.depth == 16 ? mma_kernel<T, Tile, 16>
      : from.depth == 32               ? mma_kernel<T, Tile, 32>
                                       : mma_kernel<T, Tile, 64>;
  const int bytes = Tile::shared_bytes(args.table.volume);
  TORCHVOX_CUDA_CHECK(
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
  const int64_t blocks = ceil_div<int64_t>(args.table.rows, Tile::kRows) * from.columns;
  return launch_after_sharing(kernel, dim3(grid_x(blocks)), dim3(kThreads), bytes, context, args,
                              from);
}

template <class T>
cudaError_t launch_typed(const SparseConvArgs& args, const SparseOperands& from,
                         const CudaContext& context) {
  TORCHVOX_CUDA_CHECK(pack_operands<T>(args, from, context));
  const auto launch = from.tile == 16 ? launch_tile<T, Tile16>
      : from.tile == 32               ? launch_tile<T, Tile32>
      : from.tile == 64               ? launch_tile<T, Tile64>
                                      : launch_tile<T, Tile128>;
  return launch(args, from, context);
}

}  // namespace

int64_t sparse_mma_bytes(const SparseConvArgs& args, const Target& target) {
  return carved_bytes<SparseOperands>(args, false, tile_of(args, target), depth_of(args));
}
cudaError_t launch_sparse_mma(const SparseConvArgs& args, bool follows, void* memory,
                              const CudaContext& context) {
  const auto from =
      carve<SparseOperands>(memory, args, follows, tile_of(args, context.target), depth_of(args));
  return args.dtype == DType::kHalf ? launch_typed<Half>(args, from, context)
                                    : launch_typed<BFloat16>(args, from, context);
}

}  // namespace torchvox
