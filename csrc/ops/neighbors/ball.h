// SPDX-License-Identifier: Apache-2.0
//
// The options of a ball as ops take them.
#pragma once

#include "csrc/kernels/neighbors/ball_query/ball_query.h"
#include "csrc/ops/core/op.h"

namespace torchvox {

struct BallOptions {
  double radius;
  const std::optional<double>& radius2;
  double min_radius, core_dist2;
  bool closed;
};

// Checks them and sets the first ball, its k aside.
inline void set_ball(const char* op, BallQueryArgs& args, const Tensor& points,
                     const BallOptions& ball) {
  check_value(ball.radius >= 0, op, "radius must be >= 0", ball.radius);
  check_value(!ball.radius2 || *ball.radius2 >= 0, op, "radius2 must be >= 0",
              ball.radius2.value_or(0));
  check_value(ball.min_radius >= 0, op, "min_radius must be >= 0", ball.min_radius);
  check_value(!std::isnan(ball.core_dist2), op, "core_dist2 must be a number", ball.core_dist2);
  const DType dtype = dtype_of(points.scalar_type());
  args.core = dtype == DType::kDouble ? ball.core_dist2 : static_cast<float>(ball.core_dist2);
  args.radius[0] = ball_radius(dtype, ball.radius, ball.radius2 ? &*ball.radius2 : nullptr,
                               ball.min_radius, ball.core_dist2, ball.closed);
}

}  // namespace torchvox
