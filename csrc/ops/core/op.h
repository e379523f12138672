// SPDX-License-Identifier: Apache-2.0
//
// What every file with ops needs, and the points of a call, declared to its Inputs: a packed batch,
// or clouds with queries.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "csrc/ops/core/autograd.h"
#include "csrc/ops/core/checks.h"
#include "csrc/ops/core/device.h"
#include "csrc/ops/core/inputs.h"
#include "csrc/ops/core/register.h"

namespace torchvox {

// [N, C] points of a floating type, x, y, z first.
inline void add_points(Inputs& in, const Tensor& points) {
  in.add("points", points, Dtypes::kFloats, "[N, C >= 3]");
  check_below(in["N"], kIndexLimit, in.op(), "points must have N < 2^31 rows", in["N"]);
}

// batch_offsets [B + 1] and num_valid [B] of a packed batch; returns B.
inline c10::SymInt add_batch(Inputs& in, const OptionalTensor& batch_offsets,
                             const OptionalTensor& num_valid) {
  in.add("batch_offsets", batch_offsets, Dtypes::kIndices, "[B + 1]");
  if (!batch_offsets) in.add_size("B", 1, "one sample");
  const bool is_number = num_valid && num_valid->dim() == 0 && in["B"].maybe_as_int() == 1;
  in.add("num_valid", num_valid, Dtypes::kIndices, is_number ? "[]" : "[B]");
  return in["B"];
}

// A grid holds fewer than 2^31 blocks, one of which may have one query.
inline void check_queries(const char* op, const c10::SymInt& clouds, const c10::SymInt& queries) {
  check_below(clouds, kIndexLimit, op, "the number of clouds must be below 2^31", clouds);
  check_below(queries, kIndexLimit, op, "the queries of all clouds must be fewer than 2^31",
              queries);
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

// The offsets of a packed layout, which decide B.
inline void add_offsets(Inputs& in, const CloudLayout& layout) {
  check_value(layout.batch_offsets && layout.query_batch_offsets, in.op(),
              "batch_offsets and query_batch_offsets must be given together",
              layout.batch_offsets ? "batch_offsets" : "query_batch_offsets");
  check_value(!layout.lengths && !layout.query_lengths, in.op(),
              {layout.lengths ? "lengths" : "query_lengths", " must be None with batch_offsets"},
              "a tensor");
  in.add("batch_offsets", layout.batch_offsets, Dtypes::kIndices, "[B + 1]");
  in.add("query_batch_offsets", layout.query_batch_offsets, Dtypes::kIndices, "[B + 1]");
}

// points and query in one dtype: [B, N, D] and [B, M, D], or [T, D] and [U, D]. Packed ones without
// offsets are one cloud.
inline void add_points_and_query(Inputs& in, const Tensor& points, const Tensor& query,
                                 const CloudLayout& layout, bool packed) {
  in.add("points", points, Dtypes::kFloats, packed ? "[T, D >= 1]" : "[B, N, D >= 1]");
  in.add("query", query, Dtypes::kFloats, packed ? "[U, D]" : "[B, M, D]");
  check_dtype(in.op(), "query", query.scalar_type(), "points", points.scalar_type());
  check_below(in[packed ? "T" : "N"], kIndexLimit, in.op(),
              "points must be fewer than 2^31 per cloud", points.sym_sizes());
  if (packed && layout.packed()) add_offsets(in, layout);
  if (packed) return check_queries(in.op(), layout.packed() ? in["B"] : c10::SymInt(1), in["U"]);
  in.add("lengths", layout.lengths, Dtypes::kIndices, "[B]");
  in.add("query_lengths", layout.query_lengths, Dtypes::kIndices, "[B]");
  check_queries(in.op(), in["B"], in["B"] * in["M"]);
}

// Distances are float64 for float64 points.
inline at::ScalarType distance_type(const Tensor& points) {
  return points.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

// Of an op that takes both layouts.
inline void add_padded_or_packed(Inputs& in, const Tensor& points, const Tensor& query,
                                 const CloudLayout& layout) {
  check_value(layout.packed() || !points.defined() || points.dim() == 3, in.op(),
              "points must be [B, N, D], or [T, D] with batch_offsets, with D >= 1",
              points.sym_sizes());
  add_points_and_query(in, points, query, layout, layout.packed());
}

}  // namespace torchvox
