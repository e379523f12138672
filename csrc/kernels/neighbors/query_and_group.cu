// SPDX-License-Identifier: Apache-2.0
//
// The grouping step of query_and_group on the GPU.
#include "csrc/kernels/core/launch.cuh"
#include "csrc/kernels/neighbors/query_and_group.h"

namespace torchvox {
namespace {

constexpr int kThreads = 256;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
constexpr int kBlocks = 4;  // per multiprocessor, which holds 1024 threads
#else
constexpr int kBlocks = 6;
#endif
constexpr int kMostSlots = 128;  // per block
constexpr int kTileBytes = 24576;  // of shared memory in which its slots are assembled
constexpr int kAhead = 4;  // slots of a lane group whose loads are in flight at once

// The lanes that share a slot with this thread, a power of two up to a warp.
struct LaneGroup {
  int size, lane, first, groups;

  __device__ explicit LaneGroup(int64_t elements) : size(1) {
    while (size < 32 && size < elements) size *= 2;
    lane = static_cast<int>(threadIdx.x) & (size - 1);
    first = static_cast<int>(threadIdx.x) / size;
    groups = kThreads / size;
  }
};

// Writes load(slot, i), for every slot and every i below `elements`, to element i of the slot in
// `out`.
template <class Word, class Load>
__device__ __forceinline__ void copy_slots(int slots, int elements, int64_t columns, Word* out,
                                           const Load& load) {
  const LaneGroup group(elements);
  for (int begin = group.first; begin < slots; begin += group.groups * kAhead) {
    for (int i = group.lane; i < elements; i += group.size) {
      Word value[kAhead];
#pragma unroll
      for (int u = 0; u < kAhead; ++u) {
        const int slot = begin + u * group.groups;
        value[u] = slot < slots ? load(slot, i) : Word{};
      }
#pragma unroll
      for (int u = 0; u < kAhead; ++u) {
        const int slot = begin + u * group.groups;
        if (slot < slots) out[slot * columns + i] = value[u];
      }
    }
  }
}

// One block per slots_per_block slots: looks up the sources of its slots once, reads features and
// coordinates, writes the grouped rows. If they fit (`staged`), the slots are assembled in shared
// memory and written in whole 16-byte words: rows begin at any address, and a sector of memory that
// two stores share would cost a third access.
template <class Word>
__global__ void __launch_bounds__(kThreads, kBlocks)
    group_kernel(const __grid_constant__ QueryAndGroupArgs args, int slots_per_block, bool staged) {
  __shared__ GroupSlot from[kMostSlots];
  __shared__ uint4 tile[kTileBytes / sizeof(uint4)];
  const int64_t all = args.points.clouds * args.query.rows * args.slots;
  const int64_t first = int64_t{blockIdx.x} * slots_per_block;
  const int slots = static_cast<int>(min(int64_t{slots_per_block}, all - first));
  for (int i = threadIdx.x; i < slots; i += kThreads) {
    const int64_t row = divide(first + i, args.slots);
    from[i] = GroupSlot::of(args, row, divide(row, args.query.rows), first + i - row * args.slots);
  }
  __syncthreads();
  const int64_t columns = args.columns();
  Word* const grouped = static_cast<Word*>(args.grouped) + first * columns;
  Word* const out = staged ? reinterpret_cast<Word*>(tile) : grouped;
  if (args.channels > 0) {
    const Word* features = static_cast<const Word*>(args.features);
    copy_slots(slots, static_cast<int>(args.channels), columns, out + args.first_channel(),
               [&](int slot, int c) {
                 return from[slot].point < 0 ? Word{} : features[from[slot].features + c];
               });
  }
  if (args.use_xyz && args.plain_floats()) {
    const float* points = static_cast<const float*>(args.points.data);
    const float* query = static_cast<const float*>(args.query.data);
    copy_slots(slots, static_cast<int>(args.points.columns), columns,
               reinterpret_cast<float*>(out) + args.first_axis(), [&](int slot, int axis) {
                 const float p = from[slot].point < 0 ? 0.0f : points[from[slot].point + axis];
                 return quiet(p - query[from[slot].query + axis]);
               });
  } else if (args.use_xyz) {
    const LaneGroup group(args.points.columns);
    for (int slot = group.first; slot < slots; slot += group.groups) {
      group_coordinates(args, from[slot], group.lane, group.size, out, slot * columns);
    }
  }
  if (!staged) return;
  __syncthreads();
  const int words = static_cast<int>(slots * columns);
  constexpr int kWords = sizeof(uint4) / sizeof(Word);
  for (int i = threadIdx.x; i < words / kWords; i += kThreads) {
    reinterpret_cast<uint4*>(grouped)[i] = tile[i];
  }
  for (int i = words / kWords * kWords + threadIdx.x; i < words; i += kThreads) {
    grouped[i] = out[i];
  }
}

}  // namespace

cudaError_t launch(const QueryAndGroupArgs& args, void*, const CudaContext& context) {
  const int64_t slots = args.points.clouds * args.query.rows * args.slots, columns = args.columns();
  if (slots * columns == 0) return cudaSuccess;
  return with_word(bytes_of(args.grouped_dtype), [&](auto word) {
    // A number of slots for which each block begins on 16 bytes.
    constexpr int64_t kStep = 16 / sizeof(word);
    const int64_t fitting = kTileBytes / (columns * static_cast<int64_t>(sizeof(word)));
    const int64_t aligned = (fitting < kMostSlots ? fitting : kMostSlots) / kStep * kStep;
    const int per_block = static_cast<int>(aligned > 0 ? aligned : kStep);
    const unsigned blocks = grid_x(ceil_div<int64_t>(slots, per_block));
    return launch_blocks(group_kernel<decltype(word)>, blocks, kThreads, context.stream, args,
                         per_block, aligned > 0);
  });
}

}  // namespace torchvox
