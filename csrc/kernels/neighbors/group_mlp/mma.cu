// SPDX-License-Identifier: Apache-2.0
//
// group_mlp_max on tensor cores. A block keeps the packed layers in shared memory and takes
// neighboring rows of balls; a warp takes 16 or 32 slots at a time through all layers to the
// maximum, in registers. Index, coordinates and first-layer terms of a slot are read once; each
// output is written once.
#include "csrc/kernels/core/launch.cuh"
#include "csrc/kernels/neighbors/group_mlp/kernels.cuh"
#include "csrc/kernels/neighbors/group_mlp/mma_tiles.cuh"

namespace torchvox {
namespace {

constexpr int kThreads = kMlpThreads;

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800

// 16 slots of a row of balls.
struct Tile {
  int row;  // among those of the block
  int slot;  // its first
  int slots;  // of the row; 0: a padding tile, skipped
};

// The tiles of a block's rows begin, begin + kThreads / 32, .. below end.
class TileWalk {
 public:
  __device__ TileWalk(const int32_t* count, const GroupMlpArgs& args, int begin, int end)
      : count_(count), row_(begin), end_(end) {
    enter(args);
  }
  __device__ bool more() const { return row_ < end_; }
  // The next tiles; if there are fewer, the rest are padding tiles.
  template <int kTiles>
  __device__ __forceinline__ void take(const GroupMlpArgs& args, Tile (&tile)[kTiles]) {
#pragma unroll
    for (int m = 0; m < kTiles; ++m) {
      if (m > 0 && !more()) {
        tile[m] = {tile[0].row, 0, 0};
        continue;
      }
      tile[m] = {row_, slot_, slots_};
      slot_ += 16;
      if (slot_ >= slots_) {
        row_ += kThreads / 32;
        enter(args);
      }
    }
  }

 private:
  __device__ __forceinline__ void enter(const GroupMlpArgs& args) {
    slot_ = 0;
    const int hits = row_ < end_ ? count_[row_ * args.count_stride] : 0;
    slots_ = max(1, min(hits, static_cast<int>(args.slots)));
  }

  const int32_t* count_;  // of the block's rows
  int row_, end_, slot_, slots_;
};

// The slot of each lane, number 16 * tile + row: its point, then its coordinates minus the query's.
// The loads of a tile are in flight while the tensor cores work on the one before.
template <class P, int kTiles>
struct LaneSlot {
  int point;
  int64_t term;  // row of its terms, the last one if the index is outside
  P p[3], q[3];

  static __device__ __forceinline__ Tile of_lane(const Tile (&tile)[kTiles]) {
    const bool second = kTiles == 2 && (threadIdx.x & 16);
    const Tile &a = tile[0], &b = tile[kTiles - 1];
    return {second ? b.row : a.row, second ? b.slot : a.slot, second ? b.slots : a.slots};
  }
  // A slot after the last of its row repeats the first of the row.
  __device__ __forceinline__ void load_point(const GroupMlpArgs& args, int64_t begin,
                                             const Tile (&tile)[kTiles]) {
    const Tile mine = of_lane(tile);
    const int slot = mine.slot + (threadIdx.x & 15);
    point = args.idx[(begin + mine.row) * args.idx_stride + (slot < mine.slots ? slot : 0)];
  }
  __device__ __forceinline__ void load_coordinates(const GroupMlpArgs& args, int64_t begin,
                                                   const Tile (&tile)[kTiles]) {
    const int64_t row = begin + of_lane(tile).row, cloud = row / args.query.rows;
    const bool inside = point >= 0 && point < args.points.rows;
    term = inside ? cloud * args.points.rows + point : args.points.clouds * args.points.rows;
    if (!args.use_xyz) return;
    const P* from = static_cast<const P*>(args.points.data) + cloud * args.points.cloud_stride +
        (inside ? point : 0) * args.points.row_stride;
    const P* query = static_cast<const P*>(args.query.data) + cloud * args.query.cloud_stride +
        (row - cloud * args.query.rows) * args.query.row_stride;
#pragma unroll
    for (int axis = 0; axis < 3; ++axis) {
      p[axis] = inside ? from[axis] : P{};
      q[axis] = query[axis];
    }
  }
  __device__ __forceinline__ void relative(const GroupMlpArgs& args, float (&d)[3]) const {
#pragma unroll
    for (int axis = 0; axis < 3; ++axis) {
      d[axis] = 0;
      if (!args.use_xyz) continue;
      d[axis] = widen(narrow<P>(widen(p[axis]) - widen(q[axis])));
      if (args.divisor != 0) {
        d[axis] = widen(narrow<P>(d[axis] / static_cast<float>(args.divisor)));
      }
    }
  }
};

// rows[m][group] = max(W (p - q) + bias + term, 0) for the slots of the tiles; the bias here is 0
// if there are terms, which include it. The coordinates enter as differences in fp32.
template <class T, class P, int kWidth, int kTiles>
__device__ __forceinline__ void first_layer(const GroupMlpArgs& args, const T* terms,
                                            const float* floats, const MlpPacked& packed,
                                            const LaneSlot<P, kTiles>& mine,
                                            uint32_t (&rows)[kTiles][kWidth][8]) {
  const int lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
  float own[3], d[kTiles][2][3];
  mine.relative(args, own);
#pragma unroll
  for (int m = 0; m < kTiles; ++m) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int source = 16 * m + g + 8 * h;
      const int64_t row = __shfl_sync(0xffffffffu, mine.term, source);
#pragma unroll
      for (int axis = 0; axis < 3; ++axis) {
        d[m][h][axis] = __shfl_sync(0xffffffffu, own[axis], source);
      }
      const uint4* term = reinterpret_cast<const uint4*>(terms + row * (kWidth * kGroup));
#pragma unroll
      for (int n = 0; n < kWidth; ++n) {
        const uint4 chunk = terms ? term[n * 4 + t] : uint4{0, 0, 0, 0};
        rows[m][n][0 + h] = chunk.x;
        rows[m][n][2 + h] = chunk.y;
        rows[m][n][4 + h] = chunk.z;
        rows[m][n][6 + h] = chunk.w;
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

// Output group n of a layer: the products of all input groups with its weights, plus its biases.
template <class T, int kWidth, int kTiles>
__device__ __forceinline__ void add_products(const uint4* chunks, const float* bias, int n,
                                             const uint32_t (&rows)[kTiles][kWidth][8],
                                             GroupSums<kTiles>& sums) {
  const int lane = threadIdx.x & 31;
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
}

// One layer between the first and the last, in place.
template <class T, int kWidth, int kTiles>
__device__ __forceinline__ void hidden_layer(const uint4* chunks, const float* bias,
                                             uint32_t (&rows)[kTiles][kWidth][8]) {
  uint32_t result[kTiles][kWidth][8];
#pragma unroll
  for (int n = 0; n < kWidth; ++n) {
    GroupSums<kTiles> sums;
    add_products<T>(chunks, bias, n, rows, sums);
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

// Two channels of a row of the output, the first one even.
__device__ __forceinline__ void store_pair(const GroupMlpArgs& args, int64_t row, int channel,
                                           uint32_t pair) {
  const int channels = static_cast<int>(args.layer[args.layers - 1].out);
  uint16_t* out = static_cast<uint16_t*>(args.out) + row * channels + channel;
  if (channels % 2 == 0) {
    if (channel < channels) *reinterpret_cast<uint32_t*>(out) = pair;
  } else {
    if (channel < channels) out[0] = static_cast<uint16_t>(pair);
    if (channel + 1 < channels) out[1] = static_cast<uint16_t>(pair >> 16);
  }
}

// The maximum over a tile of the channels of a group, from each lane's maximum over its two rows:
// lanes exchange halves, so that each ends with one pair of channels. It is combined with the
// maximum of the row's earlier tiles in `best` and stored there, or in the output after the last
// tile.
template <class T>
__device__ __forceinline__ void finish_group(const GroupMlpArgs& args, int64_t begin,
                                             const Tile& tile, int group, uint32_t (&word)[4],
                                             uint32_t* best) {
  const int lane = threadIdx.x & 31;
  const bool upper = lane & 16, odd = lane & 8;
  const auto trade = [&](uint32_t own, uint32_t sent, int mask) {
    return Words<T>::max2(own, __shfl_xor_sync(0xffffffffu, sent, mask));
  };
  const uint32_t first = trade(upper ? word[2] : word[0], upper ? word[0] : word[2], 16);
  const uint32_t second = trade(upper ? word[3] : word[1], upper ? word[1] : word[3], 16);
  uint32_t pair = trade(odd ? second : first, odd ? first : second, 8);
  pair = trade(pair, pair, 4);
  const int channel = group * kGroup + 8 * (lane & 3) + 4 * upper + 2 * odd;
  if (!(lane & 4) && tile.slots > 0) {
    if (tile.slot > 0) pair = Words<T>::max2(pair, best[channel / 2]);
    if (tile.slot + 16 < tile.slots) {
      best[channel / 2] = pair;
    } else {
      store_pair(args, begin + tile.row, channel, pair);
    }
  }
}

template <class T, int kWidth, int kTiles>
__device__ __forceinline__ void last_layer(const GroupMlpArgs& args, int64_t begin, int groups,
                                           const uint4* chunks, const float* bias,
                                           const Tile (&tile)[kTiles],
                                           const uint32_t (&rows)[kTiles][kWidth][8],
                                           uint32_t* best) {
  for (int n = 0; n < groups; ++n) {
    GroupSums<kTiles> sums;
    add_products<T>(chunks, bias, n, rows, sums);
#pragma unroll
    for (int m = 0; m < kTiles; ++m) {
      uint32_t word[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        word[i] = Words<T>::max2(pack_relu<T>(sums.at[m][i][0], sums.at[m][i][1]),
                                 pack_relu<T>(sums.at[m][i][2], sums.at[m][i][3]));
      }
      finish_group<T>(args, begin, tile[m], n, word, best);
    }
  }
}

// The maxima of the first layer's output, if it is the only layer.
template <class T, int kWidth, int kTiles>
__device__ __forceinline__ void only_layer(const GroupMlpArgs& args, int64_t begin,
                                           const Tile (&tile)[kTiles],
                                           const uint32_t (&rows)[kTiles][kWidth][8],
                                           uint32_t* best) {
#pragma unroll
  for (int m = 0; m < kTiles; ++m) {
#pragma unroll
    for (int n = 0; n < kWidth; ++n) {
      uint32_t word[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        word[i] = Words<T>::max2(rows[m][n][2 * i], rows[m][n][2 * i + 1]);
      }
      finish_group<T>(args, begin, tile[m], n, word, best);
    }
  }
}

#endif

// Each block takes an equal part of the rows of balls, neighbors in the output, so that they share
// what they read; a warp takes every eighth of them, kTiles tiles of 16 slots at a time. Reads the
// packed layers, indices, coordinates and terms; writes the maxima.
template <class T, class P, int kWidth, int kTiles, int kBlocks>
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
  const int64_t begin = blockIdx.x * rows_per_block;
  const int block_rows = static_cast<int>(min(rows_per_block, args.rows() - begin));
  TileWalk walk(args.count + begin * args.count_stride, args, threadIdx.x / 32, block_rows);
  if (!walk.more()) return;
  Tile tile[kTiles], next[kTiles];
  LaneSlot<P, kTiles> mine;
  walk.take(args, tile);
  mine.load_point(args, begin, tile);
  mine.load_coordinates(args, begin, tile);
  while (true) {
    uint32_t rows[kTiles][kWidth][8];
    first_layer<T, P, kWidth, kTiles>(args, terms, floats, packed, mine, rows);
    const bool more = walk.more();
    if (more) {
      walk.take(args, next);
      mine.load_point(args, begin, next);
    }
    for (int layer = 1; layer < args.layers - 1; ++layer) {
      hidden_layer<T, kWidth, kTiles>(chunks_of(layer), floats + packed.bias[layer], rows);
    }
    if (more) mine.load_coordinates(args, begin, next);
    if (args.layers > 1) {
      const int layer = args.layers - 1;
      last_layer<T, kWidth, kTiles>(args, begin, packed.last_groups, chunks_of(layer),
                                    floats + packed.bias[layer], tile, rows, best);
    } else {
      only_layer<T, kWidth, kTiles>(args, begin, tile, rows, best);
    }
    if (!more) break;
#pragma unroll
    for (int m = 0; m < kTiles; ++m) tile[m] = next[m];
  }
#endif
}

template <class T, class P, int kWidth, int kTiles, int kBlocks>
cudaError_t start_mlp(const GroupMlpArgs& args, const GroupMlpPlan& plan, const uint4* block,
                      const T* terms, cudaStream_t stream) {
  const auto kernel = mlp_kernel<T, P, kWidth, kTiles, kBlocks>;
  TORCHVOX_CUDA_CHECK(
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, plan.shared_limit));
  return launch_sharing(kernel, plan.blocks, kThreads, plan.shared_bytes, stream, args, plan.packed,
                        block, plan.resident_chunks, terms);
}

template <class T, class P>
cudaError_t start(const GroupMlpArgs& args, const GroupMlpPlan& plan, const MlpWorkspace& workspace,
                  cudaStream_t stream) {
  const uint4* block = static_cast<const uint4*>(workspace.block);
  const T* terms = static_cast<const T*>(workspace.terms);
  switch (plan.packed.width) {
    case 1: return start_mlp<T, P, 1, 2, 2>(args, plan, block, terms, stream);
    case 2: return start_mlp<T, P, 2, 2, 2>(args, plan, block, terms, stream);
    case 3: return start_mlp<T, P, 3, 2, 1>(args, plan, block, terms, stream);
    case 4: return start_mlp<T, P, 4, 2, 1>(args, plan, block, terms, stream);
    default: return start_mlp<T, P, 8, 1, 1>(args, plan, block, terms, stream);
  }
}

// Coordinates are float32, or the features' own type.
template <class T>
cudaError_t start_typed(const GroupMlpArgs& args, const GroupMlpPlan& plan,
                        const MlpWorkspace& workspace, cudaStream_t stream) {
  return args.points.dtype == DType::kFloat ? start<T, float>(args, plan, workspace, stream)
                                            : start<T, T>(args, plan, workspace, stream);
}

}  // namespace

cudaError_t start_mma_mlp(const GroupMlpArgs& args, const GroupMlpPlan& plan,
                          const MlpWorkspace& workspace, cudaStream_t stream) {
  TORCHVOX_CUDA_CHECK(start_mma_prepare(args, plan, workspace, stream));
  return args.mlp_dtype == DType::kHalf ? start_typed<Half>(args, plan, workspace, stream)
                                        : start_typed<BFloat16>(args, plan, workspace, stream);
}

}  // namespace torchvox
