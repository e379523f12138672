// SPDX-License-Identifier: Apache-2.0
//
// box_decode on the CPU, in tasks of rows.
#include "csrc/kernels/detection/box_decode.h"

namespace torchvox {

void run_cpu(const BoxDecodeArgs& args, void*, const ParallelFor& parallel_for) {
  with_map_type(args.dtype, [&](auto type) {
    for_each_index(parallel_for, args.rows, 1024,
                   [&](int64_t row) { decode_row<decltype(type)>(args, row); });
  });
}

}  // namespace torchvox
