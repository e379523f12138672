// SPDX-License-Identifier: Apache-2.0
//
// sparse_conv in halves on the tensor cores of Hopper GPUs (PTX wgmma). This file is compiled for
// sm_90a alone.
//
//   pack_operands_kernel  weights as wgmma reads them; features whose channels are not a multiple
//   of
//                         eight
//   conv_kernel           clusters of two blocks that stay take items, each two tiles of the
//                         schedule, one per block, or one tile, half per block, and a tile of
//                         output channels
//
// Producer warps gather rows into a ring of stages, by copies that fill absent rows with zeros. The
// weights of a stage come in one piece, for both blocks at once, which therefore walk the same
// offsets: those of the item. Consumer warps multiply 64 rows each, with sums in registers.
#include "csrc/kernels/core/hopper.cuh"
#include "csrc/kernels/core/warp.cuh"
#include "csrc/kernels/sparse/conv_tensor.cuh"

namespace torchvox {
namespace {

constexpr int kWarpgroup = 128;  // threads of a warpgroup
constexpr int kCluster = 2;  // blocks
constexpr int kTile = SparseSchedule::kTile;  // rows
constexpr int kSorted = 1024, kRounds = 32;  // most items that are dealt, and of a cluster

// How a launch is cut. A stage has kWidth input channels of one offset.
template <class T_, int kCols_, int kWidth_, int kStages_, int kProducers_, int kBlocks_,
          int kRows_ = kTile>
struct Cut {
  using T = T_;
  static constexpr int kCols = kCols_, kWidth = kWidth_, kStages = kStages_, kBlocks = kBlocks_;
  static constexpr int kWords = kWidth / 8;  // of a line
  static constexpr int kRows = kRows_, kConsumers = kRows / 64;  // of a block
  static constexpr int kTiles = kCluster * kRows / kTile;  // of rows, of an item
  static constexpr int kProducerThreads = kWarpgroup * kProducers_;
  static constexpr int kThreads = kProducerThreads + kWarpgroup * kConsumers;
  static constexpr int kLanes = 4;  // threads of a line
  static constexpr int kThreadRows = kRows * kLanes / kProducerThreads;  // of a stage
  static constexpr int kThreadWords = kWords / kLanes;  // of a line
  static constexpr int kFeatureBytes = kRows * kWidth * 2, kWeightBytes = kCols * kWidth * 2;
  static constexpr int kStageBytes = kFeatureBytes + kWeightBytes;
  static constexpr int kSharedBytes = kStages * kStageBytes + 1024;  // and room to align
  static_assert(kStages * kStageBytes >= 3 * 4 * kSorted);  // scratch of take_items()
};

// Offsets of an item, a bit each.
struct Offsets {
  using Bits = unsigned __int128;
  Bits bits = 0;

  __device__ __forceinline__ uint64_t low() const { return static_cast<uint64_t>(bits); }
  __device__ __forceinline__ uint64_t high() const { return static_cast<uint64_t>(bits >> 64); }
  __device__ __forceinline__ int count() const { return __popcll(low()) + __popcll(high()); }
  __device__ __forceinline__ int pop() {  // the lowest
    const int offset = low() ? __ffsll(low()) - 1 : __ffsll(high()) + 63;
    bits &= bits - 1;
    return offset;
  }
};

// The tiles of rows and columns of a launch. An item is one or two of rows and one of columns.
template <class Cut>
struct Tiles {
  SparseSchedule schedule;
  int columns, rows;  // of items

  __device__ Tiles(const SparseConvArgs& args, const SparseOperands& from)
      : schedule(args.table.volume, args.table.rows, args.schedule),
        columns(from.columns),
        rows(static_cast<int>((schedule.tiles + Cut::kTiles - 1) / Cut::kTiles)) {}
  __device__ __forceinline__ int column(int item) const { return item % columns; }
  // A tile of an item. A last one without a second is taken twice, and written twice alike.
  __device__ __forceinline__ int64_t tile(int item, int number) const {
    return min(int64_t{item / columns} * Cut::kTiles + number, schedule.tiles - 1);
  }
  // The place of the first row of a block of the cluster.
  __device__ __forceinline__ int64_t place(int item, int block) const {
    if (Cut::kTiles == 1) return tile(item, 0) * kTile + block * Cut::kRows;
    return tile(item, block) * kTile;
  }
  __device__ __forceinline__ Offsets offsets(int item) const {
    const auto* words = reinterpret_cast<const Offsets::Bits*>(schedule.offsets);
    const Offsets::Bits exist = (Offsets::Bits{1} << schedule.volume) - 1;
    return {(words[tile(item, 0)] | words[tile(item, Cut::kTiles - 1)]) & exist};
  }
};

// The items of the cluster, one a round.
struct Items {
  const int* list;  // null: in turns, there and back
  int count, rounds, cluster, clusters;

  __device__ __forceinline__ int at(int round) const {  // -1: none
    if (round >= rounds) return -1;
    if (list) return list[round];
    const int place = round * clusters + (round % 2 ? clusters - 1 - cluster : cluster);
    return place < count ? place : -1;
  }
};

// How many of `count` keys, rounded up to a multiple of four, are above `key`.
__device__ __forceinline__ int count_above(const int* keys, int count, int key) {
  int above = 0;
  for (int i = 0; i < count; i += 4) {
    const int4 four = *reinterpret_cast<const int4*>(keys + i);
    above += (four.x > key) + (four.y > key) + (four.z > key) + (four.w > key);
  }
  return above;
}

// Where blocks are large and items few, deals these to clusters, the heaviest first to the one that
// has least; every block comes to the same. scratch: 3 * kSorted; list: kRounds.
template <class Cut>
__device__ Items take_items(const Tiles<Cut>& tiles, int* scratch, int* list) {
  Items items{nullptr, tiles.rows * tiles.columns, 0, static_cast<int>(blockIdx.x) / kCluster,
              static_cast<int>(gridDim.x) / kCluster};
  items.rounds = ceil_div(items.count, items.clusters);
  const bool few = items.count <= kSorted && items.rounds <= kRounds;
  if (Cut::kBlocks > 1 || !few || items.clusters > Cut::kThreads) return items;
  int *keys = scratch, *sorted = scratch + kSorted, *loads = scratch + 2 * kSorted;
  items.list = list;
  const int mine = threadIdx.x;
  for (int i = mine; i < kSorted; i += Cut::kThreads) {
    const int cost = i < items.count ? tiles.offsets(i).count() + 1 : 0;
    keys[i] = cost * kSorted + kSorted - 1 - i;
    loads[i] = i < items.clusters ? -i : -(1 << 30);
  }
  __syncthreads();
  for (int i = mine; i < items.count; i += Cut::kThreads) {
    sorted[count_above(keys, items.count, keys[i])] = keys[i];
  }
  for (int round = 0; round < items.rounds; ++round) {
    __syncthreads();
    int key = 0;
    if (mine < items.clusters) {
      const int place = round * items.clusters + count_above(loads, items.clusters, loads[mine]);
      if (place < items.count) key = sorted[place];
    }
    __syncthreads();
    if (mine < items.clusters) loads[mine] -= key / kSorted * kSorted;
    if (mine == items.cluster) list[round] = key > 0 ? kSorted - 1 - key % kSorted : -1;
  }
  return items;
}

template <class Cut>
struct Ring {
  unsigned stages, barriers;  // addresses
  int stage = 0;
  unsigned phase = 0;

  __device__ __forceinline__ unsigned features() const { return stages + stage * Cut::kStageBytes; }
  __device__ __forceinline__ unsigned weights() const { return features() + Cut::kFeatureBytes; }
  __device__ __forceinline__ Barrier full() const { return {barriers + stage * 8}; }
  __device__ __forceinline__ Barrier empty() const {
    return {barriers + (Cut::kStages + stage) * 8};
  }
  __device__ __forceinline__ void advance() {
    if (++stage == Cut::kStages) stage = 0, ++phase;
  }
};

// A number that the compiler keeps in a register, where it would work it out again in every step.
template <class N>
__device__ __forceinline__ void keep(N& number) {
  if constexpr (sizeof(N) == 8) {
    asm("" : "+l"(number));
  } else {
    asm("" : "+r"(number));
  }
}

// Offsets of the items of a cluster, one after another, and what a thread copies of each: a word of
// some lines.
template <class Cut>
struct Gather {
  static constexpr int kMost = Cut::kThreadRows, kWords = Cut::kThreadWords;
  static constexpr int kShare = Cut::kWeightBytes / kCluster;
  struct alignas(4 * kMost) Sources {
    int32_t row[kMost];
  };
  struct Step {
    int image;  // of weights; -1: the end
    Sources sources;
  };
  const SparseOperands& from;
  const Tiles<Cut>& tiles;
  const Items& items;
  const int block;  // of the cluster
  const uint32_t limit;  // rows of features
  const int thread = static_cast<int>(threadIdx.x), in = thread % Cut::kLanes * 8;
  const uint32_t pitch = static_cast<uint32_t>(from.channels * 2);  // bytes of a row
  uint64_t features, weights;  // addresses: of the word in the first row, of the block's share
  unsigned places[kMost][kWords];  // of the words in a stage
  int inside[kWords];  // units that have them
  int round = 0, image = 0;
  const int32_t* sources = nullptr;
  Offsets offsets;

  __device__ __forceinline__ Gather(const SparseOperands& from, const Tiles<Cut>& tiles,
                                    const Items& items, int block, int64_t limit)
      : from(from), tiles(tiles), items(items), block(block), limit(static_cast<uint32_t>(limit)) {
    features = reinterpret_cast<uint64_t>(from.features) + in * 2;
    weights = reinterpret_cast<uint64_t>(from.weight) + block * kShare;
    keep(features);
    keep(weights);
#pragma unroll
    for (int w = 0; w < kWords; ++w) {
      const int channel = in + w * Cut::kLanes * 8;
      inside[w] = static_cast<int>((from.channels - channel + Cut::kWidth - 1) / Cut::kWidth);
      keep(inside[w]);
#pragma unroll
      for (int q = 0; q < kMost; ++q) {
        const int line = thread / Cut::kLanes * kMost + q;
        const int phase = phase_of(line % 8, Cut::kWidth);
        places[q][w] = (line * Cut::kWords + (channel / 8 ^ phase)) * 16;
        keep(places[q][w]);
      }
    }
  }
  __device__ __forceinline__ Step next() {
    while (offsets.bits == 0) {
      const int item = items.at(round++);
      if (item < 0) return {-1, {}};
      const auto volume = static_cast<int>(tiles.schedule.volume);
      offsets = tiles.offsets(item);
      image = tiles.column(item) * volume;
      const int64_t place = tiles.place(item, block), line = thread / Cut::kLanes * kMost;
      sources = tiles.schedule.sources + place / kTile * volume * kTile + place % kTile + line;
    }
    const int offset = offsets.pop();
    return {(image + offset) * from.units,
            *reinterpret_cast<const Sources*>(sources + offset * kTile)};
  }
  // Fills a stage. Warps take turns at the weights.
  __device__ __forceinline__ void copy(const Ring<Cut>& ring, const Step& step, int unit) const {
    const unsigned stage = ring.features();
    if (thread == (ring.stage & 3) * 32) {
      const uint64_t share = weights + static_cast<uint64_t>(step.image + unit) * Cut::kWeightBytes;
      ring.full().expect(Cut::kWeightBytes);
      copy_to_cluster<kCluster>(ring.weights() + block * kShare,
                                reinterpret_cast<const void*>(share), kShare, ring.full());
    }
    const uint64_t first = features + static_cast<unsigned>(unit * Cut::kWidth * 2);
#pragma unroll
    for (int q = 0; q < kMost; ++q) {
      const auto source = static_cast<uint32_t>(step.sources.row[q]);
      const bool exists = source < limit;
      const uint64_t word = first + uint64_t{exists ? source : 0} * pitch;
#pragma unroll
      for (int w = 0; w < kWords; ++w) {
        copy_or_clear(stage + places[q][w],
                      reinterpret_cast<const char*>(word) + w * Cut::kLanes * 16,
                      exists && unit < inside[w]);
      }
    }
    ring.full().arrive_after_copies();
  }
};

template <class Cut>
__device__ __forceinline__ void produce(const SparseOperands& from, const Tiles<Cut>& tiles,
                                        const Items& items, Ring<Cut> ring, int block,
                                        int64_t limit) {
  keep(ring.stages);
  keep(ring.barriers);
  Gather<Cut> gather(from, tiles, items, block, limit);
  constexpr int kAhead = 4;  // steps, so that rows are known when they are needed
  typename Gather<Cut>::Step steps[kAhead];
  int units = from.units;
  keep(units);
#pragma unroll
  for (auto& step : steps) step = gather.next();
  for (;;) {
#pragma unroll
    for (auto& step : steps) {
      if (step.image < 0) return;
      for (int unit = 0; unit < units; ++unit, ring.advance()) {
        ring.empty().wait(ring.phase - 1);  // over at once in the first round
        gather.copy(ring, step, unit);
      }
      step = gather.next();
    }
  }
}

// Sums and values of a consumer: 64 rows of each tile.
template <class Cut>
__device__ __forceinline__ void consume(const SparseConvArgs& args, const SparseOperands& from,
                                        const Tiles<Cut>& tiles, const Items& items, Ring<Cut> ring,
                                        int consumer, int block) {
  const int warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32;
  keep(ring.stages);
  keep(ring.barriers);
  unsigned empty = Barrier{ring.barriers + Cut::kStages * 8}.in_block(warp % kCluster);
  keep(empty);
  const auto release = [&](int stage) {  // to the producers of each block
    if (lane == 0 && warp < kCluster) arrive_in_cluster(empty + stage * 8);
  };
  const int64_t valid = args.table.valid();
  // Matrices of the first stage, whose places are in the lower half.
  const auto matrix_at = [](unsigned low) { return matrix<Cut::kWidth>(0) >> 32 << 32 | low; };
  auto features =
      static_cast<unsigned>(matrix<Cut::kWidth>(ring.stages + consumer * 64 * Cut::kWidth * 2));
  auto weights = static_cast<unsigned>(matrix<Cut::kWidth>(ring.stages + Cut::kFeatureBytes));
  keep(features);
  keep(weights);
  int item = items.at(0);
  int offsets = item < 0 ? 0 : tiles.offsets(item).count();
  for (int round = 0; item >= 0; ++round) {
    const int next = items.at(round + 1);
    const int next_offsets = next < 0 ? 0 : tiles.offsets(next).count();
    const int channel = tiles.column(item) * Cut::kCols + lane % 4 * 8;
    const int64_t place = tiles.place(item, block) + consumer * 64 + warp * 16 + lane / 4;
    const int32_t rows[2] = {row_at(args.table, tiles.schedule, place),
                             row_at(args.table, tiles.schedule, place + 8)};
    float sums[Cut::kCols / 8][4];
    start_sums<32>(sums, from.bias + channel);
    const int count = offsets * from.units;
    int last = 0;
    for (int i = 0; i < count; ++i) {
      ring.full().wait(ring.phase);
      fence_shared();
      begin_products();
      const auto stage = static_cast<unsigned>(ring.stage * Cut::kStageBytes / 16);
#pragma unroll
      for (int in = 0; in < Cut::kWidth / 8; in += 2) {  // in 16 bytes
        multiply<typename Cut::T, Cut::kCols>(sums, matrix_at(features + stage + in),
                                              matrix_at(weights + stage + in));
      }
      end_products();
      wait_for_products<1>();
      if (i > 0) release(last);
      last = ring.stage;
      ring.advance();
    }
    wait_for_products<0>();
    if (count > 0) release(last);
    store_sums<typename Cut::T, 32>(args, sums, rows, valid, channel);
    item = next;
    offsets = next_offsets;
  }
}

// Reads the schedule, packed operands and residuals; writes values.
template <class Cut>
__global__ void __cluster_dims__(kCluster, 1, 1) __launch_bounds__(Cut::kThreads, Cut::kBlocks)
    conv_kernel(const __grid_constant__ SparseConvArgs args,
                const __grid_constant__ SparseOperands from) {
  extern __shared__ __align__(16) char memory[];
  __shared__ alignas(8) uint64_t barriers[2 * Cut::kStages];
  __shared__ int list[kRounds];
  const unsigned gap = -shared_address(memory) % 1024;
  const Ring<Cut> ring{shared_address(memory) + gap, shared_address(barriers)};
  if (threadIdx.x == 0) {
    for (auto at = ring; at.phase == 0; at.advance()) {
      at.full().start(Cut::kProducerThreads + 1);
      at.empty().start(Cut::kConsumers * kCluster);
    }
    fence_barriers();
  }
  if (from.follows) wait_for_previous();
  const Tiles<Cut> tiles(args, from);
  const Items items = take_items<Cut>(tiles, reinterpret_cast<int*>(memory + gap), list);
  fence_shared();
  meet_cluster();
  wait_for_previous();
  const int block = blockIdx.x % kCluster;
  constexpr bool kMoves = Cut::kCols == 256;  // registers, from producers to consumers
  if (threadIdx.x < Cut::kProducerThreads) {
    if constexpr (kMoves) asm volatile("setmaxnreg.dec.sync.aligned.u32 80;");
    produce<Cut>(from, tiles, items, ring, block, args.table.valid_sources());
  } else {
    if constexpr (kMoves) asm volatile("setmaxnreg.inc.sync.aligned.u32 208;");
    const int consumer =
        __shfl_sync(kFullWarp, (threadIdx.x - Cut::kProducerThreads) / kWarpgroup, 0);
    consume<Cut>(args, from, tiles, items, ring, consumer, block);
  }
  meet_cluster();  // no block ends while the other may still reach into it
}

template <class Cut>
cudaError_t launch_cut(const SparseConvArgs& args, const SparseOperands& from,
                       const CudaContext& context) {
  TORCHVOX_CUDA_CHECK(pack_operands<typename Cut::T>(args, from, context));
  TORCHVOX_CUDA_CHECK(cudaFuncSetAttribute(
      conv_kernel<Cut>, cudaFuncAttributeMaxDynamicSharedMemorySize, Cut::kSharedBytes));
  const int64_t items = ceil_div<int64_t>(args.table.rows, Cut::kRows * kCluster) * from.columns;
  const int64_t most = context.target.multiprocessors * Cut::kBlocks / kCluster;
  const auto blocks = static_cast<unsigned>(std::min(items, most) * kCluster);
  return launch_after_sharing(conv_kernel<Cut>, dim3(blocks), dim3(Cut::kThreads),
                              Cut::kSharedBytes, context, args, from);
}

// body(a Cut) for a call. No cut changes a value.
template <class T, class Body>
auto with_cut(const SparseConvArgs& args, const Target& target, const Body& body) {
  const int64_t in = args.in_channels, out = args.out_channels;
  const int64_t tiles = ceil_div<int64_t>(args.table.rows, kTile);
  if (in <= 32 && out <= 32) return body(Cut<T, 32, 32, 8, 1, 2>());
  if (in <= 32 && out <= 64) return body(Cut<T, 64, 32, 8, 1, 2>());
  if (out > 128 && tiles * ceil_div<int64_t>(out, 256) >= target.multiprocessors) {
    return body(Cut<T, 256, 64, 4, 1, 1>());
  }
  // Few tiles are halved, so that more multiprocessors have one.
  if (out > 64 && 4 * tiles <= 3 * target.multiprocessors) {
    return body(Cut<T, 128, 64, 8, 1, 1, 64>());
  }
  if (out > 64) return body(Cut<T, 128, 64, 7, 2, 1>());
  if (2 * tiles <= 3 * target.multiprocessors) return body(Cut<T, 64, 64, 6, 1, 2, 64>());
  return body(Cut<T, 64, 64, 4, 1, 2>());
}

}  // namespace

int64_t sparse_hopper_bytes(const SparseConvArgs& args, const Target& target) {
  return with_cut<Half>(args, target, [&](auto cut) {
    return carved_bytes<SparseOperands>(args, false, int{cut.kCols}, int{cut.kWidth});
  });
}
cudaError_t launch_sparse_hopper(const SparseConvArgs& args, bool follows, void* memory,
                                 const CudaContext& context) {
  const auto launch = [&](auto cut) {
    return launch_cut<decltype(cut)>(
        args, carve<SparseOperands>(memory, args, follows, int{cut.kCols}, int{cut.kWidth}),
        context);
  };
  return args.dtype == DType::kHalf ? with_cut<Half>(args, context.target, launch)
                                    : with_cut<BFloat16>(args, context.target, launch);
}

}  // namespace torchvox
