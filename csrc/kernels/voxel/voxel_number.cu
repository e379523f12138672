// SPDX-License-Identifier: Apache-2.0
//
// Ids in order of first appearance. A point is its voxel's first exactly when the table holds its
// index, so ids and segments are one exclusive sum over the points, in point order.
#include "csrc/kernels/core/dependent_launch.cuh"
#include "csrc/kernels/core/launch.cuh"
#include "csrc/kernels/voxel/voxel_number.cuh"

namespace torchvox {
namespace {

// Four points a thread. Reads 4 bytes a point in order and, for points that may be first ones, one
// random sector of the table; each voxel's first point writes its segment (16 bytes) and leaves the id in the table for the others.
template <bool kCommon>
__global__ void __launch_bounds__(kVoxelThreads) number_kernel(VoxelizeArgs args, VoxelWork work) {
  assume_common<kCommon>(args, work);
  __shared__ ScanShared shared;
  __shared__ uint32_t voxels_before[kTilePoints];
  const PackedPoints& points = args.points;
  wait_for_previous();
  const int64_t tile = block_ticket(&work.counters->scan_ticket);
  const int64_t begin = tile * kTilePoints;
  const int64_t row = begin + 4 * threadIdx.x;

  const unsigned maybe = row < points.rows ? work.maybe_first[row / 32] >> row % 32 : 0;
  uint32_t slot[4] = {kNone32, kNone32, kNone32, kNone32};
  if (row + 4 <= points.rows) {
    const uint4 four = *reinterpret_cast<const uint4*>(work.slot + row);
    slot[0] = four.x;
    slot[1] = four.y;
    slot[2] = four.z;
    slot[3] = four.w;
  } else {
    for (int k = 0; k < 4; ++k) {
      if (row + k < points.rows) slot[k] = work.slot[row + k];
    }
  }
  for (int k = 0; k < 4; ++k) {
    if ((maybe >> k & 1) == 0) slot[k] = kNone32;
  }
  VoxelTable::Entry entry[4];
  uint64_t key[4];
  for (int k = 0; k < 4; ++k) {
    entry[k] =
        slot[k] != kNone32 ? work.table.entry(slot[k], &key[k]) : VoxelTable::Entry{kNone32, 0};
  }
  uint64_t sum = 0;
  uint32_t crowded = 0;
  uint32_t count[4];  // 0: not a first point
  for (int k = 0; k < 4; ++k) {
    const bool first = slot[k] != kNone32 && entry[k].first == static_cast<uint32_t>(row + k);
    count[k] = first ? entry[k].count + 1 : 0;
    sum += pack_sum(first, count[k]);
    crowded += count[k] > kSmallVoxel;
  }
  uint64_t total;
  uint64_t before = block_prefix(sum, shared, &total);
  const auto places = CrowdedPlaces::reserve(work.counters, crowded);
  const uint64_t tiles_before = tile_prefix(work.status, tile, total, shared);
  if (tile == work.tiles - 1 && threadIdx.x == 0) {
    store_relaxed(&work.totals->voxels, sum_voxels(tiles_before + total));
  }
  before += tiles_before;
  uint32_t crowded_at = places.first();

  for (int k = 0; k < 4; ++k) {
    voxels_before[4 * threadIdx.x + k] = sum_voxels(before);
    if (count[k] == 0) continue;
    const uint32_t id = sum_voxels(before);
    const uint32_t place = sum_points(before);
    work.table.give_id(slot[k], key[k], id, place);
    add_voxel(args, work, id, {key[k], place, count[k]}, &crowded_at);
    if (work.bitmap != nullptr) atomicAnd(&work.bitmap[key[k] / 32], ~(1u << (key[k] % 32)));
    before += pack_sum(1, count[k]);
  }
  let_next_begin();
  if (points.offsets.given()) {
    __syncthreads();
    const int64_t end = begin + kTilePoints < points.rows ? begin + kTilePoints : points.rows;
    for (int64_t b = threadIdx.x; b <= points.batches; b += kVoxelThreads) {
      const int64_t offset = points.offset(b);
      if (offset >= begin && offset < end) work.sample_begin[b] = voxels_before[offset - begin];
    }
  }
  const bool last = points.offsets.given() ? is_last_block(&work.counters->scan_done, work.tiles)
                                           : tile == work.tiles - 1;
  if (last) write_samples(args, work, shared);
}

}  // namespace

cudaError_t number_voxels(const VoxelizeArgs& args, const VoxelWork& work,
                          const CudaContext& context) {
  const unsigned blocks = static_cast<unsigned>(work.tiles);
  return work.common
      ? launch_after(number_kernel<true>, blocks, kVoxelThreads, context, args, work)
      : launch_after(number_kernel<false>, blocks, kVoxelThreads, context, args, work);
}

}  // namespace torchvox
