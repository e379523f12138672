// SPDX-License-Identifier: Apache-2.0
//
// Entry of the batch norm that is fused into the linear layer before it, and its gradient.
#pragma once

#include <cmath>

#include "csrc/kernels/core/map.h"
#include "csrc/kernels/pillars/encode/encode.h"

namespace torchvox {

// Weight and bias of one linear layer that stands for a layer without bias and the batch norm after
// it. The statistics follow from the moments of the layer's inputs, without the outputs. Calculates
// in double.
struct PillarNormArgs {
  const double* moments = nullptr;  // [(columns + 1)(columns + 2) / 2]: count, sums, products
  const void* weight = nullptr;  // [outputs, columns]
  const void* gamma = nullptr;  // [outputs]
  const void* beta = nullptr;  // [outputs]
  DType dtype = DType::kFloat;
  int64_t outputs = 0, columns = 0;
  double eps = 0;

  void* folded_weight = nullptr;  // [outputs, columns]
  void* folded_bias = nullptr;  // [outputs]
  void* mean = nullptr;  // [outputs]
  void* var = nullptr;  // [outputs], unbiased, as running statistics take it
};

struct PillarNormBackwardArgs {
  PillarNormArgs norm;  // the inputs without beta
  const void* grad_weight = nullptr;  // of the folded weight, [outputs, columns]
  const void* grad_bias = nullptr;  // [outputs]

  void* to_weight = nullptr;  // [outputs, columns]
  void* to_gamma = nullptr;  // [outputs]
  void* to_beta = nullptr;  // [outputs]
};

// Mean and variance of one output of the layer, and terms that its gradient needs.
struct NormedOutput {
  const PillarNormArgs& args;
  int64_t output;
  double count, mean = 0, var = 0, r;  // r = 1 / sqrt(var + eps)

  TORCHVOX_HD NormedOutput(const PillarNormArgs& args, int64_t output)
      : args(args), output(output), count(args.moments[0] > 1 ? args.moments[0] : 1) {
    for (int64_t j = 0; j < args.columns; ++j) mean += w(j) * first(j);
    for (int64_t j = 0; j < args.columns; ++j) var += w(j) * covariance_product(j);
    if (var <= 0) var = 0;
    r = 1 / std::sqrt(var + args.eps);
  }
  TORCHVOX_HD double w(int64_t j) const {
    return load_as<double>(args.weight, args.dtype, output * args.columns + j);
  }
  TORCHVOX_HD double gamma() const { return load_as<double>(args.gamma, args.dtype, output); }
  // The mean of the layer's input j.
  TORCHVOX_HD double first(int64_t j) const { return args.moments[1 + j] / count; }
  // Row j of the inputs' covariance times the weight.
  TORCHVOX_HD double covariance_product(int64_t j) const {
    double sum = 0;
    for (int64_t k = 0; k < args.columns; ++k) {
      const int64_t low = j < k ? j : k, high = j < k ? k : j;
      const int64_t at = 1 + args.columns + low * args.columns - low * (low - 1) / 2 + high - low;
      sum += w(k) * (args.moments[at] / count - first(j) * first(k));
    }
    return sum;
  }
};

// The fused batch norm and its gradient. All outputs read the moments, which stay in the L1 cache.
// Outputs are few: small blocks spread them over the multiprocessors.
TORCHVOX_HD void norm_output(const PillarNormArgs& args, int64_t output) {
  const NormedOutput n(args, output);
  const double scale = n.gamma() * n.r;
  for (int64_t j = 0; j < args.columns; ++j) {
    store_as(args.folded_weight, args.dtype, output * args.columns + j, quiet(scale * n.w(j)));
  }
  const double beta = load_as<double>(args.beta, args.dtype, output);
  store_as(args.folded_bias, args.dtype, output, quiet(beta - scale * n.mean));
  const double others = args.moments[0] > 2 ? args.moments[0] - 1 : 1;
  store_as(args.mean, args.dtype, output, quiet(n.mean));
  store_as(args.var, args.dtype, output, quiet(n.var * (n.count / others)));
}
TORCHVOX_MAP(PillarNormArgs, norm_output, args.outputs, 64, 32);

TORCHVOX_HD void norm_gradient(const PillarNormBackwardArgs& args, int64_t output) {
  const PillarNormArgs& norm = args.norm;
  const NormedOutput n(norm, output);
  const auto grad = [&](int64_t j) {
    return load_as<double>(args.grad_weight, norm.dtype, output * norm.columns + j);
  };
  const double scale = n.gamma() * n.r;
  const double to_bias = load_as<double>(args.grad_bias, norm.dtype, output);
  double to_scale = -to_bias * n.mean;
  for (int64_t j = 0; j < norm.columns; ++j) to_scale += grad(j) * n.w(j);
  const double to_mean = -to_bias * scale;
  // A variance of 0 is a minimum: its derivative by every weight is 0.
  const double to_var = n.var > 0 ? -0.5 * (to_scale * n.gamma()) * (n.r * n.r * n.r) : 0;
  for (int64_t j = 0; j < norm.columns; ++j) {
    const double value =
        scale * grad(j) + to_mean * n.first(j) + 2 * to_var * n.covariance_product(j);
    store_as(args.to_weight, norm.dtype, output * norm.columns + j, quiet(value));
  }
  store_as(args.to_gamma, norm.dtype, output, quiet(to_scale * n.r));
  store_as(args.to_beta, norm.dtype, output, quiet(to_bias));
}
TORCHVOX_MAP(PillarNormBackwardArgs, norm_gradient, args.norm.outputs, 64, 32);

}  // namespace torchvox
