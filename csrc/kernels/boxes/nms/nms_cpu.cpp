// SPDX-License-Identifier: Apache-2.0
//
// Greedy NMS on the CPU: boxes are decided in blocks of 256, one after another; then all later
// boxes are tested against the kept ones of the block, in parallel tasks. rotated_nms first sorts
// the scores of each segment.
#include <algorithm>
#include <vector>

#include "csrc/kernels/boxes/nms/nms.h"

namespace torchvox {
namespace {

void sort_segment(const RotatedNmsArgs& args, const ScoreArgsort& out, int64_t segment) {
  int32_t* const order = out.order + segment * args.nms.capacity;
  int32_t count = 0;
  for (int64_t i = 0; i < args.nms.capacity; ++i) {
    if (score_key(args, segment, i) != kLeftOut) order[count++] = static_cast<int32_t>(i);
  }
  std::sort(order, order + count, [&](int32_t a, int32_t b) {
    const uint32_t key_a = score_key(args, segment, a), key_b = score_key(args, segment, b);
    return key_a < key_b || (key_a == key_b && a < b);
  });
  out.counts[segment] = count;
}

constexpr int64_t kBlock = 256;  // boxes that are decided one after another
constexpr int64_t kBoxesPerTask = 512;

// Kept boxes of one block, as columns, so that the first test of a pair vectorizes.
struct KeptBlock {
  float x[kBlock], y[kBlock], radius[kBlock];
  const BevBox<float>* box[kBlock];
  int64_t group[kBlock], size = 0;

  void add(const BevBox<float>& kept, int64_t its_group) {
    x[size] = kept.x;
    y[size] = kept.y;
    radius[size] = kept.radius;
    box[size] = &kept;
    group[size++] = its_group;
  }
};

struct Segment {
  const NmsArgs& args;
  const int64_t segment;
  const ParallelFor& parallel_for;
  const float threshold = args.threshold(segment);
  const int64_t count = args.count(segment);
  std::vector<BevBox<float>> boxes = std::vector<BevBox<float>>(count);
  std::vector<int64_t> groups = std::vector<int64_t>(count);
  std::vector<uint8_t> dead = std::vector<uint8_t>(count);
  KeptBlock block = {};

  void run() {
    prepare();
    int64_t kept = 0;
    int32_t* const out = args.kept + segment * args.most;
    for (int64_t begin = 0; begin < count && kept < args.most; begin += kBlock) {
      const int64_t end = std::min(begin + kBlock, count);
      block.size = 0;
      for (int64_t i = begin; i < end && kept < args.most; ++i) {
        if (dead[i] || is_suppressed(i)) continue;
        out[kept++] = static_cast<int32_t>(args.box_at(segment, i));
        block.add(boxes[i], groups[i]);
      }
      if (kept == args.most) break;
      for_each_index(parallel_for, count - end, kBoxesPerTask, [&](int64_t i) {
        if (!dead[end + i]) dead[end + i] = is_suppressed(end + i);
      });
    }
    args.kept_counts[segment] = static_cast<int32_t>(kept);
    std::fill(out + kept, out + args.most, -1);
  }

  void prepare() {
    for_each_index(parallel_for, count, kBoxesPerTask, [&](int64_t i) {
      const int64_t box = args.box_at(segment, i);
      const float* const row = args.row(segment, box);
      dead[i] = !is_finite_box(row);
      boxes[i] = nms_box(args.mode, row);
      groups[i] = args.group_of(segment, box);
    });
  }

  bool is_suppressed(int64_t i) const {
    const BevBox<float>& box = boxes[i];
    const bool circle = args.mode == NmsMode::kCircle;
    uint8_t meets[kBlock];
    for (int64_t k = 0; k < block.size; ++k) {
      const float dx = box.x - block.x[k], dy = box.y - block.y[k];
      const float reach = block.radius[k] + box.radius;
      meets[k] = dx * dx + dy * dy <= (circle ? threshold : reach * reach);
    }
    for (int64_t k = 0; k < block.size; ++k) {
      if (!meets[k] || block.group[k] != groups[i]) continue;
      if (suppresses(args.mode, *block.box[k], box, threshold)) return true;
    }
    return false;
  }
};

}  // namespace

int64_t workspace_bytes_cpu(const RotatedNmsArgs& args) { return carved_bytes<ScoreArgsort>(args); }

void run_cpu(const RotatedNmsArgs& args, void* memory, const ParallelFor& parallel_for) {
  const auto order = carve<ScoreArgsort>(memory, args);
  for_each_index(parallel_for, args.nms.segments, 1,
                 [&](int64_t s) { sort_segment(args, order, s); });
  run_cpu(order.applied_to(args.nms), nullptr, parallel_for);
}

int64_t workspace_bytes_cpu(const NmsArgs&) { return 0; }

void run_cpu(const NmsArgs& args, void*, const ParallelFor& parallel_for) {
  for (int64_t s = 0; s < args.segments; ++s) Segment{args, s, parallel_for}.run();
}

}  // namespace torchvox
