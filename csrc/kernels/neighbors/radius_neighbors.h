// SPDX-License-Identifier: Apache-2.0
//
// Entry of radius_neighbors: all points of one ball around every query, row after row. The kernels
// of ball_query count the hits of each query; a prefix sum turns counts into offsets; the same
// kernels write the hits that fit.
#pragma once

#include "csrc/kernels/neighbors/ball_query/ball_query.h"

namespace torchvox {

struct RadiusNeighborsArgs {
  BallQueryArgs ball;  // one radius; its outputs are set by the passes
  int64_t capacity = 0;
  int64_t* offsets = nullptr;  // [rows + 1], at most `capacity`
  int32_t* index = nullptr;  // [capacity]
  void* dist2 = nullptr;  // [capacity], as in ball_query; may be null
  int64_t* count = nullptr;  // [1]: hits of all rows, also beyond the capacity

  // The ball query that counts the hits of each row.
  BallQueryArgs counting(int32_t* hits) const {
    BallQueryArgs args = ball;
    args.local_index = false;
    args.pad = true;
    args.all = true;
    args.radius[0].k = 0x7fffffff;
    args.idx = nullptr;
    args.count = hits;
    return args;
  }
  // Changes that query into the one that writes them, after the offsets are known.
  void write_with(BallQueryArgs& args) const {
    args.row_offsets = offsets;
    args.idx = index;
    args.dist2 = dist2;
  }
};

TORCHVOX_KERNEL(RadiusNeighborsArgs);

// Fills one slot after the last row.
TORCHVOX_HD void write_no_neighbor(const RadiusNeighborsArgs& args, int64_t slot) {
  args.index[slot] = -1;
  if (args.dist2 == nullptr) return;
  if (args.ball.points.dtype == DType::kDouble) {
    static_cast<double*>(args.dist2)[slot] = 0;
  } else {
    static_cast<float*>(args.dist2)[slot] = 0;
  }
}

}  // namespace torchvox
