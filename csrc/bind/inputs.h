// SPDX-License-Identifier: Apache-2.0
//
// The inputs of one call of a node, by name, checked by their layouts as in csrc/ops/core/inputs.h:
//
//   in.floats("features", "[B, N, C]", &args.dtype)
//
// Letters name sizes. The first tensor with a letter decides its size, the others must agree.
#pragma once

#include <array>

#include "csrc/bind/checks.h"

namespace torchvox::bind {

class Inputs {
 public:
  Inputs(const Tensors& tensors, std::span<const View> views) : tensors_(tensors), views_(views) {
    tensors.check_count(views);
    sizes_.fill(-1);
  }
  const char* op() const { return tensors_.op(); }
  void set(char letter, int64_t size) { sizes_[static_cast<size_t>(letter)] = size; }
  int64_t operator[](char letter) const { return sizes_[static_cast<size_t>(letter)]; }

  // Null where it is not given, as the pointers below. Checks nothing.
  const View* find(const char* name) const { return tensors_.find(views_, name); }
  std::span<const View> list(const char* name) const { return tensors_.list(views_, name); }
  // A layout has letters, numbers, `C >= 3`, `B + 1`, and `*` for any size.
  void check_layout(const char* name, const View& view, std::string_view layout);

  // Of float32 or float16; float64 too where `wide`.
  const void* floats(const char* name, const char* layout, DType* dtype, bool wide = false);
  // The same, which must be of `dtype`.
  const void* floats_of(const char* name, const char* layout, DType dtype);
  template <class T>
  const T* data(const char* name, const char* layout) {
    const View* const view = checked(name, layout);
    if (view == nullptr) return nullptr;
    check_element(op(), name, *view, {element_of(T())}, word_of(T()));
    return static_cast<const T*>(memory_of(*view));
  }
  const uint8_t* bytes(const char* name, const char* layout) {
    const View* const view = checked(name, layout);
    if (view == nullptr) return nullptr;
    check_element(op(), name, *view, {Element::kUInt8, Element::kBool}, "uint8 or bool");
    return static_cast<const uint8_t*>(memory_of(*view));
  }
  IndexArray indices(const char* name, const char* layout) {
    return index_array(op(), name, checked(name, layout));
  }
  // [B, N, D], perhaps with lengths [B].
  CloudBatch padded(const char* name, const char* layout, const char* lengths = nullptr);
  // [N, D], in one cloud, or as many as offsets [B + 1] say, with lengths [B]. Sets B.
  CloudBatch packed(const char* name, const char* layout, const char* offsets = nullptr,
                    const char* lengths = nullptr);

 private:
  const View* checked(const char* name, const char* layout) {
    const View* const view = find(name);
    if (view != nullptr) check_layout(name, *view, layout);
    return view;
  }
  bool fits(std::string_view axis, int64_t size);
  CloudBatch cloud(const char* name, const char* layout);

  static Element element_of(float) { return Element::kFloat; }
  static Element element_of(double) { return Element::kDouble; }
  static Element element_of(int32_t) { return Element::kInt32; }
  static Element element_of(uint8_t) { return Element::kUInt8; }
  static const char* word_of(float) { return "float32"; }
  static const char* word_of(double) { return "float64"; }
  static const char* word_of(int32_t) { return "int32"; }
  static const char* word_of(uint8_t) { return "uint8"; }

  const Tensors& tensors_;
  std::span<const View> views_;
  std::array<int64_t, 128> sizes_;  // -1: not known
};

// A planner of the ops whose `plan` makes a call from arguments that hold the attributes.
template <class Args>
Planner planner(const char* op, const Attributes& attributes,
                std::initializer_list<const char*> names, const Args& args,
                Call (*plan)(Args args, Inputs& in)) {
  return [args, plan, tensors = Tensors(op, attributes, names)](std::span<const View> views) {
    Inputs in(tensors, views);
    Call call = plan(args, in);
    check_type_of_output(tensors.op(), views, call);
    return call;
  };
}

inline Element element_of(DType dtype) {
  return dtype == DType::kHalf ? Element::kHalf : Element::kFloat;
}

}  // namespace torchvox::bind
