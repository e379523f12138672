// SPDX-License-Identifier: Apache-2.0
//
// Under autocast one of several arguments that must agree may come out of a layer in half
// precision. They are widened to a type that holds them all; arguments that agree stay as they are.
#pragma once

#include <c10/core/ScalarType.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <array>

#include "csrc/ops/core/autograd.h"

namespace torchvox {

// Below this an op's autocast kernel calls the op itself.
struct BelowAutocast {
  const c10::impl::ExcludeDispatchKeyGuard no_autocast{c10::autocast_dispatch_keyset};
};

inline bool is_half(const at::Tensor& tensor) {
  return tensor.scalar_type() == at::kHalf || tensor.scalar_type() == at::kBFloat16;
}
// For an argument of one type alone: what is no half is left to the op, which refuses it.
inline at::Tensor widened_half(const at::Tensor& tensor, at::ScalarType type) {
  return is_half(tensor) ? tensor.to(type) : tensor;
}

// Arguments of another kind are left to the op, which refuses them.
template <class Tensors>
void widen(Tensors& tensors) {
  at::ScalarType type = tensors[0].scalar_type();
  for (const at::Tensor& tensor : tensors) {
    if (!tensor.is_floating_point()) return;
    type = c10::promoteTypes(type, tensor.scalar_type());
  }
  for (at::Tensor& tensor : tensors) tensor = tensor.to(type);
}
inline std::array<at::Tensor, 2> widened(const at::Tensor& a, const at::Tensor& b) {
  std::array<at::Tensor, 2> both{a, b};
  widen(both);
  return both;
}

}  // namespace torchvox
