// SPDX-License-Identifier: Apache-2.0
#include "csrc/kernels/core/launch.cuh"
#include "csrc/kernels/neighbours/group_mlp_kernels.cuh"
#include "csrc/kernels/neighbours/group_mlp_rule.h"
#include "csrc/kernels/neighbours/mma_tiles.cuh"

namespace torchvox {
namespace {

constexpr int kThreads = kMlpThreads;

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800

// 16 slots of a row of balls.
struct Tile {
  int64_t row;
  int slot;
  int slots;  // of the row
  bool live;
};

// The tiles of the rows begin, begin + step, .. below end.
class TileWalk {
 public:
  __device__ TileWalk(const GroupMlpArgs& args, int64_t begin, int64_t step, int64_t end)
      : row_(begin), step_(step), end_(end) {
    enter(args);
  }
  __device__ bool more() const { return row_ < end_; }
  __device__ Tile next(const GroupMlpArgs& args) {
    const Tile tile{row_, slot_, slots_, true};
    slot_ += 16;
    if (slot_ >= slots_) {
      row_ += step_;
      enter(args);
    }
    return tile;
  }

 private:
  __device__ void enter(const GroupMlpArgs& args) {
    slot_ = 0;
    slots_ = row_ < end_ ? static_cast<int>(used_slots(args, row_)) : 0;
  }

  int64_t row_, step_, end_;
  int slot_, slots_;
};

// rows[m][group] = max(W (p - q) + bias + term, 0) of the slots of the tiles; a slot behind the
// last of its row is the row's first once more. The coordinates enter as differences in fp32.
template <class T, int kWidth, int kTiles>
__device__ __forceinline__ void first_layer(const GroupMlpArgs& args, const T* terms,
                                            const float* floats, const MlpPacked& packed,
                                            const Tile (&tile)[kTiles],
                                            uint32_t (&rows)[kTiles][kWidth][8]) {
  const int lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
  float d[kTiles][2][3];
#pragma unroll
  for (int m = 0; m < kTiles; ++m) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int slot = tile[m].slot + g + 8 * h;
      const MlpSlot from = MlpSlot::of(args, tile[m].row, slot < tile[m].slots ? slot : 0);
      const bool given = terms && from.point >= 0;
      const uint4* term = reinterpret_cast<const uint4*>(terms + from.feature * kWidth * kGroup);
#pragma unroll
      for (int n = 0; n < kWidth; ++n) {
        const uint4 chunk = given ? term[n * 4 + t] : uint4{0, 0, 0, 0};
        rows[m][n][0 + h] = chunk.x;
        rows[m][n][2 + h] = chunk.y;
        rows[m][n][4 + h] = chunk.z;
        rows[m][n][6 + h] = chunk.w;
      }
#pragma unroll
      for (int axis = 0; axis < 3; ++axis) {
        d[m][h][axis] = args.use_xyz ? relative_coordinate<float>(args, from, axis) : 0.0f;
      }
    }
  }
#pragma unroll
  for (int n = 0; n < kWidth; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int channel = n * kGroup + 8 * t + 2 * i;
      const auto pair = [&](int first) {
        return *reinterpret_cast<const float2*>(floats + first + channel);
      };
      const float2 bias = pair(packed.bias[0]), x = pair(packed.axes),
                   y = pair(packed.axes + kWidth * kGroup),
                   z = pair(packed.axes + 2 * kWidth * kGroup);
#pragma unroll
      for (int m = 0; m < kTiles; ++m) {
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          const float* a = d[m][h];
          const uint32_t term = rows[m][n][2 * i + h];
          const float low = fma_rn(a[2], z.x, fma_rn(a[1], y.x, fma_rn(a[0], x.x, bias.x)));
          const float high = fma_rn(a[2], z.y, fma_rn(a[1], y.y, fma_rn(a[0], x.y, bias.y)));
          rows[m][n][2 * i + h] =
              pack_relu<T>(low + Words<T>::low(term), high + Words<T>::high(term));
        }
      }
    }
  }
}

// One layer between the first and the last, in place.
template <class T, int kWidth, int kTiles>
__device__ __forceinline__ void hidden_layer(const uint4* chunks, const float* bias,
                                             uint32_t (&rows)[kTiles][kWidth][8]) {
  const int lane = threadIdx.x & 31;
  uint32_t result[kTiles][kWidth][8];
#pragma unroll
  for (int n = 0; n < kWidth; ++n) {
    GroupSums<kTiles> sums;
    sums.start(bias + n * kGroup, lane & 3);
#pragma unroll
    for (int k = 0; k < kWidth; ++k) {
      uint32_t operand[kTiles][8];
#pragma unroll
      for (int m = 0; m < kTiles; ++m) {
#pragma unroll
        for (int w = 0; w < 8; ++w) operand[m][w] = rows[m][k][w];
      }
      sums.template add<T>(operand, chunks + (n * 4 * kWidth + k) * 32 + lane, kWidth);
    }
#pragma unroll
    for (int m = 0; m < kTiles; ++m) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        result[m][n][2 * i] = pack_relu<T>(sums.at[m][i][0], sums.at[m][i][1]);
        result[m][n][2 * i + 1] = pack_relu<T>(sums.at[m][i][2], sums.at[m][i][3]);
      }
    }
  }
#pragma unroll
  for (int m = 0; m < kTiles; ++m) {
#pragma unroll
    for (int n = 0; n < kWidth; ++n) {
#pragma unroll
      for (int w = 0; w < 8; ++w) rows[m][n][w] = result[m][n][w];
    }
  }
}

// The maximum over a tile of the channels of a group, from each lane's maximum over its two rows:
// lanes hand each other halves, so that a lane ends with the one pair of channels that it returns.
// With the maximum of the row's earlier tiles in `best` it goes there, or out behind the last tile.
template <class T>
__device__ __forceinline__ void finish_group(const GroupMlpArgs& args, const MlpPacked& packed,
                                             const Tile& tile, int group, uint32_t (&word)[4],
                                             uint32_t* best) {
  const int lane = threadIdx.x & 31;
  const bool upper = lane & 16, odd = lane & 8;
  const auto trade = [&](uint32_t kept, uint32_t given, int mask) {
    return Words<T>::max2(kept, __shfl_xor_sync(0xffffffffu, given, mask));
  };
  const uint32_t first = trade(upper ? word[2] : word[0], upper ? word[0] : word[2], 16);
  const uint32_t second = trade(upper ? word[3] : word[1], upper ? word[1] : word[3], 16);
  uint32_t pair = trade(odd ? second : first, odd ? first : second, 8);
  pair = trade(pair, pair, 4);
  if ((lane & 4) || !tile.live) return;
  const int channel = group * kGroup + 8 * (lane & 3) + 4 * upper + 2 * odd;
  if (tile.slot > 0) pair = Words<T>::max2(pair, best[channel / 2]);
  if (tile.slot + 16 < tile.slots) {
    best[channel / 2] = pair;
    return;
  }
  const int channels = static_cast<int>(args.layer[args.layers - 1].out);
  T* out = static_cast<T*>(args.out) + tile.row * channels;
  if (channels % 2 == 0) {
    if (channel < channels) *reinterpret_cast<uint32_t*>(out + channel) = pair;
  } else {
    if (channel < channels) out[channel].bits = static_cast<uint16_t>(pair);
    if (channel + 1 < channels) out[channel + 1].bits = static_cast<uint16_t>(pair >> 16);
  }
}

template <class T, int kWidth, int kTiles>
__device__ __forceinline__ void last_layer(const GroupMlpArgs& args, const MlpPacked& packed,
                                           const uint4* chunks, const float* bias,
                                           const Tile (&tile)[kTiles],
                                           const uint32_t (&rows)[kTiles][kWidth][8],
                                           uint32_t* best) {
  const int lane = threadIdx.x & 31;
  for (int n = 0; n < packed.last_groups; ++n) {
    GroupSums<kTiles> sums;
    sums.start(bias + n * kGroup, lane & 3);
#pragma unroll
    for (int k = 0; k < kWidth; ++k) {
      uint32_t operand[kTiles][8];
#pragma unroll
      for (int m = 0; m < kTiles; ++m) {
#pragma unroll
        for (int w = 0; w < 8; ++w) operand[m][w] = rows[m][k][w];
      }
      sums.template add<T>(operand, chunks + (n * 4 * kWidth + k) * 32 + lane, kWidth);
    }
#pragma unroll
    for (int m = 0; m < kTiles; ++m) {
      uint32_t word[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        word[i] = Words<T>::max2(pack_relu<T>(sums.at[m][i][0], sums.at[m][i][1]),
                                 pack_relu<T>(sums.at[m][i][2], sums.at[m][i][3]));
      }
      finish_group<T>(args, packed, tile[m], n, word, best);
    }
  }
}

#endif

// A block holds the layers in shared memory, as far as they fit, and takes an equal part of the
// rows of balls, neighbours in the output, so that they share what they read; a warp takes every
// eighth of them, kTiles tiles of 16 slots at a time, from the gather to the maximum in registers.
template <class T, int kWidth, int kTiles, int kBlocks>
__global__ void __launch_bounds__(kThreads, kBlocks)
    mlp_kernel(const __grid_constant__ GroupMlpArgs args, const __grid_constant__ MlpPacked packed,
               const uint4* __restrict__ block, int resident, const T* __restrict__ terms) {
#if __CUDA_ARCH__ >= 800
  extern __shared__ uint4 shared[];
  for (int i = threadIdx.x; i < resident; i += kThreads) shared[i] = block[i];
  __syncthreads();
  const float* floats = reinterpret_cast<const float*>(shared);
  uint32_t* best =
      reinterpret_cast<uint32_t*>(shared + resident) + threadIdx.x / 32 * packed.last_groups * 16;
  const auto chunks_of = [&](int layer) -> const uint4* {
    const int first = packed.chunk[layer];
    return kWidth <= kMostResidentWidth || first < resident ? shared + first : block + first;
  };

  const int64_t rows_per_block = ceil_div<int64_t>(args.rows(), gridDim.x);
  const int64_t begin = blockIdx.x * rows_per_block, end = min(begin + rows_per_block, args.rows());
  TileWalk walk(args, begin + threadIdx.x / 32, kThreads / 32, end);
  while (walk.more()) {
    Tile tile[kTiles];
#pragma unroll
    for (int m = 0; m < kTiles; ++m) {
      if (m == 0 || walk.more()) {
        tile[m] = walk.next(args);
      } else {
        tile[m] = tile[0];
        tile[m].live = false;
      }
    }
    uint32_t rows[kTiles][kWidth][8];
    first_layer<T, kWidth, kTiles>(args, terms, floats, packed, tile, rows);
    for (int layer = 1; layer < args.layers - 1; ++layer) {
      hidden_layer<T, kWidth, kTiles>(chunks_of(layer), floats + packed.bias[layer], rows);
    }
    if (args.layers > 1) {
      const int layer = args.layers - 1;
      last_layer<T, kWidth, kTiles>(args, packed, chunks_of(layer), floats + packed.bias[layer],
                                    tile, rows, best);
      continue;
    }
#pragma unroll
    for (int m = 0; m < kTiles; ++m) {
#pragma unroll
      for (int n = 0; n < kWidth; ++n) {
        uint32_t word[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          word[i] = Words<T>::max2(rows[m][n][2 * i], rows[m][n][2 * i + 1]);
        }
        finish_group<T>(args, packed, tile[m], n, word, best);
      }
    }
  }
#endif
}

template <class T, int kWidth, int kTiles, int kBlocks>
cudaError_t start_mlp(const GroupMlpArgs& args, const GroupMlpPlan& plan, const uint4* block,
                      const T* terms, cudaStream_t stream) {
  const auto kernel = mlp_kernel<T, kWidth, kTiles, kBlocks>;
  TORCHVOX_CUDA_CHECK(
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, plan.shared_limit));
  kernel<<<plan.blocks, kThreads, plan.shared_bytes, stream>>>(args, plan.packed, block,
                                                               plan.resident_chunks, terms);
  return cudaGetLastError();
}

template <class T>
cudaError_t start(const GroupMlpArgs& args, const GroupMlpPlan& plan, const MlpWorkspace& workspace,
                  cudaStream_t stream) {
  const MlpPacked& packed = plan.packed;
  const uint4* block = static_cast<const uint4*>(workspace.block);
  const T* terms = static_cast<const T*>(workspace.terms);
  switch (packed.width) {
    case 1: return start_mlp<T, 1, 2, 2>(args, plan, block, terms, stream);
    case 2: return start_mlp<T, 2, 2, 2>(args, plan, block, terms, stream);
    case 3: return start_mlp<T, 3, 2, 1>(args, plan, block, terms, stream);
    case 4: return start_mlp<T, 4, 2, 1>(args, plan, block, terms, stream);
    default: return start_mlp<T, 8, 1, 1>(args, plan, block, terms, stream);
  }
}

}  // namespace

cudaError_t start_mma_mlp(const GroupMlpArgs& args, const GroupMlpPlan& plan,
                          const MlpWorkspace& workspace, cudaStream_t stream) {
  TORCHVOX_CUDA_CHECK(start_mma_prepare(args, plan, workspace, stream));
  return args.mlp_dtype == DType::kHalf ? start<Half>(args, plan, workspace, stream)
                                        : start<BFloat16>(args, plan, workspace, stream);
}

}  // namespace torchvox
