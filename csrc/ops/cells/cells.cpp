// SPDX-License-Identifier: Apache-2.0
#include "csrc/kernels/cells/serialize.h"
#include "csrc/kernels/cells/unique_cells.h"
#include "csrc/kernels/spatial/curves.h"
#include "csrc/ops/core/op.h"
#include "csrc/ops/filter/checks.h"

namespace torchvox {
namespace {

Curve parse_curve(const char* op, const std::string& name) {
  const bool hilbert = name == "hilbert" || name == "hilbert-trans";
  const bool transposed = name == "z-trans" || name == "hilbert-trans";
  check_value(hilbert || transposed || name == "z", op,
              "order must be of z, z-trans, hilbert and hilbert-trans", "'", name, "'");
  return {hilbert, transposed};
}

std::tuple<Tensor, Tensor, Tensor> serialize(const Tensor& cells, c10::List<std::string> names,
                                             int64_t depth, const OptionalTensor& batch_offsets,
                                             const OptionalTensor& num_valid,
                                             const OptionalTensor& batch_index) {
  const char* op = "serialize";
  Inputs in(op);
  in.add("cells", cells, Dtypes::kIndices, "[N, 3]");
  const c10::SymInt n = in["N"];
  check_below(n, kIndexLimit, op, "cells must have N < 2^31 rows", n);
  const auto curves = static_cast<int64_t>(names.size());
  check_value(curves >= 1 && curves <= kMostCurves, op, "order must be of 1 to 4 curves", curves);
  SerializeArgs args;
  args.num_curves = static_cast<int>(curves);
  for (int64_t k = 0; k < curves; ++k) args.curves[k] = parse_curve(op, names.get(k));
  check_value(depth >= 1 && depth <= kMostCellBits, op, "depth must be 1 to 21", depth);
  args.frame.bits = static_cast<int>(depth);
  const c10::SymInt batches = add_batch(in, batch_offsets, num_valid);
  if (batch_index) {
    check_value(!batch_offsets && !num_valid, op,
                "batch_index must be None with batch_offsets or num_valid", "a tensor");
    in.add("batch_index", batch_index, Dtypes::kIndices, "[N]");
  } else {
    const int taken = key_bits(batches.maybe_as_int().value_or(1));
    args.code_bits = 3 * args.frame.bits + taken;
    check_value(args.code_bits <= kMostKeyBits, op,
                "3 * depth must leave room for the samples in 63 bits", depth, " for ", batches,
                " samples");
  }
  Tensor codes = output(args.codes, {curves, n}, cells);
  Tensor order = output(args.order, {curves, n}, cells);
  Tensor inverse = output(args.inverse, {curves, n}, cells);
  if (cells.is_meta()) return {codes, order, inverse};
  const Clouds packed(cells, batch_offsets, num_valid);
  Memory memory;
  args.cells = packed.view;
  args.wide = cells.scalar_type() == at::kLong;
  args.batch_index = memory.indices(batch_index);
  run(op, cells, args);
  return {codes, order, inverse};
}

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

TORCHVOX_REGISTER_OPS(ops) {
  ops.add("serialize", serialize, not_differentiable());
  ops.add("unique_cells", unique_cells, not_differentiable());
}

}  // namespace
}  // namespace torchvox
