// SPDX-License-Identifier: Apache-2.0
//
// Argument checks. They read host metadata only, never data, and speak in one form:
//   voxelize: points must be [N, C] with C >= 3, got [100, 2]
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>
#include <c10/util/Exception.h>

#include <array>
#include <cmath>
#include <initializer_list>
#include <optional>
#include <ostream>
#include <sstream>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

#include "csrc/kernels/spatial/distance.h"
#include "csrc/ops/core/register.h"

namespace torchvox {

// What an argument must be, in a few pieces that are joined only for a message: a check that passes
// builds no string. The pieces must outlive the check.
struct Rule {
  std::array<const char*, 6> pieces;  // null where there is none

  template <class... Rest>
  Rule(const char* first, Rest... rest) : pieces{first, rest...} {}
  Rule(const std::string& whole) : Rule(whole.c_str()) {}
};

inline std::ostream& operator<<(std::ostream& out, const Rule& rule) {
  for (const char* piece : rule.pieces) {
    if (piece) out << piece;
  }
  return out;
}

// As users write it: float32, where torch's own stream operator says Float. A tensor of no dtype is
// the None of Python. Since torch 2.13 the names are string_views.
inline std::string dtype_name(at::ScalarType type) {
  if (type == at::ScalarType::Undefined) return "None";
  return std::string(c10::getDtypeNames(type).first);
}

template <class Got>
void say(std::ostream& out, const Got& got) {
  if constexpr (std::is_same_v<Got, at::ScalarType>) {
    out << dtype_name(got);
  } else {
    out << got;
  }
}

template <class... Got>
std::string refusal(const char* op, const Rule& rule, const Got&... got) {
  std::ostringstream message;
  message << op << ": " << rule << ", got ";
  (say(message, got), ...);
  return message.str();
}

// Shapes, ranges, list lengths, option strings: ValueError.
template <class... Got>
void check_value(bool ok, const char* op, const Rule& rule, const Got&... got) {
  TORCH_CHECK_VALUE(ok, refusal(op, rule, got...));
}
// True for `second`, false for `first`; anything else is refused.
inline bool parse_word(const char* op, const char* name, std::string_view value, const char* first,
                       const char* second) {
  check_value(value == first || value == second, op,
              {name, " must be '", first, "' or '", second, "'"}, "'", value, "'");
  return value == second;
}
// Returns the value of `word`; a word that is not among the choices is refused.
template <class Value>
Value parse_choice(const char* op, const char* name, std::string_view word,
                   std::initializer_list<std::pair<const char*, Value>> choices) {
  for (const auto& choice : choices) {
    if (word == choice.first) return choice.second;
  }
  std::string words;
  for (const auto& choice : choices) {
    const bool last = &choice == choices.end() - 1;
    words += words.empty() ? "'" : last ? " or '" : ", '";
    words += std::string(choice.first) + "'";
  }
  TORCH_CHECK_VALUE(false, refusal(op, std::string(name) + " must be " + words, "'", word, "'"));
}
// The same over sizes that may be symbolic: a traced program carries the condition with it.
template <class... Got>
void check_size(const c10::SymBool& ok, const char* op, const Rule& rule, const Got&... got) {
  check_value(ok.expect_true(__FILE__, __LINE__), op, rule, got...);
}
// An upper limit, of concrete sizes only: over a symbolic size it would become a guard, and
// torch.export would ask every caller for Dim("N", max=2**31 - 1). The CPU and CUDA kernels that a
// traced program calls see concrete sizes and check again.
template <class... Got>
void check_below(const c10::SymInt& size, int64_t limit, const char* op, const Rule& rule,
                 const Got&... got) {
  if (const auto known = size.maybe_as_int()) check_value(*known < limit, op, rule, got...);
}
// What an int32 counts or names stays below it.
inline constexpr int64_t kIndexLimit = int64_t{1} << 31;

// The number of outputs of a call, of neighbors of a query and the like.
inline void check_count(const char* op, const char* name, const c10::SymInt& count) {
  check_size(count.sym_ge(0), op, {name, " must be >= 0"}, count);
  check_below(count, kIndexLimit, op, {name, " must be below 2^31"}, count);
}

// Dtypes: TypeError.
template <class... Got>
void check_type(bool ok, const char* op, const Rule& rule, const Got&... got) {
  TORCH_CHECK_TYPE(ok, refusal(op, rule, got...));
}

inline void check_dtype(const char* op, const char* name, at::ScalarType type,
                        const char* other_name, at::ScalarType other) {
  TORCH_CHECK_TYPE(type == other,
                   refusal(op,
                           std::string(name) + " must have the dtype of " + other_name + ", " +
                               dtype_name(other),
                           type));
}

// Python passes None for a tensor that no kernel expects to be missing.
inline void check_given(const char* op, const char* name, const Tensor& tensor) {
  check_type(tensor.defined(), op, {name, " must be a tensor"}, "None");
}
// Kernels read memory by strides. Only where torch's dispatcher does not tell: see unsupported.cpp.
inline void check_dense(const char* op, const char* name, const Tensor& tensor) {
  check_given(op, name, tensor);
  check_type(tensor.layout() == at::kStrided && !tensor.is_quantized() && !tensor.is_nested(), op,
             {name, " must be a dense (strided) tensor"},
             c10::toString(c10::highestPriorityBackendTypeId(tensor.key_set())));
}

inline void check_device(const char* op, const char* name, const Tensor& tensor,
                         const char* other_name, const Tensor& other) {
  check_given(op, name, tensor);
  check_given(op, other_name, other);
  TORCH_CHECK(tensor.device() == other.device(),
              refusal(op,
                      std::string(name) + " must be on the device of " + other_name + ", " +
                          other.device().str(),
                      tensor.device()));
}
inline void check_device(const char* op, const char* name, const Tensor& tensor,
                         const Tensor& points) {
  check_device(op, name, tensor, "the points", points);
}

// A tensor beside `other` of this shape and dtype, such as a gradient beside its output.
inline void check_same(const char* op, const char* name, const Tensor& tensor,
                       const char* other_name, const Tensor& other, c10::SymIntArrayRef shape,
                       at::ScalarType type) {
  const Rule rule{name, " must have the shape of ", other_name};
  check_dtype(op, name, tensor.scalar_type(), other_name, type);
  check_device(op, name, tensor, other_name, other);
  check_value(tensor.dim() == static_cast<int64_t>(shape.size()), op, rule, tensor.sym_sizes());
  for (size_t axis = 0; axis < shape.size(); ++axis) {
    check_size(tensor.sym_size(axis).sym_eq(shape[axis]), op, rule, tensor.sym_sizes());
  }
}

inline bool is_coordinate_type(at::ScalarType type) {
  return type == at::kHalf || type == at::kBFloat16 || type == at::kFloat || type == at::kDouble;
}

inline DistOrder parse_dist_order(const char* op, std::string_view order) {
  return parse_word(op, "dist_order", order, "pn2", "loop") ? DistOrder::kLoop : DistOrder::kPn2;
}

// The T of TieRule.
inline int parse_tie_block(const char* op, std::string_view tie, int64_t block) {
  const bool mmcv = parse_word(op, "tie", tie, "lowest", "mmcv");
  check_value(block >= 1 && block <= 1024 && (block & (block - 1)) == 0, op,
              "tie_block must be a power of two in [1, 1024]", block);
  return mmcv ? static_cast<int>(block) : 1;
}

// (x0, y0, z0, x1, y1, z1) in meters, each lower bound below its upper bound as a Real.
template <class Real = float>
void check_range(const char* op, c10::ArrayRef<double> range) {
  check_value(range.size() == 6, op, "point_cloud_range must be (x0, y0, z0, x1, y1, z1)", range);
  for (int axis = 0; axis < 3; ++axis) {
    const Real lower = static_cast<Real>(range[axis]), upper = static_cast<Real>(range[axis + 3]);
    check_value(std::isfinite(lower) && std::isfinite(upper) && lower < upper, op,
                "point_cloud_range must be finite with each lower bound below its upper bound",
                range);
  }
}

// A map whose cells are `count` pillars wide: the low corner and the size of a pillar; returns
// `count`.
inline float parse_map(const char* op, c10::ArrayRef<double> range, const char* size_name,
                       c10::ArrayRef<double> pillar, const char* count_name, int64_t count,
                       float (&low)[2], float (&size)[2]) {
  check_range(op, range);
  check_value(pillar.size() == 2 || pillar.size() == 3, op,
              {size_name, " must be (x, y, z), or (x, y), in meters"}, pillar);
  check_value(count >= 1 && count < (1 << 24), op, {count_name, " must be in [1, 2^24)"}, count);
  for (int axis = 0; axis < 2; ++axis) {
    size[axis] = static_cast<float>(pillar[axis]);
    check_value(std::isfinite(size[axis]) && size[axis] > 0, op,
                {size_name, " must be finite and > 0"}, pillar);
    low[axis] = static_cast<float>(range[axis]);
  }
  return static_cast<float>(count);
}

}  // namespace torchvox
