// SPDX-License-Identifier: Apache-2.0
#include "csrc/kernels/boxes/box_query.h"

#include "csrc/ops/boxes/inside.h"
#include "csrc/ops/core/op.h"

namespace torchvox {
namespace {

std::tuple<Tensor, Tensor> box_query(const Tensor& points, const Tensor& boxes, c10::SymInt k,
                                     std::optional<at::IntArrayRef> grid, double margin,
                                     const OptionalTensor& lengths,
                                     const OptionalTensor& box_lengths) {
  const char* op = "box_query";
  check_inside(op, points, boxes, margin, lengths, box_lengths);
  check_count(op, "k", k);
  BoxQueryArgs args;
  c10::SymDimVector shape{points.sym_size(0), boxes.sym_size(1)};
  if (grid) {
    const Rule rule = "grid must be (nx, ny, nz), each 1 or more, with fewer than 2^31 cells";
    check_value(grid->size() == 3, op, rule, *grid);
    for (int axis = 0; axis < 3; ++axis) {
      const int64_t size = (*grid)[axis];
      check_value(size >= 1 && size < kIndexLimit && args.cells() * size < kIndexLimit, op, rule,
                  *grid);
      args.grid[axis] = size;
    }
    shape.push_back(args.cells());
  }
  const Tensor count = empty_beside(shape, at::kInt, points);
  shape.push_back(std::move(k));
  const Tensor index = empty_beside(shape, at::kInt, points);
  if (points.is_meta()) return {index, count};

  const InsideArgs inside(points, boxes, margin, lengths, box_lengths);
  args.inside = inside.args;
  args.slots = index.size(-1);
  args.index = index.mutable_data_ptr<int32_t>();
  args.count = count.mutable_data_ptr<int32_t>();
  run(op, inside.points, args);
  return {index, count};
}

TORCHVOX_REGISTER_OPS(ops) {
  ops.add("box_query", box_query);
  ops.autocast("box_query", {{{"points", "boxes"}}, {"points", "boxes"}});
  ops.autograd("box_query", not_differentiable());
}

}  // namespace
}  // namespace torchvox
