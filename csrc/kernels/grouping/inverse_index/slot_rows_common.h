// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "csrc/kernels/grouping/inverse_index/slot_rows.h"

namespace torchvox {

TORCHVOX_HD int64_t clamped_offset(const IndexArray& ptr, int64_t b, int64_t size) {
  const int64_t offset = ptr[b];
  return offset < 0 ? 0 : (offset > size ? size : offset);
}

// The cloud that owns `query`, or -1.
TORCHVOX_HD int64_t cloud_of_query(const SlotRowsArgs& args, int64_t query) {
  int64_t low = 0, high = args.clouds;
  if (high == 0 || query < args.query_ptr[0] || query >= args.query_ptr[high]) return -1;
  while (high - low > 1) {
    const int64_t middle = (low + high) / 2;
    if (args.query_ptr[middle] <= query) {
      low = middle;
    } else {
      high = middle;
    }
  }
  return low;
}

// Slot i of [queries, k].
TORCHVOX_HD void slot_row(const SlotRowsArgs& args, int64_t i) {
  const int64_t query = i / args.k;
  int64_t begin = 0, end = args.rows;
  if (args.ptr.given()) {
    const int64_t cloud = cloud_of_query(args, query);
    begin = cloud < 0 ? 0 : clamped_offset(args.ptr, cloud, args.rows);
    end = cloud < 0 ? 0 : clamped_offset(args.ptr, cloud + 1, args.rows);
  }
  const int64_t index = args.idx[i];
  const int64_t first = args.local_index ? 0 : begin;  // the index of the cloud's first row
  const bool named = index >= first && index < first + (end - begin) &&
      (!args.count.given() || i - query * args.k < args.count[query]);
  args.row[i] = named ? static_cast<int32_t>(index - first + begin) : -1;
}

}  // namespace torchvox
