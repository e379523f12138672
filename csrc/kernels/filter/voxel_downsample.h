// SPDX-License-Identifier: Apache-2.0
//
// Entry of voxel_downsample: keys, groups and means, then the outputs that follow from the key and
// the points of each row.
#pragma once

#include "csrc/kernels/core/atomics.h"
#include "csrc/kernels/filter/exact_sum.h"
#include "csrc/kernels/filter/voxel_group.h"
#include "csrc/kernels/filter/voxel_key.h"

namespace torchvox {

enum DownsampleCount {
  kRowsFound,
  kKeyCountsFrom,
  kDownsampleCounts = kKeyCountsFrom + kKeyCounts
};

struct VoxelDownsampleArgs {
  VoxelKeysArgs keys;  // without outputs; the rows of the points are contiguous
  ValueType type = ValueType::kFloat;  // of the points
  bool by_key = false;
  GroupBackend backend = GroupBackend::kAuto;
  int threads = 1;  // CPU threads that may be used; never decides a result
  // Outputs, with as many rows as there are points.
  void* means = nullptr;  // [points, columns]
  int32_t* indices = nullptr;  // [points, 4]
  int32_t* num_points = nullptr;  // [points]
  int32_t* representative = nullptr;  // [points]: the lowest point of the row; -1 in unused rows
  int32_t* point_voxel = nullptr;  // [points]
  int32_t* counts = nullptr;  // [clouds + 1, kDownsampleCounts]

  int64_t points() const { return keys.points.rows; }
  int64_t clouds() const { return keys.points.clouds; }
  int64_t num_counts() const { return (clouds() + 1) * kDownsampleCounts; }
  int key_bits() const {
    return 3 * keys.frame.bits + (clouds() > 1 ? bits_for(static_cast<uint64_t>(clouds())) : 0);
  }

  // Writes row i with its key (-1: unused) and counts the rows of each sample from the key of the
  // row before: rows of one sample are consecutive, so that a run from begin to end adds end -
  // begin. The row after the last ends its run.
  TORCHVOX_HD void write_row(int64_t i, int64_t key, int64_t key_before, int64_t n) const {
    const int64_t sample = sample_of(key), before = sample_of(key_before);
    if (sample != before) {
      add_rows(before, i);
      add_rows(sample, -i);
    }
    if (i == keys.points.rows) return;
    write_cell(keys.frame, key, indices + 4 * i);
    num_points[i] = static_cast<int32_t>(n);
  }

 private:
  TORCHVOX_HD int64_t sample_of(int64_t key) const {
    return key < 0 ? -1 : key >> (3 * keys.frame.bits);
  }
  TORCHVOX_HD void add_rows(int64_t sample, int64_t rows) const {
    if (sample < 0) return;
    const uint32_t n = static_cast<uint32_t>(rows);
    atomic_add(reinterpret_cast<uint32_t*>(&counts[(sample + 1) * kDownsampleCounts]), n);
    atomic_add(reinterpret_cast<uint32_t*>(&counts[kRowsFound]), n);
  }
};

TORCHVOX_KERNEL(VoxelDownsampleArgs);

// The arguments of the three ops of which voxel_downsample consists.
struct DownsampleSteps {
  VoxelDownsampleArgs args;
  VoxelKeysArgs keys;
  VoxelGroupArgs group;
  VoxelSumArgs mean;

  DownsampleSteps(const VoxelDownsampleArgs& args, Workspace& workspace)
      : args(args), keys(args.keys) {
    const int64_t n = args.points();
    keys.counts = args.counts + kKeyCountsFrom;
    keys.counts_stride = kDownsampleCounts;
    keys.keys = workspace.take<int64_t>(n);
    group.keys = keys.keys;
    group.points = n;
    group.key_bits = args.key_bits();
    group.by_key = args.by_key;
    group.backend = args.backend;
    group.threads = args.threads;
    group.row_keys = workspace.take<int64_t>(n);
    group.offsets = workspace.take<int32_t>(n + 1);
    group.perm = workspace.take<int32_t>(n);
    group.point_voxel = args.point_voxel;
    group.counts = workspace.take<int32_t>(2);
    mean.values = args.keys.points.data;
    mean.type = args.type;
    mean.points = mean.rows = n;
    mean.columns = args.keys.points.columns;
    mean.offsets = group.offsets;
    mean.perm = group.perm;
    mean.means = args.means;
  }
};

TORCHVOX_HD void write_grouped_row(const DownsampleSteps& steps, int64_t i) {
  const VoxelGroupArgs& group = steps.group;
  const int64_t key = i < group.points ? group.row_keys[i] : -1;
  const int32_t begin = group.offsets[i];
  const int64_t n = i < group.points ? group.offsets[i + 1] - begin : 0;
  steps.args.write_row(i, key, i > 0 ? group.row_keys[i - 1] : -1, n);
  if (i < group.points) steps.args.representative[i] = n > 0 ? group.perm[begin] : -1;
}

}  // namespace torchvox
