// SPDX-License-Identifier: Apache-2.0
//
// Shared by the CUDA files of ball_query: launchers, the workspace of the cells, and the hits of a
// warp as bits.
#pragma once

#include "csrc/kernels/core/launch.cuh"
#include "csrc/kernels/core/warp.cuh"
#include "csrc/kernels/neighbors/ball_query/ball_query.h"

namespace torchvox {

struct CellsWork;

cudaError_t launch_ball_scan(const BallQueryArgs& args, const CudaContext& context);
cudaError_t launch_ball_generic(const BallQueryArgs& args, const CudaContext& context);
cudaError_t make_ball_cells(const BallQueryArgs& args, const CellsWork& work,
                            const CudaContext& context);
// Runs the query by the plan of the call; `cells` is needed, and already made, if that is kCells.
cudaError_t launch_ball_queries(const BallQueryArgs& args, const CellsWork* cells,
                                const CudaContext& context);

// Points are binned into cells of the size of the ball, so that a query reads a few runs of them.
// The place of a point in its bucket, and where a chunk of buckets begins, may differ from run to
// run; the hits of a query are sorted by index, so results do not.

inline constexpr int kBucketBits = 11;  // log2 of the buckets whose begins one block computes
inline constexpr int kBuckets = 1 << kBucketBits;

struct CellsWork {
  BallGrid grid;
  uint32_t* cursor;  // places reserved so far; cleared before, as is count
  uint32_t* count;  // [buckets]
  uint32_t* begin;  // [buckets + chunks]: begin of every bucket, and the end of every chunk
  uint32_t* rank;  // [points]: within the bucket
  float4* in_order;  // [points] by row: coordinates in summation order and bucket; NaN if invalid
  float4* point;  // [points] by place: coordinates in summation order, and the row
  float4* box;  // [points / 32, 2]: lowest and highest of 32 points in index order
  int64_t cleared;  // bytes from cursor on

  CellsWork(const BallQueryArgs& args, Workspace& workspace) {
    constexpr int kMostTableBits = 24;
    grid = BallGrid::of(args, kBucketBits, kMostTableBits);
    const int64_t buckets = int64_t{1} << grid.bits;
    const int64_t before = workspace.bytes();
    cursor = workspace.take<uint32_t>(1);
    count = workspace.take<uint32_t>(buckets);
    cleared = workspace.bytes() - before;
    begin = workspace.take<uint32_t>(buckets + (buckets >> kBucketBits));
    rank = workspace.take<uint32_t>(args.points.total_rows());
    in_order = workspace.take<float4>(args.points.total_rows());
    point = workspace.take<float4>(args.points.total_rows());
    box = workspace.take<float4>(2 * ceil_div<int64_t>(args.points.total_rows(), 32));
  }
  // The place in `begin` of the begin of a bucket; the next word is its end.
  static __device__ uint32_t slot(uint32_t bucket) { return bucket + (bucket >> kBucketBits); }
};

// Hits of a warp as bits: of 1024 points in index order, bit i of the word of lane s is point 32 s
// + i. So testing points needs no branches, and rows are written by slot, coalesced.

// The position of set bit n of a word, counted from 0.
__device__ __forceinline__ int nth_bit(unsigned word, int n) {
  int at = 0;
#pragma unroll
  for (int half = 16; half > 0; half /= 2) {
    const int below = __popc(word & ((1u << half) - 1));
    const bool above = n >= below;
    n -= above ? below : 0;
    word >>= above ? half : 0;
    at += above ? half : 0;
  }
  return at;
}

// One ball of a query while its cloud is tested in index order.
struct BallRow {
  int hits;
  int first;  // -1 without a hit

  // Writes the hits among 1024 points, the first of which is point `base` of the cloud; point(i)
  // returns point i of them.
  template <class Points>
  __device__ __forceinline__ void write(const BallQueryArgs& args, const BallCloud& cloud,
                                        const Point3& q, int64_t row, int r, int lane,
                                        unsigned word, int64_t base, const Points& point) {
    const int mine = __popc(word), inclusive = warp_inclusive(mine);
    const int all = __shfl_sync(kFullWarp, inclusive, 31);
    const int kept = min(static_cast<int>(args.most_hits(row, r)) - hits, all);
    if (kept <= 0) return;
    for (int begin = 0; begin < kept && args.idx != nullptr; begin += 32) {
      const int j = begin + lane;
      int owner = 0;  // the lane whose word has hit j
#pragma unroll
      for (int step = 16; step > 0; step /= 2) {
        if (__shfl_sync(kFullWarp, inclusive, owner + step - 1) <= j) owner += step;
      }
      const int before = __shfl_sync(kFullWarp, inclusive - mine, owner);
      const unsigned owner_word = __shfl_sync(kFullWarp, word, owner);
      const int i = 32 * owner + nth_bit(owner_word, j - before);
      if (j < kept) {
        const Point3 p = point(i);
        const float d = dist2(p.a - q.a, p.b - q.b, p.c - q.c);
        write_hit(args, cloud, row, r, hits + j, base + i, d);
      }
      if (first < 0) first = static_cast<int>(base + __shfl_sync(kFullWarp, i, 0));
    }
    hits += kept;
  }

  __device__ __forceinline__ void finish(const BallQueryArgs& args, const BallCloud& cloud,
                                         int64_t row, int r, int lane) const {
    write_fill<float>(args, row, r, hits + lane, 32, fill_index(args, cloud, first));
    if (lane == 0) args.count[row * args.counts + r] = hits;
  }
};

}  // namespace torchvox
