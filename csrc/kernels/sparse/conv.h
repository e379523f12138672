// SPDX-License-Identifier: Apache-2.0
//
// Entries of sparse_conv and of the gradient of its weight and bias.
//
// A value is a chain: the bias, then for each present offset ascending and each input channel
// ascending one fused multiply-add. Absent offsets are skipped, not multiplied by zero, so that
// no plan, row order or capacity changes a bit. Gradients of weights sum over segments of
// kSparseSegment rows, and the sums of segments in order. Tensor cores have chains of their own,
// see conv_tensor.cuh.
#pragma once

#include "csrc/kernels/sparse/schedule.h"

namespace torchvox {

inline const PlanOverride sparse_cpu_plan{"sparse_cpu"};  // see run_vectorized()
// CUDA, halves: 0 exact chains; with other bits, on tensor cores, 1 mma.sync, 2 those of Hopper
// GPUs where they take the call.
inline const PlanOverride sparse_tensor_cores_plan{"sparse_tensor_cores"};
inline const PlanOverride sparse_wave_plan{"sparse_wave"};  // CUDA: segments of a wave

inline constexpr int kSparseSegment = 2048;

// Weights as they lie in a tensor.
struct SparseWeight {
  const void* data = nullptr;
  int64_t out_stride = 0, offset_stride = 0, in_stride = 0;
  bool mirrored = false;  // the last offset first

  TORCHVOX_HD int64_t at(int64_t out, int64_t offset, int64_t in, int64_t volume) const {
    const int64_t k = mirrored ? volume - 1 - offset : offset;
    return out * out_stride + k * offset_stride + in * in_stride;
  }
};

struct SparseConvArgs {
  SparseTable table;
  SparseKernelSize kernel_size;  // whose product is the table's volume; never changes a value
  int32_t* schedule = nullptr;  // of the table, see SparseSchedule; or null
  const void* features = nullptr;  // [sources, in_channels]
  SparseWeight weight;  // [out_channels, volume, in_channels]
  const void* bias = nullptr;  // [out_channels], or null
  const void* residual = nullptr;  // [rows, out_channels], or null
  bool relu = false;
  DType dtype = DType::kFloat;
  int64_t in_channels = 0, out_channels = 0;
  void* out = nullptr;  // [rows, out_channels]
};
TORCHVOX_KERNEL(SparseConvArgs);

#ifdef TORCHVOX_CUDA
// The plans of a call that has rows and output channels. Its order of rows, or the whole schedule
// for tensor cores, is given; the launch before makes it if the plan `follows` that.
int64_t sparse_exact_bytes(const SparseConvArgs& args, const Target& target);
cudaError_t launch_sparse_exact(const SparseConvArgs& args, bool follows, void* memory,
                                const CudaContext& context);
int64_t sparse_mma_bytes(const SparseConvArgs& args, const Target& target);
cudaError_t launch_sparse_mma(const SparseConvArgs& args, bool follows, void* memory,
                              const CudaContext& context);
// For Hopper GPUs; needs input channels.
inline bool takes_hopper(const Target& target) {
  return target.compute_capability == 90 && target.shared_bytes >= 227 << 10;
}
int64_t sparse_hopper_bytes(const SparseConvArgs& args, const Target& target);
cudaError_t launch_sparse_hopper(const SparseConvArgs& args, bool follows, void* memory,
                                 const CudaContext& context);
#endif

// The last steps of a value, on its sum.
template <class T, class Real>
TORCHVOX_HD T finished(const SparseConvArgs& args, int64_t row, int64_t channel, Real sum) {
  if (args.residual) {
    sum += widen(static_cast<const T*>(args.residual)[row * args.out_channels + channel]);
  }
  if (args.relu && !(sum > 0) && !is_nan(sum)) sum = 0;
  return narrow<T>(quiet(sum));
}

struct SparseConvWeightArgs {
  SparseTable table;
  const void* features = nullptr;  // [sources, in_channels]
  const void* grad = nullptr;  // [rows, out_channels]
  DType dtype = DType::kFloat;
  int64_t in_channels = 0, out_channels = 0;
  void* grad_weight = nullptr;  // [out_channels, volume, in_channels], or null
  void* grad_bias = nullptr;  // [out_channels], or null

  TORCHVOX_HD int64_t segments() const {
    return (table.rows + kSparseSegment - 1) / kSparseSegment;
  }
  TORCHVOX_HD int64_t weights() const { return out_channels * table.volume * in_channels; }
};
TORCHVOX_KERNEL(SparseConvWeightArgs);

#ifdef TORCHVOX_CUDA
// Segments first .. first + segments - 1 and their sums, [segments, out_channels, volume,
// in_channels]. follows: may overlap the launch before; what comes after then follows both.
struct SparseWave {
  int64_t first, segments;
  float* sums;
  bool follows;
};
// The sums of the weight's gradient in halves on tensor cores; the same bits on Hopper GPUs' own.
cudaError_t launch_sparse_weight_mma(const SparseConvWeightArgs& args, const SparseWave& wave,
                                     const CudaContext& context);
cudaError_t launch_sparse_weight_hopper(const SparseConvWeightArgs& args, const SparseWave& wave,
                                        const CudaContext& context);
#endif

}  // namespace torchvox
