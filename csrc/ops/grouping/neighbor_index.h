// SPDX-License-Identifier: Apache-2.0
//
// Neighbor indices as every op over them reads them: checked, made flat, inverted; and what the
// gradients can take that walk an inverse index.
#pragma once

#include "csrc/kernels/grouping/inverse_index/inverse_index.h"
#include "csrc/ops/core/op.h"

namespace torchvox {

// Limits of such a gradient. Checked before the forward of a call that wants one, and again by its
// backward.
inline void check_gradient_limit(const char* op, const c10::SymInt& rows,
                                 const c10::SymInt& slots) {
  check_below(rows, kIndexLimit, op, "a gradient takes fewer than 2^31 points per cloud", rows);
  check_below(slots, kIndexLimit, op,
              "a gradient takes fewer than 2^31 slots a cloud, queries times neighbors", slots);
}

// Of `rows`, whose `axis` counts the points and which may require a gradient or not. The call
// itself refuses shapes that do not fit.
inline void check_gradient_limit_of(const char* op, const Tensor& rows, int axis,
                                    const Tensor& query, int query_axis, const c10::SymInt& k) {
  if (!wants_gradient(rows)) return;
  const int64_t dims = rows.dim(), query_dims = query.dim();
  const bool fits =
      axis < dims && -axis <= dims && query_axis < query_dims && -query_axis <= query_dims;
  if (fits) check_gradient_limit(op, rows.sym_size(axis), query.sym_size(query_axis) * k);
}

// The packed clouds of a call, or none.
struct CallLayout {
  OptionalTensor batch_offsets, query_batch_offsets;
  CloudLayout clouds;

  explicit CallLayout(const Call& call)
      : batch_offsets(call.optional("batch_offsets")),
        query_batch_offsets(call.optional("query_batch_offsets")),
        clouds{batch_offsets, query_batch_offsets, call["local_index"].toBool()} {}
};

// Of features with k slots for each row of idx.
inline void check_gradient_of_features(const Call& call, bool packed, const c10::SymInt& k) {
  const int axis = packed ? 0 : call["channels_first"].toBool() ? 2 : 1;
  check_gradient_limit_of(call.op(), call.tensor("features"), axis, call.tensor("idx"), !packed, k);
}

// The rows that the slots (entries of idx) name, [idx.shape] int32, -1 for none. `count` has one
// entry per row of idx.
inline Tensor flat_neighbor_rows(const char* op, const Tensor& idx, int64_t rows,
                                 const OptionalTensor& count, const CloudLayout& clouds) {
  check_value(rows < kIndexLimit, op, "a cloud must have fewer than 2^31 points", rows);
  NeighborRowsArgs args;
  const Tensor row = output(args.row, idx.sym_sizes(), idx);
  const OptionalTensor& batch_offsets = clouds.batch_offsets;
  Memory memory;
  args.idx = memory.indices(idx);
  args.count = memory.indices(count);
  args.points.packed = args.query.packed = batch_offsets.has_value();
  args.points.clouds = args.query.clouds = batch_offsets ? batch_offsets->size(0) - 1 : 1;
  args.points.offsets = memory.indices(batch_offsets);
  args.query.offsets = memory.indices(clouds.query_batch_offsets);
  args.local_index = clouds.local_index;
  args.k = idx.size(-1);
  args.points.rows = rows;
  args.query.rows = args.k > 0 ? idx.numel() / args.k : 0;
  run(op, idx, args);
  return row;
}

// Rows [1, U, k] that idx [U, k] names in packed features [T, C]: with features.unsqueeze(0), one
// padded cloud.
inline Tensor packed_rows(const char* op, const Tensor& features, const Tensor& idx,
                          bool channels_first, const CloudLayout& clouds) {
  check_dense(op, "features", features);
  check_dense(op, "idx", idx);
  for (const auto& offsets : {clouds.batch_offsets, clouds.query_batch_offsets}) {
    if (offsets) check_dense(op, "batch_offsets", *offsets);
  }
  check_value(!channels_first, op, "channels_first must be False with batch_offsets", "True");
  Inputs in(op);
  in.add("features", features, Dtypes::kFloats, "[T, C]");
  in.add("idx", idx, Dtypes::kIndices, "[U, k]");
  add_offsets(in, clouds);
  using Optional = const OptionalTensor&;
  static const auto neighbor_rows =
      typed_op<Tensor(const Tensor&, c10::SymInt, Optional, Optional, Optional, bool)>(
          "torchvox::neighbor_rows");
  return neighbor_rows
      .call(idx, features.sym_size(0), std::nullopt, clouds.batch_offsets,
            clouds.query_batch_offsets, clouds.local_index)
      .unsqueeze(0);
}

// An inverse index in memory of its own.
struct OwnedInverseIndex {
  InverseIndex inverse;
  Tensor memory;
};

// `idx` is contiguous, [clouds, ...].
inline OwnedInverseIndex build_inverse_index(const char* op, const Tensor& idx, int64_t clouds,
                                             int64_t rows) {
  OwnedInverseIndex owned;
  InverseIndex& inverse = owned.inverse;
  inverse.clouds = clouds;
  inverse.rows = rows;
  inverse.slots = clouds > 0 ? idx.numel() / clouds : 0;
  check_gradient_limit(op, inverse.rows, inverse.slots);
  owned.memory = empty_beside({inverse.place(nullptr, idx.is_cuda())}, at::kByte, idx);
  inverse.place(owned.memory.mutable_data_ptr(), idx.is_cuda());
  InverseIndexArgs args;
  args.idx = index_array(idx);
  args.inverse = inverse;
  run(op, idx, args);
  return owned;
}

}  // namespace torchvox
