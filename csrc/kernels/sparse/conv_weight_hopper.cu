// SPDX-License-Identifier: Apache-2.0
//
// Sums of a segment for the gradient of sparse_conv's weight on the tensor cores of Hopper GPUs
// (PTX wgmma). This file is compiled for sm_90a alone.
#include "csrc/kernels/core/hopper.cuh"
#include "csrc/kernels/sparse/conv_weight_tile.cuh"

namespace torchvox {
namespace {

// The sums of a warpgroup, in tiles of 64 outputs; a warp has 16 of them. Both operands lie in
// lines of pairs, so both are transposed. Zeros fill the last stage and change no sum.
template <class T, class Tile>
struct WarpgroupSums {
  static constexpr int kCols = Tile::kWarpIns, kOutTiles = Tile::kWarpOuts / 64;
  static constexpr int kInGroups = Tile::kIns / kCols;
  static constexpr int kGroup = Tile::kPairs;  // pairs that are multiplied at once
  static constexpr int kNext = Tile::kPairs * 128;  // bytes from 64 channels to the next
  static_assert(Tile::kWarps * 128 == Tile::kThreads && kCols % 64 == 0 && kOutTiles > 0);
  float at[kOutTiles][kCols / 8][4] = {};
  const int group = __shfl_sync(kFullWarp, threadIdx.x / 128, 0);
  const int first_out = group / kInGroups * Tile::kWarpOuts;
  const int first_in = group % kInGroups * kCols;

  // Begins to add the products of the stage at this shared address.
  __device__ __forceinline__ void add(uint32_t stage, int) {
    const auto grads = matrix<64>(stage + first_out / 64 * kNext);
    const auto features = matrix<64, kNext>(stage + Tile::kGradBytes + first_in / 64 * kNext);
    begin_products();
#pragma unroll
    for (int pair = 0; pair < Tile::kPairs; pair += 16) {
#pragma unroll
      for (int i = 0; i < kOutTiles; ++i) {  // addresses count in 16 bytes
        multiply<T, kCols, true>(at[i], grads + (i * kNext + pair * 128) / 16,
                                 features + pair * 128 / 16);
      }
    }
    end_products();
  }
  // Waits for products and makes copies that this thread has waited for ready for the next ones.
  __device__ __forceinline__ void wait() const {
    wait_for_products<0>();
    fence_shared();
  }
  __device__ __forceinline__ void write(float* to, int64_t pitch, int64_t outs, int64_t ins) const {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
    write_sums<64>(at, to, pitch, outs, ins, first_out + warp * 16 + lane / 4,
                   first_in + lane % 4 * 2);
  }
};

using WeightTile64 = WeightTile<64, 64, 64, 64, 128, 64, 3, 3>;
using WeightTile128 = WeightTile<128, 128, 64, 128, 256, 64, 3, 2>;

}  // namespace

cudaError_t launch_sparse_weight_hopper(const SparseConvWeightArgs& args, const SparseWave& wave,
                                        const CudaContext& context) {
  const auto with = [&](auto type) {
    using T = decltype(type);
    const auto launch = pays<WeightTile128>(args, wave, context.target)
        ? launch_weight_tile<T, WeightTile128, WarpgroupSums>
        : launch_weight_tile<T, WeightTile64, WarpgroupSums>;
    return launch(args, wave, context);
  };
  return args.dtype == DType::kHalf ? with(Half()) : with(BFloat16());
}

}  // namespace torchvox
