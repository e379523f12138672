// SPDX-License-Identifier: Apache-2.0
//
// Kernels over boxes without torch. Host results against a few plain lines that follow the
// contract; with a GPU, every plan against the host, bit for bit. `--bench` times graph replays.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <string>
#include <vector>

#include "csrc/kernels/boxes/nms/rotated_nms.h"
#include "csrc/kernels/boxes/rotated_overlap.h"
#include "csrc/kernels/core/plan_override.h"
#include "tests/cpp/check.h"
#include "tests/cpp/device_buffers.h"

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

struct NmsResult {
  std::vector<int32_t> kept, counts;
};

NmsResult on_host(NmsCase& c, const ParallelFor& parallel_for = serial_for) {
  NmsResult result{std::vector<int32_t>(c.args.nms.segments * c.args.nms.most),
                   std::vector<int32_t>(c.args.nms.segments)};
  RotatedNmsArgs args = c.args;
  args.nms.boxes = c.boxes.data();
  args.scores = c.scores.data();
  if (!c.lengths.empty()) args.lengths = {c.lengths.data(), false};
  if (!c.groups.empty()) args.nms.group = {c.groups.data(), true};
  args.nms.kept = result.kept.data();
  args.nms.kept_counts = result.counts.data();
  run_on_host(args, parallel_for);
  return result;
}

// Greedy suppression as it is defined.
NmsResult by_definition(const NmsCase& c) {
  const NmsArgs& nms = c.args.nms;
  NmsResult result;
  for (int64_t s = 0; s < nms.segments; ++s) {
    const float* const boxes = c.boxes.data() + s * nms.segment_stride;
    const float* const scores = c.scores.data() + s * nms.capacity;
    std::vector<int32_t> order;
    const int64_t length = c.lengths.empty() ? nms.capacity : c.lengths[s];
    for (int64_t i = 0; i < length; ++i) {
      bool is_finite_row = std::isfinite(scores[i]);
      for (int k = 0; k < 7; ++k) {
        is_finite_row = is_finite_row && std::isfinite(boxes[i * kColumns + k]);
      }
      if (is_finite_row) order.push_back(static_cast<int32_t>(i));
    }
    std::stable_sort(order.begin(), order.end(),
                     [&](int32_t a, int32_t b) { return scores[a] > scores[b]; });
    std::vector<int32_t> kept;
    for (const int32_t i : order) {
      bool survives = true;
      for (const int32_t k : kept) {
        if (!c.groups.empty() && c.groups[s * nms.capacity + i] != c.groups[s * nms.capacity + k]) {
          continue;
        }
        const float* const a = boxes + k * kColumns;
        const float* const b = boxes + i * kColumns;
        const float dx = a[0] - b[0], dy = a[1] - b[1], threshold = nms.thresholds[s % 2];
        survives = survives &&
            !(nms.mode == NmsMode::kCircle ? dx * dx + dy * dy <= threshold
                                           : rotated_iou_bev(bev_box(a), bev_box(b)) > threshold);
      }
      if (survives) kept.push_back(i);
    }
    if (static_cast<int64_t>(kept.size()) > nms.most) kept.resize(nms.most);
    result.counts.push_back(static_cast<int32_t>(kept.size()));
    kept.resize(nms.most, -1);
    result.kept.insert(result.kept.end(), kept.begin(), kept.end());
  }
  return result;
}

#ifdef TORCHVOX_CUDA
NmsResult on_device(NmsCase& c) {
  const DeviceBuffer<float> boxes(c.boxes), scores(c.scores);
  const DeviceBuffer<int32_t> lengths(c.lengths);
  const DeviceBuffer<int64_t> groups(c.groups);
  const DeviceBuffer<int32_t> kept(c.args.nms.segments * c.args.nms.most);
  const DeviceBuffer<int32_t> counts(c.args.nms.segments);
  RotatedNmsArgs args = c.args;
  args.nms.boxes = boxes.data();
  args.scores = scores.data();
  if (!c.lengths.empty()) args.lengths = {lengths.data(), false};
  if (!c.groups.empty()) args.nms.group = {groups.data(), true};
  args.nms.kept = kept.data();
  args.nms.kept_counts = counts.data();
  kept.fill(kPoison);
  run_on_device(args);
  return {kept.host(), counts.host()};
}
#endif

void check_nms(NmsCase c, bool on_gpu, bool quick) {
  const NmsResult want = by_definition(c), got = on_host(c), other = on_host(c, backward_for);
  check_same(got.kept, want.kept, c.name + ": kept");
  check_same(got.counts, want.counts, c.name + ": counts");
  check_same(other.kept, want.kept, c.name + ": kept, ranges in disorder");
#ifdef TORCHVOX_CUDA
  for (const int64_t order : {0, 1}) {
    if (!on_gpu || (quick && order == 1 && c.args.nms.capacity != 65)) continue;
    set_plan_override("nms_order", order);
    const NmsResult device = on_device(c);
    const std::string what = c.name + ", order " + std::to_string(order);
    check_same(device.kept, want.kept, what + ": kept on the device");
    check_same(device.counts, want.counts, what + ": counts on the device");
  }
  set_plan_override("nms_order", kAutomatic);
#else
  (void)on_gpu, (void)quick;
#endif
}

void check_nms_cases(bool on_gpu, bool quick) {
  Random random(1);
  for (const int64_t capacity : {0, 1, 63, 64, 65, 700, 4096, 5000}) {
    if (quick && capacity != 1 && capacity != 65) continue;
    for (const float spread : {3.0f, 40.0f}) {
      for (const NmsMode mode : {NmsMode::kRotated, NmsMode::kCircle}) {
        const int64_t segments = capacity > 1000 ? 1 : 3;
        NmsCase c = make_case(segments, capacity, spread, mode == NmsMode::kCircle ? 1.0f : 0.2f,
                              capacity, mode, random);
        check_nms(c, on_gpu, quick);
        c.args.nms.most = capacity > 60 ? 50 : 0;
        c.name += ", few wanted";
        check_nms(c, on_gpu, quick);
        c.args.nms.most = 300;
        c.groups.clear();
        c.lengths.clear();
        c.name += ", no groups";
        check_nms(c, on_gpu, quick);
      }
    }
  }
  // A chain in which every second box survives, across tiles and chunks.
  NmsCase chain = make_case(1, quick ? 130 : 9000, 1, 0.3f, 9000, NmsMode::kRotated, random);
  for (int64_t i = 0; i < chain.args.nms.capacity; ++i) {
    const float box[kColumns] = {0.5f * static_cast<float>(i), 0, 0, 1, 1, 1, 0, 0, 0};
    std::copy(box, box + kColumns, chain.boxes.begin() + i * kColumns);
    chain.scores[i] = -static_cast<float>(i);
  }
  chain.groups.clear();
  chain.name = "a chain";
  check_nms(chain, on_gpu, quick);
  check(on_host(chain).counts[0] == chain.args.nms.capacity / 2, "every second of a chain");
}

void check_overlap_rule() {
  Random random(2);
  for (const float offset : {0.0f, 1e5f}) {
    std::vector<float> boxes = make_boxes(400, 6, random, /*is_hostile=*/false);
    for (size_t i = 0; i < boxes.size(); i += kColumns) boxes[i] += offset, boxes[i + 1] -= offset;
    for (int64_t i = 0; i < 400; ++i) {
      for (int64_t j = 0; j < 400; ++j) {
        const auto a = bev_box(boxes.data() + i * kColumns),
                   b = bev_box(boxes.data() + j * kColumns);
        const float ab = rotated_iou_bev(a, b), ba = rotated_iou_bev(b, a);
        check(float_bits(ab) == float_bits(ba) && ab >= 0 && ab <= 1, "symmetric, in [0, 1]");
        check(i != j || ab == 1, "1 with itself");
      }
    }
  }
}

void bench() {
#ifdef TORCHVOX_CUDA
  Target target;
  if (!find_device(target)) return;
  Random random(3);
  struct Row {
    int64_t segments, capacity, most;
    float spread, threshold;
  };
  for (const Row& row :
       {Row{1, 4096, 500, 40, 0.01f}, Row{1, 4096, 4096, 40, 0.01f}, Row{1, 4096, 4096, 400, 0.5f},
        Row{1, 4096, 4096, 4, 0.99f}, Row{1, 1000, 83, 50, 0.2f}, Row{10, 1000, 83, 50, 0.2f},
        Row{1, 50000, 500, 50, 0.2f}, Row{1, 50000, 50000, 500, 0.2f}}) {
    NmsCase c = make_case(row.segments, row.capacity, row.spread, row.threshold, row.most,
                          NmsMode::kRotated, random);
    DeviceBuffers device;
    RotatedNmsArgs args = c.args;
    args.nms.boxes = static_cast<float*>(device.copy(c.boxes));
    args.scores = static_cast<float*>(device.copy(c.scores));
    args.nms.kept = static_cast<int32_t*>(device.allocate(4 * row.segments * row.most));
    args.nms.kept_counts = static_cast<int32_t*>(device.allocate(4 * row.segments));
    std::printf("%-60s %.1f us\n", c.name.c_str(), replay_microseconds(args, device, target, 200));
  }
#endif
}

}  // namespace

int main(int argc, char** argv) {
  const std::string option = argc > 1 ? argv[1] : "";
  if (option == "--bench") {
    bench();
    return 0;
  }
  // racecheck watches every shared access: --quick leaves out most cases.
  const bool quick = option == "--quick";
  bool on_gpu = false;
#ifdef TORCHVOX_CUDA
  on_gpu = has_device();
#endif
  if (!on_gpu) std::printf("no GPU: host only\n");
  check_overlap_rule();
  check_nms_cases(on_gpu, quick);
  return finish("test_boxes_kernels");
}
