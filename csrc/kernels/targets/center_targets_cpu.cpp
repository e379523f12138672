// SPDX-License-Identifier: Apache-2.0
//
// center_targets on the CPU: slots in one parallel task per sample, then the heatmap in one per
// class of a sample.
#include <algorithm>
#include <vector>

#include "csrc/kernels/targets/center_targets.h"

namespace torchvox {
namespace {

// The slots of all tasks of a sample, and its objects.
void place(const CenterTargetsArgs& args, const CenterScratch& scratch, int64_t batch) {
  const int64_t slots = args.tasks * args.max_objects;
  std::fill_n(args.cell + batch * slots, slots, -1);
  std::fill_n(args.box + batch * slots, slots, -1);
  int32_t* const count = args.count + batch * args.tasks;
  std::fill_n(count, args.tasks, 0);
  for (int64_t g = 0; g < args.targets.rows(); ++g) {
    CenterObject object = center_object(args, batch, g);
    if (object.label >= 0 && !object.ignored) {
      const int32_t task = args.task[object.label];
      if (count[task] < args.max_objects) {
        const int64_t slot = batch * slots + task * args.max_objects + count[task]++;
        args.cell[slot] = static_cast<int32_t>(object.y * args.width + object.x);
        args.box[slot] = static_cast<int32_t>(g);
      } else {
        object.label = -1;
      }
    }
    scratch.object[batch * args.targets.rows() + g] = object;
  }
}

// The heatmap of one class of a sample. Objects come first; then an ignored box sets to -1 the
// cells where its Gaussian is larger than theirs.
void draw(const CenterTargetsArgs& args, const CenterScratch& scratch, int64_t batch,
          int64_t label) {
  float* const plane = args.heatmap + (batch * args.classes + label) * args.height * args.width;
  std::fill_n(plane, args.height * args.width, 0.0f);
  const CenterObject* const objects = scratch.object + batch * args.targets.rows();
  for (const int32_t kind : {0, 1}) {
    for (int64_t g = 0; g < args.targets.rows(); ++g) {
      const CenterObject& object = objects[g];
      if (object.label != label || object.ignored != kind) continue;
      const int64_t reach = object.radius;
      const int64_t end_y = std::min(args.height, object.y + reach + 1);
      const int64_t end_x = std::min(args.width, object.x + reach + 1);
      for (int64_t y = std::max<int64_t>(0, object.y - reach); y < end_y; ++y) {
        for (int64_t x = std::max<int64_t>(0, object.x - reach); x < end_x; ++x) {
          float& cell = plane[y * args.width + x];
          const float value = gaussian(object, x, y);
          if (kind == 0) {
            cell = std::max(cell, value);
          } else if (value > cell && cell >= 0) {
            cell = -1;
          }
        }
      }
    }
  }
}

}  // namespace

void run_cpu(const CenterTargetsArgs& args, void* memory, const ParallelFor& parallel_for) {
  const auto scratch = carve<CenterScratch>(memory, args);
  for_each_index(parallel_for, args.targets.batches, 1,
                 [&](int64_t batch) { place(args, scratch, batch); });
  for_each_index(parallel_for, args.targets.batches * args.classes, 1,
                 [&](int64_t i) { draw(args, scratch, i / args.classes, i % args.classes); });
}

}  // namespace torchvox
