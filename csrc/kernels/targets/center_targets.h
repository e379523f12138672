// SPDX-License-Identifier: Apache-2.0
//
// Entry of center_targets, and its rules. Steps, on either side:
//
//   place   the cell and radius of every box; the slots of every task    center_object()
//   draw    the largest Gaussian at every cell of every class            gaussian(), HeatCell
#pragma once

#include <cmath>

#include "csrc/kernels/targets/target_boxes.h"

namespace torchvox {

inline constexpr int kMostTargetClasses = 64;

struct CenterTargetsArgs {
  TargetBoxes targets;
  float low[2] = {0, 0}, pillar[2] = {1, 1};  // in meters
  float pillars_per_cell = 1;
  int64_t height = 0, width = 0;  // of the maps, in cells
  int64_t classes = 0, tasks = 0;
  int32_t task[kMostTargetClasses] = {};  // of each class
  int64_t max_objects = 0;  // of a task
  double overlap = 0.1;  // see gaussian_radius()
  int64_t min_radius = 2;  // in cells

  float* heatmap = nullptr;  // [batches, classes, height, width]
  int32_t* cell = nullptr;  // [batches, tasks, max_objects]: y * width + x, or -1
  int32_t* box = nullptr;  // [batches, tasks, max_objects], or -1
  int32_t* count = nullptr;  // [batches, tasks]
};

// A box on the map; position and radius in cells.
struct CenterObject {
  int32_t x, y;
  int32_t radius;
  int32_t label;  // -1: it is not drawn
  int32_t ignored;
};

// How far a center may move, in cells, for a box of h x w cells that still overlaps the true one by
// `overlap`: the least of CornerNet's three cases. The factor 1/2 stands where the quadratic
// formula has 1/(2a), as in every implementation, so that radii are the same.
TORCHVOX_HD double gaussian_radius(double h, double w, double overlap) {
  const auto larger_root = [](double b, double four_ac) {
    const double square = b * b - four_ac;
    return (b + root(square > 0 ? square : 0.0)) / 2;
  };
  const double inner = larger_root(h + w, 4 * (h * w * (1 - overlap) / (1 + overlap)));
  const double outer = larger_root(2 * (h + w), 16 * ((1 - overlap) * h * w));
  const double shifted =
      larger_root(-2 * overlap * (h + w), 16 * overlap * ((overlap - 1) * h * w));
  const double least = inner < outer ? inner : outer;
  return shifted < least ? shifted : least;
}

// Box g of a sample; label -1 if its center is not on the map.
TORCHVOX_HD CenterObject center_object(const CenterTargetsArgs& args, int64_t batch, int64_t g) {
  constexpr CenterObject kNone = {0, 0, 0, -1, 0};
  const int32_t label = args.targets.label(batch, g);
  if (label < 0 || label >= args.classes) return kNone;
  const float* const row = args.targets.row(batch, g);
  // Cells are truncated towards zero, so `inside` excludes centers below the range.
  const float x = (row[0] - args.low[0]) / args.pillar[0] / args.pillars_per_cell;
  const float y = (row[1] - args.low[1]) / args.pillar[1] / args.pillars_per_cell;
  const bool inside = row[0] >= args.low[0] && row[1] >= args.low[1] &&
      x < static_cast<float>(args.width) && y < static_cast<float>(args.height);
  const float length = row[3] / args.pillar[0] / args.pillars_per_cell;
  const float width = row[4] / args.pillar[1] / args.pillars_per_cell;
  if (!inside || !(row[3] > 0 && row[4] > 0 && is_finite(length) && is_finite(width))) return kNone;
  constexpr double kLargest = 1 << 30;
  const double radius = gaussian_radius(length, width, args.overlap);
  const int64_t whole = static_cast<int64_t>(radius < kLargest ? radius : kLargest);
  return {static_cast<int32_t>(x), static_cast<int32_t>(y),
          static_cast<int32_t>(whole > args.min_radius ? whole : args.min_radius), label,
          args.targets.is_ignored(batch, g)};
}

TORCHVOX_HD bool is_in_reach(const CenterObject& object, int64_t x, int64_t y) {
  const int64_t dx = x - object.x, dy = y - object.y;
  return dx <= object.radius && dx >= -object.radius && dy <= object.radius && dy >= -object.radius;
}

// exp(-d^2 / (2 sigma^2)), sigma a sixth of the diameter; exactly 1 at the center.
TORCHVOX_HD float gaussian(const CenterObject& object, int64_t x, int64_t y) {
  const double dx = static_cast<double>(x - object.x), dy = static_cast<double>(y - object.y);
  const double sigma = (2 * static_cast<double>(object.radius) + 1) / 6;
  return portable::exp(static_cast<float>(-(dx * dx + dy * dy) / (2 * sigma * sigma)));
}

// A cell of a class. Objects may be added in any order.
struct HeatCell {
  float object = 0, ignored = 0;  // the largest Gaussian of either kind

  TORCHVOX_HD void add(const CenterObject& of, int64_t x, int64_t y) {
    if (!is_in_reach(of, x, y)) return;
    const float value = gaussian(of, x, y);
    float& largest = of.ignored ? ignored : object;
    largest = at_least(largest, value);
  }
  // -1 where the loss must skip the cell.
  TORCHVOX_HD float value() const { return ignored > object ? -1.0f : object; }
};

struct CenterScratch {
  CenterObject* object;  // [batches, rows]; label -1 where no slot was left

  CenterScratch(const CenterTargetsArgs& args, Workspace& workspace)
      : object(workspace.take<CenterObject>(args.targets.batches * args.targets.rows())) {}
};

TORCHVOX_KERNEL_WITH_WORKSPACE(CenterTargetsArgs, carved_bytes<CenterScratch>(args));

}  // namespace torchvox
