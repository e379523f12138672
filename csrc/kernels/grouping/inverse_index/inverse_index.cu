// SPDX-License-Identifier: Apache-2.0
//
// Inverse indices on the GPU: the choice between counting (count.cu) and, for more rows, a stable
// radix sort of the slots by (cloud, row), with one thread a slot or row before and after it. Also
// flat neighbor rows, one thread a slot: 4 to 8 bytes read, 4 written.
#include "csrc/kernels/grouping/inverse_index/inverse_index.h"

#include "csrc/kernels/core/entry.h"
#include "csrc/kernels/core/launch.cuh"
#include "csrc/kernels/core/plan_override.h"
#include "csrc/kernels/grouping/inverse_index/count.cuh"
#include "csrc/kernels/spatial/radix_sort.h"

namespace torchvox {
namespace {

constexpr int kThreads = 256;
constexpr int64_t kSlotsAtOnce = int64_t{1} << 26;  // bounds the buffers of the sort: 1 GiB

__global__ void __launch_bounds__(kThreads) rows_kernel(NeighborRowsArgs args, int64_t count) {
  for (int64_t i = global_thread(); i < count; i += global_stride()) find_neighbor_row(args, i);
}

// The sort of the slots of several clouds by (cloud, row). Slots without a row come last in their
// cloud, so that each cloud keeps its place.
struct InverseIndexSort {
  int64_t clouds_at_once;
  SortBuffers buffers;
  int64_t bytes;

  InverseIndexSort(const InverseIndex& inverse, void* base) {
    const int64_t by_slots = kSlotsAtOnce / (inverse.slots > 0 ? inverse.slots : 1);
    const int64_t by_keys = ((int64_t{1} << 32) - 1) / (inverse.rows + 1);
    clouds_at_once = by_slots < by_keys ? by_slots : by_keys;
    if (clouds_at_once < 1) clouds_at_once = 1;
    if (clouds_at_once > inverse.clouds) clouds_at_once = inverse.clouds;
    const int64_t count = clouds_at_once * inverse.slots;
    Workspace workspace(base);
    for (int i = 0; i < 2; ++i) {
      buffers.keys[i] = workspace.take<uint32_t>(count);
      buffers.values[i] = workspace.take<uint32_t>(count);
    }
    buffers.temporary_bytes = count > 0 ? radix_sort_bytes(count) : 0;
    buffers.temporary = workspace.take<char>(buffers.temporary_bytes);
    bytes = workspace.bytes();
  }
};

__global__ void __launch_bounds__(kThreads)
    keys_kernel(InverseIndexArgs args, SortBuffers buffers, int64_t first_cloud, int64_t count) {
  const InverseIndex& inverse = args.inverse;
  for (int64_t i = global_thread(); i < count; i += global_stride()) {
    const int64_t cloud = i / inverse.slots;
    const int64_t row = args.idx[first_cloud * inverse.slots + i];
    const bool named = row >= 0 && row < inverse.rows;
    buffers.keys[0][i] =
        static_cast<uint32_t>(cloud * (inverse.rows + 1) + (named ? row : inverse.rows));
    buffers.values[0][i] = static_cast<uint32_t>(i - cloud * inverse.slots);
  }
}

// The first position in [low, high) whose key is at least `key`.
__device__ int64_t lower_bound(const uint32_t* keys, int64_t low, int64_t high, int64_t key) {
  while (low < high) {
    const int64_t middle = (low + high) / 2;
    if (keys[middle] < key) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low;
}

// Thread i finds where segment i begins among the sorted keys, and moves slot i to its place.
__global__ void __launch_bounds__(kThreads)
    offsets_kernel(InverseIndex inverse, SortBuffers buffers, int64_t first_cloud, int64_t clouds) {
  const uint32_t* const keys = buffers.keys[buffers.current];
  const int64_t count = clouds * (inverse.rows + 1), slots = clouds * inverse.slots;
  for (int64_t i = global_thread(); i < count || i < slots; i += global_stride()) {
    if (i < count) {
      const int64_t begin = i / (inverse.rows + 1) * inverse.slots;
      const int64_t at = lower_bound(keys, begin, begin + inverse.slots, i);
      inverse.offsets[first_cloud * (inverse.rows + 1) + i] = static_cast<int32_t>(at - begin);
    }
    if (i < slots) {
      inverse.order[first_cloud * inverse.slots + i] =
          static_cast<int32_t>(buffers.values[buffers.current][i]);
    }
  }
}

__global__ void __launch_bounds__(kThreads) schedule_kernel(InverseIndex inverse) {
  for (int64_t i = global_thread(); i < inverse.clouds * inverse.rows; i += global_stride()) {
    const int64_t cloud = i / inverse.rows;
    const int32_t* const range = inverse.offsets + i + cloud;
    schedule_row(inverse, cloud, i - cloud * inverse.rows, range[0], range[1]);
  }
}

int bits_for(int64_t values) {
  int bits = 0;
  while ((int64_t{1} << bits) < values) ++bits;
  return bits;
}

cudaError_t launch_sort(const InverseIndexArgs& args, void* workspace, const CudaContext& context) {
  const InverseIndex& inverse = args.inverse;
  InverseIndexSort sort(inverse, workspace);
  TORCHVOX_CUDA_CHECK(cudaMemsetAsync(inverse.long_rows.count, 0, sizeof(int32_t), context.stream));
  for (int64_t first = 0; first < inverse.clouds; first += sort.clouds_at_once) {
    const int64_t clouds =
        inverse.clouds - first < sort.clouds_at_once ? inverse.clouds - first : sort.clouds_at_once;
    const int64_t slots = clouds * inverse.slots, offsets = clouds * (inverse.rows + 1);
    sort.buffers.current = 0;
    if (slots > 0) {
      keys_kernel<<<blocks_for(slots, kThreads, context.target), kThreads, 0, context.stream>>>(
          args, sort.buffers, first, slots);
      TORCHVOX_CUDA_CHECK(cudaGetLastError());
      TORCHVOX_CUDA_CHECK(radix_sort(sort.buffers, slots, bits_for(offsets), context.stream));
    }
    offsets_kernel<<<blocks_for(slots > offsets ? slots : offsets, kThreads, context.target),
                     kThreads, 0, context.stream>>>(inverse, sort.buffers, first, clouds);
    TORCHVOX_CUDA_CHECK(cudaGetLastError());
  }
  const int64_t rows = inverse.clouds * inverse.rows;
  if (rows == 0) return cudaSuccess;
  schedule_kernel<<<blocks_for(rows, kThreads, context.target), kThreads, 0, context.stream>>>(
      inverse);
  return cudaGetLastError();
}

// Whether slots are counted: else they are sorted. Both give the same inverse index.
CountPlan plan_for(const InverseIndexArgs& args, const Target& target) {
  CountPlan plan = CountPlan::of(args.inverse, target);
  plan.fits = plan.fits && inverse_index_plan.value() != 1;
  return plan;
}

}  // namespace

CountPlan CountPlan::of(const InverseIndex& inverse, const Target& target) {
  constexpr int64_t kFewestWarps = 4, kMostWarps = kPlaceThreads / 32, kMostTiles = 2;
  constexpr int64_t kRunAtLeast = 4 * 32, kPartBelow = 1 << 16;
  constexpr int64_t kCountsAtMost = int64_t{1} << 28;  // bytes
  CountPlan plan;
  if (inverse.rows == 0 || inverse.slots == 0 || inverse.clouds == 0) return plan;
  const int64_t most_rows = target.shared_bytes /
      (kFewestWarps * static_cast<int64_t>(sizeof(uint16_t))) / kScanRows * kScanRows;
  if (most_rows == 0) return plan;
  plan.chunks = ceil_div<int64_t>(inverse.rows, kScanRows);
  plan.row_stride = ceil_div<int64_t>(inverse.rows, 8) * 8;
  plan.tile_rows = plan.row_stride;
  if (plan.tile_rows > most_rows) {
    const int64_t tiles = ceil_div(inverse.rows, most_rows);
    plan.tile_rows = ceil_div(plan.chunks, tiles) * kScanRows;
  }
  plan.tiles = ceil_div(inverse.rows, plan.tile_rows);
  const int64_t warps =
      target.shared_bytes / (plan.tile_rows * static_cast<int64_t>(sizeof(uint16_t)));
  plan.warps = static_cast<int>(warps < kMostWarps ? warps : kMostWarps);

  int64_t resident = target.shared_bytes / static_cast<int64_t>(plan.place_bytes());
  if (resident > 2) resident = 2;
  const int64_t blocks = resident * target.multiprocessors;
  int64_t partitions = blocks / (inverse.clouds * plan.tiles);
  const int64_t useful = inverse.slots / (plan.warps * kRunAtLeast);
  if (partitions > useful) partitions = useful;
  const int64_t needed = ceil_div(inverse.slots, kPartBelow - 32 * kMostWarps);
  if (partitions < needed) partitions = needed;
  if (partitions < 1) partitions = 1;
  plan.warp_slots = ceil_div(ceil_div(inverse.slots, partitions), int64_t{plan.warps} * 32) * 32;
  plan.partition_slots = plan.warp_slots * plan.warps;
  plan.partitions = ceil_div(inverse.slots, plan.partition_slots);
  plan.fits = plan.tiles <= kMostTiles &&
      inverse.clouds * plan.partitions * plan.row_stride <= kCountsAtMost / 4 &&
      inverse.clouds * plan.partitions * plan.tiles < (int64_t{1} << 31) &&
      inverse.clouds * plan.chunks < (int64_t{1} << 31);
  return plan;
}

cudaError_t launch(const NeighborRowsArgs& args, void*, const CudaContext& context) {
  const int64_t count = args.query.rows * args.k;
  if (count == 0) return cudaSuccess;
  rows_kernel<<<blocks_for(count, kThreads, context.target), kThreads, 0, context.stream>>>(args,
                                                                                            count);
  return cudaGetLastError();
}

int64_t workspace_bytes_cuda(const InverseIndexArgs& args, const Target& target) {
  const CountPlan plan = plan_for(args, target);
  return plan.fits ? CountWork(args.inverse, plan, nullptr).bytes
                   : InverseIndexSort(args.inverse, nullptr).bytes;
}

cudaError_t launch(const InverseIndexArgs& args, void* workspace, const CudaContext& context) {
  const CountPlan plan = plan_for(args, context.target);
  return plan.fits ? launch_count(args, plan, workspace, context)
                   : launch_sort(args, workspace, context);
}

}  // namespace torchvox
