// SPDX-License-Identifier: Apache-2.0
#include "csrc/kernels/grouping/slot_lists.h"

#include "csrc/kernels/core/launch.cuh"
#include "csrc/kernels/core/workspace.h"
#include "csrc/kernels/grouping/slot_rows_common.h"
#include "csrc/kernels/sampling/radix_sort.h"

namespace torchvox {
namespace {

constexpr int kThreads = 256;
constexpr int64_t kSlotsAtOnce = int64_t{1} << 26;  // bounds the buffers of the sort: 1 GiB

__global__ void __launch_bounds__(kThreads) rows_kernel(SlotRowsArgs args, int64_t count) {
  for (int64_t i = global_thread(); i < count; i += global_stride()) slot_row(args, i);
}

// A stable radix sort of the slots of several clouds by (cloud, row); slots without a row come
// last in their cloud, so that each cloud keeps its place.
struct SlotSort {
  int64_t clouds_at_once;
  SortBuffers buffers;
  int64_t bytes;

  SlotSort(const SlotListsArgs& args, void* base) {
    const int64_t by_slots = kSlotsAtOnce / (args.slots > 0 ? args.slots : 1);
    const int64_t by_keys = ((int64_t{1} << 32) - 1) / (args.rows + 1);
    clouds_at_once = by_slots < by_keys ? by_slots : by_keys;
    if (clouds_at_once < 1) clouds_at_once = 1;
    if (clouds_at_once > args.clouds) clouds_at_once = args.clouds;
    const int64_t count = clouds_at_once * args.slots;
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
    keys_kernel(SlotListsArgs args, SortBuffers buffers, int64_t first_cloud, int64_t count) {
  for (int64_t i = global_thread(); i < count; i += global_stride()) {
    const int64_t cloud = i / args.slots;
    const int64_t row = args.idx[first_cloud * args.slots + i];
    const bool named = row >= 0 && row < args.rows;
    buffers.keys[0][i] = static_cast<uint32_t>(cloud * (args.rows + 1) + (named ? row : args.rows));
    buffers.values[0][i] = static_cast<uint32_t>(i - cloud * args.slots);
  }
}

// Thread i finds where list i begins among the sorted keys, and moves slot i to its place.
__global__ void __launch_bounds__(kThreads)
    offsets_kernel(SlotListsArgs args, SortBuffers buffers, int64_t first_cloud, int64_t clouds) {
  const uint32_t* const keys = buffers.keys[buffers.current];
  const int64_t lists = clouds * (args.rows + 1), slots = clouds * args.slots;
  for (int64_t i = global_thread(); i < lists || i < slots; i += global_stride()) {
    if (i < lists) {
      const int64_t begin = i / (args.rows + 1) * args.slots;
      int64_t low = begin, high = begin + args.slots;
      while (low < high) {
        const int64_t middle = (low + high) / 2;
        if (keys[middle] < i) {
          low = middle + 1;
        } else {
          high = middle;
        }
      }
      args.offsets[first_cloud * (args.rows + 1) + i] = static_cast<int32_t>(low - begin);
    }
    if (i < slots) {
      args.order[first_cloud * args.slots + i] =
          static_cast<int32_t>(buffers.values[buffers.current][i]);
    }
  }
}

int bits_for(int64_t values) {
  int bits = 0;
  while ((int64_t{1} << bits) < values) ++bits;
  return bits;
}

}  // namespace

cudaError_t launch(const SlotRowsArgs& args, void*, const CudaContext& context) {
  const int64_t count = args.queries * args.k;
  if (count == 0) return cudaSuccess;
  rows_kernel<<<blocks_for(count, kThreads, context.target), kThreads, 0, context.stream>>>(args,
                                                                                            count);
  return cudaGetLastError();
}

int64_t workspace_bytes_cuda(const SlotListsArgs& args) { return SlotSort(args, nullptr).bytes; }

cudaError_t launch(const SlotListsArgs& args, void* workspace, const CudaContext& context) {
  SlotSort sort(args, workspace);
  for (int64_t first = 0; first < args.clouds; first += sort.clouds_at_once) {
    const int64_t clouds =
        args.clouds - first < sort.clouds_at_once ? args.clouds - first : sort.clouds_at_once;
    const int64_t slots = clouds * args.slots, lists = clouds * (args.rows + 1);
    sort.buffers.current = 0;
    if (slots > 0) {
      keys_kernel<<<blocks_for(slots, kThreads, context.target), kThreads, 0, context.stream>>>(
          args, sort.buffers, first, slots);
      TORCHVOX_CUDA_CHECK(cudaGetLastError());
      TORCHVOX_CUDA_CHECK(radix_sort(sort.buffers, slots, bits_for(lists), context.stream));
    }
    offsets_kernel<<<blocks_for(slots > lists ? slots : lists, kThreads, context.target), kThreads,
                     0, context.stream>>>(args, sort.buffers, first, clouds);
    TORCHVOX_CUDA_CHECK(cudaGetLastError());
  }
  return cudaSuccess;
}

}  // namespace torchvox
