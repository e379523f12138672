// SPDX-License-Identifier: Apache-2.0
//
// What the ops over segments share: the names of reductions.
#pragma once

#include "csrc/kernels/grouping/segment_reduce.h"
#include "csrc/ops/core/op.h"

namespace torchvox {

inline Reduction parse_reduction(const char* op, std::string_view name) {
  return parse_choice<Reduction>(op, "reduce", name,
                                 {{"mean", Reduction::kMean},
                                  {"sum", Reduction::kSum},
                                  {"max", Reduction::kMax},
                                  {"min", Reduction::kMin}});
}

// The rows that gave the values of a maximum or minimum, else [0].
inline Tensor output_arg(SegmentReduceArgs& args, Reduction reduce, c10::SymIntArrayRef shape,
                         const Tensor& like) {
  if (!is_extreme(reduce)) return empty_beside({0}, at::kInt, like);
  return output(args.arg, shape, like);
}

// Rows that arg names in int32, and entries, for which the kernels take one more.
inline constexpr int64_t kMostEntries = (int64_t{1} << 31) - 1;

}  // namespace torchvox
