// SPDX-License-Identifier: Apache-2.0
//
// Sums of a segment for the gradient of sparse_conv's weight, by PTX mma.sync m16n8k16.
#include "csrc/kernels/sparse/conv_weight_tile.cuh"

namespace torchvox {
namespace {

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800

// The sums of a warp. Of a tile of 16 outputs and 8 inputs, lane 4 * g + t has outputs g and g + 8
// and inputs 2 * t and 2 * t + 1.
template <class T, class Tile>
struct WeightSums {
  static constexpr int kOutTiles = Tile::kWarpOuts / 16, kInTiles = Tile::kWarpIns / 8;
  static constexpr int kInWarps = Tile::kIns / Tile::kWarpIns;
  static constexpr int kGroup = 16;  // pairs that are multiplied at once
  float at[kOutTiles][kInTiles][4] = {};
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int first_out = warp / kInWarps * Tile::kWarpOuts;  // some warps may only copy
  const int first_in = warp % kInWarps * Tile::kWarpIns;
  // Where the lane's lines begin in a slice.
  const int grads =
      chunk_at<Tile::kOuts, Tile::kPairs>(lane / 16 * 8 + lane % 8, first_out / 8 + lane / 8 % 2);
  const int features = chunk_at<Tile::kIns, Tile::kPairs>(lane % 16, first_in / 8 + lane / 16);

  // Adds the products of a slice of the stage at this shared address.
  __device__ __forceinline__ void add_slice(uint32_t stage, int slice) {
    uint32_t a[kOutTiles][4], b[kInTiles / 2][4];
    const uint32_t grads_at = stage + slice * 16 * kLineBytes<Tile::kOuts>;
    const uint32_t features_at = stage + Tile::kGradBytes + slice * 16 * kLineBytes<Tile::kIns>;
    for (int i = 0; i < kOutTiles; ++i) load_transposed(a[i], grads_at + (grads ^ i * 32));
    for (int i = 0; i < kInTiles / 2; ++i) load_transposed(b[i], features_at + (features ^ i * 32));
#pragma unroll
    for (int n = 0; n < kOutTiles * kInTiles; ++n) {
      const int i = n / kInTiles, j = n % kInTiles;
      Words<T>::multiply(at[i][j], a[i], b[j / 2][j % 2 * 2], b[j / 2][j % 2 * 2 + 1]);
    }
  }
  // Adds those of the first `pairs` pairs: of a whole stage without branches, if it is long.
  __device__ __forceinline__ void add(uint32_t stage, int pairs) {
    constexpr int kSlices = Tile::kPairs / 16, kUnroll = kSlices > 2 ? 1 : 2;
    if (kSlices > 2 && pairs >= Tile::kPairs) {
#pragma unroll
      for (int slice = 0; slice < kSlices; ++slice) add_slice(stage, slice);
    } else {
#pragma unroll kUnroll
      for (int slice = 0; slice < kSlices; ++slice) {
        if (slice * 16 < pairs) add_slice(stage, slice);
      }
    }
  }
  __device__ __forceinline__ void wait() const {}  // for products
  __device__ __forceinline__ void write(float* to, int64_t pitch, int64_t outs, int64_t ins) const {
    write_sums<16>(at, to, pitch, outs, ins, first_out + lane / 4, first_in + lane % 4 * 2);
  }
};

#else

template <class T, class Tile>
struct WeightSums;

#endif

using WeightTile16 = WeightTile<16, 16, 16, 16, 128, 128, 3, 6>;
using WeightTile32 = WeightTile<32, 32, 16, 16, 128, 128, 3, 3>;
using WeightTile64 = WeightTile<64, 64, 32, 32, 128, 64, 3, 3>;
using WeightTile128 = WeightTile<128, 128, 64, 64, 128, 32, 3, 3>;

}  // namespace

cudaError_t launch_sparse_weight_mma(const SparseConvWeightArgs& args, const SparseWave& wave,
                                     const CudaContext& context) {
  const int64_t most = std::max(args.out_channels, args.in_channels);
  const auto with = [&](auto type) {
    using T = decltype(type);
    const auto launch = pays<WeightTile128>(args, wave, context.target)
        ? launch_weight_tile<T, WeightTile128, WeightSums>
        : most <= 16 ? launch_weight_tile<T, WeightTile16, WeightSums>
        : most <= 32 ? launch_weight_tile<T, WeightTile32, WeightSums>
                     : launch_weight_tile<T, WeightTile64, WeightSums>;
    return launch(args, wave, context);
  };
  return args.dtype == DType::kHalf ? with(Half()) : with(BFloat16());
}

}  // namespace torchvox
