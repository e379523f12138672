// SPDX-License-Identifier: Apache-2.0
//
// segment_reduce: rows, or those that an index names, reduced over CSR segments. Its gradient
// spreads rows over entries; with an index, entries are then added up by row as those of a gather.
#include <ATen/ops/arange.h>
#include <ATen/ops/ones.h>

#include "csrc/ops/core/op.h"
#include "csrc/ops/grouping/reduction.h"

namespace torchvox {
namespace {

// `rows` is src, or the gradient.
void add_segments(const char* op, Inputs& in, const char* name, const Tensor& rows,
                  const char* layout, const Tensor& offsets, const OptionalTensor& index) {
  in.add(name, rows, Dtypes::kFloats, layout);
  in.add("offsets", offsets, Dtypes::kIndices, "[R + 1]");
  in.add("index", index, Dtypes::kIndices, "[E]");
  check_below(in["R"], kMostEntries, op, "offsets must have fewer than 2^31 elements",
              offsets.sym_size(0));
  if (!index) return;
  check_below(in["E"], kMostEntries, op, "index must have E < 2^31 - 1 elements", in["E"]);
}

std::tuple<Tensor, Tensor> segment_reduce(const Tensor& src, const Tensor& offsets,
                                          std::string_view reduce_name,
                                          const OptionalTensor& index) {
  const char* op = "segment_reduce";
  const Reduction reduce = parse_reduction(op, reduce_name);
  Inputs in(op);
  add_segments(op, in, "src", src, "[N, C]", offsets, index);
  check_below(in["N"], kMostEntries, op, "src must have N < 2^31 - 1 rows", in["N"]);
  SegmentReduceArgs args;
  Tensor out = output(args.out, {in["R"], in["C"]}, src.scalar_type(), src);
  Tensor arg = output_arg(args, reduce, {in["R"], in["C"]}, src);
  if (src.is_meta()) return {out, arg};

  Memory memory;
  args.src = memory.of(src);
  args.dtype = dtype_of(src.scalar_type());
  args.reduce = reduce;
  args.rows = src.size(0);
  args.channels = src.size(1);
  args.segments = out.size(0);
  args.entries = index && args.rows > 0 ? index->size(0) : args.rows;
  args.offsets = memory.indices(offsets);
  args.index = memory.indices(index);
  run(op, src, args);
  return {out, arg};
}

const auto& sum_of_slots_op() {
  static const auto op = typed_op<Tensor(const Tensor&, const Tensor&, c10::SymInt, bool)>(
      "torchvox::_gather_points_backward");
  return op;
}
// Row n of the result adds the rows of grad whose index is n, in order.
Tensor add_by_index(const Tensor& grad, const Tensor& index, const c10::SymInt& rows) {
  return sum_of_slots_op().call(grad.unsqueeze(0), index.unsqueeze(0), rows, false).squeeze(0);
}

Tensor segment_reduce_backward(const Tensor& grad_in, const Tensor& offsets_in,
                               const Tensor& arg_in, c10::SymInt num_rows,
                               std::string_view reduce_name, const OptionalTensor& index_in) {
  const char* op = "_segment_reduce_backward";
  const Reduction reduce = parse_reduction(op, reduce_name);
  Inputs in(op);
  add_segments(op, in, "grad", grad_in, "[R, C]", offsets_in, index_in);
  in.add("arg", arg_in, Dtypes::kInt32, is_extreme(reduce) ? "[R, C]" : "[0]");
  check_size(num_rows.sym_ge(0), op, "num_rows must not be negative", num_rows);
  check_below(num_rows, kMostEntries, op, "num_rows must be below 2^31 - 1", num_rows);
  const c10::SymInt channels = grad_in.sym_size(1);
  const auto empty_rows = [&](const c10::SymInt& rows) {
    return at::empty_symint({rows, channels}, grad_in.options());
  };
  if (grad_in.is_meta()) return empty_rows(num_rows);

  const Tensor grad = grad_in.contiguous(), offsets = offsets_in.contiguous();
  const Tensor arg = arg_in.contiguous();
  const OptionalTensor index = index_in ? OptionalTensor(index_in->contiguous()) : std::nullopt;
  if (index && is_extreme(reduce)) {  // several segments may have taken one element
    const Tensor element =
        arg.to(at::kLong).mul_(channels).add_(at::arange(channels, arg.options().dtype(at::kLong)));
    return add_by_index(grad.reshape({-1, 1}), element.reshape(-1), num_rows * channels)
        .reshape_symint({num_rows, channels});
  }
  Tensor count;  // entries that name a row
  if (index && reduce == Reduction::kMean) {
    const Tensor ones = at::ones_symint({num_rows, 1}, grad.options().dtype(at::kDouble));
    count = std::get<0>(segment_reduce(ones, offsets, "sum", index));
  }
  const Tensor out = empty_rows(index ? index->sym_size(0) : num_rows);
  SegmentSpreadArgs args;
  args.grad = grad.const_data_ptr();
  args.dtype = dtype_of(grad.scalar_type());
  args.reduce = reduce;
  args.channels = grad.size(1);
  args.segments = grad.size(0);
  args.entries = out.size(0);
  args.offsets = index_array(offsets);
  args.count = count.defined() ? count.const_data_ptr<double>() : nullptr;
  args.arg = is_extreme(reduce) ? arg.const_data_ptr<int32_t>() : nullptr;
  args.out = out.mutable_data_ptr();
  run(op, grad, args);
  return index ? add_by_index(out, *index, num_rows) : out;
}

void check_segment_gradient(const Call& call) {
  const Tensor src = call.tensor("src"), offsets = call.tensor("offsets");
  const bool extreme = is_extreme(parse_reduction(call.op(), call["reduce"].toStringView()));
  if (!call.optional("index") || src.dim() != 2 || !extreme) return;
  for (const auto& rows : {src.sym_size(0), offsets.sym_numel() - 1}) {
    check_below(rows * src.sym_size(1), kIndexLimit, call.op(),
                "the gradient of max and min with index takes N * C and R * C below 2^31", rows,
                " * ", src.sym_size(1));
  }
}

TORCHVOX_REGISTER_OPS(ops) {
  ops.add("segment_reduce", segment_reduce);
  ops.differentiable("segment_reduce",
                     {.backward = "_segment_reduce_backward",
                      .derived = {{"num_rows", size_of_argument("src", 0)}},
                      .prepare = check_segment_gradient});
  ops.add("_segment_reduce_backward", segment_reduce_backward, no_second_derivative());
}

}  // namespace
}  // namespace torchvox
