// SPDX-License-Identifier: Apache-2.0
//
// Kernels over boxes without torch: the host against a few plain lines that follow the contract,
// every plan and side against the host.
#include <algorithm>

#include "csrc/kernels/boxes/nms/nms.h"
#include "csrc/kernels/boxes/rotated_overlap.h"
#include "csrc/kernels/detection/box_decode.h"
#include "tests/cpp/kernel_test.h"

using namespace torchvox;
using namespace torchvox::testing;

namespace {

constexpr int kColumns = 9;  // two more than the rule reads

// Boxes about a few centers, some equal, some in line, some without area or not finite.
std::vector<float> make_boxes(int64_t count, float spread, Random& random, bool is_hostile = true) {
  std::vector<float> boxes;
  for (int64_t i = 0; i < count; ++i) {
    const float kind = random.uniform(0, 1);
    if (i > 0 && kind < 0.1f) {  // the same once more, or moved by its length
      const int64_t other = random.below(i) * kColumns;
      for (int c = 0; c < kColumns; ++c) boxes.push_back(boxes[other + c]);
      if (kind < 0.05f) boxes[i * kColumns] += boxes[i * kColumns + 3];
      continue;
    }
    const float box[kColumns] = {
        random.uniform(-spread, spread),
        random.uniform(-spread, spread),
        random.uniform(-2, 1),
        random.uniform(0.5f, 5),
        random.uniform(0.3f, 2.5f),
        random.uniform(1, 2),
        kind < 0.5f ? 1.57f * static_cast<float>(random.below(4)) : random.uniform(-7, 7),
        1,
        2};
    boxes.insert(boxes.end(), box, box + kColumns);
    if (!is_hostile || kind < 0.95f) continue;
    const float bad[] = {0, -1, NAN, INFINITY};
    boxes[i * kColumns + random.below(7)] = bad[random.below(4)];
  }
  return boxes;
}

struct NmsCase {
  std::string name;
  RotatedNmsArgs args;
  std::vector<float> boxes, scores;
  std::vector<int32_t> lengths;
  std::vector<int64_t> groups;

  void operator()(Side& side) const {
    RotatedNmsArgs bound = args;
    bound.nms.boxes = side.put(boxes);
    bound.scores = side.put(scores);
    bound.lengths = {side.put(lengths), false};
    bound.nms.group = {side.put(groups), true};
    bound.nms.kept = side.room<int32_t>("kept", args.nms.segments * args.nms.most);
    bound.nms.kept_counts = side.room<int32_t>("counts", args.nms.segments);
    side.run(bound);
  }
};

NmsCase make_case(int64_t segments, int64_t capacity, float spread, float threshold, int64_t most,
                  NmsMode mode, Random& random) {
  NmsCase c;
  c.name = std::to_string(segments) + " x " + std::to_string(capacity) + " over " +
      std::to_string(spread) + " m, threshold " + std::to_string(threshold) + ", at most " +
      std::to_string(most) + (mode == NmsMode::kCircle ? ", circle" : "");
  c.boxes = make_boxes(segments * capacity, spread, random);
  for (int64_t i = 0; i < segments * capacity; ++i) {
    const int64_t kind = random.below(50);
    const float score = static_cast<float>(random.below(200)) / 200 - 0.3f;  // many ties
    c.scores.push_back(kind == 0 ? NAN : (kind == 1 ? -0.0f : score));
    c.groups.push_back(random.below(3) - 1 + (int64_t{1} << 40));
  }
  for (int64_t s = 0; s < segments; ++s) {
    c.lengths.push_back(static_cast<int32_t>(s == 0 ? capacity : capacity - capacity / 3));
  }
  NmsArgs& nms = c.args.nms;
  nms.segments = segments;
  nms.capacity = capacity;
  nms.box_stride = kColumns;
  nms.segment_stride = kColumns * capacity;
  nms.mode = mode;
  nms.num_thresholds = 2;
  nms.thresholds[0] = threshold;
  nms.thresholds[1] = threshold * 0.5f;
  nms.most = most;
  return c;
}

// Greedy suppression as it is defined.
void check_against_definition(const NmsCase& c, const Outputs& got) {
  const NmsArgs& nms = c.args.nms;
  std::vector<int32_t> all_kept, counts;
  for (int64_t s = 0; s < nms.segments; ++s) {
    const float* const boxes = c.boxes.data() + s * nms.segment_stride;
    const float* const scores = c.scores.data() + s * nms.capacity;
    std::vector<int32_t> order, kept;
    const int64_t length = c.lengths.empty() ? nms.capacity : c.lengths[s];
    for (int64_t i = 0; i < length; ++i) {
      const float* const box = boxes + i * kColumns;
      if (std::isfinite(scores[i]) &&
          std::all_of(box, box + 7, [](float x) { return std::isfinite(x); })) {
        order.push_back(static_cast<int32_t>(i));
      }
    }
    std::stable_sort(order.begin(), order.end(),
                     [&](int32_t a, int32_t b) { return scores[a] > scores[b]; });
    for (const int32_t i : order) {
      const bool survives = std::none_of(kept.begin(), kept.end(), [&](int32_t k) {
        if (!c.groups.empty() && c.groups[s * nms.capacity + i] != c.groups[s * nms.capacity + k]) {
          return false;
        }
        const float* const a = boxes + k * kColumns;
        const float* const b = boxes + i * kColumns;
        const float dx = a[0] - b[0], dy = a[1] - b[1], threshold = nms.thresholds[s % 2];
        return nms.mode == NmsMode::kCircle ? dx * dx + dy * dy <= threshold
                                            : rotated_iou_bev(bev_box(a), bev_box(b)) > threshold;
      });
      if (survives) kept.push_back(i);
    }
    kept.resize(std::min<int64_t>(static_cast<int64_t>(kept.size()), nms.most));
    counts.push_back(static_cast<int32_t>(kept.size()));
    kept.resize(nms.most, -1);
    all_kept.insert(all_kept.end(), kept.begin(), kept.end());
  }
  CHECK_SAME(got.get<int32_t>("kept"), all_kept);
  CHECK_SAME(got.get<int32_t>("counts"), counts);
}

Outputs check(const NmsCase& c) {
  INFO(c.name);
  const Outputs got = run_on(Where::kThread, c);
  check_against_definition(c, got);
  check_side(Where::kThreads, c, got);
  for (const int order : {0, 1}) {
    if (quick && order == 1 && c.args.nms.capacity != 65) continue;
    CAPTURE(order);
    const Plan plan("nms_order", order);
    check_side(Where::kDevice, c, got);
  }
  return got;
}

TEST_CASE("suppression") {
  Random random(1);
  for (const int64_t capacity : {0, 1, 63, 64, 65, 700, 4096, 5000}) {
    if (quick && capacity != 1 && capacity != 65) continue;
    for (const float spread : {3.0f, 40.0f}) {
      for (const NmsMode mode : {NmsMode::kRotated, NmsMode::kCircle}) {
        const int64_t segments = capacity > 1000 ? 1 : 3;
        NmsCase c = make_case(segments, capacity, spread, mode == NmsMode::kCircle ? 1.0f : 0.2f,
                              capacity, mode, random);
        check(c);
        c.args.nms.most = capacity > 60 ? 50 : 0;
        c.name += ", few wanted";
        check(c);
        c.args.nms.most = 300;
        c.groups.clear();
        c.lengths.clear();
        c.name += ", no groups";
        check(c);
      }
    }
  }
}

TEST_CASE("every second box of a chain survives, across tiles and chunks") {
  Random random(1);
  NmsCase chain = make_case(1, quick ? 130 : 9000, 1, 0.3f, 9000, NmsMode::kRotated, random);
  for (int64_t i = 0; i < chain.args.nms.capacity; ++i) {
    const float box[kColumns] = {0.5f * static_cast<float>(i), 0, 0, 1, 1, 1, 0, 0, 0};
    std::copy(box, box + kColumns, chain.boxes.begin() + i * kColumns);
    chain.scores[i] = -static_cast<float>(i);
  }
  chain.groups.clear();
  CHECK(check(chain).get<int32_t>("counts")[0] == chain.args.nms.capacity / 2);
}

TEST_CASE("an overlap is symmetric, in [0, 1], and 1 of a box with itself") {
  Random random(2);
  for (const float offset : {0.0f, 1e5f}) {
    std::vector<float> boxes = make_boxes(400, 6, random, /*is_hostile=*/false);
    for (size_t i = 0; i < boxes.size(); i += kColumns) boxes[i] += offset, boxes[i + 1] -= offset;
    for (int64_t i = 0; i < 400; ++i) {
      for (int64_t j = 0; j < 400; ++j) {
        const auto a = bev_box(boxes.data() + i * kColumns),
                   b = bev_box(boxes.data() + j * kColumns);
        const float ab = rotated_iou_bev(a, b), ba = rotated_iou_bev(b, a);
        const bool good = float_bits(ab) == float_bits(ba) && ab >= 0 && ab <= 1;
        CHECK_MESSAGE((good && (i != j || ab == 1)), "boxes " << i << ", " << j << ": " << ab);
      }
    }
  }
}

void check_decode(int64_t rows, int64_t anchor_rows, int values, int bins, DType dtype) {
  BoxCoder code;
  code.values = values, code.bins = bins;
  code.dir_offset = 0.75f, code.dir_limit = 0.5f;
  code.period = bins > 0 ? static_cast<float>(2 * 3.14159265358979 / bins) : 0;
  const auto deltas = Random(1).uniforms(rows * values), logits = Random(2).uniforms(rows * bins),
             anchors = Random(3).uniforms(anchor_rows * 7, 0.5f, 3);
  INFO("box_decode of ", rows, " rows of ", values, ", ", bins, " bins");
  CAPTURE(dtype);
  const Outputs out = on_every_side([&](Side& side) {
    BoxDecodeArgs args;
    args.deltas = side.put(store(deltas, dtype));
    args.direction = side.put(store(logits, dtype));
    args.anchors = side.put(narrowed<float>(anchors));
    args.dtype = dtype, args.rows = rows, args.anchor_rows = anchor_rows, args.coder = code;
    args.boxes = side.room<float>("boxes", rows * code.box_values());
    side.run(args);
  });
  if (dtype != DType::kFloat) return;
  const std::vector<float> boxes = out.get<float>("boxes");
  for (int64_t row = 0; row < rows; ++row) {
    const double* const d = deltas.data() + row * values;
    const double* const a = anchors.data() + row % anchor_rows * 7;
    const float* const box = boxes.data() + row * code.box_values();
    CHECK(box[0] == doctest::Approx(d[0] * std::hypot(a[3], a[4]) + a[0]).epsilon(1e-5));
    CHECK(box[2] == doctest::Approx(d[2] * a[5] + a[2]).epsilon(1e-5));
    CHECK(box[4] == doctest::Approx(std::exp(d[4]) * a[4]).epsilon(1e-5));
    const double yaw =
        values % 2 ? d[6] + a[6] : std::atan2(d[7] + std::sin(a[6]), d[6] + std::cos(a[6]));
    CHECK(std::cos((bins > 0 ? bins : 1) * (box[6] - yaw)) == doctest::Approx(1).epsilon(1e-5));
    if (values > 8) CHECK(box[8] == doctest::Approx(d[values - 1]).epsilon(1e-6));
  }
}

TEST_CASE("box_decode") {
  for (const DType dtype : {DType::kFloat, DType::kHalf, DType::kBFloat16}) {
    for (const int values : {7, 8, 9, 10}) {
      for (const int bins : {0, 2, 4}) check_decode(300, 300, values, bins, dtype);
    }
    check_decode(1, 1, 7, 1, dtype);
    check_decode(5000, 7, 9, 64, dtype);
  }
}

}  // namespace
