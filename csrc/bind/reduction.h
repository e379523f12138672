// SPDX-License-Identifier: Apache-2.0
//
// What the nodes over segments share: the names of reductions, and the outputs.
#pragma once

#include "csrc/bind/inputs.h"
#include "csrc/kernels/grouping/segment_reduce.h"

namespace torchvox::bind {

inline Reduction reduction(const char* op, const Attributes& attributes) {
  return choice<Reduction>(op, attributes, "reduce",
                           {{"mean", Reduction::kMean},
                            {"sum", Reduction::kSum},
                            {"max", Reduction::kMax},
                            {"min", Reduction::kMin}});
}

// out [R, C]; arg [R, C] for max and min, else [0].
inline std::vector<Output> reduction_outputs(const SegmentReduceArgs& args) {
  const Shape shape{args.segments, args.channels};
  return {{element_of(args.dtype), shape}, int32(is_extreme(args.reduce) ? shape : Shape{0})};
}

inline void run_reduction(SegmentReduceArgs args, std::span<void* const> out, const Host& host) {
  args.out = out[0];
  args.arg = is_extreme(args.reduce) ? static_cast<int32_t*>(out[1]) : nullptr;
  run(args, host);
}

}  // namespace torchvox::bind
