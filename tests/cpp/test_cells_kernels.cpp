// SPDX-License-Identifier: Apache-2.0
//
// serialize without torch: a curve through a whole cube, and orders against a stable sort; every
// kernel on every side against one thread.
#include <algorithm>
#include <numeric>

#include "csrc/kernels/cells/serialize.h"
#include "tests/cpp/kernel_test.h"

using namespace torchvox;
using namespace torchvox::testing;

namespace {

Outputs serialize(const std::vector<int64_t>& cells, int depth, std::vector<Curve> curves,
                  const std::vector<int64_t>& batch, bool wide) {
  return on_every_side([&](Side& side) {
    SerializeArgs args;
    args.wide = wide;
    args.cells.data = side.put(cells, wide).data;
    args.cells.packed = true;
    args.cells.rows = static_cast<int64_t>(cells.size()) / 3;
    args.cells.row_stride = 3;
    if (!batch.empty()) args.batch_index = side.put(batch, true);
    std::copy(curves.begin(), curves.end(), args.curves);
    args.num_curves = static_cast<int>(curves.size());
    args.frame.bits = depth;
    args.code_bits = batch.empty() ? 3 * depth : kMostKeyBits;
    const int64_t elements = args.num_curves * args.cells.rows;
    args.codes = side.room<int64_t>("codes", elements);
    args.order = side.room<int64_t>("order", elements);
    args.inverse = side.room<int64_t>("inverse", elements);
    side.run(args);
  });
}

TEST_CASE("neighbors on a Hilbert curve share a face") {
  constexpr int64_t kSide = 8, kCount = kSide * kSide * kSide;
  std::vector<int64_t> cells;
  for (int64_t i = 0; i < kCount; ++i) {
    cells.insert(cells.end(), {i % kSide, i / kSide % kSide, i / kSide / kSide});
  }
  const Outputs outputs = serialize(cells, 3, {{true, false}}, {}, false);
  const auto order = outputs.get<int64_t>("order");
  int64_t far = 0;
  for (int64_t k = 1; k < kCount; ++k) {
    int64_t step = 0;
    for (int axis = 0; axis < 3; ++axis) {
      step += std::abs(cells[3 * order[k] + axis] - cells[3 * order[k - 1] + axis]);
    }
    far += step != 1;
  }
  CHECK(far == 0);
}

TEST_CASE("orders are stable sorts of the codes") {
  Random random(1);
  for (const int64_t rows : {0, 1, 2, 4095, 4096, 4097, 70000}) {
    if (quick && rows > 5000) continue;
    for (const int depth : {1, 2, 5, 16, 21}) {
      for (const bool indexed : {false, true}) {
        std::vector<int64_t> cells, batch;
        for (int64_t i = 0; i < 3 * rows; ++i) {
          cells.push_back(random.below(200) == 0 ? -1 : random.below(1 << depth) >> (i % 3));
        }
        for (int64_t i = 0; indexed && i < rows; ++i) batch.push_back(random.below(5) - 1);
        const auto outputs =
            serialize(cells, depth, {{true, false}, {false, true}, {true, true}}, batch, indexed);
        const auto codes = outputs.get<int64_t>("codes"), order = outputs.get<int64_t>("order");
        const auto inverse = outputs.get<int64_t>("inverse");
        int64_t wrong = 0;
        for (int64_t list = 0; list < 3; ++list) {
          std::vector<int64_t> want(rows);
          std::iota(want.begin(), want.end(), 0);
          std::stable_sort(want.begin(), want.end(), [&](int64_t a, int64_t b) {
            return static_cast<uint64_t>(codes[list * rows + a]) <
                static_cast<uint64_t>(codes[list * rows + b]);
          });
          for (int64_t place = 0; place < rows; ++place) {
            wrong += order[list * rows + place] != want[place];
            wrong += inverse[list * rows + want[place]] != place;
          }
        }
        CAPTURE(rows);
        CAPTURE(depth);
        CHECK(wrong == 0);
      }
    }
  }
}

}  // namespace
