// SPDX-License-Identifier: Apache-2.0
//
// The state of a map: a list of tensors that the caller owns. Regions in use are a prefix of the
// slots; rows beyond hold fill values. Values that are read are never trusted: whatever they are,
// no access leaves the tensors.
#pragma once

#include "csrc/kernels/core/entry.h"
#include "csrc/kernels/occupancy/samples.h"
#include "csrc/kernels/rays/region.h"
#ifdef __CUDACC__
#include "csrc/kernels/core/launch.cuh"
#include "csrc/kernels/core/warp.cuh"
#endif

namespace torchvox {

// This thread among those of a row, on which a whole warp works on the GPU, one thread on the host,
// with one body for both.
struct Lanes {
  int lane = 0, count = 1;

  TORCHVOX_HD int32_t max(int32_t x) const {
#ifdef __CUDA_ARCH__
    return warp_max(x);
#else
    return x;
#endif
  }
  TORCHVOX_HD bool any(bool x) const { return max(x) != 0; }
};

#ifdef __CUDACC__
// One warp per row: kRow(args, i, lanes) for every i below `count`. What it reads and writes is
// said where kRow is defined.
template <auto kRow, int kThreads, class Args>
__global__ void __launch_bounds__(kThreads)
    rows_kernel(const __grid_constant__ Args args, int64_t count) {
  const Lanes lanes{static_cast<int>(threadIdx.x % 32), 32};
  for (int64_t i = global_thread() / 32; i < count; i += global_stride() / 32) {
    kRow(args, i, lanes);
  }
}
template <auto kRow, int kThreads = 256, class Args>
cudaError_t launch_rows(const Args& args, int64_t count, const CudaContext& context) {
  return launch_items(rows_kernel<kRow, kThreads, Args>, 32 * count, kThreads, context, args,
                      count);
}
#endif

inline constexpr uint32_t kNoSlot = 0x7fffffff;

// The tensors of a state, in the order of the list.
enum StatePart {
  kTable,
  kRegionKey,
  kRegionStamp,
  kStatus,
  kLogOdds,
  kHitMiss,  // from here on optional layers
  kTouch,
  kTraversal,
  kSampleRow,
  kSampleCount,
  kSampleMean,
  kSampleCov,
  kIntensity,
  kPasses,
  kStateParts
};

enum StateStatus { kStateLayout, kSlotsInUse, kSampleRowsInUse, kStateRefused, kHighestClamp };
inline constexpr int kStatusWords = 8;

// The columns of `counts` of ops that edit a state.
enum StateCount {
  kRegionsChanged,
  kRegionsGiven,
  kKeysRefused,
  kRegionsNew,
  kInUse,
  kOverflow,
  kSampleRowsNew,
  kSampleRows,  // in use after the call
  kStateCounts = 8
};
inline constexpr int kTooManyRegions = 2, kTooManySampleRows = 4;  // bits of kOverflow
inline constexpr int64_t kRegionsPerTask = 16;  // on the host

// A layer of a state, with one row per region or per row of samples.
struct StateLayer {
  struct __attribute__((may_alias)) Bytes {  // of values of any type
    uint16_t bits;
  };
  void* rows;  // null: the layer is off
  int64_t row_bytes;
  uint16_t fill;  // value of every two bytes of an unused row

  // Moves row `from` to row `to`, unless that is -1, and fills row `from`.
  TORCHVOX_HD void vacate(int64_t from, int64_t to, Lanes lanes) const {
    Bytes* const bytes = static_cast<Bytes*>(rows);
    const int64_t per_row = bytes ? row_bytes / 2 : 0;
    for (int64_t i = lanes.lane; i < per_row; i += lanes.count) {
      if (to >= 0) bytes[to * per_row + i] = bytes[from * per_row + i];
      bytes[from * per_row + i].bits = fill;
    }
  }
};

struct OccupancyState {
  uint32_t* table = nullptr;  // [table_size]: slots by hash of their keys, or kNoSlot
  int64_t table_size = 0;  // a power of two
  int64_t* region_key = nullptr;  // [capacity]
  int32_t* region_stamp = nullptr;  // [capacity]
  int64_t* status = nullptr;  // [kStatusWords]
  int16_t* logodds = nullptr;  // [capacity, kRegionVoxels]
  int32_t* hit_miss = nullptr;  // [capacity, kRegionVoxels, 2], or null
  int32_t* touch = nullptr;  // [capacity, kRegionVoxels] ms of the last hit, -1: none; or null
  int64_t* traversal = nullptr;  // [capacity, kRegionVoxels] units of rays in the voxel, or null
  int32_t* sample_row = nullptr;  // [capacity] row of samples, -1: none; or null
  Samples samples;
  int64_t capacity = 0;

  TORCHVOX_HD int64_t slots_in_use() const { return clamp_index(status[kSlotsInUse], 0, capacity); }
  TORCHVOX_HD int64_t sample_rows_in_use() const {
    return clamp_index(status[kSampleRowsInUse], 0, samples.rows);
  }
  // The row of samples of a region, or -1.
  TORCHVOX_HD int64_t samples_of(int64_t slot) const {
    const int64_t row = samples.rows > 0 ? sample_row[slot] : -1;
    return row >= 0 && row < samples.rows ? row : -1;
  }

  TORCHVOX_HD void vacate(int64_t from, int64_t to, Lanes lanes) const {
    const StateLayer layers[] = {{region_key, 8, 0xffff},
                                 {region_stamp, 4, 0},
                                 {logodds, 2 * kRegionVoxels, 0x8000},
                                 {hit_miss, 8 * kRegionVoxels, 0},
                                 {touch, 4 * kRegionVoxels, 0xffff},
                                 {traversal, 8 * kRegionVoxels, 0},
                                 {sample_row, 4, 0xffff}};
    for (const StateLayer& layer : layers) layer.vacate(from, to, lanes);
  }
  TORCHVOX_HD void vacate_samples(int64_t from, int64_t to, Lanes lanes) const {
    const StateLayer layers[] = {{samples.count, 4 * kRegionVoxels, 0},
                                 {samples.mean, 12 * kRegionVoxels, 0},
                                 {samples.cov, 24 * kRegionVoxels, 0},
                                 {samples.intensity, 8 * kRegionVoxels, 0},
                                 {samples.passes, 8 * kRegionVoxels, 0}};
    for (const StateLayer& layer : layers) layer.vacate(from, to, lanes);
  }
  // Makes a voxel unobserved, in all layers.
  TORCHVOX_HD void forget(int64_t slot, int64_t i) const {
    const int64_t voxel = slot * kRegionVoxels + i, row = samples_of(slot);
    logodds[voxel] = kUnobserved;
    if (hit_miss) hit_miss[2 * voxel] = hit_miss[2 * voxel + 1] = 0;
    if (touch) touch[voxel] = -1;
    if (traversal) traversal[voxel] = 0;
    if (row >= 0) samples.forget(row * kRegionVoxels + i);
  }

  // The slot of a region, or -1.
  TORCHVOX_HD int64_t find(int64_t key) const {
    int64_t at = static_cast<int64_t>(mix_key(static_cast<uint64_t>(key))) & (table_size - 1);
    for (int64_t probes = 0; probes < table_size; ++probes, at = (at + 1) & (table_size - 1)) {
      const uint32_t slot = table[at];
      if (slot >= capacity) return -1;
      if (region_key[slot] == key) return slot;
    }
    return -1;
  }

  // Enters a slot whose key is written into the table. Lower slots keep their place, so that the
  // table is the same as if slots 0, 1, 2, ... were entered in order.
  TORCHVOX_HD void enter(uint32_t slot) const {
    const uint64_t key = static_cast<uint64_t>(region_key[slot]);
    int64_t at = static_cast<int64_t>(mix_key(key)) & (table_size - 1);
    for (int64_t probes = 0; probes < table_size; ++probes, at = (at + 1) & (table_size - 1)) {
      if (load_relaxed(&table[at]) < slot) continue;
      const uint32_t here = atomic_min(&table[at], slot);
      if (here == kNoSlot) return;
      if (here > slot) slot = here;  // goes on with the slot whose place was taken
    }
  }

  // Log-odds of a voxel of the map, or kUnobserved.
  TORCHVOX_HD int16_t at(const int32_t voxel[3]) const {
    const int64_t slot = find(region_key_of_voxel(voxel));
    return slot < 0 ? kUnobserved : logodds[slot * kRegionVoxels + voxel_in_region(voxel)];
  }
};

// Whether L / 1024 >= threshold, in fp64.
TORCHVOX_HD bool is_occupied(int16_t logodds, double threshold) {
  return logodds != kUnobserved && static_cast<double>(logodds) / 1024 >= threshold;
}
// -1 unobserved, 0 free, 1 occupied.
TORCHVOX_HD int8_t label_of(int16_t logodds, double threshold) {
  if (logodds == kUnobserved) return -1;
  return is_occupied(logodds, threshold) ? 1 : 0;
}

}  // namespace torchvox
