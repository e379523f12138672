// SPDX-License-Identifier: Apache-2.0
//
// The tensors of a call, declared one after the other by name, dtype and layout:
//
//   Inputs in("rotated_nms");
//   in.add("boxes", boxes, Dtypes::kFloat32, "[B, N, 7+]");
//   in.add("scores", scores, Dtypes::kFloat32, "[B, N]");
//
// Letters name sizes. The first tensor with a letter decides its size, the others must agree:
//   rotated_nms: scores must be [B, N] with the B and N of boxes, got [2, 30]
// All tensors are on the device of the first one, which must outlive its Inputs. Nothing reads
// data.
#pragma once

#include <c10/core/SymInt.h>
#include <c10/util/SmallVector.h>

#include <string_view>

#include "csrc/ops/core/register.h"

namespace torchvox {

enum class Dtypes {
  kFloats,  // float16, bfloat16, float32 or float64
  kWideFloats,  // float32 or float64
  kNarrowFloats,  // float16, bfloat16 or float32
  kNumbers,  // a float, int32 or int64
  kFloatsOrInt32,
  kFloat32,
  kFloat64,
  kIndices,  // int32 or int64
  kInt32,
  kInt64,
  kBool,
  kUInt8,
  kBytes,  // uint8 or bool
};

class Inputs {
 public:
  explicit Inputs(const char* op) : op_(op) {}
  const char* op() const { return op_; }

  // A layout has letters, numbers, `7+` for 7 or more, `C >= 3`, `B + 1`, and `*` for any size.
  // Of two layouts, "[N] or [N, 1]", the one of the tensor's rank counts.
  void add(const char* name, const Tensor& tensor, Dtypes dtypes, const char* layout);
  // Of an argument that may be None.
  void add(const char* name, const OptionalTensor& tensor, Dtypes dtypes, const char* layout) {
    if (tensor) add(name, *tensor, dtypes, layout);
  }
  // A size that is an argument, or one of the tensor `owner`.
  void add_size(const char* letter, const c10::SymInt& value, const char* owner = "") {
    sizes_.push_back({letter, value, owner});
  }

  const c10::SymInt& operator[](std::string_view letter) const { return find(letter)->value; }

 private:
  struct Size {
    std::string_view letter;
    c10::SymInt value;
    const char* owner;  // the tensor that decided it
  };
  struct Axis {
    std::string_view letter;  // or none
    int64_t number = 0;  // the size, its least, or what is added to that of the letter
    bool or_more = false;
  };

  const Size* find(std::string_view letter) const;
  static Axis next_axis(std::string_view& layout);
  void check_shape(const char* name, const Tensor& tensor, std::string_view layout);
  bool agrees(const Axis& axis, const Size* decided, const c10::SymInt& size) const;
  [[noreturn]] void refuse_shape(const char* name, const Tensor& tensor, std::string_view layout,
                                 size_t earlier) const;

  const char* op_;
  const char* first_name_ = nullptr;
  const Tensor* first_ = nullptr;  // its caller keeps it
  c10::SmallVector<Size, 8> sizes_;
};

}  // namespace torchvox
