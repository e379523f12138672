// SPDX-License-Identifier: Apache-2.0
//
// Prepares for mma.cu, in one launch: packs the layers for the tensor cores, and computes the
// features' part of the first layer, once per point instead of once per slot.
#include "csrc/kernels/core/launch.cuh"
#include "csrc/kernels/neighbors/group_mlp/kernels.cuh"
#include "csrc/kernels/neighbors/group_mlp/mma_tiles.cuh"

namespace torchvox {
namespace {

constexpr int kThreads = kMlpThreads;
constexpr int kWarps = kThreads / 32;

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800

// Eight channels of a row from `channel` on, zeros after the last.
template <class T>
__device__ uint4 load_chunk(const T* row, int channel, int channels, bool aligned) {
  if (aligned && channel + 8 <= channels) return *reinterpret_cast<const uint4*>(row + channel);
  uint32_t word[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int at = channel + 2 * i;
    const uint32_t low = at < channels ? row[at].bits : 0,
                   high = at + 1 < channels ? row[at + 1].bits : 0;
    word[i] = low | high << 16;
  }
  return {word[0], word[1], word[2], word[3]};
}

#endif

// The first pack_blocks blocks pack the layers, one element or chunk per thread. The others compute
// the contribution of features and bias to the first layer, one row per point and a last row for
// the bias alone: each warp takes two tiles of 16 rows and the block one group of channels, whose
// weights are in shared memory. The bias is added before the sum is rounded, since it may cancel
// most of it.
template <class T>
__global__ void __launch_bounds__(kThreads)
    prepare_kernel(const __grid_constant__ GroupMlpArgs args,
                   const __grid_constant__ MlpPacked packed, uint4* block, int pack_blocks,
                   T* terms) {
#if __CUDA_ARCH__ >= 800
  const auto weights = [&](int layer) { return static_cast<const T*>(args.layer[layer].weight); };
  if (static_cast<int>(blockIdx.x) < pack_blocks) {
    const int step = pack_blocks * kThreads, first = blockIdx.x * kThreads + threadIdx.x;
    float* floats = reinterpret_cast<float*>(block);
    for (int i = first; i < packed.floats; i += step) {
      int layer = args.layers - 1;
      while (packed.bias[layer] > i) --layer;
      int channel = i - packed.bias[layer], axis = -1;
      if (i >= packed.axes) {
        layer = 0;
        axis = (i - packed.axes) / (packed.width * kGroup);
        channel = (i - packed.axes) - axis * packed.width * kGroup;
      }
      float value = 0;
      if (channel < args.layer[layer].out) {
        if (axis < 0) {
          if (layer > 0 || !terms)
            value = widen(static_cast<const T*>(args.layer[layer].bias)[channel]);
        } else if (args.use_xyz) {
          value = widen(weights(0)[channel * args.layer[0].in + first_axis_column(args) + axis]);
        }
      }
      floats[i] = value;
    }
    const int begin = packed.floats / 4;
    for (int i = begin + first; i < packed.chunks; i += step) {
      int layer = args.layers - 1;
      while (packed.chunk[layer] > i) --layer;
      const WeightChunk at = WeightChunk::of(i - packed.chunk[layer], packed.width);
      const int in = static_cast<int>(args.layer[layer].in);
      block[i] = at.out < args.layer[layer].out
          ? load_chunk(weights(layer) + int64_t{at.out} * in, at.in, in, false)
          : uint4{0, 0, 0, 0};
    }
    return;
  }

  extern __shared__ uint4 chunks[];
  __shared__ alignas(16) float bias[kGroup];
  const int channels = static_cast<int>(args.channels),
            in_groups = (channels + kGroup - 1) / kGroup;
  const int at = blockIdx.x - pack_blocks, group = at % packed.width;
  for (int i = threadIdx.x; i < in_groups * kChunksPerGroup; i += kThreads) {
    const WeightChunk from = WeightChunk::of(i, in_groups);
    const int64_t out = group * kGroup + from.out;
    const T* row = weights(0) + out * args.layer[0].in + first_feature_column(args);
    chunks[i] =
        out < args.layer[0].out ? load_chunk(row, from.in, channels, false) : uint4{0, 0, 0, 0};
  }
  if (threadIdx.x < kGroup) {
    const int out = group * kGroup + threadIdx.x;
    const T* biases = static_cast<const T*>(args.layer[0].bias);
    bias[threadIdx.x] = out < args.layer[0].out ? widen(biases[out]) : 0.0f;
  }
  __syncthreads();
  const int lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
  const int64_t points = args.points.clouds * args.points.rows;
  const int64_t first = (int64_t{at / packed.width} * kWarps + threadIdx.x / 32) * 32 + g;
  const T* features = static_cast<const T*>(args.features);
  const bool aligned = channels % 8 == 0 && reinterpret_cast<uintptr_t>(features) % 16 == 0;
  GroupSums<2> sums;
  sums.start(bias, t);
  for (int k = 0; k < in_groups; ++k) {
    uint32_t operand[2][8];
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      const int64_t row = first + 8 * r;
      uint4 chunk{0, 0, 0, 0};
      if (row < points) {
        chunk = load_chunk(features + row * channels, k * kGroup + 8 * t, channels, aligned);
      }
      operand[r / 2][0 + r % 2] = chunk.x;
      operand[r / 2][2 + r % 2] = chunk.y;
      operand[r / 2][4 + r % 2] = chunk.z;
      operand[r / 2][6 + r % 2] = chunk.w;
    }
    __syncwarp();  // the products need all lanes together
    sums.template add<T>(operand, chunks + k * 32 + lane, in_groups);
  }
#pragma unroll
  for (int r = 0; r < 4; ++r) {
    const int64_t row = first + 8 * r;
    uint32_t word[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float* sum = sums.at[r / 2][i] + 2 * (r % 2);
      word[i] = Words<T>::pack(sum[0], sum[1]);
    }
    if (row > points) continue;
    reinterpret_cast<uint4*>(terms + row * packed.width * kGroup)[group * 4 + t] = {
        word[0], word[1], word[2], word[3]};
  }
#endif
}

template <class T>
cudaError_t start(const GroupMlpArgs& args, const GroupMlpPlan& plan, const MlpWorkspace& workspace,
                  cudaStream_t stream) {
  const MlpPacked& packed = plan.packed;
  uint4* block = static_cast<uint4*>(workspace.block);
  T* terms = static_cast<T*>(workspace.terms);
  const int pack_blocks = ceil_div(packed.chunks, kThreads);
  const int in_groups = static_cast<int>(ceil_div<int64_t>(args.channels, kGroup));
  const int shared = terms ? in_groups * kChunksPerGroup * 16 : 0;
  const int64_t term_blocks = terms
      ? packed.width * ceil_div<int64_t>(args.points.clouds * args.points.rows + 1, 32 * kWarps)
      : 0;
  const int limit = plan.shared_limit - kGroup * static_cast<int>(sizeof(float));  // for the bias
  TORCHVOX_CUDA_CHECK(
      cudaFuncSetAttribute(prepare_kernel<T>, cudaFuncAttributeMaxDynamicSharedMemorySize, limit));
  return launch_sharing(prepare_kernel<T>, grid_x(pack_blocks + term_blocks), kThreads, shared,
                        stream, args, packed, block, pack_blocks, terms);
}

}  // namespace

cudaError_t start_mma_prepare(const GroupMlpArgs& args, const GroupMlpPlan& plan,
                              const MlpWorkspace& workspace, cudaStream_t stream) {
  return args.mlp_dtype == DType::kHalf ? start<Half>(args, plan, workspace, stream)
                                        : start<BFloat16>(args, plan, workspace, stream);
}

}  // namespace torchvox
