// SPDX-License-Identifier: Apache-2.0
//
// Overlaps of boxes, their gradients and points in boxes, without torch: properties on the host,
// every side against one thread.
#include <numeric>

#include "csrc/kernels/boxes/points_in_boxes.h"
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
               Random& random) {
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

}  // namespace
