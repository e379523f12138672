// SPDX-License-Identifier: Apache-2.0
//
// Entry of voxel_group: the points of each distinct key. Two backends with the same result:
//
//   hash  the table and the steps of voxelize, over keys in place of coordinates
//   sort  a radix sort of (key, point); rows are runs of one key
//
// Keys below 0, and those of more than `key_bits` bits, are dropped.
#pragma once

#include "csrc/kernels/voxel/voxelize/voxelize.h"

namespace torchvox {

enum class GroupBackend { kAuto, kSort, kHash };

struct VoxelGroupArgs {
  const int64_t* keys = nullptr;  // [points]
  int64_t points = 0;
  int key_bits = 63;
  bool by_key = false;  // rows ascend by key; else by their first points
  GroupBackend backend = GroupBackend::kAuto;
  int threads = 1;  // CPU threads that may be used; never decides a result
  int64_t* row_keys = nullptr;  // [points]; unused rows -1
  int32_t* offsets = nullptr;  // [points + 1]
  int32_t* perm = nullptr;  // [points]: points by row, ascending; the tail -1
  int32_t* point_voxel = nullptr;  // [points]; dropped points -1
  int32_t* counts = nullptr;  // [2]: rows, points in rows

  TORCHVOX_HD bool is_key(uint64_t key) const { return key >> key_bits == 0; }
};

TORCHVOX_KERNEL(VoxelGroupArgs);

// The arguments of voxelize in the hash backend, and its additional outputs.
struct HashGroup {
  VoxelizeArgs voxelize;

  HashGroup(const VoxelGroupArgs& args, Workspace& workspace) {
    voxelize.points.packed = true;
    voxelize.points.rows = args.points;
    voxelize.keys = args.keys;
    voxelize.key_bits = args.key_bits;
    voxelize.order = args.by_key ? VoxelOrder::kZyx : VoxelOrder::kFirst;
    voxelize.threads = args.threads;
    voxelize.row_keys = args.row_keys;
    voxelize.point_voxel = args.point_voxel;
    voxelize.num_points = workspace.take<int32_t>(args.points);
    voxelize.point_slot = workspace.take<int32_t>(args.points);
    voxelize.counts = workspace.take<int32_t>(2 * kVoxelCounts);
  }
};

// Writes a point at its place in perm.
TORCHVOX_HD void place_in_row(const VoxelGroupArgs& args, const VoxelizeArgs& voxelize,
                              int64_t point) {
  const int32_t row = args.point_voxel[point];
  if (row >= 0) {
    args.perm[args.offsets[row] + voxelize.point_slot[point]] = static_cast<int32_t>(point);
  }
}

}  // namespace torchvox
