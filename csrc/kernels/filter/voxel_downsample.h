// SPDX-License-Identifier: Apache-2.0
//
// Entry of the last step of voxel_downsample: what follows for each row from its key and its list
// of points, and the counts of the call.
#pragma once

#include "csrc/kernels/core/atomics.h"
#include "csrc/kernels/filter/voxel_key.h"

namespace torchvox {

enum DownsampleCount {
  kRowsFound,
  kKeyCountsFrom,
  kDownsampleCounts = kKeyCountsFrom + kKeyCounts
};

struct DownsampleRowsArgs {
  int64_t points = 0, clouds = 1;
  KeyFrame frame;
  const int64_t* row_keys = nullptr;  // [points]
  const int32_t* offsets = nullptr;  // [points + 1]
  const int32_t* perm = nullptr;  // [points]
  const int32_t* key_counts = nullptr;  // [clouds + 1, kKeyCounts]
  int32_t* indices = nullptr;  // [points, 4]
  int32_t* num_points = nullptr;  // [points]
  int32_t* representative = nullptr;  // [points]: the lowest point of the row; -1
  int32_t* counts = nullptr;  // [clouds + 1, kDownsampleCounts], cleared

  // -1 of an unused row, and of none.
  TORCHVOX_HD int64_t sample_of(int64_t row) const {
    if (row < 0 || row >= points || row_keys[row] < 0) return -1;
    return row_keys[row] >> (3 * frame.bits);
  }
  // Rows of one sample follow each other: a run of them from begin to end adds end - begin.
  TORCHVOX_HD void add_rows(int64_t sample, int64_t rows) const {
    if (sample < 0 || sample >= clouds) return;
    const uint32_t n = static_cast<uint32_t>(rows);
    atomic_add(reinterpret_cast<uint32_t*>(&counts[(sample + 1) * kDownsampleCounts]), n);
    atomic_add(reinterpret_cast<uint32_t*>(&counts[kRowsFound]), n);
  }
};

TORCHVOX_KERNEL_WITHOUT_WORKSPACE(DownsampleRowsArgs);

// Row i of the rows, and of the counts. The last row's successor ends its run.
TORCHVOX_HD void write_downsample_row(const DownsampleRowsArgs& args, int64_t i) {
  if (i <= args.clouds) {
    for (int c = 0; c < kKeyCounts; ++c) {
      args.counts[i * kDownsampleCounts + kKeyCountsFrom + c] = args.key_counts[i * kKeyCounts + c];
    }
  }
  if (i > args.points) return;
  const int64_t sample = args.sample_of(i), before = args.sample_of(i - 1);
  if (sample != before) {
    args.add_rows(before, i);
    args.add_rows(sample, -i);
  }
  if (i == args.points) return;
  write_cells({args.row_keys, args.points, args.frame, args.indices}, i);
  args.num_points[i] = args.offsets[i + 1] - args.offsets[i];
  args.representative[i] = sample < 0 ? -1 : args.perm[args.offsets[i]];
}

}  // namespace torchvox
