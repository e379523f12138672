// SPDX-License-Identifier: Apache-2.0
//
// Kernels that are one function of one element: in tasks of elements on the CPU, one thread per
// element on the GPU. Under such a function, function(args, i), the header of the op says
//
//   TORCHVOX_MAP(Args, function, count, per_task, threads);
//   TORCHVOX_TYPED_MAP(Args, with_type, dtype, function, count, per_task, threads);
//
//   count      the number of elements
//   per_task   elements of a task on the CPU
//   threads    of a block on the GPU
//   with_type  calls its second argument with a T{} for `dtype`; the function is then function<T>
//
// where count, per_task and dtype are expressions over `args`. The entry points are defined in
// csrc/kernels/maps_cpu.cpp and maps.cu for every struct that csrc/kernels/maps.h lists.
#pragma once

#include "csrc/kernels/core/entry.h"

// NOLINTBEGIN(bugprone-macro-parentheses): the name of a template takes none
#define TORCHVOX_MAP(Args, function, count, per_task, threads)          \
  template <class Side>                                                 \
  auto map_elements(const Args& args, const Side& side) {               \
    return side.template map<function, threads>(args, count, per_task); \
  }                                                                     \
  TORCHVOX_KERNEL_WITHOUT_WORKSPACE(Args)
#define TORCHVOX_TYPED_MAP(Args, with_type, dtype, function, count, per_task, threads)    \
  template <class Side>                                                                   \
  auto map_elements(const Args& args, const Side& side) {                                 \
    return with_type(dtype, [&](auto type) {                                              \
      return side.template map<function<decltype(type)>, threads>(args, count, per_task); \
    });                                                                                   \
  }                                                                                       \
  TORCHVOX_KERNEL_WITHOUT_WORKSPACE(Args)
// NOLINTEND(bugprone-macro-parentheses)
