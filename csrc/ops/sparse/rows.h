// SPDX-License-Identifier: Apache-2.0
//
// Arguments that the sparse ops share.
#pragma once

#include "csrc/kernels/sparse/conv.h"
#include "csrc/ops/core/op.h"

namespace torchvox {

// The number of rows in use, a tensor of any shape: its first element counts.
inline void add_row_count(Inputs& in, const OptionalTensor& num_valid, const Tensor& beside) {
  if (!num_valid) return;
  const at::ScalarType type = num_valid->scalar_type();
  check_type(type == at::kInt || type == at::kLong, in.op(), "num_valid must be int32 or int64",
             type);
  check_size(num_valid->sym_numel().sym_ge(1), in.op(), "num_valid must have an element",
             num_valid->sym_sizes());
  check_device(in.op(), "num_valid", *num_valid, "the rows", beside);
}

// Without the product, which an int64 may not hold.
inline void check_entries(const char* op, const Rule& rule, const c10::SymInt& rows,
                          int64_t offsets) {
  check_below(rows, (kIndexLimit + offsets - 1) / offsets, op, rule, offsets, " * ", rows);
}

inline IndexArray row_count(const OptionalTensor& num_valid) { return index_array(num_valid); }

inline SparseTable table_of(Memory& memory, const Tensor& entries, const OptionalTensor& num_valid,
                            int64_t sources, const OptionalTensor& sources_valid) {
  SparseTable table;
  table.entries = memory.of<int32_t>(entries);
  table.volume = entries.size(0);
  table.rows = entries.size(1);
  table.num_valid = row_count(num_valid);
  table.sources = std::min(sources, kIndexLimit);  // entries are int32 and name no others
  table.sources_valid = row_count(sources_valid);
  return table;
}

}  // namespace torchvox
