// SPDX-License-Identifier: Apache-2.0
//
// The voxels that a ray visits, in integers: the one definition for every op that walks rays.
//
// Ends are whole numbers of units, 2^16 to a voxel. On axis i a ray crosses the faces
// k = 0, 1, ... at the fractions (num_i + 2^16 k) / a_i of its way; the walk takes the crossings in
// ascending order, of equal ones that of the higher axis first. A place on the walk is how many
// crossings of each axis are done. Regions (2^19 units) are visited by the same rule.
#pragma once

#include "csrc/kernels/rays/region.h"

namespace torchvox {

inline constexpr int kUnitShift = 16;  // units in a voxel
inline constexpr int64_t kUnits = int64_t{1} << kUnitShift;
inline constexpr int64_t kRayReach = int64_t{1}
    << 31;  // units that a ray may have on an axis, less 1

TORCHVOX_HD int64_t floor_div(int64_t a, int64_t b) {  // b > 0
  return a >= 0 ? a / b : -((-a + b - 1) / b);
}

// Crossings done on each axis.
struct RayPlace {
  int32_t done[3];

  TORCHVOX_HD int64_t steps() const { return int64_t{done[0]} + done[1] + done[2]; }
};

// Visits first to last of a walk, both included; none if `visits` is 0.
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
  // Of cells of 2^shift units: where the walk begins, how often it crosses a face, and how far the
  // first face is, 0 for a ray that starts on it and descends.
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
  // The fraction of the way at which crossing k of an axis lies, in one division.
  TORCHVOX_HD double fraction(int axis, int32_t k) const {
    return static_cast<double>(to_face(axis) + kUnits * k) / static_cast<double>(length(axis));
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

  // The part of the walk that lies in a box. What is inside is one piece: it begins with the last
  // crossing that enters the box on an axis and ends before the first one that leaves it.
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

  // Piece j of n of a part with a visit, cut where the axis of most crossings has done j / n of
  // them; some may be empty.
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

// Walks cells of 2^kShift units. Of two axes the earlier crossing is known by the sign of
// num_i a_j - num_j a_i, below 2^63 in size; a step on an axis adds to two of the three.
// Crossings behind the end of the line never come first: their fraction is above 1. But for a
// descending axis that ends on a face it is 1, of a crossing that is not done: such an axis retires
// before the last steps, those of the at most two other axes that cross a face at 1.
template <int kShift>
struct RayWalk {
  int32_t cell[3];
  int32_t left;  // steps

  RayWalk() = default;
  // Regions: from the region of the first visit of the part to that of the last one.
  TORCHVOX_HD RayWalk(const RayLine& line, const RayPart& part) : left(0) {
    constexpr int64_t kCell = int64_t{1} << kShift;
    int64_t num[3];
    retires_at_ = -1;
    for (int axis = 0; axis < 3; ++axis) {
      const int32_t begin = line.cell(axis, kShift);
      cell[axis] = line.cell_at(part.first, axis) >> (kShift - kUnitShift);
      const int32_t last = line.cell_at(part.last, axis) >> (kShift - kUnitShift);
      const int32_t done = magnitude(cell[axis] - begin);
      last_[axis] = static_cast<int32_t>(line.to[axis] >> kShift);
      left += magnitude(last - cell[axis]);
      step_[axis] = line.descends(axis) ? -1 : 1;
      length_[axis] = line.length(axis);
      num[axis] = line.to_face(axis, kShift) + kCell * done;
      if (line.descends(axis) && line.to[axis] % kCell == 0) retires_at_ = 2;
    }
    xy_ = num[0] * length_[1] - num[1] * length_[0];
    xz_ = num[0] * length_[2] - num[2] * length_[0];
    yz_ = num[1] * length_[2] - num[2] * length_[1];
    for (int64_t& length : length_) length *= kCell;
  }

  // Makes the next of `left` steps; returns its axis.
  TORCHVOX_HD int step() {
    if (left <= retires_at_) retire();
    --left;
    const bool x = xy_ < 0 && xz_ < 0, y = !x && yz_ < 0, z = !x && !y;
    cell[0] += x ? step_[0] : 0;
    cell[1] += y ? step_[1] : 0;
    cell[2] += z ? step_[2] : 0;
    xy_ += x ? length_[1] : (y ? -length_[0] : 0);
    xz_ += x ? length_[2] : (z ? -length_[0] : 0);
    yz_ += y ? length_[2] : (z ? -length_[1] : 0);
    return x ? 0 : (y ? 1 : 2);
  }

 private:
  static TORCHVOX_HD int32_t magnitude(int32_t x) { return x < 0 ? -x : x; }

  // Axes that are at their last cell never go first: no sum of later steps, below 2^62, undoes
  // this.
  TORCHVOX_HD void retire() {
    constexpr int64_t kNever = INT64_MAX;
    if (cell[0] == last_[0]) xy_ = xz_ = kNever;
    if (cell[1] == last_[1]) {
      xy_ = -kNever;
      yz_ = kNever;
    }
    if (cell[2] == last_[2]) xz_ = yz_ = -kNever;
  }

  int64_t xy_, xz_, yz_;  // below 0: the crossing of the first of the two axes is earlier
  int64_t length_[3];
  int32_t last_[3], step_[3];  // the cell of the end of the line
  int32_t retires_at_;  // so many steps left
};

}  // namespace torchvox
