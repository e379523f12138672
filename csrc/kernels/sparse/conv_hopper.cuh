// SPDX-License-Identifier: Apache-2.0
//
// What the Hopper plan of sparse_conv prepares: weights as wgmma reads them; for each tile of rows
// which row each of them reads, and the offsets that one of them has; which tiles a cluster takes.
#pragma once

#include "csrc/kernels/core/items.h"
#include "csrc/kernels/core/launch.cuh"
#include "csrc/kernels/core/warp.cuh"
#include "csrc/kernels/sparse/conv.h"

namespace torchvox {
namespace {

constexpr int kWarpgroup = 128;  // threads of a warpgroup
constexpr int kPackThreads = 512;
constexpr int kSorted = 1024, kRounds = 32;  // most items that are sorted, and of a cluster

// How a launch is cut. A unit is one offset and kWidth input channels; a stage has 64 channels.
template <class T_, int kCols_, int kWidth_, int kStages_, int kProducers_, int kConsumers_,
          int kCluster_, int kBlocks_>
struct Cut {
  using T = T_;
  static constexpr int kCols = kCols_, kWidth = kWidth_, kStages = kStages_;
  static constexpr int kConsumers = kConsumers_, kCluster = kCluster_, kBlocks = kBlocks_;
  static constexpr int kRows = 64 * kConsumers, kTileRows = kRows * kCluster;
  static constexpr int kUnits = 64 / kWidth, kWords = kWidth / 8;  // of a line of a unit
  static constexpr int kProducerThreads = kWarpgroup * kProducers_;
  static constexpr int kThreads = kProducerThreads + kWarpgroup * kConsumers;
  static constexpr int kThreadRows = kRows * kWords / kProducerThreads;  // of a unit
  static constexpr int kFeatureBytes = kRows * kWidth * 2, kWeightBytes = kCols * kWidth * 2;
  static constexpr int kStageBytes = kUnits * (kFeatureBytes + kWeightBytes);
  static constexpr int kSharedBytes = kStages * kStageBytes + 1024;  // and room to align
  static_assert(kStages * kStageBytes >= 3 * 4 * kSorted);  // scratch of take_items()
};

// Offsets of a tile.
struct Offsets {
  uint64_t low, high;
  int count;

  __device__ __forceinline__ bool empty() const { return (low | high) == 0; }
  __device__ __forceinline__ int pop() {  // the lowest
    const bool in_low = low != 0;
    const uint64_t word = in_low ? low : high, rest = word & (word - 1);
    if (in_low) {
      low = rest;
    } else {
      high = rest;
    }
    return __ffsll(static_cast<long long>(word)) + (in_low ? -1 : 63);
  }
};

struct Work {
  int columns, tiles;  // tiles of columns, and of rows; of a cluster
  bool deals;  // see take_items()
  int chunks;  // of kWidth input channels
  int channels;  // input channels and padding to 16 bytes
  bool packs;  // features are packed, too
  bool in_words;  // weights may be read 16 bytes at a time
  char* weight;  // [columns, volume, chunks] images of kCols lines of kWidth channels
  const char* features;  // [sources, channels]
  float* bias;  // [columns * kCols]
  Offsets* offsets;  // [tiles] those that a row of the tile has
  int32_t* sources;  // [tiles, volume, kTileRows] rows of features, or -1

  template <class Cut>
  Work(const SparseConvArgs& args, Cut, Workspace& workspace) {
    columns = static_cast<int>(ceil_div<int64_t>(args.out_channels, Cut::kCols));
    tiles = static_cast<int>(ceil_div<int64_t>(args.table.rows, Cut::kTileRows));
    deals = int64_t{tiles} * columns <= kSorted;
    chunks = static_cast<int>(ceil_div<int64_t>(args.in_channels, Cut::kWidth));
    channels = static_cast<int>(ceil_div<int64_t>(args.in_channels, 8) * 8);
    packs = args.in_channels != channels || !is_aligned(args.features);
    const SparseWeight& from = args.weight;
    in_words = from.in_stride == 1 && args.in_channels == channels && from.out_stride % 8 == 0 &&
        from.offset_stride % 8 == 0 && is_aligned(from.data);
    const int64_t images = columns * args.table.volume * chunks;
    weight = workspace.take<char>(images * Cut::kWeightBytes);
    features = workspace.take<char>(packs ? args.table.sources * channels * 2 : 0);
    bias = workspace.take<float>(int64_t{columns} * Cut::kCols);
    offsets = workspace.take<Offsets>(tiles);
    sources = workspace.take<int32_t>(tiles * args.table.volume * Cut::kTileRows);
    if (!packs) features = static_cast<const char*>(args.features);
  }
};

// Where the 16 bytes `chunk` of a line lie in it: lines are swizzled, so that the tensor cores read
// eight of them without bank conflicts.
template <int kWords>
__host__ __device__ constexpr int swizzled(int line, int chunk) {
  return chunk ^ (line / (8 / kWords) % kWords);
}

// The output channel of a line of an image: in groups of 32 and such an order that a lane has sums
// of eight channels side by side.
__host__ __device__ constexpr int channel_of(int line) {
  return line / 32 * 32 + line % 8 / 2 * 8 + line % 32 / 8 * 2 + line % 2;
}

template <class T>
struct alignas(16) Word {
  T item[8];
};

// Eight input channels of a line of an image.
template <class Cut, class T = typename Cut::T>
__device__ void pack_weight(const SparseConvArgs& args, const Work& work, int64_t i) {
  constexpr int kLine = Cut::kWords, kCols = Cut::kCols;
  const int64_t image = i / (kCols * kLine), above = image / work.chunks;
  const int in_image = static_cast<int>(i % (kCols * kLine));
  const bool by_line = args.weight.in_stride == 1;  // neighboring threads read neighboring weights
  const int line = by_line ? in_image / kLine : in_image % kCols;
  const int chunk = by_line ? in_image % kLine : in_image / kCols;
  const int64_t column = above / args.table.volume, k = above % args.table.volume;
  const int64_t out = column * kCols + channel_of(line);
  const int64_t in = image % work.chunks * Cut::kWidth + chunk * 8;
  Word<T> word = {};
  if (out < args.out_channels && in < args.in_channels) {
    const auto* from =
        static_cast<const T*>(args.weight.data) + args.weight.at(out, k, in, args.table.volume);
    if (work.in_words) {
      word = *reinterpret_cast<const Word<T>*>(from);
    } else {
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        if (in + j < args.in_channels) word.item[j] = from[j * args.weight.in_stride];
      }
    }
  }
  reinterpret_cast<Word<T>*>(
      work.weight)[(image * kCols + line) * kLine + swizzled<kLine>(line, chunk)] = word;
}

template <class T>
__device__ void pack_feature(const SparseConvArgs& args, const Work& work, int64_t i) {
  const int64_t words = work.channels / 8, row = i / words, in = i % words * 8;
  const T* from = static_cast<const T*>(args.features) + row * args.in_channels + in;
  Word<T> word = {};
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    if (in + j < args.in_channels) word.item[j] = from[j];
  }
  reinterpret_cast<Word<T>*>(const_cast<char*>(work.features))[i] = word;
}

// The row at a place of the order, or -1.
__device__ __forceinline__ int row_at(const SparseTable& table, const int32_t* order, int place) {
  const int row = order && place < table.rows ? order[place] : place;
  return row >= 0 && row < table.rows ? row : -1;
}

// Blocks below `tiles` find the sources of a tile each; the others pack.
template <class Cut>
__global__ void __launch_bounds__(kPackThreads)
    pack_kernel(const __grid_constant__ SparseConvArgs args, const __grid_constant__ Work work,
                const int32_t* order) {
  let_next_begin();
  const SparseTable& table = args.table;
  const int volume = static_cast<int>(table.volume), tile = blockIdx.x;
  if (tile < work.tiles) {
    __shared__ unsigned present[4];
    if (threadIdx.x < 4) present[threadIdx.x] = 0;
    __syncthreads();
    constexpr int kRows = Cut::kTileRows, kParts = kPackThreads / kRows;
    static_assert(kParts > 0);
    const int place = threadIdx.x % kRows, part = threadIdx.x / kRows;
    const int row = row_at(table, order, tile * kRows + place);
    const bool valid = row >= 0 && row < table.valid();
    const int64_t limit = table.valid_sources();
    int32_t* to = work.sources + int64_t{tile} * volume * kRows + place;
#pragma unroll 7
    for (int k = part; k < volume; k += kParts) {
      const int32_t source = valid ? table.at(k, row, limit) : -1;
      to[k * kRows] = source;
      if (__any_sync(kFullWarp, source >= 0) && threadIdx.x % 32 == 0) {
        atomicOr(&present[k / 32], 1u << k % 32);
      }
    }
    __syncthreads();
    if (threadIdx.x == 0) {
      const uint64_t low = uint64_t{present[1]} << 32 | present[0];
      const uint64_t high = uint64_t{present[3]} << 32 | present[2];
      work.offsets[tile] = {low, high, __popcll(low) + __popcll(high)};
    }
    return;
  }
  using T = typename Cut::T;
  const int64_t first = int64_t{tile - work.tiles} * kPackThreads + threadIdx.x;
  const int64_t step = int64_t{gridDim.x - work.tiles} * kPackThreads;
  const int64_t words = int64_t{work.columns} * volume * work.chunks * Cut::kCols * Cut::kWords;
  for (int64_t i = first; i < words; i += step) pack_weight<Cut>(args, work, i);
  const int64_t features = work.packs ? table.valid_sources() * (work.channels / 8) : 0;
  for (int64_t i = first; i < features; i += step) pack_feature<T>(args, work, i);
  for (int64_t i = first; i < int64_t{work.columns} * Cut::kCols; i += step) {
    const bool given = args.bias && i < args.out_channels;
    work.bias[i] = (given ? widen(static_cast<const T*>(args.bias)[i]) : 0.f) + 0.f;  // -0 to +0
  }
}

// An item is a tile of rows and one of columns. The cluster's own, one a round.
struct Items {
  const int* list;  // null: as they come
  int count, rounds, cluster, clusters;

  __device__ __forceinline__ int at(int round) const {  // -1: none
    if (round >= rounds) return -1;
    if (list) return list[round];
    const int place = round * clusters + cluster;
    return place < count ? count - 1 - place : -1;
  }
};

// How many of `count` keys, a multiple of four, are above `key`.
__device__ __forceinline__ int count_above(const int* keys, int count, int key) {
  int above = 0;
  for (int i = 0; i < count; i += 4) {
    const int4 four = *reinterpret_cast<const int4*>(keys + i);
    above += (four.x > key) + (four.y > key) + (four.z > key) + (four.w > key);
  }
  return above;
}

// Deals items to clusters, the heaviest first to the one that has least; every block comes to the
// same. scratch: 3 * kSorted; list: kRounds.
template <class Cut>
__device__ Items take_items(const Work& work, int* scratch, int* list) {
  Items items{list, work.tiles * work.columns, 0, static_cast<int>(blockIdx.x) / Cut::kCluster,
              static_cast<int>(gridDim.x) / Cut::kCluster};
  items.rounds = ceil_div(items.count, items.clusters);
  if (!work.deals || items.rounds > kRounds || items.clusters > kSorted) {
    items.list = nullptr;
    return items;
  }
  int *keys = scratch, *sorted = scratch + kSorted, *loads = scratch + 2 * kSorted;
  const int padded = ceil_div(items.count, 4) * 4, clusters = ceil_div(items.clusters, 4) * 4;
  for (int i = threadIdx.x; i < padded; i += Cut::kThreads) {
    const int cost = i < items.count ? work.offsets[i / work.columns].count + 1 : 0;
    keys[i] = cost * kSorted + kSorted - 1 - i;
  }
  for (int i = threadIdx.x; i < clusters; i += Cut::kThreads) {
    loads[i] = i < items.clusters ? -i : -(1 << 30);
  }
  if (threadIdx.x < kRounds) list[threadIdx.x] = -1;
  __syncthreads();
  for (int i = threadIdx.x; i < items.count; i += Cut::kThreads) {
    sorted[count_above(keys, padded, keys[i])] = keys[i];
  }
  for (int round = 0; round < items.rounds; ++round) {
    constexpr int kMine = ceil_div(kSorted, Cut::kThreads);
    int load[kMine];
    __syncthreads();
#pragma unroll
    for (int j = 0; j < kMine; ++j) {
      const int i = threadIdx.x + j * Cut::kThreads;
      if (i >= items.clusters) continue;
      const int place = round == 0 ? i
          : round == 1             ? items.clusters - 1 - i
                                   : count_above(loads, clusters, loads[i]);
      const int taken = round * items.clusters + place;
      const int key = taken < items.count ? sorted[taken] : 0;
      load[j] = loads[i] - key / kSorted * kSorted;
      if (i == items.cluster && key > 0) list[round] = kSorted - 1 - key % kSorted;
    }
    __syncthreads();
#pragma unroll
    for (int j = 0; j < kMine; ++j) {
      if (threadIdx.x + j * Cut::kThreads < items.clusters) {
        loads[threadIdx.x + j * Cut::kThreads] = load[j];
      }
    }
  }
  return items;
}

}  // namespace
}  // namespace torchvox
