// SPDX-License-Identifier: Apache-2.0
//
// Entry of sparse_batch_norm and of its gradients, and their rules.
#pragma once

#include "csrc/kernels/core/items.h"
#include "csrc/kernels/core/tree_sum.h"

namespace torchvox {

// The norm of rows in use, or the gradients of the norm. [channels] are in the type of the sums,
// float or double.
struct SparseNormArgs {
  const void* features = nullptr;  // [rows, channels]
  bool gradient = false;  // gradients are wanted
  const void* grad = nullptr;  // [rows, channels]; read for gradients alone
  DType dtype = DType::kFloat;
  int64_t rows = 0, channels = 0;
  IndexArray num_valid;  // rows in use, its first element; null: all
  const void* weight = nullptr;  // [channels]
  const void* bias = nullptr;  // [channels]; not read for gradients
  const void* mean = nullptr;  // [channels]; null: those of the rows in use
  const void* var = nullptr;  // [channels], likewise
  double eps = 0;
  bool training = false;  // for gradients: mean and var depend on the features

  void* out = nullptr;  // [rows, channels]: the norm, or the gradient of the features
  void* first = nullptr;  // [channels]: the mean, or the gradient of the weight
  void* second = nullptr;  // [channels]: the variance, or the gradient of the bias

  TORCHVOX_HD int64_t valid() const {
    return num_valid.given() ? clamp_index(num_valid[0], 0, rows) : rows;
  }
  bool sums() const { return gradient || !mean; }
};
TORCHVOX_KERNEL(SparseNormArgs);

// Adds an element to the two sums of its channel.
template <class T, bool kGradient>
TORCHVOX_HD void add_terms(const SparseNormArgs& args, int64_t at, compute_t<T> mean, double& first,
                           double& second) {
  const auto x = widen_item(static_cast<const T*>(args.features)[at]);
  if constexpr (kGradient) {
    const auto g = widen_item(static_cast<const T*>(args.grad)[at]);
    first += g;
    second = plus_product(second, g, x - mean);
  } else {
    first += x;
    second = plus_product(second, x, x);
  }
}

// A channel as its elements need it.
template <class Real>
struct alignas(4 * sizeof(Real)) SparseNormChannel {
  Real mean = 0, scale = 0;
  Real shift = 0, slope = 0;  // the bias; or the mean of the gradient, and how it depends on x

  // From the sums of the rows in use; writes what else there is of the channel.
  TORCHVOX_HD void finish(const SparseNormArgs& args, int64_t channel, double sum,
                          double products) {
    const auto of = [&](const void* values) { return static_cast<const Real*>(values)[channel]; };
    const int64_t valid = args.valid();
    const double rows = static_cast<double>(valid > 1 ? valid : 1);
    const double m = sum / rows, v = products / rows - m * m;
    mean = args.mean ? of(args.mean) : narrow<Real>(m);
    const Real var = args.mean ? of(args.var) : narrow<Real>(v > 0 || is_nan(v) ? v : 0.0);
    const double inv = 1 / root(static_cast<double>(var) + args.eps);
    scale = narrow<Real>(of(args.weight) * inv);
    Real first = mean, second = var;
    if (args.gradient) {
      shift = narrow<Real>(sum / rows);
      slope = narrow<Real>(products * inv * inv / rows);
      first = narrow<Real>(products * inv);
      second = narrow<Real>(sum);
    } else {
      shift = of(args.bias);
    }
    static_cast<Real*>(args.first)[channel] = quiet(first);
    static_cast<Real*>(args.second)[channel] = quiet(second);
  }
  // An element of the output, of which the bits of a NaN are open.
  template <bool kGradient>
  TORCHVOX_HD Real value(Real x, Real g, bool training) const {
    const Real t = x - mean;
    if (!kGradient) return fma_rn(t, scale, shift);
    return scale * (training ? fma_rn(-t, slope, g - shift) : g);
  }
};

// Calls body(T{}, constant) with the storage type, and whether gradients are wanted.
template <class Body>
auto with_norm_types(const SparseNormArgs& args, const Body& body) {
  return with_point_type(args.dtype, [&](auto type) {
    return args.gradient ? body(type, std::true_type()) : body(type, std::false_type());
  });
}

}  // namespace torchvox
