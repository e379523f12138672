// SPDX-License-Identifier: Apache-2.0
//
// The voxels that a ray visits, in integers: the one definition for every op that walks rays.
//
// Ends are whole numbers of units, 2^16 per voxel. On axis i a ray crosses the faces k = 0, 1, ...
// at the fractions (num_i + 2^16 k) / a_i of its length, where num_i is the distance to the first
// face and a_i the length on the axis; the walk takes the crossings in ascending order, equal ones
// by descending axis. A place on the walk is the number of crossings done on each axis. Regions
// (2^19 units) are visited by the same rule.
#pragma once

#include "csrc/kernels/rays/region.h"

namespace torchvox {

inline constexpr int kUnitShift = 16;  // log2 of the units per voxel
inline constexpr int64_t kUnits = int64_t{1} << kUnitShift;
inline constexpr int64_t kRayReach = int64_t{1}
    << 31;  // units that a ray may have on an axis, less 1

TORCHVOX_HD int64_t floor_div(int64_t a, int64_t b) {  // b > 0
  return a >= 0 ? a / b : -((-a + b - 1) / b);
}

// The number of crossings done on each axis.
struct RayPlace {
  int32_t done[3];

  TORCHVOX_HD int64_t steps() const { return int64_t{done[0]} + done[1] + done[2]; }
};

// The visits `first` to `last` of a walk, both included; none if `visits` is 0.
struct RayPart {
  RayPlace first, last;
  int64_t visits;
};

// Voxels that count: lower <= voxel < upper on each axis.
struct VoxelBox {
  int64_t lower[3], upper[3];
};

struct RayLine {
  int64_t from[3], to[3];  // in units, less than kRayReach apart

  TORCHVOX_HD int64_t length(int axis) const {
    const int64_t d = to[axis] - from[axis];
    return d < 0 ? -d : d;
  }
  TORCHVOX_HD bool descends(int axis) const { return to[axis] < from[axis]; }
  // For cells of 2^shift units: the cell where the walk begins, how many faces it crosses, and the
  // distance to the first face, 0 for a ray that starts on it and descends.
  TORCHVOX_HD int32_t cell(int axis, int shift = kUnitShift) const {
    return static_cast<int32_t>(from[axis] >> shift);
  }
  TORCHVOX_HD int32_t crossings(int axis, int shift = kUnitShift) const {
    const int64_t n = (to[axis] >> shift) - (from[axis] >> shift);
    return static_cast<int32_t>(n < 0 ? -n : n);
  }
  TORCHVOX_HD int64_t to_face(int axis, int shift = kUnitShift) const {
    const int64_t inside = from[axis] & ((int64_t{1} << shift) - 1);
    return descends(axis) ? inside : (int64_t{1} << shift) - inside;
  }
  TORCHVOX_HD int32_t cell_at(const RayPlace& place, int axis) const {
    return cell(axis) + (descends(axis) ? -place.done[axis] : place.done[axis]);
  }
  // The fraction of the length at which crossing k of an axis lies, in one division.
  TORCHVOX_HD double fraction(int axis, int32_t k) const {
    return static_cast<double>(to_face(axis) + kUnits * k) / static_cast<double>(length(axis));
  }

  // The crossings of an axis that a walk has done when it is in a cell.
  TORCHVOX_HD int32_t done(int axis, int32_t at, int shift = kUnitShift) const {
    const int32_t steps = at - cell(axis, shift);
    return steps < 0 ? -steps : steps;
  }
  // The fraction at which the walk entered the voxel at a place: the latest of three crossings.
  TORCHVOX_HD double entered(const RayPlace& place) const {
    double enter = 0;
    for (int axis = 0; axis < 3; ++axis) {
      if (place.done[axis] == 0) continue;
      const double t = fraction(axis, place.done[axis] - 1);
      enter = t > enter ? t : enter;
    }
    return enter;
  }
  // The length of the line, in units.
  TORCHVOX_HD double units() const {
    double squares = 0;
    for (int axis = 0; axis < 3; ++axis) {
      const auto d = static_cast<double>(length(axis));
      squares = squares + d * d;
    }
    return root(squares);
  }

  TORCHVOX_HD RayPlace start() const { return {{0, 0, 0}}; }
  TORCHVOX_HD RayPlace end() const { return {{crossings(0), crossings(1), crossings(2)}}; }

  // The place before crossing k of `axis`.
  TORCHVOX_HD RayPlace before_crossing(int axis, int32_t k) const {
    RayPlace place;
    const int64_t a = length(axis), at = to_face(axis) + kUnits * k;
    for (int other = 0; other < 3; ++other) {
      if (other == axis) {
        place.done[other] = k;
        continue;
      }
      // Crossings m of the other axis with (num + 2^16 m) a < at * a_other, or equal to it if the
      // other axis goes first.
      const int64_t rest = at * length(other) - to_face(other) * a;
      const int64_t m = other > axis ? floor_div(rest, kUnits * a) + 1
                                     : floor_div(rest + kUnits * a - 1, kUnits * a);
      place.done[other] = static_cast<int32_t>(clamp(m, crossings(other)));
    }
    return place;
  }

  // The part of the walk inside a box, which is contiguous: it begins with the last crossing that
  // enters the box on an axis and ends before the first one that leaves it.
  TORCHVOX_HD RayPart clip(const VoxelBox& box) const {
    RayPart part{start(), end(), 0};
    for (int axis = 0; axis < 3; ++axis) {
      const int64_t at = cell(axis), n = crossings(axis);
      const int64_t enter = descends(axis) ? at - box.upper[axis] + 1 : box.lower[axis] - at;
      const int64_t leave = descends(axis) ? at - box.lower[axis] : box.upper[axis] - 1 - at;
      if (enter > n || leave < 0) return part;
      if (enter > 0) {
        RayPlace first = before_crossing(axis, static_cast<int32_t>(enter - 1));
        ++first.done[axis];
        if (first.steps() > part.first.steps()) part.first = first;
      }
      if (leave < n) {
        const RayPlace last = before_crossing(axis, static_cast<int32_t>(leave));
        if (last.steps() < part.last.steps()) part.last = last;
      }
    }
    const int64_t visits = part.last.steps() - part.first.steps() + 1;
    part.visits = visits < 0 ? 0 : visits;
    return part;
  }
  TORCHVOX_HD RayPart whole() const { return {start(), end(), end().steps() + 1}; }

  // Piece j of n of a part that has visits, cut where the axis with the most crossings has done j /
  // n of them; a piece may be empty.
  TORCHVOX_HD RayPart piece(const RayPart& part, int j, int n) const {
    int axis = 0;
    int64_t most = 0;
    for (int other = 0; other < 3; ++other) {
      const int64_t crossed = part.last.done[other] - part.first.done[other];
      if (crossed > most) {
        most = crossed;
        axis = other;
      }
    }
    const auto cut = [&](int k) {
      return part.first.done[axis] + static_cast<int32_t>(most * k / n);
    };
    RayPart piece = part;
    if (j > 0 && cut(j) == cut(j + 1)) {
      piece.visits = 0;
      return piece;
    }
    if (j > 0) {
      piece.first = before_crossing(axis, cut(j));
      ++piece.first.done[axis];
    }
    if (j < n - 1 && most > 0) piece.last = before_crossing(axis, cut(j + 1));
    piece.visits = piece.last.steps() - piece.first.steps() + 1;
    return piece;
  }

 private:
  static TORCHVOX_HD int64_t clamp(int64_t x, int64_t high) {
    return x < 0 ? 0 : (x > high ? high : x);
  }
};

// Walks cells of 2^kShift units. The fraction of the length at which each axis crosses its next
// face is kept in fixed point, with 2^30 as 1. It is rounded down, and so is the increment of a
// step: after k steps it is less than k + 1 too low. Crossings that are farther apart than that
// have the order of these numbers; nearer ones are compared by exact products. A crossing beyond
// the end of the line is never done: its fraction is 1 or more, so that every crossing before the
// end comes first. That remains true with fractions limited to 2 and increments to 1, which keeps
// sums below 2^32.
template <int kShift>
struct RayWalk {
  int32_t cell[3] = {};
  int32_t left = 0;  // steps

  RayWalk() = default;
  // From the cell of the first visit of the part to that of the last one. `line` must outlive the
  // walk.
  TORCHVOX_HD RayWalk(const RayLine& line, const RayPart& part) : line_(&line) {
    int32_t most = 0;
    for (int axis = 0; axis < 3; ++axis) {
      cell[axis] = line.cell_at(part.first, axis) >> (kShift - kUnitShift);
      const int32_t last = line.cell_at(part.last, axis) >> (kShift - kUnitShift);
      const int32_t steps = magnitude(last - cell[axis]);
      left += steps;
      most = most < steps ? steps : most;
      step_[axis] = line.descends(axis) ? -1 : 1;
      const double per_unit = kWhole / static_cast<double>(line.length(axis));
      at_[axis] = fixed(static_cast<double>(to_next(axis)) * per_unit, 2 * kWhole);
      ahead_[axis] = fixed(static_cast<double>(kCell) * per_unit, kWhole);
    }
    near_ = static_cast<uint32_t>(most) + 4;  // most + 1 steps, and quotients rounded up
  }

  // Makes the next of `left` steps, or the one after the last if the line goes on; returns its
  // axis.
  TORCHVOX_HD int step() {
    const uint32_t low = lower(at_[0], at_[1]), high = higher(at_[0], at_[1]);
    const uint32_t first = lower(low, at_[2]), second = higher(low, lower(high, at_[2]));
    bool x = at_[0] == first, y = at_[1] == first;
    if (second - first < near_) {
      const int axis = exact_axis();
      x = axis == 0;
      y = axis == 1;
    }
    const bool z = !x && !y;
    --left;
    cell[0] += x ? step_[0] : 0;
    cell[1] += y ? step_[1] : 0;
    cell[2] += z ? step_[2] : 0;
    at_[0] += x ? ahead_[0] : 0;
    at_[1] += y ? ahead_[1] : 0;
    at_[2] += z ? ahead_[2] : 0;
    return x ? 0 : (y ? 1 : 2);
  }

 private:
  static constexpr int64_t kCell = int64_t{1} << kShift;
  static constexpr double kWhole = 1 << 30;

  static TORCHVOX_HD int32_t magnitude(int32_t x) { return x < 0 ? -x : x; }
  static TORCHVOX_HD uint32_t lower(uint32_t a, uint32_t b) { return a < b ? a : b; }
  static TORCHVOX_HD uint32_t higher(uint32_t a, uint32_t b) { return a < b ? b : a; }
  // x in fixed point, limited to `most`; on an axis without length, x is infinite.
  static TORCHVOX_HD uint32_t fixed(double x, double most) {
    return static_cast<uint32_t>(x < most ? x : most);
  }
  // Units from the begin of the line to the next face.
  TORCHVOX_HD int64_t to_next(int axis) const {
    return line_->to_face(axis, kShift) + kCell * line_->done(axis, cell[axis], kShift);
  }
  // The axis of the next crossing by exact products, among those that have not reached the last
  // cell.
  TORCHVOX_HD int exact_axis() const {
    int first = -1;
    int64_t to_first = 0;
    for (int axis = 2; axis >= 0; --axis) {
      if (cell[axis] == static_cast<int32_t>(line_->to[axis] >> kShift)) continue;
      const int64_t to = to_next(axis);
      if (first < 0 || to * line_->length(first) < to_first * line_->length(axis)) {
        first = axis;
        to_first = to;
      }
    }
    return first;
  }

  const RayLine* line_ = nullptr;
  uint32_t at_[3] = {}, ahead_[3] = {};  // the next crossing of each axis, and the increment
  int32_t step_[3] = {};
  uint32_t near_ = 0;
};

}  // namespace torchvox
