// SPDX-License-Identifier: Apache-2.0
//
// box_query on the CPU: one task per box reads its bits and counts in the output.
#include <algorithm>

#include "csrc/kernels/boxes/box_query.h"

namespace torchvox {
namespace {

template <class T>
void walk_box(const BoxQueryArgs& args, const void* bits, int64_t row) {
  const BoxWalk walk(args, bits, row);
  std::fill(walk.count, walk.count + args.cells(), 0);
  if (walk.words > 0) {
    const CellBox<T> box(args, args.inside.boxes.row<T>(walk.batch, row % args.inside.boxes.rows));
    for (int64_t w = 0; w < walk.words; ++w) {
      for (uint32_t left = walk.bits[w]; left != 0; left &= left - 1) {
        const int64_t i = w * 32 + __builtin_ctz(left);
        const int64_t cell = box.cell(args.inside.points.row<T>(walk.batch, i));
        const int64_t slot = walk.count[cell]++;
        if (slot < args.slots) walk.index[cell * args.slots + slot] = static_cast<int32_t>(i);
      }
    }
  }
  for (int64_t cell = 0; cell < args.cells(); ++cell) {
    int32_t* const slots = walk.index + cell * args.slots;
    std::fill(slots + std::min<int64_t>(walk.count[cell], args.slots), slots + args.slots, -1);
  }
}

}  // namespace

void run_cpu(const BoxQueryArgs& args, void* memory, const ParallelFor& parallel_for) {
  const PointsInBoxesArgs bits = bits_of(args, memory);
  run_cpu(bits, nullptr, parallel_for);
  with_compute_type(args.inside.dtype, [&](auto type) {
    for_each_index(parallel_for, args.rows(), 1,
                   [&](int64_t row) { walk_box<decltype(type)>(args, bits.out, row); });
  });
}

}  // namespace torchvox
