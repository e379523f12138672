// SPDX-License-Identifier: Apache-2.0
#include <torch/library.h>

#include "csrc/ops/core/autograd.h"

namespace torchvox {
namespace {

TORCH_LIBRARY_IMPL(torchvox, Autograd, m) {
  for (const char* op : {"knn", "knn_ragged", "three_nn", "three_nn_ragged"}) {
    m.impl(op, not_differentiable());
  }
}

}  // namespace
}  // namespace torchvox
