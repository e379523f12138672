// SPDX-License-Identifier: Apache-2.0
//
// The points of each pillar in slot order.
#pragma once

#include <algorithm>
#include <cstdint>

#include "csrc/kernels/core/ordered_sum.h"
#include "csrc/kernels/core/workspace.h"
#include "csrc/kernels/pillars/map.h"

namespace torchvox {

struct PillarLists {
  int32_t* points = nullptr;  // row r's begin at begin(r)
  const int32_t* offsets = nullptr;  // [rows]; null: `stride` entries a row
  int64_t stride = 0;
  int64_t entries = 0;

  TORCHVOX_HD int64_t begin(int64_t row) const {
    if (offsets == nullptr) return row * stride;
    const int64_t offset = offsets[row];
    return offset < 0 ? 0 : offset;
  }
  // Entered by the thread of the point.
  TORCHVOX_HD void enter(const PillarMap& map, int64_t point) const {
    const int64_t row = map.row_of(point);
    if (row < 0) return;
    const int64_t at = begin(row) + map.point_slot[point];
    if (at < entries) points[at] = static_cast<int32_t>(point);
  }
  // The point in a slot below stored(row): a point of the cloud, whatever the map holds.
  TORCHVOX_HD int64_t at(const PillarMap& map, int64_t begin, int64_t slot) const {
    const int64_t entry = begin + slot;
    const int64_t point = entry < entries ? points[entry] : 0;
    return point >= 0 && point < map.count ? point : 0;
  }
};

// The mean of a pillar's n points, by the sum rule of voxelize.
template <class T, class Real>
TORCHVOX_HD void pillar_mean(const PillarMap& map, const PillarLists& lists, int64_t row, int64_t n,
                             PillarFrame<Real>& frame) {
  const int64_t begin = lists.begin(row);
  CascadeSum<Real> sum[3];
  for (int64_t slot = 0; slot < n; ++slot) {
    const int64_t point = lists.at(map, begin, slot);
    for (int axis = 0; axis < 3; ++axis) sum[axis].add(map.value<T, Real>(point, axis));
  }
  for (int axis = 0; axis < 3; ++axis) {
    frame.mean[axis] = n > 0 ? sum[axis].total() / static_cast<Real>(n) : Real(0);
  }
}

// The lists on the host, one after another.
class HostPillarLists {
 public:
  HostPillarLists(const PillarMap& map, Workspace& workspace)
      : offsets_(workspace.take<int32_t>(map.rows.rows)) {
    lists.offsets = offsets_;
    lists.entries = map.count;
    lists.points = workspace.take<int32_t>(map.count);
  }
  void fill(const PillarMap& map) const {
    int64_t next = 0;
    for (int64_t row = 0; row < map.rows.rows; ++row) {
      offsets_[row] = static_cast<int32_t>(std::min(next, map.count));
      next += map.stored(row);
    }
    std::fill_n(lists.points, map.count, 0);  // a map that is none may leave entries out
    for (int64_t point = 0; point < map.count; ++point) lists.enter(map, point);
  }

  PillarLists lists;

 private:
  int32_t* offsets_;
};

}  // namespace torchvox
