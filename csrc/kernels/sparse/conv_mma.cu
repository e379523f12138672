// SPDX-License-Identifier: Apache-2.0
//
// sparse_conv in halves on tensor cores (PTX mma.sync m16n8k16, sm_80 and later).
//
//   pack_mma_kernel  weights in the order in which blocks read them; features with odd channels
//   mma_kernel       values of a tile of ordered rows and output channels, in registers
//
// A block reads its part of the table once and keeps it in shared memory. Then it takes stages of
// 64 input channels, of one offset or of several: their features and weights are copied while
// earlier stages are multiplied. A warp skips what none of its rows has.
#include "csrc/kernels/neighbors/group_mlp/mma_tiles.cuh"
#include "csrc/kernels/sparse/conv_mma.cuh"

namespace torchvox {
namespace {

constexpr int kStageDepth = 64;  // input channels of a stage

// Rows and output channels of a block and of a warp; stages in flight; blocks of a multiprocessor.
template <int kRows_, int kTile_, int kWarpRows_, int kWarpTile_, int kStages_, int kBlocks_>
struct MmaTile {
  static constexpr int kRows = kRows_, kTile = kTile_, kStages = kStages_, kBlocks = kBlocks_;
  static constexpr int kWarpRows = kWarpRows_, kWarpTile = kWarpTile_;
  static constexpr int kColumnWarps = kTile / kWarpTile;
  static constexpr int kThreads = 32 * kColumnWarps * (kRows / kWarpRows);
  static constexpr int kGroup = mma_group(kTile), kWide = kGroup / 4;  // channels of a lane
  static constexpr int kFeatureBytes = kRows * kStageDepth * 2;
  static constexpr int kStageBytes = (kRows + kTile) * kStageDepth * 2;

  static int shared_bytes(int64_t volume) {
    return kStages * kStageBytes + static_cast<int>(sizeof(TileRows<kRows>) + volume * kRows * 4);
  }
};

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800

// If wanted, copies 16 bytes, or writes zeros and reads nothing.
__device__ __forceinline__ void copy_chunk(uint32_t to, const void* from, bool present,
                                           bool wanted) {
  asm volatile(
      "{\n.reg .pred on;\nsetp.ne.s32 on, %3, 0;\n"
      "@on cp.async.cg.shared.global [%0], [%1], 16, %2;\n}" ::"r"(to),
      "l"(from), "r"(present ? 16 : 0), "r"(static_cast<int>(wanted))
      : "memory");
}
__device__ __forceinline__ void load_matrices(uint32_t (&words)[4], uint32_t from) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
               : "r"(from)
               : "memory");
}

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
  static constexpr int kRowStep = Tile::kThreads / 8, kFeatures = Tile::kRows / kRowStep;
  static constexpr int kStep = Tile::kThreads / kSlots, kSlotWeights = Tile::kTile * kChunks;
  static_assert(32 % kRowStep == 0);

  const int slot = threadIdx.x % 8 / kChunks, chunk = threadIdx.x % kChunks;
  const int row = threadIdx.x / 8, thread = row * kChunks + chunk;  // of the slot
  const int features_to =
      (slot * Tile::kRows + row) * kDepth * 2 + (chunk ^ phase_of(row % 8, kDepth)) * 16;
  const int weights_to = Tile::kFeatureBytes + (slot * kSlotWeights + thread) * 16;
  UnitWalk walk{0, slot};

  __device__ __forceinline__ void copy(const SparseMmaWork& work, const TileRows<Tile::kRows>& rows,
                                       const int32_t* sources, int64_t first_column,
                                       uint32_t stage) {
    walk.advance(0, work.units);
    if (walk.at < rows.count) {
      const uint32_t entry = rows.offsets[walk.at];
      const int k = entry & 0x7f, channel = walk.unit * kDepth + chunk * 8;
      const bool inside = channel < work.channels;
      const auto pitch = static_cast<uint32_t>(work.channels * 2);
      const char* features = static_cast<const char*>(work.features) + (inside ? channel * 2 : 0);
      const int32_t* from = sources + k * Tile::kRows + row;
      int32_t source[kFeatures];
      for (int j = 0; j < kFeatures; ++j) source[j] = from[j * kRowStep];
      for (int j = 0; j < kFeatures; ++j) {
        const auto line = static_cast<uint32_t>(max(source[j], 0));
        copy_chunk(stage + features_to + j * kRowStep * kDepth * 2,
                   features + uint64_t{line} * pitch, inside && source[j] >= 0,
                   entry >> (8 + j * kRowStep / 32) & 1);  // else nobody reads them
      }
      const int64_t first_line =
          (int64_t{k} * work.units + walk.unit) * work.columns + first_column;
      const uint4* weights = static_cast<const uint4*>(work.weight) + first_line * kChunks + thread;
      for (int j = 0; j * kStep < kSlotWeights; ++j) {
        copy_chunk(stage + weights_to + j * kStep * 16, weights + j * kStep, true,
                   kSlotWeights % kStep == 0 || thread + j * kStep < kSlotWeights);
      }
      walk.unit += kSlots;
    }
    __pipeline_commit();
  }
};

// The sums of a warp. Of a tile of 16 rows and 8 lines, lane 4 * g + t has rows g and g + 8 and
// lines 2 * t and 2 * t + 1, which are neighboring channels over the tiles of a group.
template <class T, class Tile>
struct WarpSums {
  static constexpr int kRowTiles = Tile::kWarpRows / 16, kLineTiles = Tile::kWarpTile / 8;
  static constexpr int kGroupTiles = Tile::kGroup / 8;
  float at[kRowTiles][kLineTiles][4];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int first_row = warp / Tile::kColumnWarps * Tile::kWarpRows;
  const int first_line = warp % Tile::kColumnWarps * Tile::kWarpTile;
  const int64_t first_channel;  // of the lane

  __device__ __forceinline__ WarpSums(const SparseConvArgs& args, int64_t first_column)
      : first_channel(first_column + first_line + lane % 4 * Tile::kWide) {
#pragma unroll
    for (int i = 0; i < kLineTiles * 2; ++i) {
      const int line = i / 2, e = i % 2;
      const int64_t out =
          first_channel + line / kGroupTiles * Tile::kGroup + line % kGroupTiles * 2 + e;
      const bool has_bias = args.bias && out < args.out_channels;
      const float bias = has_bias ? widen_item(static_cast<const T*>(args.bias)[out]) : 0.0f;
      for (int r = 0; r < kRowTiles; ++r) at[r][line][e] = at[r][line][2 + e] = bias + 0.0f;
    }
  }
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
  __device__ __forceinline__ void finish(const SparseConvArgs& args, const SparseMmaWork& work,
                                         const TileRows<Tile::kRows>& rows, int64_t valid) const {
#pragma unroll
    for (int i = 0; i < kRowTiles * 2; ++i) {
      const int64_t row = rows.rows[first_row + i * 8 + lane / 4];
      if (row < 0) continue;
#pragma unroll
      for (int group = 0; group < kLineTiles / kGroupTiles; ++group) {
        finish_sums<T, Tile::kWide>(
            args, work, row, row < valid, first_channel + group * Tile::kGroup,
            [&](int c) { return at[i / 2][group * kGroupTiles + c / 2][i % 2 * 2 + c % 2]; });
      }
    }
  }
};

#endif

// One block per tile; those of the same rows are neighbors. Reads the table through `order`, packed
// weights and the features of neighbors; writes values.
template <class T, class Tile, int kDepth>
__global__ void __launch_bounds__(Tile::kThreads, Tile::kBlocks)
    mma_kernel(const __grid_constant__ SparseConvArgs args,
               const __grid_constant__ SparseMmaWork work, const int32_t* __restrict__ order) {
#if __CUDA_ARCH__ >= 800
  using Rows = TileRows<Tile::kRows>;
  extern __shared__ __align__(128) char memory[];
  constexpr int kBytes = Tile::kStages * Tile::kStageBytes;
  auto& rows = *reinterpret_cast<Rows*>(memory + kBytes);
  auto* sources = reinterpret_cast<int32_t*>(&rows + 1);
  const auto tiles = static_cast<unsigned>(work.columns / Tile::kTile);
  rows.template find<Tile::kThreads, Tile::kWarpRows>(
      args.table, order, int64_t{blockIdx.x / tiles} * Tile::kRows, sources);
  wait_for_previous();

  using Copy = StageCopy<Tile, kDepth>;
  const int64_t first_column = int64_t{blockIdx.x % tiles} * Tile::kTile;
  WarpSums<T, Tile> sums(args, first_column);
  const auto shared = static_cast<uint32_t>(__cvta_generic_to_shared(memory));
  const auto after = [&](uint32_t stage) {
    return stage + Tile::kStageBytes < shared + kBytes ? stage + Tile::kStageBytes : shared;
  };
  if (work.units > 0) {
    Copy next;
    UnitWalk walk;
    uint32_t filled = shared, used = shared;  // stages
    for (int i = 0; i < Tile::kStages - 1; ++i, filled = after(filled)) {
      next.copy(work, rows, sources, first_column, filled);
    }
    for (; walk.at < rows.count; filled = after(filled), used = after(used)) {
      __pipeline_wait_prior(Tile::kStages - 2);
      __syncthreads();
      next.copy(work, rows, sources, first_column, filled);
      for (int slot = 0; slot < Copy::kSlots; ++slot, walk.advance(1, work.units)) {
        if (walk.at < rows.count && rows.offsets[walk.at] >> (8 + sums.first_row / 32) & 1) {
          sums.template add<kDepth>(used + slot * Tile::kRows * kDepth * 2,
                                    used + Tile::kFeatureBytes + slot * Tile::kTile * kDepth * 2);
        }
      }
    }
  }
  sums.finish(args, work, rows, args.table.valid());
#endif
}

template <class T, class Tile>
cudaError_t launch_tile(const SparseConvArgs& args, const SparseMmaWork& work, const int32_t* order,
                        const CudaContext& context) {
  const auto kernel = work.depth == 16 ? mma_kernel<T, Tile, 16>
      : work.depth == 32               ? mma_kernel<T, Tile, 32>
                                       : mma_kernel<T, Tile, 64>;
  const int bytes = Tile::shared_bytes(args.table.volume);
  TORCHVOX_CUDA_CHECK(
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
  const int64_t blocks =
      ceil_div<int64_t>(args.table.rows, Tile::kRows) * (work.columns / Tile::kTile);
  return launch_after_sharing(kernel, dim3(grid_x(blocks)), dim3(Tile::kThreads), bytes, context,
                              args, work, order);
}

using Tile16 = MmaTile<64, 16, 16, 16, 3, 6>;
using Tile32 = MmaTile<64, 32, 16, 32, 3, 5>;
using Tile64 = MmaTile<64, 64, 32, 32, 3, 4>;
using Tile128 = MmaTile<128, 128, 64, 64, 3, 2>;

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

template <class T>
cudaError_t launch_typed(const SparseConvArgs& args, const SparseMmaWork& work,
                         const int32_t* order, const CudaContext& context) {
  TORCHVOX_CUDA_CHECK(pack_mma<T>(args, work, context));
  const auto launch = work.tile == 16 ? launch_tile<T, Tile16>
      : work.tile == 32               ? launch_tile<T, Tile32>
      : work.tile == 64               ? launch_tile<T, Tile64>
                                      : launch_tile<T, Tile128>;
  return launch(args, work, order, context);
}

}  // namespace

int64_t sparse_mma_bytes(const SparseConvArgs& args, const Target& target) {
  return carved_bytes<SparseMmaWork>(args, tile_of(args, target));
}
cudaError_t launch_sparse_mma(const SparseConvArgs& args, const int32_t* order, void* memory,
                              const CudaContext& context) {
  if (args.table.rows * args.out_channels == 0) return cudaSuccess;
  const auto work = carve<SparseMmaWork>(memory, args, tile_of(args, context.target));
  return args.dtype == DType::kHalf ? launch_typed<Half>(args, work, order, context)
                                    : launch_typed<BFloat16>(args, work, order, context);
}

}  // namespace torchvox
