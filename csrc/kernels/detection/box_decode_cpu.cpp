// SPDX-License-Identifier: Apache-2.0
//
// box_decode on the CPU, in tasks of rows.
#include "csrc/kernels/detection/box_decode.h"

namespace torchvox {

void run_cpu(const BoxDecodeArgs& args, void*, const ParallelFor& parallel_for) {
  constexpr int64_t kRowsPerTask = 1024;
  for_each_index(parallel_for, args.rows, kRowsPerTask, [&](int64_t row) {
    switch (args.dtype) {
      case DType::kHalf: return decode_row<Half>(args, row);
      case DType::kBFloat16: return decode_row<BFloat16>(args, row);
      default: return decode_row<float>(args, row);
    }
  });
}

}  // namespace torchvox
