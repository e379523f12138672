// SPDX-License-Identifier: Apache-2.0
//
// Neighbor indices as every op over them reads them: checked, made flat, inverted.
#pragma once

#include "csrc/kernels/grouping/inverse_index/inverse_index.h"
#include "csrc/ops/core/op.h"
#include "csrc/ops/grouping/gradient_limit.h"

namespace torchvox {

// The rows that the slots (entries of idx) name, [idx.shape] int32, -1 for none. `count` has one
// entry per row of idx.
inline Tensor flat_neighbor_rows(const char* op, const Tensor& idx, int64_t rows,
                                 const OptionalTensor& count_in, const CloudLayout& clouds) {
  check_value(rows < kIndexLimit, op, "a cloud must have fewer than 2^31 points", rows);
  const Tensor row = empty_beside(idx.sym_sizes(), at::kInt, idx);
  const OptionalTensor count = contiguous(count_in),
                       batch_offsets = contiguous(clouds.batch_offsets),
                       query_batch_offsets = contiguous(clouds.query_batch_offsets);
  NeighborRowsArgs args;
  args.idx = index_array(idx);
  args.count = index_array(count);
  args.points.packed = args.query.packed = batch_offsets.has_value();
  args.points.clouds = args.query.clouds = batch_offsets ? batch_offsets->size(0) - 1 : 1;
  args.points.offsets = index_array(batch_offsets);
  args.query.offsets = index_array(query_batch_offsets);
  args.local_index = clouds.local_index;
  args.k = idx.size(-1);
  args.points.rows = rows;
  args.query.rows = args.k > 0 ? idx.numel() / args.k : 0;
  args.row = row.mutable_data_ptr<int32_t>();
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
  check_value(features.dim() == 2, op, "features must be [T, C] where batch_offsets are given",
              features.sym_sizes());
  check_type(is_coordinate_type(features.scalar_type()), op,
             "features must be float16, bfloat16, float32 or float64", features.scalar_type());
  check_integers(op, "idx", idx);
  check_value(idx.dim() == 2, op, "idx must be [U, k] where batch_offsets are given",
              idx.sym_sizes());
  check_device(op, "idx", idx, "features", features);
  check_packed(op, clouds, "features", features);
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
