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

// A grid holds fewer than 2^31 blocks, one of which may have one query.
inline void check_queries(const char* op, const c10::SymInt& clouds, const c10::SymInt& queries) {
  check_below(clouds, kIndexLimit, op, "the number of clouds must be below 2^31", clouds);
  check_below(queries, kIndexLimit, op, "the queries of all clouds must be fewer than 2^31",
              queries);
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

inline bool is_coordinate_type(at::ScalarType type) {
  return type == at::kHalf || type == at::kBFloat16 || type == at::kFloat || type == at::kDouble;
}

// [N, C] points of a floating type, x, y, z first.
inline void check_packed_points(const char* op, const Tensor& points) {
  check_value(points.dim() == 2, op, "points must be [N, C] with C >= 3", points.sym_sizes());
  check_size(points.sym_size(1).sym_ge(3), op, "points must be [N, C] with C >= 3",
             points.sym_sizes());
  check_type(is_coordinate_type(points.scalar_type()), op,
             "points must be float16, bfloat16, float32 or float64", points.scalar_type());
  check_below(points.sym_size(0), kIndexLimit, op, "points must have N < 2^31 rows",
              points.sym_size(0));
}

inline void check_integers(const char* op, const char* name, const Tensor& tensor) {
  check_type(tensor.scalar_type() == at::kInt || tensor.scalar_type() == at::kLong, op,
             {name, " must be int32 or int64"}, tensor.scalar_type());
}

// Integers [length] that may be missing; `shape` says it.
inline void check_vector(const char* op, const char* name, const OptionalTensor& tensor,
                         const char* other_name, const Tensor& other, const c10::SymInt& length,
                         const char* shape) {
  if (!tensor) return;
  check_integers(op, name, *tensor);
  check_device(op, name, *tensor, other_name, other);
  const Rule rule{name, " must be ", shape};
  check_value(tensor->dim() == 1, op, rule, tensor->sym_sizes());
  check_size(tensor->sym_size(0).sym_eq(length), op, rule, tensor->sym_sizes());
}

// batch_offsets [B + 1] of packed rows; returns B.
inline c10::SymInt check_offsets(const char* op, const Tensor& offsets, const char* other_name,
                                 const Tensor& other) {
  const char* rule = "batch_offsets must be [B + 1]";
  check_integers(op, "batch_offsets", offsets);
  check_device(op, "batch_offsets", offsets, other_name, other);
  check_value(offsets.dim() == 1, op, rule, offsets.sym_sizes());
  check_size(offsets.sym_size(0).sym_ge(1), op, rule, offsets.sym_sizes());
  return offsets.sym_size(0) - 1;
}

// batch_offsets [B + 1] and num_valid [B] of a packed batch; returns B.
inline c10::SymInt check_batch(const char* op, const Tensor& points,
                               const OptionalTensor& batch_offsets,
                               const OptionalTensor& num_valid) {
  const c10::SymInt batches =
      batch_offsets ? check_offsets(op, *batch_offsets, "the points", points) : c10::SymInt(1);
  if (num_valid) {
    check_integers(op, "num_valid", *num_valid);
    check_device(op, "num_valid", *num_valid, points);
    check_value(num_valid->dim() <= 1, op, "num_valid must be [B], one count a sample",
                num_valid->sym_sizes());
    check_size(num_valid->sym_numel().sym_eq(batches), op,
               "num_valid must be [B], one count a sample", num_valid->sym_sizes());
  }
  return batches;
}

inline const OptionalTensor kNoTensor;

// Where the clouds of an op over points and queries lie: padded, with lengths of them or without;
// or packed, where cloud b has rows batch_offsets[b] to batch_offsets[b + 1] of the points and rows
// query_batch_offsets[b] to query_batch_offsets[b + 1] of the queries.
struct CloudLayout {
  const OptionalTensor& batch_offsets = kNoTensor;
  const OptionalTensor& query_batch_offsets = kNoTensor;
  bool local_index = false;  // indices count from the first point of their cloud
  const OptionalTensor& lengths = kNoTensor;
  const OptionalTensor& query_lengths = kNoTensor;

  bool packed() const { return batch_offsets || query_batch_offsets; }
};

// Returns B of a packed layout.
inline c10::SymInt check_packed(const char* op, const CloudLayout& layout, const char* other_name,
                                const Tensor& other) {
  check_value(layout.batch_offsets && layout.query_batch_offsets, op,
              "batch_offsets and query_batch_offsets must be given together",
              layout.batch_offsets ? "batch_offsets" : "query_batch_offsets");
  check_value(!layout.lengths && !layout.query_lengths, op,
              {layout.lengths ? "lengths" : "query_lengths", " must be None with batch_offsets"},
              "a tensor");
  const c10::SymInt clouds = check_offsets(op, *layout.batch_offsets, other_name, other);
  check_vector(op, "query_batch_offsets", layout.query_batch_offsets, other_name, other, clouds + 1,
               "[B + 1], as batch_offsets");
  return clouds;
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

// Coordinates of any dimension, any floating type.
inline void check_rows(const char* op, const char* name, const Tensor& rows, int rank,
                       const char* layout) {
  check_given(op, name, rows);
  const Rule rule{name, " must be ", layout, " with D >= 1"};
  check_value(rows.dim() == rank, op, rule, rows.sym_sizes());
  check_size(rows.sym_size(-1).sym_ge(1), op, rule, rows.sym_sizes());
  check_type(is_coordinate_type(rows.scalar_type()), op,
             {name, " must be float16, bfloat16, float32 or float64"}, rows.scalar_type());
}

// Rows of points and of queries in one dtype, on one device, of one D.
inline void check_rows_of_both(const char* op, const Tensor& points, const Tensor& query, int rank,
                               const char* points_layout, const char* query_layout) {
  check_rows(op, "points", points, rank, points_layout);
  check_rows(op, "query", query, rank, query_layout);
  check_dtype(op, "query", query.scalar_type(), "points", points.scalar_type());
  check_device(op, "query", query, points);
  check_size(query.sym_size(-1).sym_eq(points.sym_size(-1)), op, "query must have the D of points",
             query.sym_sizes());
  check_below(points.sym_size(-2), kIndexLimit, op, "points must be fewer than 2^31 a cloud",
              points.sym_sizes());
}

// points and query packed, [T, D] and [U, D]; without offsets one cloud.
inline void check_packed_points_and_query(const char* op, const Tensor& points, const Tensor& query,
                                          const CloudLayout& layout, const char* points_layout) {
  check_rows_of_both(op, points, query, 2, points_layout, "[U, D]");
  const c10::SymInt clouds = layout.packed() ? check_packed(op, layout, "the points", points) : 1;
  check_queries(op, clouds, query.sym_size(0));
}

// points and query [B, N, D] and [B, M, D], or packed [T, D] and [U, D].
inline void check_points_and_query(const char* op, const Tensor& points, const Tensor& query,
                                   const CloudLayout& layout,
                                   const char* points_layout = "[B, N, D]") {
  if (layout.packed()) {
    return check_packed_points_and_query(op, points, query, layout,
                                         "[T, D] where batch_offsets are given,");
  }
  check_rows_of_both(op, points, query, 3, points_layout, "[B, M, D]");
  const c10::SymInt clouds = points.sym_size(0);
  check_size(query.sym_size(0).sym_eq(clouds), op, "query must have the B of points",
             query.sym_sizes());
  check_queries(op, clouds, clouds * query.sym_size(1));
  check_vector(op, "lengths", layout.lengths, "the points", points, clouds, "[B]");
  check_vector(op, "query_lengths", layout.query_lengths, "the points", points, clouds, "[B]");
}
// Of an op that takes both layouts.
inline constexpr const char* kPaddedOrPacked = "[B, N, D], or [T, D] with batch_offsets,";

// (x0, y0, z0, x1, y1, z1) in meters, each lower bound below its upper bound.
inline void check_range(const char* op, c10::ArrayRef<double> range) {
  check_value(range.size() == 6, op, "point_cloud_range must be (x0, y0, z0, x1, y1, z1)", range);
  for (int axis = 0; axis < 3; ++axis) {
    const float lower = static_cast<float>(range[axis]);
    const float upper = static_cast<float>(range[axis + 3]);
    check_value(std::isfinite(lower) && std::isfinite(upper) && lower < upper, op,
                "point_cloud_range must be finite with each lower bound below its upper bound",
                range);
  }
}

}  // namespace torchvox
