// SPDX-License-Identifier: Apache-2.0
//
// group_mlp_max on the GPU: its workspace, and the launch of the tensor-core kernels or of the
// portable ones for any GPU and type. In these a block takes 16 slots at a time through all layers
// between two buffers in shared memory or the workspace; a warp computes 32 channels of eight
// slots, so that it reads each weight once and broadcasts the inputs.
#include "csrc/kernels/core/launch.cuh"
#include "csrc/kernels/neighbors/group_mlp/group_mlp_max.h"
#include "csrc/kernels/neighbors/group_mlp/kernels.cuh"

namespace torchvox {
namespace {

constexpr int kThreads = 128;
constexpr int kTile = kMlpTileRows;
constexpr int kRows = 8;  // per thread

// One thread per weight: writes the transposed [in, out] weights of every layer, widened.
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

// sum[r] += from[k][r] * weight[k] for kCount inputs, whose weights are all in flight at once.
template <int kCount, class C>
__device__ __forceinline__ void add_inputs(const C* from, const C* weight, int64_t out,
                                           C (&sum)[kRows]) {
  C w[kCount], value[kRows];
#pragma unroll
  for (int k = 0; k < kCount; ++k) w[k] = weight[k * out];
#pragma unroll
  for (int k = 0; k < kCount; ++k) {
    load_rows(from + k * kTile, value);
#pragma unroll
    for (int r = 0; r < kRows; ++r) sum[r] = fma_rn(value[r], w[k], sum[r]);
  }
}

// to[channel][row] = output of a layer for from[channel][row], kTile rows. A warp computes 32
// channels of half of the rows at a time.
template <class T, class C>
__device__ __forceinline__ void layer_of_tile(const MlpLayer& layer, const C* __restrict__ weights,
                                              const C* from, C* to) {
  constexpr int kParts = kTile / kRows, kBatch = 8;
  const int warp = threadIdx.x / 32, lane = threadIdx.x & 31;
  const int64_t in = layer.in, out = layer.out;
  const int64_t units = ceil_div<int64_t>(out, 32) * kParts;
  for (int64_t unit = warp; unit < units; unit += kThreads / 32) {
    const int64_t channel = unit / kParts * 32 + lane;
    const int part = static_cast<int>(unit % kParts) * kRows;
    if (channel >= out) continue;
    C sum[kRows];
    const C bias = widen(static_cast<const T*>(layer.bias)[channel]);
#pragma unroll
    for (int r = 0; r < kRows; ++r) sum[r] = bias;
    const C *input = from + part, *weight = weights + channel;
    int64_t k = in;
    for (; k >= kBatch; k -= kBatch, input += kBatch * kTile, weight += kBatch * out) {
      add_inputs<kBatch>(input, weight, out, sum);
    }
    for (; k > 0; --k, input += kTile, weight += out) add_inputs<1>(input, weight, out, sum);
#pragma unroll
    for (int r = 0; r < kRows; ++r) to[channel * kTile + part + r] = mlp_output<T>(sum[r]);
  }
}

// One block per row of balls at a time: reads the inputs of its slots and the weights, writes the
// maxima. Sums run over the inputs in ascending order, as on the CPU.
template <class T, bool kShared>
__global__ void __launch_bounds__(kThreads)
    portable_kernel(const __grid_constant__ GroupMlpArgs args, const compute_t<T>* all_weights,
                    int64_t widest, compute_t<T>* scratch) {
  using C = compute_t<T>;
  extern __shared__ __align__(16) char shared[];
  C* const buffers =
      kShared ? reinterpret_cast<C*>(shared) : scratch + blockIdx.x * 2 * kTile * widest;
  const int64_t last = args.layer[args.layers - 1].out;
  for (int64_t row = blockIdx.x; row < args.rows(); row += gridDim.x) {
    T* const out = static_cast<T*>(args.out) + row * last;
    const int64_t slots = used_slots(args, row);
    for (int64_t first = 0; first < slots; first += kTile) {
      const int rows = static_cast<int>(min(int64_t{kTile}, slots - first));
      C *from = buffers, *to = buffers + kTile * widest;
      const int64_t in = args.layer[0].in;
      const int r = threadIdx.x % kTile;
      const MlpSlot slot = MlpSlot::of(args, row, first + (r < rows ? r : 0));
      for (int64_t column = threadIdx.x / kTile; column < in; column += kThreads / kTile) {
        from[column * kTile + r] = r < rows ? mlp_input<T>(args, slot, column) : C{0};
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
cudaError_t start_portable(const GroupMlpArgs& args, const GroupMlpPlan& plan,
                           const MlpWorkspace& workspace, cudaStream_t stream) {
  using C = compute_t<T>;
  C* weights = static_cast<C*>(workspace.block);
  int64_t most = 1;
  for (int l = 0; l < args.layers; ++l) {
    most = std::max(most, args.layer[l].in * args.layer[l].out);
  }
  const auto blocks =
      static_cast<unsigned>(std::min<int64_t>(ceil_div<int64_t>(most, kThreads), 4096));
  TORCHVOX_CUDA_CHECK(launch_blocks(transpose_kernel<T>, blocks, kThreads, stream, args, weights));
  const auto kernel = plan.in_shared ? portable_kernel<T, true> : portable_kernel<T, false>;
  TORCHVOX_CUDA_CHECK(
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, plan.shared_limit));
  return launch_sharing(kernel, plan.blocks, kThreads, plan.shared_bytes, stream, args, weights,
                        plan.widest, static_cast<C*>(workspace.scratch));
}

}  // namespace

int64_t workspace_bytes_cuda(const GroupMlpArgs& args, const Target& target) {
  return carved_bytes<MlpWorkspace>(args, make_group_mlp_plan(args, target));
}

cudaError_t launch(const GroupMlpArgs& args, void* memory, const CudaContext& context) {
  const int64_t values = args.rows() * args.layer[args.layers - 1].out;
  if (values == 0) return cudaSuccess;
  if (args.slots == 0) {
    return cudaMemsetAsync(args.out, 0, values * bytes_of(args.mlp_dtype), context.stream);
  }
  const GroupMlpPlan plan = make_group_mlp_plan(args, context.target);
  const auto carved = carve<MlpWorkspace>(memory, args, plan);
  if (plan.tensor_cores) return start_mma_mlp(args, plan, carved, context.stream);
  return with_point_type(args.mlp_dtype, [&](auto type) {
    return start_portable<decltype(type)>(args, plan, carved, context.stream);
  });
}

}  // namespace torchvox
