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

constexpr int kBiasColumns = 16;  // of a block of bias_kernel
constexpr int kWide = 4, kAhead = 10;  // values of a thread of segments_kernel, segments in flight

constexpr int64_t kWaveBytes = 160 << 20, kWaveSegments = 65535;  // a grid's y goes that far

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

// Values that a thread moves at once.
template <class Real, int kCount>
struct alignas(kCount * sizeof(Real) < 16 ? kCount * sizeof(Real) : 16) Values {
  Real at[kCount];
};

// One block per segment and kBiasColumns output channels: adds up the gradients of the
// segment's rows. All threads read and widen the next rows while one per channel adds; rows that do
// not exist are zeros, which change no sum, since none is -0.
template <class T>
__global__ void __launch_bounds__(kThreads)
    bias_kernel(const __grid_constant__ SparseConvWeightArgs args, compute_t<T>* sums) {
  using Real = compute_t<T>;
  constexpr int kRows = 1024 / sizeof(Real), kStep = kThreads / kBiasColumns;
  constexpr int kPack = 16 / sizeof(Real);
  __shared__ Values<Real, kPack> lines[2][kBiasColumns][kRows / kPack + 1];  // spread over banks
  let_next_begin();
  const int column = threadIdx.x % kBiasColumns, line = threadIdx.x / kBiasColumns;
  const auto groups = static_cast<unsigned>(ceil_div<int64_t>(args.out_channels, kBiasColumns));
  const int64_t segment = blockIdx.x / groups;
  const int64_t channel = int64_t{blockIdx.x % groups} * kBiasColumns + column;
  const int64_t begin = segment * kSparseSegment;
  const auto rows = static_cast<int>(min(args.table.valid() - begin, int64_t{kSparseSegment}));
  const bool exists = channel < args.out_channels;
  const T* grad = static_cast<const T*>(args.grad) + begin * args.out_channels + channel;
  Real sum = 0;
  for (int base = -kRows, turn = 0; base < rows; base += kRows, turn ^= 1) {
    T next[kRows / kStep];
    for (int i = 0; i < kRows / kStep; ++i) {
      const int row = base + kRows + line + i * kStep;
      next[i] = exists && row < rows ? grad[row * args.out_channels] : T{};
    }
    if (base >= 0 && line == 0) {
#pragma unroll 8
      for (int i = 0; i < kRows / kPack; ++i) {
        const auto pack = lines[turn][column][i];
        for (int j = 0; j < kPack; ++j) sum += pack.at[j];
      }
    }
    for (int i = 0; i < kRows / kStep; ++i) {
      lines[turn ^ 1][column][(line + i * kStep) / kPack].at[line % kPack] = widen(next[i]);
    }
    __syncthreads();
  }
  if (line == 0 && exists && rows > 0) {
    sums[segment * args.out_channels + channel] = sum;
  }
}

// Adds segments to the total of earlier waves, in their order, kCount values a thread. before,
// after: totals, or null for the first and last wave; that one rounds to `out`.
template <class T, int kCount>
__device__ __forceinline__ void add_segments(const compute_t<T>* sums, int64_t count, int segments,
                                             const compute_t<T>* before, compute_t<T>* after,
                                             void* out) {
  using Pack = Values<compute_t<T>, kCount>;
  for (int64_t i = global_thread() * kCount; i < count; i += global_stride() * kCount) {
    Pack sum = before ? *reinterpret_cast<const Pack*>(before + i) : Pack{};
    for (int first = 0; first < segments; first += kAhead) {
      Pack next[kAhead];
      for (int s = 0; s < kAhead; ++s) {
        const auto* from = reinterpret_cast<const Pack*>(sums + (first + s) * count + i);
        if (first + s < segments) next[s] = *from;
      }
      for (int s = 0; s < kAhead; ++s) {
        for (int j = 0; j < kCount && first + s < segments; ++j) sum.at[j] += next[s].at[j];
      }
    }
    if (after) {
      *reinterpret_cast<Pack*>(after + i) = sum;
    } else {
      Values<T, kCount> values;
      for (int j = 0; j < kCount; ++j) values.at[j] = narrow<T>(quiet(sum.at[j]));
      *reinterpret_cast<Values<T, kCount>*>(static_cast<T*>(out) + i) = values;
    }
  }
}

// Adds the segments of a wave that are in use. After the last wave also those of the bias.
template <class T>
__global__ void __launch_bounds__(kThreads)
    segments_kernel(const __grid_constant__ SparseConvWeightArgs args,
                    const __grid_constant__ WeightWork work, int64_t first) {
  using Real = compute_t<T>;
  const int64_t used = ceil_div<int64_t>(args.table.valid(), kSparseSegment);
  wait_for_previous();
  const bool last = first + work.wave >= args.segments();
  if (args.grad_weight) {
    const auto segments = static_cast<int>(min(used - first, work.wave));
    const auto* sums = static_cast<const Real*>(work.weights);
    auto* totals = static_cast<Real*>(work.totals);
    const int64_t count = args.weights();
    const bool wide = count % kWide == 0 &&
        reinterpret_cast<uintptr_t>(args.grad_weight) % (kWide * sizeof(T)) == 0;
    const auto* before = first > 0 ? totals : nullptr;
    auto* after = last ? nullptr : totals;
    if (wide) {
      add_segments<T, kWide>(sums, count, segments, before, after, args.grad_weight);
    } else {
      add_segments<T, 1>(sums, count, segments, before, after, args.grad_weight);
    }
  }
  if (args.grad_bias && last) {
    add_segments<T, 1>(static_cast<const Real*>(work.biases), args.out_channels,
                       static_cast<int>(used), nullptr, nullptr, args.grad_bias);
  }
}

// The sums of the segments of a wave.
template <class T>
cudaError_t launch_sums(const SparseConvWeightArgs& args, int64_t first, int64_t segments,
                        bool follows, compute_t<T>* sums, const CudaContext& context) {
  if constexpr (sizeof(T) == 2) {
    const SparseWave wave{first, segments, sums, follows};
    const int64_t plan = sparse_tensor_cores_plan.value();
    if (plan != 0 && context.target.compute_capability >= 80) {
#ifdef TORCHVOX_HOPPER
      if (plan != 1 && takes_hopper(context.target) &&
          std::min(args.in_channels, args.out_channels) > 32) {
        return launch_sparse_weight_hopper(args, wave, context);
      }
#endif
      return launch_sparse_weight_mma(args, wave, context);
    }
  }
  const int64_t tiles = ceil_div<int64_t>(args.in_channels, kWeightTile) *
      ceil_div<int64_t>(args.out_channels, kWeightTile);
  return launch_blocks(weight_kernel<T>, grid_x(segments * args.table.volume * tiles), kThreads,
                       context.stream, args, first, sums);
}

template <class T>
cudaError_t launch_weight(SparseConvWeightArgs args, const WeightWork& work,
                          const CudaContext& context) {
  using Real = compute_t<T>;
  const int64_t segments = args.segments();
  if (args.weights() == 0) args.grad_weight = nullptr;
  if (args.out_channels == 0) args.grad_bias = nullptr;
  if (args.grad_bias && segments > 0) {
    const int64_t groups = ceil_div<int64_t>(args.out_channels, kBiasColumns);
    TORCHVOX_CUDA_CHECK(launch_blocks(bias_kernel<T>, grid_x(segments * groups), kThreads,
                                      context.stream, args, static_cast<Real*>(work.biases)));
  }
  const int64_t values = std::max(args.grad_weight ? ceil_div<int64_t>(args.weights(), kWide) : 0,
                                  args.grad_bias ? args.out_channels : 0);
  if (values == 0) return cudaSuccess;
  int64_t first = args.grad_weight ? 0 : std::max<int64_t>(segments - work.wave, 0);
  do {
    const int64_t wave = std::min(work.wave, segments - first);
    if (args.grad_weight && wave > 0) {
      const bool follows = args.grad_bias && first == 0;
      TORCHVOX_CUDA_CHECK(
          launch_sums<T>(args, first, wave, follows, static_cast<Real*>(work.weights), context));
    }
    TORCHVOX_CUDA_CHECK(
        launch_items_after(segments_kernel<T>, values, kThreads, context, args, work, first));
    first += work.wave;
  } while (first < segments);
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
