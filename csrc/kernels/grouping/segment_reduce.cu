// SPDX-License-Identifier: Apache-2.0
//
// segment_reduce and its gradient on the GPU. A group of lanes, one an item, reduces a segment;
// a block together one that is long, of which whole chunks of 1024 entries were reduced before, a
// block each (chunks_kernel, which short segments do not wait for). CascadeSum's tree makes these
// the same sums. The gradient: a thread a word of an entry. No atomics, each element written once.
//
// At most one chunk begins in each 1024 entries (a slot), where offsets ascend: it covers the last
// of them, so that a search finds its segment. Where offsets are in disorder a segment may find
// another's chunk in a slot: it tells by where that begins, and reduces its own again.
#include "csrc/kernels/core/launch.cuh"
#include "csrc/kernels/grouping/segment_reduce.h"
#include "csrc/kernels/grouping/segment_sum.cuh"

namespace torchvox {
namespace {

constexpr int64_t kChunk = kEntryBlock * kEntryBlock;
constexpr size_t kMostShared = 48 << 10;  // without asking for more

// A block: groups of lanes. In shared memory the sums of 32 blocks of entries, and the trees of the
// first group, which adds them up.
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
  // Segments of more are reduced together.
  __device__ int64_t serial_entries() const { return groups < 64 ? 16 * groups : kMostSerial; }

  __device__ void begin() const {
    if (group == 0) tree = Tree{};
  }
  // Adds `terms` States of level kLevel: all groups sum blocks of them, block(begin, end), the
  // first adds these in order.
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
  typename Reducer::State* partial;  // [slots, items]
  int64_t* begin;  // [slots]; -1: none begins in the slot
  Chunks(const SegmentReduceArgs& args, Workspace& workspace)
      : partial(workspace.take<typename Reducer::State>(slots(args) * Reducer::items(args))),
        begin(workspace.take<int64_t>(slots(args))) {}
  static int64_t slots(const SegmentReduceArgs& args) { return args.entries / kChunk; }
};

// Where the chunk that begins in this slot does, -1 where none does.
__device__ int64_t find_chunk(const SegmentReduceArgs& args, int64_t slot) {
  const int64_t first = slot * kChunk;
  const int64_t segment = find_segment(args.offsets, args.segments, first + kChunk - 1);
  if (segment == args.segments) return -1;
  const EntryRange range = entry_range(args.offsets, segment, args.entries);
  const int64_t before = first > range.begin ? first - range.begin : 0;
  const int64_t begin = range.begin + ceil_div(before, kChunk) * kChunk;
  return begin < first + kChunk && begin + kChunk <= range.end ? begin : -1;
}

template <class Reducer>
__global__ void __launch_bounds__(kRowThreads)
    chunks_kernel(const __grid_constant__ SegmentReduceArgs args, int bits,
                  Chunks<Reducer> chunks) {
  extern __shared__ __align__(16) unsigned char shared[];
  let_next_begin();
  const int64_t items = Reducer::items(args), slot = blockIdx.x;
  const int64_t chunk = find_chunk(args, slot);
  if (threadIdx.x == 0) chunks.begin[slot] = chunk;
  if (chunk < 0) return;
  const Team<Reducer> team(bits, shared);
  for (int64_t item = team.lane; item - team.lane < items; item += team.lanes) {
    const Reducer reducer(args, item < items ? item : items - 1);
    team.begin();
    team.template add<0>(kChunk, [&](int64_t begin, int64_t end) {
      return reduce_block(reducer, chunk + begin, chunk + end);
    });
    if (team.group == 0 && item < items) chunks.partial[slot * items + item] = team.tree.total();
  }
}

// The chunks [first, last) of a segment, 32 or fewer, one after another.
template <class Reducer>
__device__ typename Reducer::State add_chunks(const Reducer& reducer, const Chunks<Reducer>& chunks,
                                              int64_t item, int64_t entry, int64_t first,
                                              int64_t last) {
  constexpr int kAhead = Reducer::kAhead;
  typename Reducer::State total;
  const int64_t items = Reducer::items(reducer.args);
  for (; first < last; first += kAhead) {
    typename Reducer::State state[kAhead];
    bool found = true;
#pragma unroll
    for (int k = 0; k < kAhead; ++k) {
      const int64_t chunk = first + k < last ? first + k : last - 1;
      const int64_t begin = entry + chunk * kChunk, slot = begin / kChunk;
      state[k] = chunks.partial[slot * items + item];
      found &= chunks.begin[slot] == begin;
    }
#pragma unroll
    for (int k = 0; k < kAhead; ++k) {
      if (found && first + k < last) total += state[k];
    }
#pragma unroll 1
    for (int64_t chunk = first; !found && chunk < last && chunk < first + kAhead; ++chunk) {
      const int64_t begin = entry + chunk * kChunk;
      total += reduce_entries<typename Reducer::ShortTree>(reducer, begin, begin + kChunk);
    }
  }
  return total;
}

template <class Reducer>
__global__ void __launch_bounds__(kRowThreads)
    segments_kernel(const __grid_constant__ SegmentReduceArgs args, int bits, int per_block,
                    Chunks<Reducer> chunks) {
  extern __shared__ __align__(16) unsigned char shared[];
  const Team<Reducer> team(bits, shared);
  const int64_t items = Reducer::items(args), first = int64_t{blockIdx.x} * per_block;
  const int64_t last = first + per_block < args.segments ? first + per_block : args.segments;
  bool is_long = false;
  if (team.group < last - first) {
    const int64_t segment = first + team.group;
    const EntryRange range = entry_range(args.offsets, segment, args.entries);
    is_long = range.size() > team.serial_entries();
    for (int64_t item = team.lane; !is_long && item < items; item += team.lanes) {
      const Reducer reducer(args, item);
      using Tree = typename Reducer::ShortTree;
      reducer.store(segment, reduce_entries<Tree>(reducer, range.begin, range.end));
    }
  }
  wait_for_previous();
  if (!__syncthreads_or(is_long)) return;
  for (int64_t segment = first; segment < last; ++segment) {
    const EntryRange range = entry_range(args.offsets, segment, args.entries);
    if (range.size() <= team.serial_entries()) continue;
    const int64_t whole = range.size() / kChunk, rest = range.begin + whole * kChunk;
    for (int64_t item = team.lane; item - team.lane < items; item += team.lanes) {
      const int64_t mine = item < items ? item : items - 1;
      const Reducer reducer(args, mine);
      team.begin();
      team.template add<2>(whole, [&](int64_t begin, int64_t end) {
        return add_chunks(reducer, chunks, mine, range.begin, begin, end);
      });
      team.template add<0>(range.end - rest, [&](int64_t begin, int64_t end) {
        return reduce_block(reducer, rest + begin, rest + end);
      });
      if (team.group == 0 && item < items) reducer.store(segment, team.tree.total());
    }
  }
}

template <class Reducer>
cudaError_t launch_reducer(const SegmentReduceArgs& args, void* memory,
                           const CudaContext& context) {
  int bits = lanes_bits_for(Reducer::items(args));
  while (Team<Reducer>::shared_bytes(bits) > kMostShared) --bits;
  const size_t shared = Team<Reducer>::shared_bytes(bits);
  // Few segments a block where there are few: long ones are reduced one after another.
  const int64_t even = args.segments / (8 * context.target.multiprocessors);
  const int per_block = static_cast<int>(clamp_index(even, 1, kRowThreads >> bits));
  const dim3 grid(grid_x(ceil_div<int64_t>(args.segments, per_block)));
  Workspace workspace(memory);
  const Chunks<Reducer> chunks(args, workspace);
  const int64_t slots = Chunks<Reducer>::slots(args);
  if (slots == 0) {
    return launch_sharing(segments_kernel<Reducer>, grid, kRowThreads, shared, context.stream, args,
                          bits, per_block, chunks);
  }
  TORCHVOX_CUDA_CHECK(launch_sharing(chunks_kernel<Reducer>, static_cast<unsigned>(slots),
                                     kRowThreads, shared, context.stream, args, bits, chunks));
  return launch_after_sharing(segments_kernel<Reducer>, grid, kRowThreads, shared, context, args,
                              bits, per_block, chunks);
}

// A row of threads an entry, a word each.
template <class T, int kWidth>
__global__ void __launch_bounds__(kRowThreads)
    spread_kernel(const __grid_constant__ SegmentSpreadArgs args) {
  const int64_t entry = int64_t{blockIdx.x} * blockDim.y + threadIdx.y;
  if (entry >= args.entries) return;
  for (int64_t item = threadIdx.x; item < args.channels / kWidth; item += blockDim.x) {
    spread_item<T, kWidth>(args, entry, item);
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

cudaError_t launch(const EntrySegmentArgs& args, void*, const CudaContext& context) {
  return launch_elements<find_entry_segment>(args, args.entries, context);
}

cudaError_t launch(const SegmentSpreadArgs& args, void*, const CudaContext& context) {
  if (args.entries * args.channels == 0) return cudaSuccess;
  const bool aligned = is_aligned(args.grad) && is_aligned(args.out);
  return with_width_of<0>(args, aligned, [&](auto type, auto width) {
    const dim3 block = block_of(args.channels / width());
    const dim3 grid(grid_x(ceil_div<int64_t>(args.entries, block.y)));
    return launch_blocks(spread_kernel<decltype(type), width()>, grid, block, context.stream, args);
  });
}

}  // namespace torchvox
