// SPDX-License-Identifier: Apache-2.0
//
// How the ops of a file are registered: one line per op, at the end of the file.
#pragma once

#include <torch/library.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "csrc/ops/core/autograd.h"

namespace torchvox {

inline constexpr bool kBuiltWithCuda =
#ifdef TORCHVOX_CUDA
    true;
#else
    false;
#endif

// How autocast casts an op's arguments so that their dtypes match again.
struct Agreement {
  std::vector<std::vector<std::string>> together = {};  // widened to a type that holds them all
  std::vector<std::string> wide = {};  // halves become `type` first
  std::string beside = "";  // but may be halves of the dtype of this argument
  at::ScalarType type = at::kFloat;
  // Floats except float64 become autocast's type, as the arguments of torch's convolutions do.
  std::vector<std::string> lower = {};
};
void register_autocast(const std::string& op, Agreement agreement);

// Every registered schema, without the namespace.
const std::vector<std::string>& schemas();

// The kernels of the ops of one file, registered as long as the library is loaded.
class OpLibrary {
 public:
  explicit OpLibrary(void (*add_ops)(OpLibrary&)) { add_ops(*this); }

  // `kernel` serves the CPU, CUDA and Meta, tensors without data.
  template <class Kernel>
  void add(const char* op, Kernel* kernel) {
    cpu_.impl(op, kernel);
    if (kBuiltWithCuda) cuda_.impl(op, kernel);
    meta_.impl(op, kernel);
  }
  // With the kernel of autograd.
  template <class Kernel, class Autograd>
  void add(const char* op, Kernel* kernel, Autograd&& autograd_kernel) {
    add(op, kernel);
    autograd_.impl(op, std::forward<Autograd>(autograd_kernel));
  }
  template <class Kernel>
  void autograd(const char* op, Kernel&& kernel) {
    autograd_.impl(op, std::forward<Kernel>(kernel));
  }
  // The op's gradient is that of another op, `derivative.backward`.
  void differentiable(const char* op, Derivative derivative) {
    autograd_.impl(op, torchvox::differentiable(op, std::move(derivative)));
  }
  // An op that writes its arguments: autograd and inference mode count the writes.
  template <class Kernel>
  void add_in_place(const char* op, Kernel* kernel) {
    add(op, kernel, mutating());
    in_place_.impl(op, mutating());
  }
  // Casts the op's arguments under autocast.
  void autocast(const char* op, Agreement agreement) {
    register_autocast(op, std::move(agreement));
  }
  // For an op that only calls other ops, or takes no tensor.
  template <class Kernel>
  void composite(const char* op, Kernel* kernel) {
    composite_.impl(op, kernel);
  }

 private:
  static torch::Library library(c10::DispatchKey key) {
    return {torch::Library::IMPL, "torchvox", key, __FILE__, __LINE__};
  }

  torch::Library cpu_ = library(c10::DispatchKey::CPU);
  torch::Library cuda_ = library(c10::DispatchKey::CUDA);
  torch::Library meta_ = library(c10::DispatchKey::Meta);
  torch::Library autograd_ = library(c10::DispatchKey::Autograd);
  torch::Library in_place_ = library(c10::DispatchKey::ADInplaceOrView);
  torch::Library composite_ = library(c10::DispatchKey::CompositeImplicitAutograd);
};

// Stands before the body of a function that adds ops to `ops`.
#define TORCHVOX_REGISTER_OPS(ops) \
  TORCHVOX_REGISTER_OPS_AS(C10_CONCATENATE(register_ops_, C10_UID), ops)
#define TORCHVOX_REGISTER_OPS_AS(function, ops)                     \
  void function(OpLibrary& ops);                                    \
  const OpLibrary C10_CONCATENATE(library_of_, function)(function); \
  void function(OpLibrary& ops)

}  // namespace torchvox
