// SPDX-License-Identifier: Apache-2.0
//
// The box coder of anchor heads, checked.
#pragma once

#include "csrc/kernels/detection/box_decode.h"
#include "csrc/ops/core/op.h"

namespace torchvox {

inline bool is_delta_count(int64_t values) { return values >= 7 && values <= kMostDeltas; }

inline void set_direction(const char* op, double offset, double limit, bool flip, BoxCoder& coder) {
  coder.dir_offset = static_cast<float>(offset);
  coder.dir_limit = static_cast<float>(limit);
  check_value(std::isfinite(coder.dir_offset), op, "dir_offset must be finite in float32", offset);
  check_value(std::isfinite(coder.dir_limit), op, "dir_limit must be finite in float32", limit);
  coder.dir_flip = flip;
  if (coder.bins > 0) coder.period = static_cast<float>(6.283185307179586 / coder.bins);
}

}  // namespace torchvox
