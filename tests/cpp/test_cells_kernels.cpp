// SPDX-License-Identifier: Apache-2.0
//
// serialize without torch: a curve through a whole cube, and orders against a stable sort. The ends
// of unique_cells: keys and rows against loops. Every kernel on every side against one thread.
#include <algorithm>
#include <numeric>

#include "csrc/kernels/cells/serialize.h"
#include "csrc/kernels/cells/unique_cells.h"
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

TEST_CASE("columns stand in keys, and rows of groups in cells") {
  Random random(2);
  constexpr int64_t kRows = 3000;
  constexpr int kColumns = 3, kBits = 10;
  std::vector<int64_t> cells, ranks;
  std::vector<int32_t> perm, offsets = {0};
  for (int64_t i = 0; i < kRows * kColumns; ++i) cells.push_back(random.below(1030) - 1);
  for (int64_t i = 0; i < kRows; ++i) {
    ranks.push_back(random.below(2000));
    perm.push_back(static_cast<int32_t>(kRows - 1 - i));
    offsets.push_back(std::min<int32_t>(offsets.back() + random.below(3), kRows));
  }
  for (const bool wide : {false, true}) {
    const Outputs outputs = on_every_side([&](Side& side) {
      CellMatrix matrix;
      matrix.data = side.put(cells, wide);
      matrix.rows = kRows;
      matrix.row_stride = kColumns;
      matrix.column_stride = 1;
      matrix.columns = kColumns;
      CellKeysArgs keys;
      keys.cells = matrix;
      keys.bits = kBits;
      keys.first = 1;
      keys.last = 3;
      keys.before = keys.behind = static_cast<const int32_t*>(side.put(ranks, false).data);
      keys.behind = wide ? keys.behind : nullptr;
      keys.keys = side.room<int64_t>("keys", kRows);
      side.run(keys);
      CellRowsArgs rows;
      rows.cells = matrix;
      rows.offsets = side.put(offsets);
      rows.perm = side.put(perm);
      rows.num_points = side.room<int32_t>("num_points", kRows);
      rows.indices = wide ? static_cast<void*>(side.room<int64_t>("indices", kRows * kColumns))
                          : side.room<int32_t>("indices", kRows * kColumns);
      side.run(rows);
    });
    const auto keys = outputs.get<int64_t>("keys");
    const auto counts = outputs.get<int32_t>("num_points");
    const auto narrow = wide ? std::vector<int32_t>() : outputs.get<int32_t>("indices");
    const auto indices =
        wide ? outputs.get<int64_t>("indices") : std::vector<int64_t>(narrow.begin(), narrow.end());
    int64_t wrong = 0;
    for (int64_t i = 0; i < kRows; ++i) {
      const int64_t* const cell = &cells[i * kColumns];
      const bool kept = std::all_of(cell, cell + 3, [](int64_t c) { return c >= 0 && c < 1024; });
      int64_t key = (ranks[i] * 1024 + cell[1]) * 1024 + cell[2];
      if (wide) key = (key << kRankBits) + ranks[i];
      wrong += keys[i] != (kept ? key : -1);
      const int32_t count = offsets[i + 1] - offsets[i];
      wrong += counts[i] != count;
      for (int c = 0; c < kColumns; ++c) {
        const int64_t want = count > 0 ? cells[perm[offsets[i]] * kColumns + c] : -1;
        wrong += indices[i * kColumns + c] != want;
      }
    }
    CHECK(wrong == 0);
  }
}

}  // namespace
