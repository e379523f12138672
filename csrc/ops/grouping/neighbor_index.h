// SPDX-License-Identifier: Apache-2.0
//
// Neighbor indices as every op over them reads them: checked, made flat, inverted.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

#include "csrc/kernels/grouping/inverse_index/inverse_index.h"
#include "csrc/ops/core/checks.h"
#include "csrc/ops/core/device.h"
#include "csrc/ops/grouping/gradient_limit.h"

namespace torchvox {

// Clouds that lie one after another: cloud b has rows batch_offsets[b] to batch_offsets[b + 1] of
// the points and rows query_batch_offsets[b] to query_batch_offsets[b + 1] of the queries.
struct RaggedClouds {
  const std::optional<at::Tensor>& batch_offsets;
  const std::optional<at::Tensor>& query_batch_offsets;
  bool local_index;
};

inline void check_offsets(const char* op, const RaggedClouds& clouds, const char* other_name,
                          const at::Tensor& other) {
  check_value(clouds.batch_offsets.has_value() == clouds.query_batch_offsets.has_value(), op,
              "batch_offsets and query_batch_offsets must be given together",
              clouds.batch_offsets ? "batch_offsets" : "query_batch_offsets");
  check_value(clouds.batch_offsets || !clouds.local_index, op,
              "local_index must come with batch_offsets and query_batch_offsets", "neither");
  if (!clouds.batch_offsets) return;
  for (const auto& [name, tensor] :
       {std::pair<const char*, const at::Tensor&>("batch_offsets", *clouds.batch_offsets),
        {"query_batch_offsets", *clouds.query_batch_offsets}}) {
    check_integers(op, name, tensor);
    check_device(op, name, tensor, other_name, other);
    check_value(tensor.dim() == 1, op, {name, " must be [B + 1]"}, tensor.sym_sizes());
    check_size(tensor.sym_size(0).sym_ge(1), op, {name, " must be [B + 1]"}, tensor.sym_sizes());
  }
  check_size(clouds.query_batch_offsets->sym_size(0).sym_eq(clouds.batch_offsets->sym_size(0)), op,
             "query_batch_offsets must be [B + 1], as batch_offsets",
             clouds.query_batch_offsets->sym_sizes());
}

// The rows that the slots (entries of idx) name, [idx.shape] int32, -1 for none. `count` has one
// entry a row of idx.
inline at::Tensor flat_neighbor_rows(const char* op, const at::Tensor& idx, int64_t rows,
                                     const std::optional<at::Tensor>& count_in,
                                     const RaggedClouds& clouds) {
  check_value(rows < kIndexLimit, op, "a cloud must have fewer than 2^31 points", rows);
  const at::Tensor row = empty_beside(idx.sym_sizes(), at::kInt, idx);
  const std::optional<at::Tensor> count = contiguous(count_in),
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

// An inverse index in memory of its own.
struct OwnedInverseIndex {
  InverseIndex inverse;
  at::Tensor memory;
};

// `idx` is contiguous, [clouds, ...].
inline OwnedInverseIndex build_inverse_index(const char* op, const at::Tensor& idx, int64_t clouds,
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
