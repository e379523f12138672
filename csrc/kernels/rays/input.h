// SPDX-License-Identifier: Apache-2.0
//
// The rays of ops, and the status of each: its ends in units, or why it is skipped.
#pragma once

#include "csrc/kernels/core/entry.h"
#include "csrc/kernels/rays/walk.h"

namespace torchvox {

// Bits of a ray's flags.
enum RayFlag { kRaySkip = 1, kRayNoHit = 2, kRayHitOnly = 4, kRaySecondary = 8 };

// The status of a ray, and its column of `counts` in the ops over a map's frame.
enum RayStatus { kRayPadding = -1, kRayWalked = 0, kRayNotFinite = 2, kRayFiltered, kRayOutside };
inline constexpr int kRaysGiven = 1;  // column of all rays that are not padding
inline constexpr int kRayCounts = 8;  // number of columns

struct Ray {
  RayLine line;
  uint8_t flags = 0;
  bool truncated = false;  // max_range cut its end off

  TORCHVOX_HD bool has_end() const { return !truncated && !(flags & kRayNoHit); }
};

// One ray per point, from the row of `origins` that `origin_index` names, or that of its sample.
struct RayInput {
  CloudBatch points;  // packed
  const void* origins = nullptr;  // [origin_rows, 3]
  DType origin_type = DType::kFloat;
  int64_t origin_rows = 0;
  int64_t origin_stride = 0;  // of a row, in elements
  IndexArray origin_index;  // [points.rows]
  const uint8_t* flags = nullptr;  // [points.rows]

  // Loads the ends of a ray; kRayWalked if it is not skipped, has an origin, and both ends are
  // finite.
  template <class Real>
  TORCHVOX_HD RayStatus load(int64_t row, int64_t sample, double from[3], Real to[3],
                             uint8_t* flags_out) const {
    *flags_out = flags ? flags[row] : uint8_t{0};
    if (*flags_out & kRaySkip) return kRayFiltered;
    const int64_t origin = origin_index.given() ? origin_index[row] : sample;
    if (origin < 0 || origin >= origin_rows) return kRayFiltered;
    bool finite = true;
    for (int axis = 0; axis < 3; ++axis) {
      from[axis] = load_as<double>(origins, origin_type, origin * origin_stride + axis);
      to[axis] = load_as<Real>(points.data, points.dtype, row * points.row_stride + axis);
      finite = finite && is_finite(from[axis]) && is_finite(to[axis]);
    }
    return finite ? kRayWalked : kRayNotFinite;
  }
};

// floor(q) as an integer; false if q is not in [-reach, reach).
template <class Real>
TORCHVOX_HD bool to_units(Real q, int64_t reach, int64_t* units) {
  const bool inside = q >= -static_cast<Real>(reach) && q < static_cast<Real>(reach);
  int64_t u = static_cast<int64_t>(inside ? q : Real(0));
  u -= static_cast<Real>(u) > q && inside;
  *units = u;
  return inside;
}

TORCHVOX_HD bool is_short(const RayLine& line) {
  return line.length(0) < kRayReach && line.length(1) < kRayReach && line.length(2) < kRayReach;
}

// Rays in a map's frame.
struct MapRays : RayInput {
  double voxel_size = 1;  // meters, as all lengths
  double map_origin[3] = {0, 0, 0};
  double min_range = 0, max_range = -1;  // below 0: none
  bool drop_long = false;  // drops rays beyond max_range instead of cutting them
  bool clips = false;
  VoxelBox box;  // in which visits count, if `clips`

  TORCHVOX_HD bool units_of(double p, int axis, int64_t* units) const {
    const double q = (p - map_origin[axis]) / voxel_size * static_cast<double>(kUnits);
    return to_units(q, kVoxelReach << kUnitShift, units);
  }

  TORCHVOX_HD RayStatus ray(int64_t row, Ray* ray) const {
    const int64_t sample = points.packed_owner(row);
    if (sample < 0) return kRayPadding;
    double from[3], to[3];
    const RayStatus status = load(row, sample, from, to, &ray->flags);
    if (status != kRayWalked) return status;
    const double x = to[0] - from[0], y = to[1] - from[1], z = to[2] - from[2];
    const double length = root(x * x + y * y + z * z);
    if (!is_finite(length)) return kRayOutside;
    if (length < min_range) return kRayFiltered;
    ray->truncated = max_range >= 0 && length > max_range;
    if (ray->truncated) {
      if (drop_long) return kRayFiltered;
      const double part = max_range / length;
      for (int axis = 0; axis < 3; ++axis) to[axis] = from[axis] + (to[axis] - from[axis]) * part;
    }
    bool inside = true;
    for (int axis = 0; axis < 3; ++axis) {
      inside = units_of(from[axis], axis, &ray->line.from[axis]) && inside;
      inside = units_of(to[axis], axis, &ray->line.to[axis]) && inside;
    }
    return inside && is_short(ray->line) ? kRayWalked : kRayOutside;
  }

  // The visits that count: all of them, those in the box, or only the end of a ray that only hits.
  TORCHVOX_HD RayPart part(const Ray& ray) const {
    RayPart part = clips ? ray.line.clip(box) : ray.line.whole();
    if (ray.flags & kRayHitOnly && part.visits > 0) {
      const RayPlace end = ray.line.end();
      part.visits = part.last.steps() == end.steps();
      part.first = end;
    }
    return part;
  }
};

}  // namespace torchvox
