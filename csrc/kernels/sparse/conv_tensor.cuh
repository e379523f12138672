// SPDX-License-Identifier: Apache-2.0
//
// What the plans of sparse_conv on tensor cores share: packed weights, the start of sums and the
// last steps of values. Rows and what they read come from the schedule alone.
//
// A value starts at its bias. For each present offset ascending, slices of 16 input channels
// ascending are added in fp32, one product of the tensor cores each; zeros fill the last slice.
// An offset that a row lacks is skipped or multiplied by zeros, with the same bits, since no sum
// starts at -0: no tile, order or capacity changes a value.
#pragma once

#include "csrc/kernels/core/items.h"
#include "csrc/kernels/core/launch.cuh"
#include "csrc/kernels/core/tensor_cores.cuh"
#include "csrc/kernels/sparse/conv.h"

namespace torchvox {

// Packed operands. Weights are images, each of `depth` input channels of a tile of output channels
// at one offset. The line of an output channel has chunk q of eight input channels at place
// q ^ phase_of(line), so that ldmatrix and wgmma read eight lines without bank conflicts. The lines
// of a group of up to 32 channels lie in such an order that lanes end with neighboring channels.
struct SparseOperands {
  int tile, depth;
  int columns;  // tiles of output channels
  int units;  // images of an offset
  int64_t channels;  // input channels and padding to whole chunks
  bool packs;  // features are packed, too
  bool follows;  // the launch before makes the schedule
  uint4* weight;  // [columns, volume, units, tile, depth / 8] chunks
  void* features;  // [sources, channels]
  float* bias;  // [columns, tile]

  SparseOperands(const SparseConvArgs& args, bool follows, int tile, int depth,
                 Workspace& workspace)
      : tile(tile), depth(depth), follows(follows) {
    columns = static_cast<int>(ceil_div<int64_t>(args.out_channels, tile));
    units = static_cast<int>(ceil_div<int64_t>(args.in_channels, depth));
    channels = ceil_div<int64_t>(args.in_channels, 8) * 8;
    packs = args.in_channels != channels || !is_aligned(args.features);
    weight = workspace.take<uint4>(chunks(args.table.volume));
    features = workspace.take<uint16_t>(packs ? args.table.sources * channels : 0);
    bias = workspace.take<float>(int64_t{columns} * tile);
    if (!packs) features = const_cast<void*>(args.features);
  }
  TORCHVOX_HD int64_t chunks(int64_t volume) const {
    return columns * volume * units * tile * depth / 8;
  }
};

__host__ __device__ constexpr int group_of(int tile) { return tile < 32 ? tile : 32; }
__host__ __device__ constexpr int phase_of(int line, int depth) {
  return line * depth / 64 % (depth / 8);
}

namespace {

// Values that are moved at once where they are aligned and side by side, `stride` apart elsewhere.
// The first `count` of them exist; others are 0.
template <class T, int kCount>
struct alignas(kCount * sizeof(T)) Chunk {
  T item[kCount];

  static __device__ __forceinline__ bool is_whole(const T* at, int64_t stride, int64_t count) {
    return stride == 1 && count >= kCount && reinterpret_cast<uintptr_t>(at) % sizeof(Chunk) == 0;
  }
  static __device__ __forceinline__ Chunk read(const T* from, int64_t stride, int64_t count) {
    if (is_whole(from, stride, count)) return *reinterpret_cast<const Chunk*>(from);
    Chunk chunk;
#pragma unroll
    for (int i = 0; i < kCount; ++i) chunk.item[i] = i < count ? from[i * stride] : T{0};
    return chunk;
  }
  __device__ __forceinline__ void write(T* to, int64_t count) const {
    if (is_whole(to, 1, count)) {
      *reinterpret_cast<Chunk*>(to) = *this;
      return;
    }
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      if (i < count) to[i] = item[i];
    }
  }
};

// One thread per chunk of weights, then of features, then per bias. Waits at its end, so that what
// follows it also follows the kernels of the schedule.
template <class T>
__global__ void __launch_bounds__(256)
    pack_operands_kernel(const __grid_constant__ SparseConvArgs args,
                         const __grid_constant__ SparseOperands to) {
  let_next_begin();
  const SparseWeight& weight = args.weight;
  const int line_chunks = to.depth / 8, group = group_of(to.tile);
  const int image_chunks = to.tile * line_chunks;
  const int64_t volume = args.table.volume, weights = to.chunks(volume);
  // Neighboring threads have neighboring chunks of a line, or lines where those lie side by side.
  const int inner = weight.in_stride == 1 ? line_chunks : to.tile;
  for (int64_t i = global_thread(); i < weights; i += global_stride()) {
    const int64_t image = divide(i, image_chunks), above = divide(image, to.units);
    const int64_t column = divide(above, volume), k = above - column * volume;
    const auto rest = static_cast<unsigned>(i - image * image_chunks);
    const unsigned major = rest / inner, minor = rest % inner;
    const unsigned line = weight.in_stride == 1 ? major : minor, q = major + minor - line;
    const unsigned place = line % group, n = place % 8;
    const int64_t out =
        column * to.tile + line - place + group / 4 * (n / 2) + place / 8 * 2 + n % 2;
    const int64_t in = (image - above * to.units) * to.depth + q * 8;
    const T* from = static_cast<const T*>(weight.data) + weight.at(out, k, in, volume);
    reinterpret_cast<Chunk<T, 8>*>(
        to.weight)[image * image_chunks + line * line_chunks + (q ^ phase_of(n, to.depth))] =
        Chunk<T, 8>::read(from, weight.in_stride,
                          out < args.out_channels ? args.in_channels - in : 0);
  }
  const int64_t features = to.packs ? args.table.valid_sources() * to.channels / 8 : 0;
  for (int64_t i = global_thread(); i < features; i += global_stride()) {
    const int64_t row = divide(i * 8, to.channels), in = i * 8 - row * to.channels;
    const T* from = static_cast<const T*>(args.features) + row * args.in_channels + in;
    static_cast<Chunk<T, 8>*>(to.features)[i] = Chunk<T, 8>::read(from, 1, args.in_channels - in);
  }
  for (int64_t i = global_thread(); i < int64_t{to.columns} * to.tile; i += global_stride()) {
    const bool given = args.bias && i < args.out_channels;
    to.bias[i] = (given ? widen(static_cast<const T*>(args.bias)[i]) : 0.0f) + 0.0f;
  }
  wait_for_previous();
}

template <class T>
cudaError_t pack_operands(const SparseConvArgs& args, const SparseOperands& to,
                          const CudaContext& context) {
  const int64_t features = to.packs ? args.table.sources * to.channels / 8 : 0;
  const int64_t items = std::max({to.chunks(args.table.volume), features, int64_t{to.tile}});
  return to.follows ? launch_items_after(pack_operands_kernel<T>, items, 256, context, args, to)
                    : launch_items(pack_operands_kernel<T>, items, 256, context, args, to);
}

// The row of the table at a place of the schedule, or -1.
__device__ __forceinline__ int32_t row_at(const SparseTable& table, const SparseSchedule& schedule,
                                          int64_t place) {
  const int32_t row = schedule.order[place];
  return static_cast<uint32_t>(row) < table.rows ? row : -1;
}

// Sums of two rows: [j][2 * h + i] of lane 4 * g + t of a warp is that of its row h and of line
// 8 * j + 2 * t + i. bias: of the lane's first channel, 2 * t * kGroup / 8.
template <int kGroup, int kTiles>
__device__ __forceinline__ void start_sums(float (&sums)[kTiles][4], const float* bias) {
#pragma unroll
  for (int j = 0; j < kTiles; ++j) {
    const int channel = j / (kGroup / 8) * kGroup + j % (kGroup / 8) * 2;
    const float2 pair = *reinterpret_cast<const float2*>(bias + channel);
    sums[j][0] = sums[j][2] = pair.x;
    sums[j][1] = sums[j][3] = pair.y;
  }
}
// Finishes and writes them; 0 in rows not in use, nothing in those of -1.
template <class T, int kGroup, int kTiles>
__device__ __forceinline__ void store_sums(const SparseConvArgs& args,
                                           const float (&sums)[kTiles][4], const int32_t (&rows)[2],
                                           int64_t valid, int64_t first_channel) {
  using Values = Chunk<T, kGroup / 4>;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    if (rows[h] < 0) continue;
    const bool used = rows[h] < valid;
#pragma unroll
    for (int j = 0; j < kTiles; j += kGroup / 8) {
      const int64_t channel = first_channel + j * 8, count = args.out_channels - channel;
      const int64_t at = rows[h] * args.out_channels + channel;
      if (count <= 0) break;
      Values added{}, values;
      if (args.residual && used) {
        added = Values::read(static_cast<const T*>(args.residual) + at, 1, count);
      }
#pragma unroll
      for (int i = 0; i < kGroup / 4; ++i) {
        float value = sums[j + i / 2][2 * h + i % 2] + 0.0f;
        if (args.residual) value += widen_item(added.item[i]);
        if (args.relu && !(value > 0) && !is_nan(value)) value = 0;
        values.item[i] = narrow_item<T>(used ? value : 0.0f);
      }
      values.write(static_cast<T*>(args.out) + at, count);
    }
  }
}

}  // namespace

}  // namespace torchvox
