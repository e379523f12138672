// SPDX-License-Identifier: Apache-2.0
#include "csrc/kernels/cells/unique_cells.h"

#include "csrc/kernels/spatial/curves.h"
#include "csrc/ops/core/op.h"

namespace torchvox {
namespace {

using Groups = std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor>;

Groups group(const Tensor& keys, int64_t key_bits, std::string_view order) {
  static const auto op =
      typed_op<Groups(const Tensor&, int64_t, std::string_view, std::string_view)>(
          "torchvox::voxel_group");
  return op.call(keys, key_bits, order, "auto");
}

CellMatrix matrix_of(const Tensor& cells) {
  CellMatrix matrix;
  matrix.data = {cells.const_data_ptr(), cells.scalar_type() == at::kLong};
  matrix.rows = cells.size(0);
  matrix.row_stride = cells.stride(0);
  matrix.column_stride = cells.stride(1);
  matrix.columns = static_cast<int>(cells.size(1));
  return matrix;
}

// Groups rows by their first columns, more and more of them: ranks stand for the columns so far
// where the next has no room beside them, and for a column of more bits than a rank. Ranks among
// the rows of a group keep its order.
Groups group_rows(const Tensor& cells, int bits, std::string_view order) {
  CellKeysArgs args;
  args.cells = matrix_of(cells);
  args.bits = bits;
  const auto group_keys = [&](const Tensor& before, int first, int last, const Tensor& behind) {
    const Tensor keys = output(args.keys, {cells.size(0)}, cells);
    args.first = first;
    args.last = last;
    args.before = before.defined() ? before.const_data_ptr<int32_t>() : nullptr;
    args.behind = behind.defined() ? behind.const_data_ptr<int32_t>() : nullptr;
    run("unique_cells", cells, args);
    const int ranks = before.defined() + behind.defined();
    return group(keys, kRankBits * ranks + bits * (last - first), order);
  };
  Groups groups;
  Tensor before;
  for (int first = 0; first < args.cells.columns;) {
    const int room = kMostKeyBits - (before.defined() ? kRankBits : 0);
    const int last = std::min(args.cells.columns, first + room / bits);
    if (last > first) {
      groups = group_keys(before, first, last, {});
      first = last;
    } else {
      const Tensor behind = std::get<3>(group_keys({}, first, first + 1, {}));
      groups = group_keys(before, first, first, behind);
      ++first;
    }
    before = std::get<3>(groups);
  }
  return groups;
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor> unique_cells(const Tensor& cells,
                                                                        int64_t bits,
                                                                        std::string_view order) {
  const char* op = "unique_cells";
  Inputs in(op);
  in.add("cells", cells, Dtypes::kIndices, "[N, K >= 1]");
  check_size(in["K"].sym_le(4), op, "cells must be [N, K] with K 1 to 4", cells.sym_sizes());
  const c10::SymInt n = in["N"];
  check_below(n, kIndexLimit, op, "cells must have N < 2^31 rows", n);
  check_value(bits == -1 || (bits >= 1 && bits <= kMostKeyBits), op, "bits must be 1 to 63", bits);
  const bool sorted = parse_word(op, "order", order, "first", "sorted");
  CellRowsArgs args;
  Tensor indices = output(args.indices, {n, in["K"]}, cells.scalar_type(), cells);
  Tensor num_points = output(args.num_points, {n}, cells);
  if (cells.is_meta()) {
    const auto ints = [&](const c10::SymInt& size) {
      return empty_beside({size}, at::kInt, cells);
    };
    return {indices, num_points, ints(n), ints(n + 1), ints(n), ints(2)};
  }
  const int64_t most = cells.scalar_type() == at::kInt ? 31 : kMostKeyBits;
  const int width = static_cast<int>(bits == -1 ? most : std::min(bits, most));
  auto [keys, offsets, perm, point_voxel, counts] =
      group_rows(cells, width, sorted ? "key" : "first");
  args.cells = matrix_of(cells);
  args.offsets = offsets.const_data_ptr<int32_t>();
  args.perm = perm.const_data_ptr<int32_t>();
  run(op, cells, args);
  return {indices, num_points, point_voxel, offsets, perm, counts};
}

TORCHVOX_REGISTER_OPS(ops) { ops.add("unique_cells", unique_cells, not_differentiable()); }

}  // namespace
}  // namespace torchvox
