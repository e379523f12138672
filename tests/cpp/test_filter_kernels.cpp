// SPDX-License-Identifier: Apache-2.0
//
// Keys of voxels, groups of keys, exact sums and means; cells along curves, and unique cells.
#include <algorithm>

#include "csrc/kernels/cells/serialize.h"
#include "csrc/kernels/cells/unique_cells.h"
#include "csrc/kernels/filter/voxel_downsample.h"
#include "tests/cpp/harness.h"

namespace {

constexpr int64_t kRows = 5000;

TEST_CASE(quotients_round_down_where_their_product_leaves_64_bits) {
  const int64_t divisor = int64_t{1} << 32;
  int64_t rest = 0;
  CHECK(floor_divide(INT64_MAX, divisor, 1.0 / static_cast<double>(divisor), &rest) == INT32_MAX);
  CHECK(rest == divisor - 1);
}

// Of points in two clouds.
VoxelKeysArgs keys_of(Side& side) {
  VoxelKeysArgs args;
  args.points = packed(side, make_points(kRows, 4, 5, 1), 4, {0, 2000, kRows});
  for (int axis = 0; axis < 3; ++axis) args.size[axis] = 0.5, args.frame.lower[axis] = -8;
  args.frame.bits = 4;
  return args;
}

KERNEL_CASE(voxel_keys, 0xd5c654e52f319738) {
  VoxelKeysArgs args = keys_of(side);
  side.room(&args.keys, kRows, &args.counts, 3 * kKeyCounts);
  side.run(args);
  VoxelCellsArgs cells;
  cells.keys = args.keys, cells.rows = kRows, cells.frame = args.frame;
  cells.cells = side.room<int32_t>(4 * kRows);
  side.run(cells);
}

KERNEL_CASE(voxel_downsample, 0xeb0e422761e954e3) {
  VoxelDownsampleArgs args;
  args.keys = keys_of(side), args.by_key = true, args.threads = 3;
  side.room(&args.means, 4 * kRows, &args.indices, 4 * kRows, &args.num_points, kRows,
            &args.representative, kRows, &args.point_voxel, kRows, &args.counts, args.num_counts());
  side.run(args);
}

// Groups, then sums and means of their rows.
KERNEL_CASE(voxel_group, 0xb0048fc11e5fcf51) {
  constexpr int64_t kColumns = 3, kWords = kSumWords<float>;
  for (const GroupBackend backend : {GroupBackend::kSort, GroupBackend::kHash}) {
    VoxelGroupArgs args;
    args.keys = side.put(Random(2).integers<int64_t>(kRows, -3, kRows / 4));
    args.points = kRows, args.key_bits = 33, args.backend = backend, args.threads = 3;
    side.room(&args.row_keys, kRows, &args.offsets, kRows + 1, &args.perm, kRows, &args.point_voxel,
              kRows, &args.counts, 2);
    side.run(args);

    VoxelSumArgs sum;
    sum.values = side.put(make_points(kRows, kColumns, 1e6f, 3));
    sum.points = kRows, sum.columns = kColumns, sum.rows = kRows;
    sum.offsets = args.offsets, sum.perm = args.perm;
    sum.means = side.room<float>(kRows * kColumns);
    side.run(sum);
    sum.sums = side.room<int64_t>(kRows * kColumns * kWords);
    side.run(sum);
    VoxelMeanOfSumsArgs mean;
    mean.sums = sum.sums;
    mean.num_points = {side.put(std::vector<int32_t>(kRows, 4)), false};
    mean.rows = kRows, mean.columns = kColumns;
    mean.means = side.room<float>(kRows * kColumns);
    side.run(mean);
  }
}

KERNEL_CASE(serialize, 0x61133fb749fc5553) {
  constexpr int kDepth = 16;
  SerializeArgs args;
  args.cells.data = side.put(Random(4).integers<int64_t>(3 * kRows, -1, 1 << kDepth));
  args.cells.packed = args.wide = true, args.cells.rows = kRows, args.cells.row_stride = 3;
  args.batch_index = {side.put(Random(5).integers(kRows, -1, 4)), false};
  args.num_curves = kMostCurves;
  for (int k = 0; k < kMostCurves; ++k) args.curves[k] = {k % 2 == 1, k >= 2};
  args.frame.bits = kDepth;
  side.room(&args.codes, kMostCurves * kRows, &args.order, kMostCurves * kRows, &args.inverse,
            kMostCurves * kRows);
  side.run(args);
}

KERNEL_CASE(unique_cells, 0x374265489dd80035) {
  CellKeysArgs keys;
  keys.cells.data = {side.put(Random(6).integers(3 * kRows, -1, 1029)), false};
  keys.cells.rows = kRows, keys.cells.columns = 3;
  keys.cells.row_stride = 3, keys.cells.column_stride = 1;
  keys.bits = 10, keys.first = 1, keys.last = 3;
  keys.before = keys.behind = side.put(Random(7).integers(kRows, 0, 2000));
  keys.keys = side.room<int64_t>(kRows);
  side.run(keys);

  std::vector<int32_t> offsets = Random(8).integers(kRows + 1, 0, kRows + 1);
  std::sort(offsets.begin(), offsets.end());
  CellRowsArgs rows;
  rows.cells = keys.cells;
  rows.offsets = side.put(offsets);
  rows.perm = side.put(Random(9).integers(kRows, 0, kRows));
  side.room(&rows.indices, 3 * kRows, &rows.num_points, kRows);
  side.run(rows);
}

}  // namespace
