// SPDX-License-Identifier: Apache-2.0
//
// segment_reduce on the GPU, in two launches: short segments and whole chunks of 1024 entries of
// long ones; then, where a segment can be long, the sums of its chunks. The sums are the same,
// since both follow CascadeSum's tree. No atomics, each element is written once.
//
// Where offsets ascend, at most one chunk begins in each 1024 entries (a slot), and it covers the
// last of them, so that a search finds its segment. Where offsets are in disorder, a segment may
// find the chunk of another one in a slot: it notices that by where the chunk begins, and reduces
// its own entries again.
#include "csrc/kernels/core/launch.cuh"
#include "csrc/kernels/core/warp.cuh"
#include "csrc/kernels/grouping/segment_reduce.h"
#include "csrc/kernels/grouping/segment_sum.cuh"

namespace torchvox {
namespace {

constexpr int64_t kChunk = kEntryBlock * kEntryBlock;
constexpr size_t kMostShared = 47 << 10;  // bytes without opting in, less the static ones
constexpr int kWarps = kRowThreads / 32;

// A block as groups of lanes. Shared memory holds the sums of 32 blocks of entries, and the trees
// of the first group, which adds them up.
template <class Reducer>
struct Team {
  using State = typename Reducer::State;
  using Tree = typename Reducer::Tree;
  const int lanes, groups, lane, group;
  State* const sums;  // [32, lanes]
  Tree& tree;

  __device__ Team(int bits, unsigned char* shared)
      : lanes(1 << bits),
        groups(kRowThreads >> bits),
        lane(static_cast<int>(threadIdx.x) & (lanes - 1)),
        group(static_cast<int>(threadIdx.x) >> bits),
        sums(reinterpret_cast<State*>(shared)),
        tree(reinterpret_cast<Tree*>(sums + kEntryBlock * lanes)[lane]) {}
  static size_t shared_bytes(int bits) {
    return (kEntryBlock * sizeof(State) + sizeof(Tree)) << bits;
  }
  // Longer segments are reduced by whole blocks.
  static __host__ __device__ int64_t serial_entries(int groups) {
    return groups < 64 ? 16 * groups : kMostSerial;
  }

  __device__ void begin() const {
    if (group == 0) tree = Tree{};
  }
  // Adds `terms` States of level kLevel: all groups sum blocks of them with block(begin, end), and
  // the first group adds these in order.
  template <int kLevel, class Block>
  __device__ void add(int64_t terms, const Block& block) const {
    for (int64_t first = 0; first < terms; first += kChunk) {
      const int64_t end = first + kChunk < terms ? first + kChunk : terms;
      for (int b = group; first + b * kEntryBlock < end; b += groups) {
        const int64_t begin = first + b * kEntryBlock;
        sums[b * lanes + lane] =
            block(begin, begin + kEntryBlock < end ? begin + kEntryBlock : end);
      }
      __syncthreads();
      if (group == 0) {
        const State* sum = sums + lane;
        int64_t begin = first;
        for (; begin + kEntryBlock <= end; begin += kEntryBlock, sum += lanes) {
          tree.template add_block<kLevel + 1>(*sum);
        }
        if (begin < end) tree.template add_rest<kLevel>(*sum);
      }
      __syncthreads();
    }
  }
};

template <class Reducer>
struct Chunks {
  int64_t slots;
  typename Reducer::State* partial;  // [slots, items]
  int64_t* begin;  // [slots]: the entry where the chunk of the slot begins, or -1
  Chunks(const SegmentReduceArgs& args, Workspace& workspace)
      : slots(args.entries / kChunk),
        partial(workspace.take<typename Reducer::State>(slots * Reducer::items(args))),
        begin(workspace.take<int64_t>(slots)) {}
};

// find_segment() by a warp, whose lanes test 32 segments at a time.
__device__ int64_t find_segment_in_warp(const IndexArray& offsets, int64_t segments, int64_t e) {
  int64_t low = 0, high = segments;
  while (low < high) {
    const int64_t step = ceil_div<int64_t>(high - low, 32);
    const int64_t probe = low + (static_cast<int>(threadIdx.x & 31) + 1) * step - 1;
    const bool beyond = probe >= high || offsets[probe + 1] > e;
    const int before = __popc(~__ballot_sync(kFullWarp, beyond));
    low += before * step;
    high = low + step - 1 < high ? low + step - 1 : high;
  }
  return low;
}

// The entry where the chunk of a slot begins, or -1. Called by a warp.
__device__ int64_t find_chunk(const SegmentReduceArgs& args, int64_t slot) {
  const int64_t first = slot * kChunk;
  const int64_t segment = find_segment_in_warp(args.offsets, args.segments, first + kChunk - 1);
  if (segment >= args.segments) return -1;
  const EntryRange range = entry_range(args.offsets, segment, args.entries);
  const int64_t before = first > range.begin ? first - range.begin : 0;
  const int64_t begin = range.begin + ceil_div(before, kChunk) * kChunk;
  return begin < first + kChunk && begin + kChunk <= range.end ? begin : -1;
}

// Reduces the chunks of the slots blockIdx.x, blockIdx.x + blocks, ...; each warp of the block
// looks up the chunk of one slot, then the block reduces them one after another.
template <class Reducer>
__device__ void reduce_chunks(const SegmentReduceArgs& args, const Team<Reducer>& team,
                              const Chunks<Reducer>& chunks, int blocks) {
  __shared__ int64_t begins[kWarps];
  const int64_t items = Reducer::items(args);
  const int warp = static_cast<int>(threadIdx.x) / 32;
  for (int64_t first = blockIdx.x; first < chunks.slots; first += int64_t{kWarps} * blocks) {
    const int64_t mine = first + int64_t{warp} * blocks;
    const int64_t begin = mine < chunks.slots ? find_chunk(args, mine) : -1;
    if (threadIdx.x % 32 == 0) {
      begins[warp] = begin;
      if (mine < chunks.slots) chunks.begin[mine] = begin;
    }
    __syncthreads();
    for (int k = 0; k < kWarps; ++k) {
      const int64_t chunk = begins[k], slot = first + int64_t{k} * blocks;
      if (chunk < 0) continue;
      for (int64_t item = team.lane; item - team.lane < items; item += team.lanes) {
        const Reducer reducer(args, item < items ? item : items - 1);
        team.begin();
        team.template add<0>(kChunk, [&](int64_t begin, int64_t end) {
          return reduce_block(reducer, chunk + begin, chunk + end);
        });
        if (team.group == 0 && item < items)
          chunks.partial[slot * items + item] = team.tree.total();
      }
    }
    __syncthreads();
  }
}

// Reduces the short ones among a warp's segments. Those with entries come first, so that the groups
// of the warp have about the same work and finish together.
template <class Reducer>
__device__ void reduce_short(const SegmentReduceArgs& args, const Team<Reducer>& team,
                             int64_t first, int per_warp) {
  __shared__ uint8_t order[kRowThreads];
  uint8_t* const mine = order + threadIdx.x / 32 * 32;
  const int lane = static_cast<int>(threadIdx.x) % 32, groups = 32 / team.lanes;
  const int64_t items = Reducer::items(args), segment = first + lane;
  EntryRange range = {0, -1};  // not a short segment
  if (lane < per_warp && segment < args.segments) {
    const EntryRange whole = entry_range(args.offsets, segment, args.entries);
    if (whole.size() <= team.serial_entries(team.groups)) range = whole;
  }
  const uint32_t filled = __ballot_sync(kFullWarp, range.size() > 0), below = (1u << lane) - 1;
  mine[range.size() > 0 ? __popc(filled & below) : __popc(filled) + __popc(~filled & below)] =
      static_cast<uint8_t>(lane);
  __syncwarp();
  for (int at = team.group % groups; at < 32; at += groups) {
    const int source = mine[at];
    const int64_t begin = __shfl_sync(kFullWarp, range.begin, source);
    const int64_t end = __shfl_sync(kFullWarp, range.end, source);
    if (end < begin) continue;
    for (int64_t item = team.lane; item < items; item += team.lanes) {
      const Reducer reducer(args, item);
      using Tree = typename Reducer::ShortTree;
      reducer.store(first + source, reduce_entries<Tree>(reducer, begin, end));
    }
  }
}

// The first blocks reduce chunks of long segments into chunks.partial. Of the others, each warp
// reduces per_warp segments: reads their entries' rows, writes the results.
template <class Reducer>
__global__ void __launch_bounds__(kRowThreads, Reducer::kBlocks)
    reduce_kernel(const __grid_constant__ SegmentReduceArgs args, int bits, int per_warp,
                  Chunks<Reducer> chunks, int chunk_blocks) {
  extern __shared__ __align__(16) unsigned char shared[];
  let_next_begin();
  const Team<Reducer> team(bits, shared);
  const int block = static_cast<int>(blockIdx.x) - chunk_blocks;
  if (block < 0) {
    reduce_chunks(args, team, chunks, chunk_blocks);
  } else {
    const int64_t warp = int64_t{block} * kWarps + threadIdx.x / 32;
    reduce_short(args, team, warp * per_warp, per_warp);
  }
}

// The sum of the chunks [first, last) of a segment, at most 32, one after another.
template <class Reducer>
__device__ typename Reducer::State add_chunks(const Reducer& reducer, const Chunks<Reducer>& chunks,
                                              int64_t item, int64_t entry, int64_t first,
                                              int64_t last) {
  constexpr int kAhead = Reducer::kAhead;
  typename Reducer::State total;
  const int64_t items = Reducer::items(reducer.args);
  for (; first < last; first += kAhead) {
    typename Reducer::State state[kAhead];
    bool own = true;  // all slots hold chunks of this segment
#pragma unroll
    for (int k = 0; k < kAhead; ++k) {
      const int64_t chunk = first + k < last ? first + k : last - 1;
      const int64_t begin = entry + chunk * kChunk, slot = begin / kChunk;
      state[k] = chunks.partial[slot * items + item];
      own &= chunks.begin[slot] == begin;
    }
#pragma unroll
    for (int k = 0; k < kAhead; ++k) {
      if (own && first + k < last) total += state[k];
    }
#pragma unroll 1
    for (int64_t chunk = first; !own && chunk < last && chunk < first + kAhead; ++chunk) {
      const int64_t begin = entry + chunk * kChunk;
      total += reduce_entries<typename Reducer::ShortTree>(reducer, begin, begin + kChunk);
    }
  }
  return total;
}

// One block per per_block segments: adds up the chunks and the remaining entries of the long ones,
// one segment after another, and writes the results.
template <class Reducer>
__global__ void __launch_bounds__(kRowThreads)
    long_kernel(const __grid_constant__ SegmentReduceArgs args, int bits, int per_block,
                Chunks<Reducer> chunks) {
  extern __shared__ __align__(16) unsigned char shared[];
  __shared__ uint32_t is_long[kWarps];
  const Team<Reducer> team(bits, shared);
  const int64_t items = Reducer::items(args), first = int64_t{blockIdx.x} * per_block;
  const int64_t mine = first + threadIdx.x;
  const bool is_mine_long = static_cast<int>(threadIdx.x) < per_block && mine < args.segments &&
      entry_range(args.offsets, mine, args.entries).size() > team.serial_entries(team.groups);
  const uint32_t of_warp = __ballot_sync(kFullWarp, is_mine_long);
  if (threadIdx.x % 32 == 0) is_long[threadIdx.x / 32] = of_warp;
  wait_for_previous();
  if (!__syncthreads_or(is_mine_long)) return;
  for (int at = 0; at < per_block; ++at) {
    if (!(is_long[at / 32] >> at % 32 & 1)) continue;
    const EntryRange range = entry_range(args.offsets, first + at, args.entries);
    const int64_t whole = range.size() / kChunk, rest = range.begin + whole * kChunk;
    for (int64_t item = team.lane; item - team.lane < items; item += team.lanes) {
      const int64_t clamped = item < items ? item : items - 1;
      const Reducer reducer(args, clamped);
      team.begin();
      team.template add<2>(whole, [&](int64_t begin, int64_t end) {
        return add_chunks(reducer, chunks, clamped, range.begin, begin, end);
      });
      team.template add<0>(range.end - rest, [&](int64_t begin, int64_t end) {
        return reduce_block(reducer, rest + begin, rest + end);
      });
      if (team.group == 0 && item < items) reducer.store(first + at, team.tree.total());
    }
  }
}

template <class Reducer>
cudaError_t launch_reducer(const SegmentReduceArgs& args, void* memory,
                           const CudaContext& context) {
  const int64_t multiprocessors = context.target.multiprocessors;
  int bits = lanes_bits_for(Reducer::items(args));
  while (Team<Reducer>::shared_bytes(bits) > kMostShared) --bits;
  const size_t shared = Team<Reducer>::shared_bytes(bits);
  const auto chunks = carve<Chunks<Reducer>>(memory, args);
  const int chunk_blocks =
      static_cast<int>(clamp_index(chunks.slots, 0, Reducer::kChunkBlocks * multiprocessors));
  // Fewer segments per warp, and per block, if there are few.
  const int per_warp = static_cast<int>(
      clamp_index(args.segments / (12 * kWarps * multiprocessors), 32 >> bits, 32));
  const dim3 grid(grid_x(chunk_blocks + ceil_div<int64_t>(args.segments, kWarps * per_warp)));
  TORCHVOX_CUDA_CHECK(launch_sharing(reduce_kernel<Reducer>, grid, kRowThreads, shared,
                                     context.stream, args, bits, per_warp, chunks, chunk_blocks));
  if (args.entries <= Team<Reducer>::serial_entries(kRowThreads >> bits)) return cudaSuccess;
  const int per_block =
      static_cast<int>(clamp_index(args.segments / (4 * multiprocessors), 1, kRowThreads));
  const dim3 long_grid(grid_x(ceil_div<int64_t>(args.segments, per_block)));
  return launch_after_sharing(long_kernel<Reducer>, long_grid, kRowThreads, shared, context, args,
                              bits, per_block, chunks);
}

constexpr int kSpreadEntries = 256;  // per block, at most

// One block per per_block entries: one thread per entry finds its segment, then a row of threads
// per entry reads the gradient of the segment and writes that of the entry.
template <class T, int kWidth>
__global__ void __launch_bounds__(kRowThreads)
    spread_kernel(const __grid_constant__ SegmentSpreadArgs args, int per_block) {
  __shared__ int32_t segment[kSpreadEntries];
  const int64_t first = int64_t{blockIdx.x} * per_block;
  const int count = static_cast<int>(args.entries - first < per_block ? args.entries - first
                                                                      : int64_t{per_block});
  const int x = static_cast<int>(threadIdx.x), y = static_cast<int>(threadIdx.y);
  const int width = static_cast<int>(blockDim.x), height = static_cast<int>(blockDim.y);
  for (int e = y * width + x; e < count; e += width * height) {
    segment[e] = segment_of(args, first + e);
  }
  __syncthreads();
  for (int e = y; e < count; e += height) {
    for (int64_t item = x; item < args.channels / kWidth; item += width) {
      spread_item<T, kWidth>(args, first + e, segment[e], item);
    }
  }
}

bool in_words(const SegmentReduceArgs& args) {
  return is_aligned(args.src) && is_aligned(args.out);
}

}  // namespace

int64_t workspace_bytes_cuda(const SegmentReduceArgs& args, const Target&) {
  return with_reducer<0>(args, in_words(args), [&](auto reducer) {
    Workspace workspace;
    Chunks<typename decltype(reducer)::type>(args, workspace);
    return workspace.bytes();
  });
}

cudaError_t launch(const SegmentReduceArgs& args, void* workspace, const CudaContext& context) {
  if (args.segments * args.channels == 0) return cudaSuccess;
  return with_reducer<0>(args, in_words(args), [&](auto reducer) {
    return launch_reducer<typename decltype(reducer)::type>(args, workspace, context);
  });
}

cudaError_t launch(const SegmentSpreadArgs& args, void*, const CudaContext& context) {
  if (args.entries * args.channels == 0) return cudaSuccess;
  const bool aligned = is_aligned(args.grad) && is_aligned(args.out);
  return with_width_of<0>(args, aligned, [&](auto type, auto width) {
    const dim3 block = block_of(args.channels / width());
    const int per_block = static_cast<int>(
        clamp_index(args.entries / (4 * context.target.multiprocessors), block.y, kSpreadEntries));
    const dim3 grid(grid_x(ceil_div<int64_t>(args.entries, per_block)));
    return launch_blocks(spread_kernel<decltype(type), width()>, grid, block, context.stream, args,
                         per_block);
  });
}

}  // namespace torchvox
