// SPDX-License-Identifier: Apache-2.0
//
// Inverse indices on the GPU: the choice between counting (count.cu) and, for more rows, a stable
// radix sort of the slots by (cloud, row), with one thread a slot or row before and after it. Also
// flat neighbor rows, one thread a slot: 4 to 8 bytes read, 4 written.
#include "csrc/kernels/grouping/inverse_index/inverse_index.h"

#include <algorithm>

#include "csrc/kernels/grouping/inverse_index/count.cuh"
#include "csrc/kernels/spatial/radix_sort.h"

namespace torchvox {
namespace {

constexpr int kThreads = 256;
constexpr int64_t kSlotsAtOnce = int64_t{1} << 26;  // bounds the buffers of the sort: 1 GiB

// The slots of several clouds are sorted by (cloud, row). Slots without a row come last in their
// cloud, so that each cloud keeps its place.
int64_t clouds_at_once(const InverseIndex& inverse) {
  const int64_t by_slots = kSlotsAtOnce / std::max<int64_t>(inverse.slots, 1);
  const int64_t by_keys = ((int64_t{1} << 32) - 1) / (inverse.rows + 1);
  return std::min(std::max<int64_t>(std::min(by_slots, by_keys), 1), inverse.clouds);
}

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

// Thread i finds where segment i begins among the sorted keys, and moves slot i to its place.
__global__ void __launch_bounds__(kThreads)
    offsets_kernel(InverseIndex inverse, SortBuffers buffers, int64_t first_cloud, int64_t clouds) {
  const uint32_t* const keys = buffers.keys[buffers.current];
  const int64_t count = clouds * (inverse.rows + 1), slots = clouds * inverse.slots;
  for (int64_t i = global_thread(); i < count || i < slots; i += global_stride()) {
    if (i < count) {
      const int64_t begin = i / (inverse.rows + 1) * inverse.slots;
      const int64_t at =
          first_where(begin, begin + inverse.slots, [&](int64_t k) { return keys[k] >= i; });
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

cudaError_t launch_sort(const InverseIndexArgs& args, void* workspace, const CudaContext& context) {
  const InverseIndex& inverse = args.inverse;
  const int64_t at_once = clouds_at_once(inverse), rows = inverse.clouds * inverse.rows;
  Workspace memory(workspace);
  SortBuffers buffers(at_once * inverse.slots, memory);
  TORCHVOX_CUDA_CHECK(cudaMemsetAsync(inverse.long_rows.count, 0, sizeof(int32_t), context.stream));
  for (int64_t first = 0; first < inverse.clouds; first += at_once) {
    const int64_t clouds = std::min(inverse.clouds - first, at_once);
    const int64_t slots = clouds * inverse.slots, offsets = clouds * (inverse.rows + 1);
    buffers.current = 0;
    if (slots > 0) {
      TORCHVOX_CUDA_CHECK(
          launch_items(keys_kernel, slots, kThreads, context, args, buffers, first, slots));
      TORCHVOX_CUDA_CHECK(radix_sort(buffers, slots, key_bits(offsets), context.stream));
    }
    TORCHVOX_CUDA_CHECK(launch_items(offsets_kernel, std::max(slots, offsets), kThreads, context,
                                     inverse, buffers, first, clouds));
  }
  return launch_items(schedule_kernel, rows, kThreads, context, inverse);
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
  plan.warps = static_cast<int>(std::min(warps, kMostWarps));

  const int64_t resident =
      std::min<int64_t>(target.shared_bytes / static_cast<int64_t>(plan.place_bytes()), 2);
  const int64_t blocks = resident * target.multiprocessors;
  const int64_t useful = inverse.slots / (plan.warps * kRunAtLeast);
  const int64_t needed = ceil_div(inverse.slots, kPartBelow - 32 * kMostWarps);
  const int64_t partitions =
      std::max<int64_t>({std::min(blocks / (inverse.clouds * plan.tiles), useful), needed, 1});
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
  return launch_elements<find_neighbor_row>(args, args.query.rows * args.k, context);
}

int64_t workspace_bytes_cuda(const InverseIndexArgs& args, const Target& target) {
  const CountPlan plan = plan_for(args, target);
  if (plan.fits) return CountWork(args.inverse, plan, nullptr).bytes;
  return carved_bytes<SortBuffers>(clouds_at_once(args.inverse) * args.inverse.slots);
}

cudaError_t launch(const InverseIndexArgs& args, void* workspace, const CudaContext& context) {
  const CountPlan plan = plan_for(args, context.target);
  return plan.fits ? launch_count(args, plan, workspace, context)
                   : launch_sort(args, workspace, context);
}

}  // namespace torchvox
