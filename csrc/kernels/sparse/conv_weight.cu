// SPDX-License-Identifier: Apache-2.0
//
// Gradients of the weight and bias of sparse_conv on the GPU.
//
//   weight_kernel    sums of one segment and offset for a tile of the weight
//   bias_kernel      sums of one segment
//   segments_kernel  adds segments in order
//
// Segments of a large weight go in waves, so that their sums take a bounded workspace.
#include "csrc/kernels/core/launch.cuh"
#include "csrc/kernels/core/warp.cuh"
#include "csrc/kernels/sparse/conv.h"

namespace torchvox {
namespace {

constexpr int kThreads = 256;
constexpr int kWeightTile = 64,
              kPairs = 16;  // channels of a tile, pairs in shared memory at a time

constexpr int64_t kWaveBytes = 64 << 20, kWaveSegments = 65535;  // a grid's y goes that far

struct WeightWork {
  int64_t wave;  // segments whose sums are in memory at a time
  void* weights;  // [wave, weights()] in the type of the sums
  void* totals;  // [weights()], of earlier waves
  void* biases;  // [segments, out_channels]

  WeightWork(const SparseConvWeightArgs& args, Workspace& workspace) {
    const int64_t bytes = args.dtype == DType::kDouble ? 8 : 4;
    const int64_t weight_bytes = args.grad_weight ? args.weights() * bytes : 0;
    wave = sparse_wave_plan.value();
    if (wave == kAutomatic) wave = kWaveBytes / std::max<int64_t>(weight_bytes, 1);
    wave = std::min({std::max<int64_t>(wave, 1), args.segments(), kWaveSegments});
    weights = workspace.take<char>(wave * weight_bytes);
    totals = workspace.take<char>(wave < args.segments() ? weight_bytes : 0);
    biases = workspace.take<char>(args.grad_bias ? args.segments() * args.out_channels * bytes : 0);
  }
};

// One block per tile of the weight, segment of a wave and offset; a thread has 4 x 4 weights. Reads
// the table, gradients and features; writes the sums of a segment. first: segment of the wave.
template <class T>
__global__ void __launch_bounds__(kThreads)
    weight_kernel(const __grid_constant__ SparseConvWeightArgs args, int64_t first,
                  compute_t<T>* sums) {
  using Real = compute_t<T>;
  __shared__ Real grads[kPairs][kWeightTile], features[kPairs][kWeightTile];
  __shared__ int32_t rows[kThreads], sources[kThreads];
  __shared__ uint32_t prefix[32];
  const int64_t ins = args.in_channels, outs = args.out_channels;
  const int64_t line = divide(int64_t{blockIdx.x}, ceil_div<int64_t>(ins, kWeightTile));
  const int64_t in0 = (blockIdx.x - line * ceil_div<int64_t>(ins, kWeightTile)) * kWeightTile;
  const int64_t item = divide(line, ceil_div<int64_t>(outs, kWeightTile));
  const int64_t out0 = (line - item * ceil_div<int64_t>(outs, kWeightTile)) * kWeightTile;
  const int64_t segment = divide(item, args.table.volume);
  const int64_t offset = item - segment * args.table.volume;
  const int64_t valid = args.table.valid(), limit = args.table.valid_sources();
  const int64_t begin = (first + segment) * kSparseSegment;
  const int64_t end = min(begin + kSparseSegment, valid);
  if (begin >= valid) return;  // not read either
  const int y = threadIdx.x / 16 * 4, x = threadIdx.x % 16 * 4;
  Real tile[4][4] = {};
  for (int64_t base = begin; base < end; base += kThreads) {
    const int64_t row = base + threadIdx.x;
    const int32_t source = row < end ? args.table.at(offset, row, limit) : -1;
    uint32_t count;
    const uint32_t place = block_prefix(source >= 0 ? 1u : 0u, prefix, &count);
    if (source >= 0) {
      rows[place] = static_cast<int32_t>(row);
      sources[place] = source;
    }
    __syncthreads();
    for (uint32_t from = 0; from < count; from += kPairs) {
      const int pairs = static_cast<int>(min(count - from, uint32_t{kPairs}));
      for (int i = threadIdx.x; i < pairs * kWeightTile; i += kThreads) {
        const int p = i / kWeightTile, c = i % kWeightTile;
        grads[p][c] = out0 + c < outs
            ? widen(static_cast<const T*>(args.grad)[rows[from + p] * outs + out0 + c])
            : Real(0);
        features[p][c] = in0 + c < ins
            ? widen(static_cast<const T*>(args.features)[sources[from + p] * ins + in0 + c])
            : Real(0);
      }
      __syncthreads();
#pragma unroll 2
      for (int p = 0; p < pairs; ++p) {
        Real g[4], f[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) g[i] = grads[p][y + i], f[i] = features[p][x + i];
#pragma unroll
        for (int r = 0; r < 4; ++r) {
#pragma unroll
          for (int c = 0; c < 4; ++c) tile[r][c] = fma_rn(g[r], f[c], tile[r][c]);
        }
      }
      __syncthreads();
    }
  }
  Real* to = sums + segment * args.weights();
#pragma unroll
  for (int r = 0; r < 4; ++r) {
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      const int64_t out = out0 + y + r, in = in0 + x + c;
      if (out < outs && in < ins) {
        to[(out * args.table.volume + offset) * ins + in] = tile[r][c];
      }
    }
  }
}

// One thread per segment (x) and output channel (y): adds up the gradients of the segment's rows.
template <class T>
__global__ void __launch_bounds__(kThreads)
    bias_kernel(const __grid_constant__ SparseConvWeightArgs args, compute_t<T>* sums) {
  const int64_t channel = int64_t{blockIdx.y} * kThreads + threadIdx.x;
  const int64_t valid = args.table.valid(), begin = int64_t{blockIdx.x} * kSparseSegment;
  if (channel >= args.out_channels || begin >= valid) return;
  const int64_t end = min(begin + kSparseSegment, valid);
  const T* grad = static_cast<const T*>(args.grad) + channel;
  compute_t<T> sum = 0;
#pragma unroll 16
  for (int64_t row = begin; row < end; ++row) sum += widen(grad[row * args.out_channels]);
  sums[int64_t{blockIdx.x} * args.out_channels + channel] = sum;
}

// One thread per value: adds the segments of a wave that are in use to the total of earlier waves,
// in their order; rounds after the last wave.
template <class T>
__global__ void __launch_bounds__(kThreads)
    segments_kernel(const __grid_constant__ SparseConvWeightArgs args, const compute_t<T>* sums,
                    int64_t first, int64_t wave, int64_t count, compute_t<T>* totals, void* out) {
  wait_for_previous();
  const int64_t used = ceil_div<int64_t>(args.table.valid(), kSparseSegment);
  const int64_t segments = min(used - first, wave);
  for (int64_t i = global_thread(); i < count; i += global_stride()) {
    compute_t<T> sum = first > 0 ? totals[i] : 0;
#pragma unroll 8
    for (int64_t s = 0; s < segments; ++s) sum += sums[s * count + i];
    if (first + wave < args.segments()) {
      totals[i] = sum;
    } else {
      static_cast<T*>(out)[i] = narrow<T>(quiet(sum));
    }
  }
}

// The sums of the segments of a wave.
template <class T>
cudaError_t launch_sums(const SparseConvWeightArgs& args, int64_t first, int64_t wave,
                        compute_t<T>* sums, const CudaContext& context) {
  if constexpr (sizeof(T) == 2) {
    if (sparse_tensor_cores_plan.value() != 0 && context.target.compute_capability >= 80) {
      return launch_sparse_weight_mma(args, first, wave, sums, context);
    }
  }
  const int64_t tiles = ceil_div<int64_t>(args.in_channels, kWeightTile) *
      ceil_div<int64_t>(args.out_channels, kWeightTile);
  return launch_blocks(weight_kernel<T>, grid_x(wave * args.table.volume * tiles), kThreads,
                       context.stream, args, first, sums);
}

template <class T>
cudaError_t launch_weight(const SparseConvWeightArgs& args, const WeightWork& work,
                          const CudaContext& context) {
  using Real = compute_t<T>;
  const int64_t segments = args.segments();
  auto* weights = static_cast<Real*>(work.weights);
  auto* biases = static_cast<Real*>(work.biases);
  if (args.grad_weight && args.weights() > 0) {
    int64_t first = 0;
    do {
      const int64_t wave = std::min(work.wave, segments - first);
      if (wave > 0) {
        TORCHVOX_CUDA_CHECK(launch_sums<T>(args, first, wave, weights, context));
      }
      TORCHVOX_CUDA_CHECK(launch_items_after(segments_kernel<T>, args.weights(), kThreads, context,
                                             args, weights, first, wave, args.weights(),
                                             static_cast<Real*>(work.totals), args.grad_weight));
      first += wave;
    } while (first < segments);
  }
  if (args.grad_bias && args.out_channels > 0) {
    if (segments > 0) {
      const dim3 blocks(grid_x(segments),
                        static_cast<unsigned>(ceil_div<int64_t>(args.out_channels, kThreads)));
      TORCHVOX_CUDA_CHECK(
          launch_blocks(bias_kernel<T>, blocks, kThreads, context.stream, args, biases));
    }
    return launch_items_after(segments_kernel<T>, args.out_channels, kThreads, context, args,
                              biases, int64_t{0}, segments, args.out_channels, biases,
                              args.grad_bias);
  }
  return cudaSuccess;
}

}  // namespace

int64_t workspace_bytes_cuda(const SparseConvWeightArgs& args, const Target&) {
  return carved_bytes<WeightWork>(args);
}
cudaError_t launch(const SparseConvWeightArgs& args, void* memory, const CudaContext& context) {
  const auto work = carve<WeightWork>(memory, args);
  return with_point_type(
      args.dtype, [&](auto type) { return launch_weight<decltype(type)>(args, work, context); });
}

}  // namespace torchvox
