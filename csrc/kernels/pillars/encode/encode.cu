// SPDX-License-Identifier: Apache-2.0
//
// pillar_encode on the GPU: decoration, linear layer, ReLU, maximum and scatter in one pass; points
// are staged 32 at a time in shared memory, weights stay in registers. Each row of the canvas is
// written once. Winners and gradients are read once, a winning point once per channel that it won.
#include <cmath>

#include "csrc/kernels/core/tree_sum.cuh"
#include "csrc/kernels/core/warp.cuh"
#include "csrc/kernels/pillars/encode/encode.h"
#include "csrc/kernels/pillars/prepare.cuh"

namespace torchvox {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
constexpr int kResident = 4;  // blocks per multiprocessor
constexpr int kChannels = 64;  // of a warp at a time, two neighboring ones per lane

struct EncodeWork {
  PillarListWork list_work;
  int64_t cells;
  uint32_t* table;  // [cells] the row of each cell, then the counter of share_zeros()

  EncodeWork(const PillarEncodeArgs& args, Workspace& workspace)
      : list_work(args.map, workspace),
        cells(args.map.rows.cells()),
        table(workspace.take<uint32_t>(cells + 1)) {}
};

// Points of a warp, up to 32 at a time: the values that every lane reads.
template <class Real, int kColumns>
struct alignas(16) Staged {
  static constexpr int kFeatures = kColumns > 3 ? kColumns - 3 : 0;
  // u = p - center and the features. With one feature, the usual case, this is one 16-byte read.
  Real row[32][kFeatures <= 1 ? 4 : 3 + kFeatures];
  Real at[32][3];  // p, in meters
  int32_t point[32];
};

// Weights of a channel that are used once per pillar, as in PillarChannel.
template <class Real>
struct FrameWeights {
  Real p[3], m[3], bias;
};

// The weights of a lane's two channels. kColumns is the number of columns of a point; 0 stands for
// any number, and then features and their weights are read from memory as they are needed.
template <class T, class Real, int kColumns>
struct LaneChannels {
  static constexpr int kFeatures = Staged<Real, kColumns>::kFeatures;
  Real a[2][3];
  Real feature[2][kFeatures > 0 ? kFeatures : 1];
  int64_t first;

  // Every warp of a block loads the same channels; the first warp writes the block's `frame`
  // [kChannels]. Lanes past the last channel repeat it, so that all lanes may calculate.
  __device__ void load(const PillarEncodeArgs& args, int64_t begin, FrameWeights<Real>* frame) {
    first = begin + 2 * (threadIdx.x % 32);
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      const int64_t c = first + k < args.outputs ? first + k : args.outputs - 1;
      PillarChannel<Real> channel;
      channel.load(args, c);
#pragma unroll
      for (int axis = 0; axis < 3; ++axis) a[k][axis] = channel.a[axis];
#pragma unroll
      for (int f = 0; f < kFeatures; ++f) feature[k][f] = feature_weight<Real>(args, c, 3 + f);
      if (threadIdx.x >= 32) continue;
      FrameWeights<Real>& to = frame[first + k - begin];
#pragma unroll
      for (int axis = 0; axis < 3; ++axis) {
        to.p[axis] = channel.p[axis];
        to.m[axis] = channel.m[axis];
      }
      to.bias = channel.bias;
    }
  }
  // A [u; i] of the staged point `slot` in channel first + k.
  __device__ __forceinline__ Real product(const PillarEncodeArgs& args,
                                          const Staged<Real, kColumns>& staged, int slot,
                                          int k) const {
    const Real* row = staged.row[slot];
    Real y = of_offset(a[k], row);
    if constexpr (kColumns > 0) {
#pragma unroll
      for (int f = 0; f < kFeatures; ++f) y = fma_rn(feature[k][f], row[3 + f], y);
    } else {
      const int64_t c = first + k < args.outputs ? first + k : args.outputs - 1;
      for (int64_t column = 3; column < args.map.columns; ++column) {
        y = fma_rn(feature_weight<Real>(args, c, column),
                   args.map.value<T, Real>(staged.point[slot], column), y);
      }
    }
    return y;
  }
};

// A warp reads the points of slots [slot, slot + 32) below n into shared memory, one per lane.
template <class T, class Real, int kColumns>
__device__ __forceinline__ void stage(const PillarEncodeArgs& args, const PillarLists& lists,
                                      const PillarFrame<Real>& frame, int64_t begin, int64_t slot,
                                      int64_t n, Staged<Real, kColumns>& staged) {
  const int lane = threadIdx.x % 32;
  __syncwarp();
  if (slot + lane < n) {
    const int64_t point = lists.at(args.map, begin, slot + lane);
    staged.point[lane] = static_cast<int32_t>(point);
#pragma unroll
    for (int axis = 0; axis < 3; ++axis) {
      const Real p = args.map.value<T, Real>(point, axis);
      staged.at[lane][axis] = p;
      staged.row[lane][axis] = p - frame.center[axis];
    }
#pragma unroll
    for (int f = 0; f < Staged<Real, kColumns>::kFeatures; ++f) {
      staged.row[lane][3 + f] = args.map.value<T, Real>(point, 3 + f);
    }
  }
  __syncwarp();
}

// Stores the elements `at` and, with `both`, at + 1 of the canvas: in one write where pairs are
// aligned, which they are if the number of channels is even.
__device__ __forceinline__ void store_pair(const PillarEncodeArgs& args, int64_t at, bool both,
                                           float first, float second) {
  if (both && args.outputs % 2 == 0) {
    if (args.out_dtype == DType::kHalf) {
      const ushort2 pair = {narrow<Half>(first).bits, narrow<Half>(second).bits};
      static_cast<ushort2*>(args.canvas)[at / 2] = pair;
      return;
    }
    if (args.out_dtype == DType::kBFloat16) {
      const ushort2 pair = {narrow<BFloat16>(first).bits, narrow<BFloat16>(second).bits};
      static_cast<ushort2*>(args.canvas)[at / 2] = pair;
      return;
    }
    if (args.out_dtype == DType::kFloat) {
      static_cast<float2*>(args.canvas)[at / 2] = {first, second};
      return;
    }
  }
  store_as(args.canvas, args.out_dtype, at, first);
  if (both) store_as(args.canvas, args.out_dtype, at + 1, second);
}
__device__ __forceinline__ void store_pair(const PillarEncodeArgs& args, int64_t at, bool both,
                                           double first, double second) {
  store_as(args.canvas, args.out_dtype, at, first);
  if (both) store_as(args.canvas, args.out_dtype, at + 1, second);
}

// A mapped row that has a cell of the canvas, and how many points are stored in it.
struct Pillar {
  int64_t row, cell, stored;
};

// A warp writes 64 channels of one pillar. Every lane goes over all points; lane l also sums the
// coordinate l % 3 of all points in slot order, for the mean.
template <class T, class Real, int kColumns, bool kTrain>
__device__ __forceinline__ void encode_row(const PillarEncodeArgs& args, const PillarLists& lists,
                                           const LaneChannels<T, Real, kColumns>& channels,
                                           const FrameWeights<Real>* weights, const Pillar& pillar,
                                           Staged<Real, kColumns>& staged) {
  const PillarMap& map = args.map;
  const int64_t n = pillar.stored, begin = lists.begin(pillar.row);
  const int axis = threadIdx.x % 32 % 3;
  PillarFrame<Real> frame;
  frame.place(map, pillar.row);
  CascadeSum<Real> sum;
  constexpr Real kLowest = -static_cast<Real>(INFINITY);
  Real best[2] = {kLowest, kLowest};
  int32_t winner[2] = {0, 0};
  for (int64_t slot = 0; slot < n; slot += 32) {
    stage<T>(args, lists, frame, begin, slot, n, staged);
    const int here = n - slot < 32 ? static_cast<int>(n - slot) : 32;
    Real part = 0;
#pragma unroll 2
    for (int s = 0; s < here; ++s) {
      part += staged.at[s][axis];
#pragma unroll
      for (int k = 0; k < 2; ++k) {
        const Real y = channels.product(args, staged, s, k);
        const bool better = beats(y, best[k]);
        best[k] = better ? y : best[k];
        if (kTrain) winner[k] = better ? static_cast<int32_t>(slot) + s : winner[k];
      }
    }
    sum.add_part(part, here == 32);
  }
  const Real mean = n > 0 ? sum.total() / static_cast<Real>(n) : Real(0);
#pragma unroll
  for (int a = 0; a < 3; ++a) frame.mean[a] = __shfl_sync(kFullWarp, mean, a);
  if (kTrain && channels.first < 3) {  // x and y, then z
    Real* to = static_cast<Real*>(args.mean) + 3 * pillar.row;
    to[channels.first] = quiet(channels.first == 0 ? frame.mean[0] : frame.mean[2]);
    if (channels.first == 0) to[1] = quiet(frame.mean[1]);
  }
  Real value[2];
#pragma unroll
  for (int k = 0; k < 2; ++k) {
    const FrameWeights<Real>& w = weights[2 * (threadIdx.x % 32) + k];
    const Real term = frame_term(frame, w.p, w.m, w.bias);
    const PillarOutput<Real> out =
        finish_channel(best[k], winner[k], term, w.bias, n, map.has_padding(n));
    value[k] = out.value;
    if (kTrain && channels.first + k < args.outputs) {
      args.arg[pillar.row * args.outputs + channels.first + k] =
          out.arg < 0 ? out.arg : static_cast<int32_t>(lists.at(map, begin, out.arg));
    }
  }
  if (channels.first < args.outputs) {
    store_pair(args, pillar.cell * args.outputs + channels.first, channels.first + 1 < args.outputs,
               value[0], value[1]);
  }
}

// A row that no cell of the canvas takes its values from: no point wins any channel.
template <class Real>
__device__ __forceinline__ void skip_row(const PillarEncodeArgs& args, int64_t row,
                                         int64_t first_channel) {
  const int lane = threadIdx.x % 32;
  for (int64_t c = first_channel + lane; c < first_channel + kChannels && c < args.outputs;
       c += 32) {
    args.arg[row * args.outputs + c] = kNobodyWon;
  }
  if (first_channel == 0 && lane < 3) static_cast<Real*>(args.mean)[3 * row + lane] = Real(0);
}

// A warp encodes the rows warp, warp + warps, ... Its lanes look at 32 of them at once, since many
// may be unused.
template <class T, class Real, int kColumns, bool kTrain>
__device__ __forceinline__ void encode_rows(const PillarEncodeArgs& args, const PillarLists& lists,
                                            const uint32_t* table,
                                            const LaneChannels<T, Real, kColumns>& channels,
                                            const FrameWeights<Real>* weights,
                                            int64_t first_channel, int64_t warp, int64_t warps,
                                            Staged<Real, kColumns>& staged) {
  const int64_t rows = args.map.rows.rows;
  const int lane = threadIdx.x % 32;
  for (int64_t base = warp; base < rows; base += 32 * warps) {
    const int64_t row = base + lane * warps;
    int64_t cell = row < rows ? args.map.rows.cell(row) : -1;
    const int64_t stored = cell >= 0 ? args.map.stored(row) : 0;
    if (cell >= 0 && table[cell] != static_cast<uint32_t>(row)) cell = -1;
    unsigned on_canvas = __ballot_sync(kFullWarp, cell >= 0);
    for (int k = 0; kTrain && k < 32 && base + k * warps < rows; ++k) {
      if (!(on_canvas >> k & 1)) skip_row<Real>(args, base + k * warps, first_channel);
    }
    for (; on_canvas != 0; on_canvas &= on_canvas - 1) {
      const int k = __ffs(static_cast<int>(on_canvas)) - 1;
      const Pillar pillar = {base + k * warps, __shfl_sync(kFullWarp, cell, k),
                             __shfl_sync(kFullWarp, stored, k)};
      encode_row<T, Real, kColumns, kTrain>(args, lists, channels, weights, pillar, staged);
    }
  }
}

// The first `row_blocks` blocks encode pillars, one warp per pillar, reading its list of points and
// writing its row of the canvas (kTrain: also winners and means). Then they join the other blocks,
// which write zeros to the cells without a pillar from the start.
template <class T, class Real, int kColumns, bool kTrain>
__global__ void __launch_bounds__(kThreads)
    encode_kernel(PillarEncodeArgs args, PillarLists lists, CanvasZeros zeros, uint32_t* next_cells,
                  unsigned row_blocks) {
  __shared__ Staged<Real, kColumns> staged[kWarps];
  __shared__ FrameWeights<Real> weights[kChannels];
  LaneChannels<T, Real, kColumns> channels;
  if (blockIdx.x < row_blocks) channels.load(args, 0, weights);
  wait_for_previous();
  for (int64_t begin = 0; begin < args.outputs && blockIdx.x < row_blocks; begin += kChannels) {
    __syncthreads();
    if (begin > 0) {
      channels.load(args, begin, weights);
      __syncthreads();
    }
    encode_rows<T, Real, kColumns, kTrain>(args, lists, zeros.table, channels, weights, begin,
                                           global_thread() / 32, row_blocks * kWarps,
                                           staged[threadIdx.x / 32]);
  }
  share_zeros(zeros, next_cells);
}

constexpr int kGradientThreads = 128;
constexpr int kAhead = 4;  // rows read at once, so that their reads overlap

// One warp per 32 rows and 32 channels, one lane per channel: sums d times the decorated winning
// point over the rows, one after another, and writes the partial sums [groups, outputs, columns +
// 1]. One register holds the sum of each column and of the bias. kColumns = 0: any number of
// columns, one per pass over the rows.
template <class T, class Real, int kColumns>
__global__ void __launch_bounds__(kGradientThreads)
    gradient_kernel(PillarEncodeBackwardArgs args, double* sums) {
  constexpr int kSums = kColumns > 0 ? kColumns + 7 : 1;
  const int64_t columns = args.map.decorated();
  const int64_t chunks = ceil_div<int64_t>(args.outputs, 32);
  const int64_t groups = ceil_div<int64_t>(args.map.rows.rows, kTreeWidth);
  for (int64_t warp = global_thread() / 32; warp < groups * chunks; warp += global_stride() / 32) {
    const int64_t group = warp / chunks, channel = 32 * (warp % chunks) + threadIdx.x % 32;
    if (channel >= args.outputs) continue;
    const int64_t first = group * kTreeWidth;
    const int64_t end =
        first + kTreeWidth < args.map.rows.rows ? first + kTreeWidth : args.map.rows.rows;
    for (int64_t pass = 0; pass < (kColumns > 0 ? 1 : columns + 1); ++pass) {
      double sum[kSums] = {};
      for (int64_t row = first; row < end; row += kAhead) {
        RowGradient<T, Real, kColumns> share[kAhead];
#pragma unroll
        for (int k = 0; k < kAhead; ++k) share[k].find(args, row + k, end, channel);
#pragma unroll
        for (int k = 0; k < kAhead; ++k) share[k].read(args, row + k, channel);
#pragma unroll
        for (int k = 0; k < kAhead; ++k) share[k].add(args, pass, sum);
      }
      double* to = sums + group * args.outputs * (columns + 1) + channel * (columns + 1);
      if constexpr (kColumns > 0) {
#pragma unroll
        for (int c = 0; c < kColumns + 6; ++c) {
          if (c < columns) to[c] = sum[c];
        }
        to[columns] = sum[kColumns + 6];
      } else {
        to[pass] = sum[0];
      }
    }
  }
}

// One thread per value of the gradients: adds up the last level of the tree, `sums` [rows, values],
// and stores the total.
__global__ void __launch_bounds__(kGradientThreads)
    finish_kernel(PillarEncodeBackwardArgs args, const double* sums, int64_t rows) {
  wait_for_previous();
  const int64_t width = args.map.decorated() + 1;
  for (int64_t i = global_thread(); i < args.outputs * width; i += global_stride()) {
    store_gradient(args, i, tree_total(sums, rows, args.outputs * width, i));
  }
}

TreeLevels tree_of(const PillarEncodeBackwardArgs& args, Workspace& workspace) {
  return TreeLevels(ceil_div<int64_t>(args.map.rows.rows, kTreeWidth),
                    args.outputs * (args.map.decorated() + 1), workspace);
}

}  // namespace

int64_t workspace_bytes_cuda(const PillarEncodeArgs& args, const Target&) {
  return carved_bytes<EncodeWork>(args);
}

cudaError_t launch(const PillarEncodeArgs& args, void* memory, const CudaContext& context) {
  const auto work = carve<EncodeWork>(memory, args);
  const PillarMap& map = args.map;
  if (work.cells == 0 && map.rows.rows == 0) return cudaSuccess;
  const PillarLists& lists = work.list_work.lists;
  TORCHVOX_CUDA_CHECK(work.list_work.begin(map, context));
  TORCHVOX_CUDA_CHECK(launch_enter_points(map, lists, work.table, work.cells + 1, context));
  TORCHVOX_CUDA_CHECK(launch_enter_rows(map.rows, work.table, context));
  const CanvasZeros zeros(args.canvas, work.table, work.cells, args.outputs, args.out_dtype);
  const unsigned row_blocks =
      blocks_for(32 * map.rows.rows, kThreads, context.target, kResident - 1);
  const unsigned zero_blocks = blocks_for(ceil_div(work.cells, kCellsAtOnce), 1, context.target, 1);
  return with_pillar_columns(map, args.wide(), [&](auto type, auto real, auto columns) {
    using T = decltype(type);
    using Real = decltype(real);
    const auto kernel = args.arg != nullptr ? encode_kernel<T, Real, columns(), true>
                                            : encode_kernel<T, Real, columns(), false>;
    return launch_after(kernel, row_blocks + zero_blocks, kThreads, context, args, lists, zeros,
                        work.table + work.cells, row_blocks);
  });
}

int64_t workspace_bytes_cuda(const PillarEncodeBackwardArgs& args, const Target&) {
  Workspace workspace;
  tree_of(args, workspace);
  return workspace.bytes();
}

cudaError_t launch(const PillarEncodeBackwardArgs& args, void* memory, const CudaContext& context) {
  Workspace workspace(memory);
  const TreeLevels tree = tree_of(args, workspace);
  const int64_t warps =
      ceil_div<int64_t>(args.map.rows.rows, kTreeWidth) * ceil_div<int64_t>(args.outputs, 32);
  TORCHVOX_CUDA_CHECK(
      with_pillar_columns(args.map, args.wide, [&](auto type, auto real, auto columns) {
        return launch_items(gradient_kernel<decltype(type), decltype(real), columns()>, 32 * warps,
                            kGradientThreads, context, args, tree.first());
      }));
  TORCHVOX_CUDA_CHECK(tree.launch(context));
  const int64_t values = args.outputs * (args.map.decorated() + 1);
  return launch_items_after(finish_kernel, values, kGradientThreads, context, args, tree.last(),
                            tree.last_rows());
}

}  // namespace torchvox
