// SPDX-License-Identifier: Apache-2.0
//
// sparse_conv of halves on the tensor cores of Hopper GPUs (PTX wgmma, sm_90a), with the bits of
// every other plan on tensor cores: a sum starts at the bias; for each present offset ascending,
// slices of 16 input channels ascending are added; an absent offset adds zeros or is skipped.
//
//   pack_kernel      weights as wgmma reads them; for each tile of rows which row each of them
//                    reads, and the offsets that one of them has
//   conv_kernel      blocks that stay take tiles, the heaviest first. Producer warps gather rows
//                    into a ring of stages, by copies that fill absent rows with zeros; the
//                    weights of a stage come in one piece, for both blocks of a cluster at once;
//                    consumer warps multiply 64 rows each, with sums in registers
//
// Blocks of a cluster walk the same offsets, those of all their rows. This file is compiled for
// sm_90a alone.
#include "csrc/kernels/core/hopper.cuh"
#include "csrc/kernels/neighbors/group_mlp/mma_tiles.cuh"
#include "csrc/kernels/sparse/conv_hopper.cuh"
#include "csrc/kernels/sparse/conv_hopper.h"

namespace torchvox {
namespace {

template <class Cut>
struct Ring {
  unsigned stages, barriers;  // addresses
  int stage = 0;
  unsigned phase = 0;

  __device__ __forceinline__ unsigned features(int unit) const {
    return stages + stage * Cut::kStageBytes + unit * Cut::kFeatureBytes;
  }
  __device__ __forceinline__ unsigned weight(int unit) const {
    return features(Cut::kUnits) + unit * Cut::kWeightBytes;
  }
  __device__ __forceinline__ Barrier full() const { return {barriers + stage * 8}; }
  __device__ __forceinline__ Barrier empty() const {
    return {barriers + (Cut::kStages + stage) * 8};
  }
  __device__ __forceinline__ void advance() {
    if (++stage == Cut::kStages) stage = 0, ++phase;
  }
};

// Offsets of the items of a cluster, one after another, and what a thread copies of each.
template <class Cut>
struct Gather {
  static constexpr int kMost = Cut::kThreadRows;
  struct alignas(kMost * 4) Sources {
    int32_t row[kMost];
  };
  struct Step {
    int item, image;  // of weights, in units of an offset; item -1: the end
    Sources sources;
  };
  const SparseConvArgs& args;
  const Work& work;
  const Items& items;
  const int thread, block;  // of the producers, of the cluster
  int round = 0, item = 0, next_item = -1;
  Offsets offsets{}, next_offsets{};

  __device__ __forceinline__ void load_next() {
    next_item = items.at(round++);
    if (next_item >= 0) next_offsets = work.offsets[next_item / work.columns];
  }
  __device__ __forceinline__ Step next() {
    while (item >= 0 && offsets.empty()) {
      item = next_item;
      offsets = next_offsets;
      load_next();
    }
    Step step{item, 0, {}};
    if (item < 0) return step;
    const int offset = offsets.pop(), volume = static_cast<int>(args.table.volume);
    const int tile = item / work.columns, column = item - tile * work.columns;
    step.image = column * volume + offset;
    step.sources = *reinterpret_cast<const Sources*>(
        work.sources + (int64_t{tile} * volume + offset) * Cut::kTileRows + block * Cut::kRows +
        thread / Cut::kWords * kMost);
    return step;
  }
  // Copies a unit, or zeros beside weights of any unit.
  __device__ __forceinline__ void copy(const Ring<Cut>& ring, int unit, const Step& step, int chunk,
                                       bool clears) const {
    constexpr int kShare = Cut::kWeightBytes / Cut::kCluster;
    if (thread == 0) {
      const int64_t image = int64_t{step.image} * work.chunks + chunk;
      copy_to_cluster<Cut::kCluster>(ring.weight(unit) + block * kShare,
                                     work.weight + image * Cut::kWeightBytes + block * kShare,
                                     kShare, ring.full());
    }
    const int word = thread % Cut::kWords;
    const int in = chunk * Cut::kWidth + word * 8, pitch = work.channels * 2;
    const bool inside = in < work.channels && !clears;
    const char* from = work.features + in * 2;
#pragma unroll
    for (int q = 0; q < kMost; ++q) {
      const int line = thread / Cut::kWords * kMost + q, source = step.sources.row[q];
      const bool copies = inside && source >= 0;
      copy_or_clear(
          ring.features(unit) + (line * Cut::kWords + swizzled<Cut::kWords>(line, word)) * 16,
          copies ? from + int64_t{source} * pitch : work.features, copies);
    }
  }
};

template <class Cut>
__device__ __forceinline__ void produce(const SparseConvArgs& args, const Work& work,
                                        const Items& items, Ring<Cut> ring, int thread, int block) {
  Gather<Cut> gather{args, work, items, thread, block};
  gather.load_next();
  constexpr int kAhead = Cut::kThreadRows > 4 ? 2 : 4;  // so rows are known when they are needed
  typename Gather<Cut>::Step steps[kAhead];
#pragma unroll
  for (auto& step : steps) step = gather.next();
  for (int unit = 0;;) {
#pragma unroll
    for (int s = 0; s < kAhead; ++s) {
      auto &now = steps[s], &next = steps[(s + 1) % kAhead];
      if (now.item < 0) return;
      const bool last = next.item != now.item;
      for (int chunk = 0; chunk < work.chunks; ++chunk) {
        if (unit == 0) {
          if (ring.phase > 0) ring.empty().wait(ring.phase - 1);
          if (thread == 0) ring.full().expect(Cut::kUnits * Cut::kWeightBytes);
        }
        gather.copy(ring, unit, now, chunk, false);
        ++unit;
        for (; last && chunk == work.chunks - 1 && unit < Cut::kUnits; ++unit) {
          gather.copy(ring, unit, now, chunk, true);
        }
        if (unit == Cut::kUnits) {
          ring.full().arrive_after_copies();
          ring.advance();
          unit = 0;
        }
      }
      now = gather.next();
    }
  }
}

// Up to eight values of a row; `whole`: they are eight, and aligned.
template <class T>
__device__ __forceinline__ Word<T> read_word(const T* from, int count, bool whole) {
  if (whole) return *reinterpret_cast<const Word<T>*>(from);
  Word<T> word = {};
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    if (i < count) word.item[i] = from[i];
  }
  return word;
}
template <class T>
__device__ __forceinline__ void write_word(T* to, const Word<T>& word, int count, bool whole) {
  if (whole) {
    *reinterpret_cast<Word<T>*>(to) = word;
    return;
  }
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    if (i < count) to[i] = word.item[i];
  }
}

// finished<T>() of two sums, in few instructions.
template <class T>
__device__ __forceinline__ uint32_t finished_pair(const SparseConvArgs& args, float low,
                                                  float high) {
  constexpr uint32_t kNaN = std::is_same_v<T, Half> ? 0x7e00 : 0x7fc0;
  uint32_t pair = Words<T>::pack(low, high);
  if (args.relu) pair = Words<T>::max2(pair, 0);
  if (low != low) pair = (pair & 0xffff0000u) | kNaN;
  if (high != high) pair = (pair & 0xffffu) | kNaN << 16;
  return pair;
}

// Stores the values of a lane's rows (-1: none) and channels.
template <class Cut>
__device__ __forceinline__ void store(const SparseConvArgs& args,
                                      const float (&sums)[Cut::kCols / 2], const int (&rows)[2],
                                      int channel, int64_t valid) {
  using T = typename Cut::T;
  const bool whole =
      args.out_channels % 8 == 0 && is_aligned(args.out) && is_aligned(args.residual);
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int row = rows[h];
    if (row < 0) continue;
    const int64_t first = row * args.out_channels + channel;
    T* to = static_cast<T*>(args.out) + first;
#pragma unroll
    for (int group = 0; group < Cut::kCols; group += 32) {
      const int count = static_cast<int>(args.out_channels) - channel - group;
      if (count <= 0) break;
      Word<T> word = {};
      if (row < valid) {
        uint32_t pairs[4] = {};
        if (args.residual) {
          word = read_word(static_cast<const T*>(args.residual) + first + group, count, whole);
          memcpy(pairs, &word, sizeof(word));
        }
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int at = group / 2 + 4 * i + 2 * h;
          float low = sums[at] + 0.f, high = sums[at + 1] + 0.f;
          if (args.residual) {
            low += Words<T>::low(pairs[i]);
            high += Words<T>::high(pairs[i]);
          }
          pairs[i] = finished_pair<T>(args, low, high);
        }
        memcpy(&word, pairs, sizeof(word));
      }
      write_word(to + group, word, count, whole);
    }
  }
}

// Sums and values of a consumer: 64 rows of each tile.
template <class Cut>
__device__ __forceinline__ void consume(const SparseConvArgs& args, const Work& work,
                                        const int32_t* order, const Items& items, Ring<Cut> ring,
                                        int consumer, int block) {
  const int warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32;
  const auto release = [&](int stage) {  // to the producers of each block
    const Barrier empty{ring.barriers + (Cut::kStages + stage) * 8};
    if (lane == 0 && warp < Cut::kCluster) empty.arrive_at(warp);
  };
  const int64_t valid = args.table.valid();
  int item = items.at(0);
  int offsets = item < 0 ? 0 : work.offsets[item / work.columns].count;
  for (int round = 0; item >= 0; ++round) {
    const int next = items.at(round + 1);
    const int next_offsets = next < 0 ? 0 : work.offsets[next / work.columns].count;
    const int channel = item % work.columns * Cut::kCols + lane % 4 * 8;
    const int place = item / work.columns * Cut::kTileRows + block * Cut::kRows + consumer * 64 +
        warp * 16 + lane / 4;
    const int rows[2] = {row_at(args.table, order, place), row_at(args.table, order, place + 8)};
    float sums[Cut::kCols / 2];
#pragma unroll
    for (int j = 0; j < Cut::kCols / 8; ++j) {
      const float* from = work.bias + channel + j / 4 * 32 + j % 4 * 2;
      const float2 bias = *reinterpret_cast<const float2*>(from);
      sums[4 * j] = sums[4 * j + 2] = bias.x;
      sums[4 * j + 1] = sums[4 * j + 3] = bias.y;
    }
    const int count = ceil_div(offsets * work.chunks, Cut::kUnits);
    int last = 0;
    for (int i = 0; i < count; ++i) {
      ring.full().wait(ring.phase);
      fence_shared();
      begin_products();
#pragma unroll
      for (int unit = 0; unit < Cut::kUnits; ++unit) {
        const uint64_t features =
            matrix<Cut::kWidth>(ring.features(unit) + consumer * 64 * Cut::kWidth * 2);
        const uint64_t weights = matrix<Cut::kWidth>(ring.weight(unit));
#pragma unroll
        for (int in = 0; in < Cut::kWidth / 8; in += 2) {  // in 16 bytes
          multiply<typename Cut::T, Cut::kCols>(sums, features + in, weights + in);
        }
      }
      end_products();
      wait_for_products<1>();
      if (i > 0) release(last);
      last = ring.stage;
      ring.advance();
    }
    wait_for_products<0>();
    if (count > 0) release(last);
    store<Cut>(args, sums, rows, channel, valid);
    item = next;
    offsets = next_offsets;
  }
}

template <class Cut>
__global__ void __cluster_dims__(Cut::kCluster, 1, 1) __launch_bounds__(Cut::kThreads, Cut::kBlocks)
    conv_kernel(const __grid_constant__ SparseConvArgs args, const __grid_constant__ Work work,
                const int32_t* order) {
  extern __shared__ __align__(16) char memory[];
  __shared__ alignas(8) uint64_t barriers[2 * Cut::kStages];
  __shared__ int list[kRounds];
  const unsigned gap = -shared_address(memory) % 1024;
  const Ring<Cut> ring{shared_address(memory) + gap, shared_address(barriers)};
  if (threadIdx.x == 0) {
    for (auto at = ring; at.phase == 0; at.advance()) {
      at.full().start(Cut::kProducerThreads + 1);
      at.empty().start(Cut::kConsumers * Cut::kCluster);
    }
    fence_barriers();
  }
  wait_for_previous();
  const Items items = take_items<Cut>(work, reinterpret_cast<int*>(memory + gap), list);
  fence_shared();
  meet_cluster<Cut::kCluster>();
  const int block = blockIdx.x % Cut::kCluster;
  constexpr bool kMoves = Cut::kCols == 256;  // registers, from producers to consumers
  if (threadIdx.x < Cut::kProducerThreads) {
    if constexpr (kMoves) asm volatile("setmaxnreg.dec.sync.aligned.u32 80;");
    produce<Cut>(args, work, items, ring, threadIdx.x, block);
  } else {
    if constexpr (kMoves) asm volatile("setmaxnreg.inc.sync.aligned.u32 208;");
    const int consumer =
        __shfl_sync(kFullWarp, (threadIdx.x - Cut::kProducerThreads) / kWarpgroup, 0);
    consume<Cut>(args, work, order, items, ring, consumer, block);
  }
  meet_cluster<Cut::kCluster>();  // no block ends while another may still reach into it
}

template <class Cut>
cudaError_t launch_pack(const SparseConvArgs& args, const int32_t* order, const Work& work,
                        const CudaContext& context) {
  const int64_t images = work.columns * args.table.volume * work.chunks;
  const int64_t words = images * Cut::kCols * Cut::kWords;
  const int64_t features = work.packs ? args.table.sources * work.channels / 8 : 0;
  const unsigned packers = blocks_for(std::max(words, features), kPackThreads, context.target);
  return launch_blocks(pack_kernel<Cut>, dim3(work.tiles + packers), dim3(kPackThreads),
                       context.stream, args, work, order);
}
template <class Cut>
cudaError_t launch_conv(const SparseConvArgs& args, const int32_t* order, const Work& work,
                        const CudaContext& context) {
  TORCHVOX_CUDA_CHECK(cudaFuncSetAttribute(
      conv_kernel<Cut>, cudaFuncAttributeMaxDynamicSharedMemorySize, Cut::kSharedBytes));
  const int most = context.target.multiprocessors * Cut::kBlocks / Cut::kCluster;
  const int clusters = std::max(std::min(work.tiles * work.columns, most), 1);
  return launch_after_sharing(conv_kernel<Cut>, dim3(clusters * Cut::kCluster), dim3(Cut::kThreads),
                              Cut::kSharedBytes, context, args, work, order);
}
template <class Cut>
cudaError_t launch_cut(const SparseConvArgs& args, const int32_t* order, void* memory,
                       const CudaContext& context) {
  const auto work = carve<Work>(memory, args, Cut());
  TORCHVOX_CUDA_CHECK(launch_pack<Cut>(args, order, work, context));
  return launch_conv<Cut>(args, order, work, context);
}

// body(a Cut) for a call. No cut changes a value.
template <class T, class Body>
auto with_cut(const SparseConvArgs& args, const Target& target, const Body& body) {
  const int64_t tiles = ceil_div<int64_t>(args.table.rows, 128);
  const auto fills = [&](int columns) {  // the device
    return tiles * ceil_div<int64_t>(args.out_channels, columns) >= target.multiprocessors;
  };
  if (args.in_channels <= 32 && args.out_channels <= 32) {
    return body(Cut<T, 32, 32, 5, 2, 2, 1, 2>());
  }
  if (args.in_channels <= 32 && args.out_channels <= 64) {
    return body(Cut<T, 64, 32, 4, 1, 2, 1, 2>());
  }
  if (args.out_channels > 128 && fills(256)) return body(Cut<T, 256, 64, 4, 1, 2, 2, 1>());
  if (args.out_channels > 64 && fills(128)) return body(Cut<T, 128, 64, 7, 2, 2, 2, 1>());
  return body(Cut<T, 64, 64, 4, 1, 2, 1, 2>());
}
template <class Body>
auto with_cut(const SparseConvArgs& args, const Target& target, const Body& body) {
  return args.dtype == DType::kHalf ? with_cut<Half>(args, target, body)
                                    : with_cut<BFloat16>(args, target, body);
}

}  // namespace

int64_t hopper::workspace_bytes(const SparseConvArgs& args, const Target& target) {
  return with_cut(args, target, [&](auto cut) { return carved_bytes<Work>(args, cut); });
}
cudaError_t hopper::launch(const SparseConvArgs& args, const int32_t* order, void* workspace,
                           const CudaContext& context) {
  return with_cut(args, context.target, [&](auto cut) {
    return launch_cut<decltype(cut)>(args, order, workspace, context);
  });
}

}  // namespace torchvox
