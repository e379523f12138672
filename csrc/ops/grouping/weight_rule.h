// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "csrc/kernels/grouping/interpolate.h"
#include "csrc/ops/core/op.h"

namespace torchvox {

inline WeightRule parse_weight_rule(const char* op, std::string_view weight, double eps) {
  const bool squared = parse_word(op, "weight", weight, "dist", "dist2");
  // Three weights of coincident points must have a finite sum in float32.
  check_value(std::isfinite(eps) && static_cast<float>(eps) >= 1e-38f, op,
              "eps must be finite and positive in float32, at least 1e-38", eps);
  return {squared, eps};
}

}  // namespace torchvox
