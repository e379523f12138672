// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>

#include "csrc/kernels/core/workspace.h"
#include "csrc/kernels/pillars/lists.h"

namespace torchvox {

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
