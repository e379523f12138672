// SPDX-License-Identifier: Apache-2.0
//
// The first and last step of unique_cells on the CPU: tasks of rows.
#include "csrc/kernels/cells/unique_cells.h"

namespace torchvox {
namespace {

constexpr int64_t kRowsPerTask = 8192;

}  // namespace

void run_cpu(const CellKeysArgs& args, void*, const ParallelFor& parallel_for) {
  for_each_index(parallel_for, args.cells.rows, kRowsPerTask,
                 [&](int64_t row) { write_cell_key(args, row); });
}

void run_cpu(const CellRowsArgs& args, void*, const ParallelFor& parallel_for) {
  for_each_index(parallel_for, args.cells.rows, kRowsPerTask,
                 [&](int64_t row) { write_cell_row(args, row); });
}

}  // namespace torchvox
