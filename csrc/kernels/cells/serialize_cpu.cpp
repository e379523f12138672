// SPDX-License-Identifier: Apache-2.0
//
// serialize on the CPU: codes in tasks of rows, then a radix sort for each curve.
#include "csrc/kernels/cells/serialize.h"
#include "csrc/kernels/spatial/radix_sort.h"

namespace torchvox {

int64_t workspace_bytes_cpu(const SerializeArgs& args) {
  return 2 * args.num_curves * args.cells.rows * static_cast<int64_t>(sizeof(KeyedIndex));
}

void run_cpu(const SerializeArgs& args, void* memory, const ParallelFor& parallel_for) {
  const int64_t rows = args.cells.rows;
  for_each_index(parallel_for, rows, 2048, [&](int64_t i) {
    const SerializeArgs::Row row = args.load(i);
    for (int k = 0; k < args.num_curves; ++k) {
      args.codes[k * rows + i] = args.code(row, args.curves[k]);
    }
  });
  for_each_index(parallel_for, args.num_curves, 1, [&](int64_t k) {
    KeyedIndex* const items = static_cast<KeyedIndex*>(memory) + 2 * k * rows;
    for (int64_t i = 0; i < rows; ++i) {
      items[i] = {static_cast<uint64_t>(args.codes[k * rows + i]), static_cast<uint32_t>(i)};
    }
    const KeyedIndex* const sorted = radix_sort(items, items + rows, rows, args.sort_bits());
    for (int64_t place = 0; place < rows; ++place) {
      args.order[k * rows + place] = sorted[place].index;
      args.inverse[k * rows + sorted[place].index] = place;
    }
  });
}

}  // namespace torchvox
