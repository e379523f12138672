// SPDX-License-Identifier: Apache-2.0
//
// What the plans of sparse_conv on tensor cores share: packed weights, the rows of a block and the
// last steps of values.
//
// A value starts at its bias. For each present offset ascending, slices of 16 input channels
// ascending are added in fp32, one product of the tensor cores each; zeros fill the last slice.
// An offset that a row lacks is skipped or multiplied by zeros, with the same bits, since no sum
// starts at -0: no tile, order or capacity changes a value.
#pragma once

#include <cuda_pipeline.h>

#include "csrc/kernels/core/items.h"
#include "csrc/kernels/core/launch.cuh"
#include "csrc/kernels/core/warp.cuh"
#include "csrc/kernels/sparse/conv.h"

namespace torchvox {

// sparse_conv in halves on sm_80 and later. `order` is a permutation of the table's rows, those
// with like offsets together, or null; it is complete before the launch and changes no value.
int64_t sparse_mma_bytes(const SparseConvArgs& args, const Target& target);
cudaError_t launch_sparse_mma(const SparseConvArgs& args, const int32_t* order, void* memory,
                              const CudaContext& context);

// Packed weights: for each offset units of `depth` input channels of all output channels. The line
// of an output channel has chunk q of eight input channels at place q ^ phase_of(line), so that
// ldmatrix and wgmma read eight lines without bank conflicts. The lines of a group of up to 32
// channels lie in such an order that lanes end with neighboring channels.
struct SparseMmaWork {
  int tile;  // output channels of a block
  int depth;  // 16, 32 or 64
  int units;  // of an offset
  int64_t columns;  // output channels and padding to whole tiles
  int64_t channels;  // input channels and padding to whole chunks
  bool packs;  // features are packed, too
  bool whole;  // outputs and residuals move in chunks
  void* weight;  // [volume, units, columns, depth]
  void* features;  // [sources, channels]

  SparseMmaWork(const SparseConvArgs& args, int tile, Workspace& workspace) : tile(tile) {
    const int64_t last = args.in_channels % 64;  // channels of the last unit of 64
    depth = args.in_channels <= 16 ? 16 : last > 0 && last <= 32 ? 32 : 64;
    units = static_cast<int>(ceil_div<int64_t>(args.in_channels, depth));
    columns = ceil_div<int64_t>(args.out_channels, tile) * tile;
    channels = ceil_div<int64_t>(args.in_channels, 8) * 8;
    packs = args.in_channels != channels || !is_aligned(args.features);
    whole = args.out_channels % 8 == 0 && is_aligned(args.out) && is_aligned(args.residual);
    weight = workspace.take<uint16_t>(chunks(args.table.volume) * 8);
    features = workspace.take<uint16_t>(packs ? args.table.sources * channels : 0);
    if (!packs) features = const_cast<void*>(args.features);
  }
  TORCHVOX_HD int64_t chunks(int64_t volume) const { return volume * units * columns * depth / 8; }
};

__host__ __device__ constexpr int mma_group(int tile) { return tile < 32 ? tile : 32; }
__host__ __device__ constexpr int phase_of(int line, int depth) {
  return line * depth / 64 % (depth / 8);
}

namespace {

// Values that are moved at once.
template <class T, int kCount>
struct alignas(kCount * sizeof(T)) Chunk {
  T item[kCount];
};

// One thread per chunk of weights, then of features.
template <class T>
__global__ void __launch_bounds__(256) pack_mma_kernel(const __grid_constant__ SparseConvArgs args,
                                                       const __grid_constant__ SparseMmaWork work) {
  let_next_begin();
  const auto pack = [](const T* from, int64_t stride, int64_t count) {
    Chunk<T, 8> chunk;
    if (stride == 1 && count >= 8 && reinterpret_cast<uintptr_t>(from) % 16 == 0) {
      return *reinterpret_cast<const Chunk<T, 8>*>(from);
    }
    for (int i = 0; i < 8; ++i) chunk.item[i] = i < count ? from[i * stride] : T{0};
    return chunk;
  };
  const SparseWeight& weight = args.weight;
  const int line_chunks = work.depth / 8, group = mma_group(work.tile);
  const int64_t unit_chunks = work.columns * line_chunks, weights = work.chunks(args.table.volume);
  // Neighboring threads have neighboring chunks of a line, or lines where those lie side by side.
  const int64_t inner = weight.in_stride == 1 ? line_chunks : work.columns;
  for (int64_t i = global_thread(); i < weights; i += global_stride()) {
    const int64_t unit = divide(i, unit_chunks), rest = i - unit * unit_chunks;
    const int64_t major = divide(rest, inner), minor = rest - major * inner;
    const int64_t line = weight.in_stride == 1 ? major : minor, q = major + minor - line;
    const int place = static_cast<int>(line % group), n = place % 8;
    const int64_t out = line - place + group / 4 * (n / 2) + place / 8 * 2 + n % 2;
    const int64_t k = divide(unit, work.units), in = (unit - k * work.units) * work.depth + q * 8;
    const T* from = static_cast<const T*>(weight.data) + weight.at(out, k, in, args.table.volume);
    static_cast<Chunk<T, 8>*>(
        work.weight)[unit * unit_chunks + line * line_chunks + (q ^ phase_of(n, work.depth))] =
        pack(from, weight.in_stride, out < args.out_channels ? args.in_channels - in : 0);
  }
  const int64_t features = work.packs ? args.table.valid_sources() * work.channels / 8 : 0;
  for (int64_t i = global_thread(); i < features; i += global_stride()) {
    const int64_t row = divide(i * 8, work.channels), in = i * 8 - row * work.channels;
    const T* from = static_cast<const T*>(args.features) + row * args.in_channels + in;
    static_cast<Chunk<T, 8>*>(work.features)[i] = pack(from, 1, args.in_channels - in);
  }
}

template <class T>
cudaError_t pack_mma(const SparseConvArgs& args, const SparseMmaWork& work,
                     const CudaContext& context) {
  const int64_t features = work.packs ? args.table.sources * work.channels / 8 : 1;
  return launch_items(pack_mma_kernel<T>, std::max(work.chunks(args.table.volume), features), 256,
                      context, args, work);
}

// The rows of a block, and the offsets that any of them has.
template <int kRows>
struct TileRows {
  static constexpr int kGroups = kRows / 32;
  int32_t rows[kRows];  // of the table, or -1
  int count;
  uint16_t offsets[128];  // ascending; bit 8 + j: the j-th 32 rows have it
  uint8_t present[128][kGroups];

  // Fills this and `sources`, [volume, kRows]: the row that each reads, or -1. kSlab: rows that are
  // multiplied together. Called by the threads of the block.
  template <int kThreads, int kSlab>
  __device__ void find(const SparseTable& table, const int32_t* order, int64_t first,
                       int32_t* sources) {
    constexpr int kStep = kThreads / 32 / kGroups;
    static_assert(kStep > 0 && (kSlab <= 32 || kSlab == 64));
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, group = warp % kGroups;
    const int volume = static_cast<int>(table.volume), place = 32 * group + lane;
    int64_t row = first + place < table.rows ? first + place : -1;
    if (order && row >= 0) row = order[row];
    if (row >= table.rows) row = -1;
    if (warp < kGroups) rows[place] = static_cast<int32_t>(row);
    const int64_t limit = table.valid_sources();
    const bool used = row >= 0 && row < table.valid();
    for (int k = warp / kGroups; used && k < volume; k += kStep) {
      __pipeline_memcpy_async(&sources[k * kRows + place], &table.entries[k * table.rows + row], 4);
    }
    __pipeline_commit();
    __pipeline_wait_prior(0);
    for (int k = warp / kGroups; k < volume; k += kStep) {
      int32_t& source = sources[k * kRows + place];
      if (!used || source < 0 || source >= limit) source = -1;
      const bool any = __any_sync(kFullWarp, source >= 0) != 0;
      if (lane == 0) present[k][group] = any;
    }
    __syncthreads();
    for (int base = 0, listed = 0; warp == 0 && base < volume; base += 32) {
      const int k = base + lane;
      unsigned groups = 0;
      for (int j = 0; j < kGroups; ++j) groups |= (k < volume && present[k][j] ? 1u : 0u) << j;
      if constexpr (kSlab == 64) groups = ((groups | groups >> 1) & 0x55) * 3;
      const unsigned all = __ballot_sync(kFullWarp, groups != 0);
      if (groups) {
        offsets[listed + __popc(all & lanes_below(lane))] = static_cast<uint16_t>(k | groups << 8);
      }
      listed += __popc(all);
      if (lane == 0) count = listed;
    }
    __syncthreads();
  }
};

// The last steps of kCount neighboring values of a row, on sum(0), ..; 0 in a row not in use.
template <class T, int kCount, class Sum>
__device__ __forceinline__ void finish_sums(const SparseConvArgs& args, const SparseMmaWork& work,
                                            int64_t row, bool used, int64_t channel,
                                            const Sum& sum) {
  using Values = Chunk<T, kCount>;
  const int64_t first = row * args.out_channels + channel, count = args.out_channels - channel;
  const T* residual = static_cast<const T*>(args.residual) + first;
  T* out = static_cast<T*>(args.out) + first;
  Values added{}, values;
  if (count <= 0) return;
  if (args.residual && used && work.whole) added = *reinterpret_cast<const Values*>(residual);
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    float value = sum(i) + 0.0f;
    if (args.residual && used && !work.whole && i < count) added.item[i] = residual[i];
    if (args.residual) value += widen_item(added.item[i]);
    if (args.relu && !(value > 0) && !is_nan(value)) value = 0;
    values.item[i] = narrow_item<T>(used ? value : 0.0f);
    if (!work.whole && i < count) out[i] = values.item[i];
  }
  if (work.whole) *reinterpret_cast<Values*>(out) = values;
}

}  // namespace

}  // namespace torchvox
