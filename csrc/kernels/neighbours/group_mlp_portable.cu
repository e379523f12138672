// SPDX-License-Identifier: Apache-2.0
#include "csrc/kernels/core/launch.cuh"
#include "csrc/kernels/neighbours/group_mlp_kernels.cuh"
#include "csrc/kernels/neighbours/group_mlp_rule.h"

namespace torchvox {
namespace {

constexpr int kThreads = 128;
constexpr int kTile = kMlpTileRows;
constexpr int kRows = 8;  // of a thread

// [in, out] of every layer, one after another, widened.
template <class T>
__global__ void __launch_bounds__(kThreads)
    transpose_kernel(const __grid_constant__ GroupMlpArgs args, compute_t<T>* weights) {
  for (int l = 0; l < args.layers; ++l) {
    const MlpLayer& layer = args.layer[l];
    const T* weight = static_cast<const T*>(layer.weight);
    for (int64_t i = global_thread(); i < layer.in * layer.out; i += global_stride()) {
      weights[i] = widen(weight[i % layer.out * layer.in + i / layer.out]);
    }
    weights += layer.in * layer.out;
  }
}

template <class C>
struct alignas(16) Quad {
  C value[16 / sizeof(C)];
};

// Consecutive values, 16 bytes at a time.
template <class C>
__device__ __forceinline__ void load_rows(const C* from, C (&to)[kRows]) {
  constexpr int kEach = 16 / sizeof(C);
#pragma unroll
  for (int i = 0; i < kRows / kEach; ++i) {
    const Quad<C> quad = reinterpret_cast<const Quad<C>*>(from)[i];
#pragma unroll
    for (int j = 0; j < kEach; ++j) to[i * kEach + j] = quad.value[j];
  }
}

// to[channel][row] = output of a layer for from[channel][row], kTile rows. A warp takes 32 channels
// and half of the rows at a time: weights are read once per warp, inputs are broadcast.
template <class T, class C>
__device__ void layer_of_tile(const MlpLayer& layer, const C* weights, const C* from, C* to) {
  constexpr int kParts = kTile / kRows;
  const int warp = threadIdx.x / 32, lane = threadIdx.x & 31;
  const int64_t units = ceil_div<int64_t>(layer.out, 32) * kParts;
  for (int64_t unit = warp; unit < units; unit += kThreads / 32) {
    const int64_t channel = unit / kParts * 32 + lane;
    const int part = static_cast<int>(unit % kParts) * kRows;
    if (channel >= layer.out) continue;
    C sum[kRows], value[kRows];
    const C bias = widen(static_cast<const T*>(layer.bias)[channel]);
#pragma unroll
    for (int r = 0; r < kRows; ++r) sum[r] = bias;
    const C* weight = weights + channel;
#pragma unroll 4
    for (int64_t k = 0; k < layer.in; ++k) {
      load_rows(from + k * kTile + part, value);
      const C w = weight[k * layer.out];
#pragma unroll
      for (int r = 0; r < kRows; ++r) sum[r] = fma_rn(value[r], w, sum[r]);
    }
#pragma unroll
    for (int r = 0; r < kRows; ++r) to[channel * kTile + part + r] = mlp_output<T>(sum[r]);
  }
}

// A block takes one row of balls after another, kTile slots at a time, through all layers between
// two buffers; sums run over the inputs in ascending order, as on the CPU.
template <class T>
__global__ void __launch_bounds__(kThreads)
    portable_kernel(const __grid_constant__ GroupMlpArgs args, const compute_t<T>* all_weights,
                    int64_t widest, compute_t<T>* scratch) {
  using C = compute_t<T>;
  extern __shared__ __align__(16) char shared[];
  C* const buffers =
      scratch ? scratch + blockIdx.x * 2 * kTile * widest : reinterpret_cast<C*>(shared);
  const int64_t last = args.layer[args.layers - 1].out;
  for (int64_t row = blockIdx.x; row < args.rows(); row += gridDim.x) {
    T* const out = static_cast<T*>(args.out) + row * last;
    const int64_t slots = used_slots(args, row);
    for (int64_t first = 0; first < slots; first += kTile) {
      const int rows = static_cast<int>(min(int64_t{kTile}, slots - first));
      C *from = buffers, *to = buffers + kTile * widest;
      const int64_t in = args.layer[0].in;
      for (int64_t i = threadIdx.x; i < in * kTile; i += kThreads) {
        const int64_t r = i / in, column = i - r * in;
        from[column * kTile + r] =
            r < rows ? mlp_input<T>(args, MlpSlot::of(args, row, first + r), column) : C{0};
      }
      __syncthreads();
      const C* weights = all_weights;
      for (int l = 0; l < args.layers; ++l) {
        layer_of_tile<T>(args.layer[l], weights, from, to);
        weights += args.layer[l].in * args.layer[l].out;
        C* const swapped = from;
        from = to;
        to = swapped;
        __syncthreads();
      }
      for (int64_t channel = threadIdx.x; channel < last; channel += kThreads) {
        C best = first > 0 ? widen(out[channel]) : C{0};
        for (int r = 0; r < rows; ++r) best = larger_output(best, from[channel * kTile + r]);
        out[channel] = narrow<T>(best);
      }
      __syncthreads();
    }
  }
}

template <class T>
cudaError_t start(const GroupMlpArgs& args, const GroupMlpPlan& plan, const MlpWorkspace& workspace,
                  cudaStream_t stream) {
  using C = compute_t<T>;
  C* weights = static_cast<C*>(workspace.block);
  int64_t most = 1;
  for (int l = 0; l < args.layers; ++l) {
    most =
        args.layer[l].in * args.layer[l].out > most ? args.layer[l].in * args.layer[l].out : most;
  }
  const int64_t wanted = ceil_div<int64_t>(most, kThreads);
  transpose_kernel<T>
      <<<static_cast<unsigned>(wanted < 4096 ? wanted : 4096), kThreads, 0, stream>>>(args,
                                                                                      weights);
  TORCHVOX_CUDA_CHECK(cudaGetLastError());
  TORCHVOX_CUDA_CHECK(cudaFuncSetAttribute(
      portable_kernel<T>, cudaFuncAttributeMaxDynamicSharedMemorySize, plan.shared_limit));
  portable_kernel<T><<<plan.blocks, kThreads, plan.shared_bytes, stream>>>(
      args, weights, plan.widest, static_cast<C*>(workspace.scratch));
  return cudaGetLastError();
}

}  // namespace

cudaError_t start_portable_mlp(const GroupMlpArgs& args, const GroupMlpPlan& plan,
                               const MlpWorkspace& workspace, cudaStream_t stream) {
  switch (args.mlp_dtype) {
    case DType::kHalf: return start<Half>(args, plan, workspace, stream);
    case DType::kBFloat16: return start<BFloat16>(args, plan, workspace, stream);
    case DType::kDouble: return start<double>(args, plan, workspace, stream);
    case DType::kFloat: break;
  }
  return start<float>(args, plan, workspace, stream);
}

}  // namespace torchvox
