// SPDX-License-Identifier: Apache-2.0
#include "csrc/kernels/cells/serialize.h"

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
    const int taken = sample_bits(batches.maybe_as_int().value_or(1));
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

TORCHVOX_REGISTER_OPS(ops) { ops.add("serialize", serialize, not_differentiable()); }

}  // namespace
}  // namespace torchvox
