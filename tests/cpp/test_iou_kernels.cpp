// SPDX-License-Identifier: Apache-2.0
//
// Overlaps of boxes, their gradients and points in boxes, without torch: properties on the host,
// every side against one thread.
#include <numeric>

#include "csrc/kernels/boxes/box_query.h"
#include "csrc/kernels/boxes/rotated_iou.h"
#include "tests/cpp/kernel_test.h"

using namespace torchvox;
using namespace torchvox::testing;

namespace {

constexpr int kColumns = 8;  // one more than the rule reads

std::vector<double> make_boxes(int64_t count, Random& random) {
  std::vector<double> boxes;
  for (int64_t i = 0; i < count; ++i) {
    const double row[kColumns] = {random.uniform(-4, 4),
                                  random.uniform(-4, 4),
                                  random.uniform(-1, 1),
                                  random.uniform(0.5f, 5),
                                  random.uniform(0.3f, 2.5f),
                                  random.uniform(0.5f, 2),
                                  i % 3 ? random.uniform(-7, 7) : 0.5 * static_cast<double>(i % 7),
                                  1};
    boxes.insert(boxes.end(), row, row + kColumns);
    if (i % 11 == 10) boxes[i * kColumns + 3 + i % 4] = i % 2 ? 0.0 : -1.0;
    if (i % 13 == 12) boxes[i * kColumns + i % 7] = NAN;
    if (i % 5 == 4) {  // the box before, or one that it touches
      for (int c = 0; c < kColumns; ++c) boxes[i * kColumns + c] = boxes[(i - 1) * kColumns + c];
      if (i % 2) boxes[i * kColumns] += boxes[i * kColumns + 3];
    }
  }
  return boxes;
}

template <class T>
void check_iou(int64_t batches, int64_t rows, int64_t columns, bool is_paired, bool is_volume,
               Random& random, OverlapMetric metric = OverlapMetric::kIou) {
  INFO(batches, " x ", rows, " x ", columns);
  CAPTURE(is_paired);
  CAPTURE(is_volume);
  const int64_t values = batches * rows * (is_paired ? 1 : columns);
  const auto a = narrowed<T>(make_boxes(batches * rows, random)),
             b = narrowed<T>(make_boxes(batches * columns, random)),
             grad = narrowed<T>(random.uniforms(values));
  const Outputs got = on_every_side([&](Side& side) {
    RotatedIouArgs args;
    args.dtype = dtype_of<T>();
    args.batches = batches;
    args.is_paired = is_paired;
    args.is_volume = is_volume;
    args.metric = metric;
    args.a = {side.put(a), rows, kColumns, rows * kColumns};
    args.b = {side.put(b), columns, kColumns, columns * kColumns};
    args.iou = side.room<T>("iou", values);
    side.run(args);
    RotatedIouBackwardArgs backward;
    backward.forward = args;
    backward.grad = side.put(grad);
    backward.a_columns = backward.b_columns = kColumns;
    backward.grad_a = side.room<T>("grad_a", a.size());
    backward.grad_b = side.room<T>("grad_b", b.size());
    side.run(backward);
  });
  if (metric == OverlapMetric::kOverlap) return;
  bool in_range = true;
  for (const T iou : got.get<T>("iou")) in_range = in_range && iou >= 0 && iou <= 1;
  CHECK(in_range);
}

TEST_CASE_TEMPLATE("overlaps are in [0, 1]", T, float, double) {
  Random random(4);
  for (const bool is_volume : {false, true}) {
    for (const int64_t rows : {0, 1, 64, 65, 300}) {
      if (quick && rows != 65) continue;
      check_iou<T>(2, rows, 70, false, is_volume, random);
      check_iou<T>(1, rows, 3, false, is_volume, random);
      check_iou<T>(2, rows, rows, true, is_volume, random);
    }
    check_iou<T>(2, 5, 0, false, is_volume, random);
    for (const OverlapMetric metric : {OverlapMetric::kIof, OverlapMetric::kOverlap}) {
      check_iou<T>(2, 65, 40, false, is_volume, random, metric);
      check_iou<T>(2, 65, 65, true, is_volume, random, metric);
    }
  }
}

template <class T>
void check_inside(int64_t rows, int64_t columns, Random& random) {
  constexpr int64_t kBatches = 2;
  INFO(rows, " points, ", columns, " boxes");
  auto points = narrowed<T>(random.uniforms(kBatches * rows * 4, -4, 4));
  for (size_t i = 8; i < points.size(); i += 97) points[i] = kNan;
  const auto boxes = narrowed<T>(make_boxes(kBatches * columns, random));
  const auto found = [&](PointsInBoxesMode mode, bool has_lengths) {
    CAPTURE(mode);
    return on_every_side([&](Side& side) {
      PointsInBoxesArgs args;
      args.dtype = dtype_of<T>();
      args.batches = kBatches;
      args.points = {side.put(points), rows, 4, 4 * rows};
      args.boxes = {side.put(boxes), columns, kColumns, kColumns * columns};
      args.margin = columns % 2 ? 0.01 : 0;
      args.mode = mode;
      if (has_lengths) {
        args.lengths = side.put({rows / 2, 1 << 30}, false);
        args.box_lengths = side.put({1 << 30, columns / 3 - 1}, false);
      }
      if (mode == PointsInBoxesMode::kMask) {
        args.out = side.room<uint8_t>("out", kBatches * rows * columns);
      } else {
        const bool is_index = mode == PointsInBoxesMode::kIndex;
        args.out = side.room<int32_t>("out", kBatches * (is_index ? rows : columns));
      }
      side.run(args);
    });
  };
  for (const bool has_lengths : {false, true}) {
    CAPTURE(has_lengths);
    found(PointsInBoxesMode::kIndex, has_lengths);
    const auto mask = found(PointsInBoxesMode::kMask, has_lengths).template get<uint8_t>("out");
    const auto count = found(PointsInBoxesMode::kCount, has_lengths).template get<int32_t>("out");
    CHECK(std::accumulate(mask.begin(), mask.end(), 0) ==
          std::accumulate(count.begin(), count.end(), 0));
    bool beyond = false;  // of the first batch's points, of the second's boxes
    for (int64_t i = 0; has_lengths && i < rows * columns; ++i) {
      beyond = beyond || (i % rows >= rows / 2 && mask[i]) ||
          (i / rows >= columns / 3 - 1 && mask[rows * columns + i]);
    }
    CHECK_FALSE(beyond);
  }
}

TEST_CASE_TEMPLATE("counts of points in boxes are sums of masks", T, float, double) {
  Random random(5);
  for (const int64_t points : {0, 1, 255, 1024, 5000}) {
    for (const int64_t boxes : {0, 1, 50, 131}) {
      if (!quick || (points == 1024 && boxes != 131)) check_inside<T>(points, boxes, random);
    }
  }
}

// Slots rise by index; cells hold all points of their box, and the first ones of each.
template <class T>
void check_query(int64_t rows, int64_t columns, std::vector<int64_t> grid, int64_t slots,
                 Random& random) {
  INFO(rows, " points, ", columns, " boxes, grid of ", grid[0], " x ", grid[1], " x ", grid[2]);
  const auto points = narrowed<T>(random.uniforms(2 * rows * 3, -2, 2));
  const auto boxes = narrowed<T>(make_boxes(2 * columns, random));
  const int64_t cells = grid[0] * grid[1] * grid[2];
  const Outputs got = on_every_side([&](Side& side) {
    BoxQueryArgs args;
    args.inside.dtype = dtype_of<T>();
    args.inside.batches = 2;
    args.inside.points = {side.put(points), rows, 3, 3 * rows};
    args.inside.boxes = {side.put(boxes), columns, kColumns, kColumns * columns};
    args.inside.lengths = side.put({1 << 30, rows / 2}, false);
    args.inside.box_lengths = side.put({columns - 1, 1 << 30}, false);
    std::copy(grid.begin(), grid.end(), args.grid);
    args.slots = slots;
    args.index = side.room<int32_t>("index", 2 * columns * cells * slots);
    args.count = side.room<int32_t>("count", 2 * columns * cells);
    side.run(args);
    args.inside.mode = PointsInBoxesMode::kCount;
    args.inside.out = side.room<int32_t>("whole", 2 * columns);
    side.run(args.inside);
  });
  const auto index = got.get<int32_t>("index"), count = got.get<int32_t>("count"),
             whole = got.get<int32_t>("whole");
  bool fits = true;
  for (int64_t box = 0; box < 2 * columns; ++box) {
    int64_t sum = 0;
    for (int64_t cell = box * cells; cell < (box + 1) * cells; ++cell) {
      sum += count[cell];
      for (int64_t slot = 0; slot < slots; ++slot) {
        const int32_t i = index[cell * slots + slot];
        fits = fits && (slot < count[cell] ? i >= 0 && i < rows : i == -1);
        if (slot > 0 && i >= 0) fits = fits && i > index[cell * slots + slot - 1];
      }
    }
    fits = fits && sum == whole[box];
  }
  CHECK(fits);
}

TEST_CASE_TEMPLATE("cells hold the points of their boxes", T, float, double) {
  Random random(6);
  for (const int64_t rows : {0, 1, 300, 9000}) {
    if (quick && rows != 300) continue;
    check_query<T>(rows, 9, {1, 1, 1}, 40, random);
    check_query<T>(rows, 9, {3, 1, 2}, 5, random);
    check_query<T>(rows, 3, {16, 17, 16}, 2, random);
    check_query<T>(rows, 2, {2, 2, 2}, 0, random);
  }
}

}  // namespace
