// SPDX-License-Identifier: Apache-2.0
//
// How anchor heads code a box, checked.
#pragma once

#include <cmath>

#include "csrc/kernels/detection/box_coder.h"
#include "csrc/ops/core/checks.h"

namespace torchvox {

inline bool is_code(int64_t values) { return values >= 7 && values <= kMostCode; }

inline void set_direction(const char* op, double offset, double limit, bool flip, BoxCode& code) {
  code.dir_offset = static_cast<float>(offset);
  code.dir_limit = static_cast<float>(limit);
  check_value(std::isfinite(code.dir_offset), op, "dir_offset must be finite in float32", offset);
  check_value(std::isfinite(code.dir_limit), op, "dir_limit must be finite in float32", limit);
  code.dir_flip = flip;
  if (code.bins > 0) code.period = static_cast<float>(6.283185307179586 / code.bins);
}

}  // namespace torchvox
