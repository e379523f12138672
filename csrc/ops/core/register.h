// SPDX-License-Identifier: Apache-2.0
//
// How the ops of a file are registered: one line an op, at the end of the file.
#pragma once

#include <torch/library.h>

#include <utility>

namespace torchvox {

inline constexpr bool kBuiltWithCuda =
#ifdef TORCHVOX_CUDA
    true;
#else
    false;
#endif

// The kernels of the ops of one file, registered as long as the library is loaded.
class OpLibrary {
 public:
  explicit OpLibrary(void (*add_ops)(OpLibrary&)) { add_ops(*this); }

  // `kernel` serves the CPU and CUDA, `meta` tensors without data.
  template <class Kernel, class Meta>
  void add(const char* op, Kernel* kernel, Meta* meta) {
    cpu_.impl(op, kernel);
    if (kBuiltWithCuda) cuda_.impl(op, kernel);
    meta_.impl(op, meta);
  }
  template <class Kernel>
  void add(const char* op, Kernel* kernel) {
    add(op, kernel, kernel);
  }
  template <class Kernel>
  void autograd(const char* op, Kernel&& kernel) {
    autograd_.impl(op, std::forward<Kernel>(kernel));
  }
  // Made of other ops alone, or of no tensor.
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
  torch::Library composite_ = library(c10::DispatchKey::CompositeImplicitAutograd);
};

// Stands before the body of a function that adds ops to `ops`.
#define TORCHVOX_REGISTER_OPS(ops)              \
  void register_ops(OpLibrary& ops);            \
  const OpLibrary registered_ops(register_ops); \
  void register_ops(OpLibrary& ops)

}  // namespace torchvox
