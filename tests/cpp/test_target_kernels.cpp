// SPDX-License-Identifier: Apache-2.0
//
// Kernels of targets, losses and places without torch: every side against the host, and the host
// against what the contract says of the outputs.
#include <algorithm>

#include "csrc/kernels/boxes/place_boxes.h"
#include "csrc/kernels/targets/anchor_loss.h"
#include "csrc/kernels/targets/anchor_targets.h"
#include "csrc/kernels/targets/center_targets.h"
#include "tests/cpp/kernel_test.h"

using namespace torchvox;
using namespace torchvox::testing;

namespace {

constexpr int kColumns = 9;

// Boxes [count, 9] over some meters: on a lattice of half a meter every other one, a few none.
std::vector<float> make_boxes(int64_t count, float spread, Random& random) {
  std::vector<float> boxes;
  for (int64_t i = 0; i < count; ++i) {
    const bool regular = random.below(2) == 0;
    float box[kColumns] = {random.uniform(0, spread), random.uniform(0, spread),
                           random.uniform(-1, 1),     random.uniform(0.5f, 5),
                           random.uniform(0.5f, 2),   1.5f,
                           random.uniform(-4, 4),     1,
                           i % 3 == 0 ? kNan : 2};
    if (regular) {
      for (int k = 0; k < 2; ++k) box[k] = std::round(box[k] * 2) / 2;
      box[3] = 4;
      box[4] = 2;
      box[6] = 1.57f * static_cast<float>(random.below(3));
    }
    const float bad[] = {0, -1, kNan, kInfinity};
    if (random.below(12) == 0) box[random.below(7)] = bad[random.below(4)];
    boxes.insert(boxes.end(), box, box + kColumns);
  }
  return boxes;
}

struct Scene {
  int64_t batches, rows;
  std::vector<float> boxes, weight;
  std::vector<int32_t> labels, num_boxes;

  Scene(int64_t batches, int64_t rows, float spread, Random& random)
      : batches(batches), rows(rows), boxes(make_boxes(batches * rows, spread, random)) {
    for (int64_t i = 0; i < batches * rows; ++i) {
      labels.push_back(static_cast<int32_t>(random.below(4)) - 1);
      weight.push_back(random.below(5) == 0 ? 0.0f : 1.0f);
    }
    for (int64_t b = 0; b < batches; ++b) {
      num_boxes.push_back(static_cast<int32_t>(b == 0 ? rows + 3 : rows - rows / 4));
    }
  }
  TargetBoxes on(Side& side) const {
    TargetBoxes targets;
    targets.boxes = {side.put(boxes), rows, kColumns, kColumns * rows};
    targets.labels = {side.put(labels), false};
    targets.weight = side.put(weight);
    targets.num_boxes = {side.put(num_boxes), false};
    targets.batches = batches;
    return targets;
  }
};

std::vector<float> make_anchors(int64_t height, int64_t width, int64_t per_cell) {
  std::vector<float> anchors;
  for (int64_t i = 0; i < height * width * per_cell; ++i) {
    const int64_t cell = i / per_cell;
    const float turn = i % 2 == 0 ? 0.0f : 1.57f;
    const float anchor[] = {static_cast<float>(cell % width) / 2,
                            static_cast<float>(cell / width) / 2,
                            0,
                            4,
                            2,
                            1.5f,
                            turn};
    anchors.insert(anchors.end(), anchor, anchor + kBoxColumns);
  }
  return anchors;
}

}  // namespace

TEST_CASE("anchors are assigned alike on every side, and counted") {
  Random random(1);
  for (const int64_t rows : {int64_t{0}, int64_t{1}, int64_t{30}, int64_t{300}}) {
    const Scene scene(3, rows, 16, random);
    const int64_t height = quick ? 8 : 33, width = 31, per_cell = 4;
    const std::vector<float> anchors = make_anchors(height, width, per_cell);
    for (const bool mmdet : {false, true}) {
      CAPTURE(rows);
      CAPTURE(mmdet);
      const int64_t count = height * width * per_cell;
      const Outputs out = on_every_side([&](Side& side) {
        AnchorTargetsArgs args;
        args.targets = scene.on(side);
        args.anchors = side.put(anchors);
        args.cells = height * width;
        args.per_cell = per_cell;
        for (int a = 0; a < per_cell; ++a) args.rule[a] = {a / 2 - (a == 3), 0.6f, 0.45f, 0.3f};
        args.rule[3].label = -1;
        args.mmdet = mmdet;
        args.assigned = side.room<int32_t>("assigned", 3 * count);
        args.num_pos = side.room<int32_t>("num_pos", 3);
        side.run(args);
      });
      const auto assigned = out.get<int32_t>("assigned"), num_pos = out.get<int32_t>("num_pos");
      for (int64_t b = 0; b < 3; ++b) {
        const auto begin = assigned.begin() + b * count;
        CHECK(num_pos[b] == std::count_if(begin, begin + count, [](int32_t v) { return v >= 0; }));
        if (rows >= 30) CHECK(num_pos[b] > 0);
      }
      for (int64_t i = 0; i < 3 * count; ++i) {
        const int64_t box = assigned[i], row = i / count * rows + box;
        CHECK(box >= kIgnored);
        if (box < 0) continue;
        REQUIRE(box < rows);
        CHECK(scene.weight[row] > 0);
        if (i % per_cell != 3) CHECK(scene.labels[row] == i % per_cell / 2);
      }
    }
  }
}

TEST_CASE("centers have slots and maps alike on every side") {
  Random random(2);
  for (const int64_t rows : {int64_t{0}, int64_t{40}, int64_t{300}}) {
    const Scene scene(2, rows, 20, random);
    CAPTURE(rows);
    const int64_t height = 37, width = quick ? 20 : 70, most = 12;
    const Outputs out = on_every_side([&](Side& side) {
      CenterTargetsArgs args;
      args.targets = scene.on(side);
      args.pillar[0] = args.pillar[1] = 0.25f;
      args.pillars_per_cell = 2;
      args.height = height;
      args.width = width;
      args.classes = 3;
      args.tasks = 2;
      args.task[1] = args.task[2] = 1;
      args.max_objects = most;
      args.heatmap = side.room<float>("heatmap", 2 * 3 * height * width);
      args.cell = side.room<int32_t>("cell", 2 * 2 * most);
      args.box = side.room<int32_t>("box", 2 * 2 * most);
      args.count = side.room<int32_t>("count", 2 * 2);
      side.run(args);
    });
    const auto cell = out.get<int32_t>("cell"), box = out.get<int32_t>("box");
    const auto count = out.get<int32_t>("count");
    const auto heat = out.get<float>("heatmap");
    for (int64_t i = 0; i < 4 * most; ++i) {
      const bool used = i % most < count[i / most];
      CHECK((cell[i] >= 0) == used);
      CHECK((box[i] >= 0) == used);
      if (!used) continue;
      const int64_t batch = i / (2 * most), label = scene.labels[batch * rows + box[i]];
      CHECK(heat[(batch * 3 + label) * height * width + cell[i]] == 1.0f);
    }
  }
}

TEST_CASE("the loss of anchors and its gradient are alike on every side") {
  Random random(3);
  const int64_t batches = 2, height = quick ? 5 : 41, width = 37, per_cell = 2, rows = 20;
  const int64_t cells = height * width, anchors = cells * per_cell;
  const Scene scene(batches, rows, 16, random);
  const std::vector<float> base = make_anchors(height, width, per_cell);
  std::vector<int32_t> assigned;
  for (int64_t i = 0; i < batches * anchors; ++i) {
    assigned.push_back(static_cast<int32_t>(random.below(rows + 22)) - 20 > 0
                           ? static_cast<int32_t>(random.below(rows + 1))
                           : static_cast<int32_t>(random.below(2)) - 2);
  }
  const std::vector<double> grad{1, 2, 0.2, -1, 0.5, 3};
  for (const DType dtype : {DType::kFloat, DType::kBFloat16, DType::kDouble}) {
    for (const int codes : {7, 10}) {
      CAPTURE(codes);
      const int64_t values[] = {3, codes, 2};
      std::vector<Bytes> maps;
      for (const int64_t n : values) {
        maps.push_back(store(random.uniforms(batches * anchors * n, -4, 4), dtype));
      }
      const bool wide = dtype == DType::kDouble;
      // Channels a * n + k, before or behind the cells.
      const auto map_of = [&](const void* data, int64_t n, bool last) {
        LossMap map;
        map.data = const_cast<void*>(data);
        const int64_t channels = per_cell * n, channel = last ? 1 : cells;
        const int64_t cell = last ? channels : 1;
        const int64_t strides[] = {channels * cells, width * cell, cell, n * channel, channel};
        std::copy(strides, strides + 5, map.stride);
        return map;
      };
      on_every_side([&](Side& side) {
        AnchorLossArgs args;
        args.dtype = dtype;
        args.cls = map_of(side.put(maps[0]), 3, true);
        args.box = map_of(side.put(maps[1]), codes, false);
        if (codes == 7) args.direction = map_of(side.put(maps[2]), 2, true);
        args.batches = batches;
        args.height = height;
        args.width = width;
        args.per_cell = per_cell;
        args.classes = 3;
        args.codes = codes;
        args.anchors = side.put(base);
        args.boxes = {side.put(scene.boxes), rows, kColumns, kColumns * rows};
        args.labels = {side.put(scene.labels), false};
        args.assigned = side.put(assigned);
        args.dir_offset = 0.78539;
        std::fill(args.code_weights, args.code_weights + kMostCodes, 0.5);
        args.beta = codes == 7 ? 1.0 / 9 : 0.0;
        args.loss = side.room("loss", wide ? DType::kDouble : DType::kFloat, batches * kLossTerms);
        side.run(args);
        AnchorLossBackwardArgs backward;
        backward.forward = args;
        backward.grad = wide ? static_cast<const void*>(side.put(grad))
                             : static_cast<const void*>(side.put(narrowed<float>(grad)));
        LossMap* const outs[] = {&backward.cls, &backward.box, &backward.direction};
        for (int k = 0; k < (codes == 7 ? 3 : 2); ++k) {
          *outs[k] = map_of(side.room("gradient", dtype, batches * anchors * values[k]), values[k],
                            k == 1);
        }
        side.run(backward);
      });
    }
  }
}

TEST_CASE("what is placed is alike on every side, and overlaps nothing") {
  Random random(4);
  for (const int64_t tries : {int64_t{1}, int64_t{40}}) {
    for (const PlaceMode mode : {PlaceMode::kBoth, PlaceMode::kGreedy}) {
      const int64_t batches = 3, rows = 25, count = 50;
      const std::vector<float> boxes = make_boxes(batches * rows, 30, random);
      const std::vector<float> candidates = make_boxes(batches * count * tries, 30, random);
      std::vector<int64_t> group;
      for (int64_t i = 0; i < batches * count; ++i) group.push_back(random.below(12) - 1);
      CAPTURE(tries);
      const Outputs out = on_every_side([&](Side& side) {
        PlaceBoxesArgs args;
        args.boxes = {side.put(boxes), rows, kColumns, kColumns * rows};
        args.candidates = side.put(candidates);
        args.batches = batches;
        args.count = count;
        args.tries = tries;
        args.columns = kColumns;
        args.group = {side.put(group), true};
        args.mode = mode;
        args.choice = side.room<int32_t>("choice", batches * count);
        side.run(args);
      });
      const auto choice = out.get<int32_t>("choice");
      for (int64_t b = 0; b < batches; ++b) {
        std::vector<BevBox<float>> scene;
        for (int64_t i = 0; i < rows; ++i) {
          scene.push_back(bev_box(boxes.data() + (b * rows + i) * kColumns));
        }
        int64_t placed = 0;
        for (int64_t k = 0; k < count; ++k) {
          if (choice[b * count + k] < 0) continue;
          const int64_t row = (b * count + k) * tries + choice[b * count + k];
          const BevBox<float> box = bev_box(candidates.data() + row * kColumns);
          for (const BevBox<float>& other : scene) CHECK_FALSE(boxes_meet(box, other));
          scene.push_back(box);
          ++placed;
        }
        CHECK(placed > 0);
      }
    }
  }
}
