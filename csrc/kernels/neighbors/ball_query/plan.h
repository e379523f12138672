// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "csrc/kernels/neighbors/ball_query/grid.h"

namespace torchvox {

// How a call runs, from sizes and radii that the host knows. No plan changes a result.
enum class BallPlan {
  kScan,  // all points of the cloud in index order, up to the k-th hit
  kCells,  // the points of the cells around the query, the lowest indices of them sorted
  kGeneric  // any number of axes, and doubles: as kScan, without tiles
};

BallPlan make_ball_plan(const BallQueryArgs& args, const Target& target);

}  // namespace torchvox
