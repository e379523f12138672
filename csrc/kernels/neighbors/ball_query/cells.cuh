// SPDX-License-Identifier: Apache-2.0
//
// Points are dealt out to cells of the size of the ball, so that a query looks at a few runs of
// them. Which place a point takes within its bucket, and where a chunk of buckets begins, changes
// from run to run; the hits of a query are sorted by index, so no result shows it.
#pragma once

#include "csrc/kernels/core/workspace.h"
#include "csrc/kernels/neighbors/ball_query/kernels.cuh"

namespace torchvox {

inline constexpr int kBucketBits = 11;  // buckets that one block gives places to
inline constexpr int kBuckets = 1 << kBucketBits;

struct CellsWork {
  BallGrid grid;
  uint32_t* cursor;  // places given out; cleared, as count
  uint32_t* count;  // [buckets]
  uint32_t* begin;  // [buckets + chunks]: of every bucket, and of the end of every chunk
  uint32_t* rank;  // [points]: within the bucket
  float4* in_order;  // [points], NaN where there is none: in summation order, and its bucket
  float4* point;  // [points] by place: in summation order, and the row among all points
  float4* box;  // [points / 32, 2]: lowest and highest of 32 points in index order
  int64_t cleared;  // bytes from cursor on

  static CellsWork carve(const BallQueryArgs& args, Workspace& workspace) {
    CellsWork work;
    constexpr int kMostTableBits = 24;
    work.grid = BallGrid::of(args, kBucketBits, kMostTableBits);
    const int64_t buckets = int64_t{1} << work.grid.bits;
    const int64_t before = workspace.bytes();
    work.cursor = workspace.take<uint32_t>(1);
    work.count = workspace.take<uint32_t>(buckets);
    work.cleared = workspace.bytes() - before;
    work.begin = workspace.take<uint32_t>(buckets + (buckets >> kBucketBits));
    work.rank = workspace.take<uint32_t>(args.total_points());
    work.in_order = workspace.take<float4>(args.total_points());
    work.point = workspace.take<float4>(args.total_points());
    work.box = workspace.take<float4>(2 * ceil_div<int64_t>(args.total_points(), 32));
    return work;
  }
  // Where `begin` holds the begin of a bucket; the next word is its end.
  static __device__ uint32_t slot(uint32_t bucket) { return bucket + (bucket >> kBucketBits); }
};

cudaError_t launch_cells_queries(const BallQueryArgs& args, const CellsWork& work,
                                 const CudaContext& context);

}  // namespace torchvox
