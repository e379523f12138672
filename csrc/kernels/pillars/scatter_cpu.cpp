// SPDX-License-Identifier: Apache-2.0
//
// pillar_scatter and its gradient on the CPU, in tasks of rows.
#include <cstring>

#include "csrc/kernels/pillars/scatter.h"

namespace torchvox {

constexpr int64_t kRowsPerTask = 256;

void run_cpu(const PillarScatterArgs& args, void* memory, const ParallelFor& parallel_for) {
  const auto cells = carve<HostCellRows>(memory, args.rows);
  cells.fill(args.rows);
  cells.write_zeros(args.canvas, args.rows, args.channels, args.dtype, parallel_for);
  const int64_t bytes = args.channels * bytes_of(args.dtype);
  for_each_index(parallel_for, args.rows.rows, kRowsPerTask, [&](int64_t row) {
    const int64_t cell = cells.cell_of(args.rows, row);
    if (cell < 0 || bytes == 0) return;
    std::memcpy(static_cast<char*>(args.canvas) + cell * bytes,
                static_cast<const char*>(args.feats) + row * bytes, bytes);
  });
}

void run_cpu(const PillarScatterBackwardArgs& args, void* memory, const ParallelFor& parallel_for) {
  const auto cells = carve<HostCellRows>(memory, args.rows);
  cells.fill(args.rows);
  const int64_t size = bytes_of(args.dtype);
  for_each_index(parallel_for, args.rows.rows, kRowsPerTask, [&](int64_t row) {
    const int64_t cell = cells.cell_of(args.rows, row);
    char* to = static_cast<char*>(args.grad_feats) + row * args.channels * size;
    if (cell < 0) {
      std::memset(to, 0, args.channels * size);
      return;
    }
    const int64_t from = args.rows.strided(cell, 0, args.grad_strides);
    for (int64_t c = 0; c < args.channels; ++c) {
      const int64_t at = from + c * args.grad_strides[1];
      std::memcpy(to + c * size, static_cast<const char*>(args.grad) + at * size, size);
    }
  });
}

}  // namespace torchvox
