// SPDX-License-Identifier: Apache-2.0
//
// Matrix products of a warp on the tensor cores, with rows that stay in registers from one layer to
// the next.
//
// A warp's tile is 16 rows by channels in groups of 32. Lane 4 * g + t has of rows g and g + 8 the
// eight channels 8 * t .. 8 * t + 7 of every group, two in a word: word 2 * i + h of a group holds
// channels 8 * t + 2 * i and the next of row g + 8 * h. Read as operand A, words 0-3 and 4-7 are
// two tiles of k = 16 whose columns are those channels in another order, and the weights are laid
// out in the same order; the columns of the four n = 8 tiles of an output group are its channels in
// such an order that accumulators become words of the next layer's operand in the same lane.
#pragma once

#include "csrc/kernels/core/tensor_cores.cuh"

namespace torchvox {

inline constexpr int kGroup = 32;  // channels
inline constexpr int kChunksPerGroup = 4 * 32;  // 16 bytes each, per group of inputs and outputs

// The weights of a layer are stored in chunks of eight inputs of one output: chunk ((out_group * 4
// + i) * in_groups + in_group) * 32 + lane has output 8 * (g / 2) + 2 * i + g % 2 of its group and
// inputs 8 * t .. 8 * t + 7 of theirs.
struct WeightChunk {
  int out, in;

  static __device__ WeightChunk of(int chunk, int in_groups) {
    const int lane = chunk & 31, g = lane >> 2, t = lane & 3;
    const int above = chunk >> 5, in_group = above % in_groups, rest = above / in_groups;
    return {(rest >> 2) * kGroup + 8 * (g >> 1) + 2 * (rest & 3) + (g & 1),
            in_group * kGroup + 8 * t};
  }
};

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800

// max(x, 0) of two values; NaN stays.
template <class T>
__device__ __forceinline__ uint32_t pack_relu(float low, float high) {
  return Words<T>::max2(Words<T>::pack(low, high), 0u);
}

// Accumulators of an output group: [tile][i] is the n = 8 tile of channels 8 * t + 2 * i and the
// next, of rows g and g + 8.
template <int kTiles>
struct GroupSums {
  float at[kTiles][4][4];

  // Starts at the biases of the group's channels. Called by all lanes, which synchronize here: the
  // products need them together, whatever branches they took before.
  __device__ __forceinline__ void start(const float* bias, int t) {
    __syncwarp();
    const float4 low = *reinterpret_cast<const float4*>(bias + 8 * t);
    const float4 high = *reinterpret_cast<const float4*>(bias + 8 * t + 4);
    const float first[4] = {low.x, low.z, high.x, high.z};
    const float second[4] = {low.y, low.w, high.y, high.w};
#pragma unroll
    for (int m = 0; m < kTiles; ++m) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        at[m][i][0] = at[m][i][2] = first[i];
        at[m][i][1] = at[m][i][3] = second[i];
      }
    }
  }

  // Adds the products of one input group; `chunks` are this lane's, of that and the output group.
  template <class T>
  __device__ __forceinline__ void add(const uint32_t (&rows)[kTiles][8], const uint4* chunks,
                                      int in_groups) {
    uint4 b[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) b[i] = chunks[i * in_groups * 32];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
#pragma unroll
      for (int m = 0; m < kTiles; ++m) Words<T>::multiply(at[m][i], rows[m], b[i].x, b[i].y);
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
#pragma unroll
      for (int m = 0; m < kTiles; ++m) Words<T>::multiply(at[m][i], rows[m] + 4, b[i].z, b[i].w);
    }
  }
};

#endif

}  // namespace torchvox
