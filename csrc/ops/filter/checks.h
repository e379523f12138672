// SPDX-License-Identifier: Apache-2.0
//
// Arguments that the filter ops share, checked and turned into what kernels take.
#pragma once

#include "csrc/kernels/filter/exact_sum.h"
#include "csrc/kernels/filter/voxel_group.h"
#include "csrc/kernels/filter/voxel_key.h"
#include "csrc/kernels/spatial/radix_sort.h"
#include "csrc/ops/core/op.h"

namespace torchvox {

inline void add_keys(Inputs& in, const Tensor& keys) {
  in.add("keys", keys, Dtypes::kInt64, "[N]");
  check_below(in["N"], kIndexLimit - 1, in.op(), "keys must have N < 2^31 - 1 elements", in["N"]);
}

inline KeyFrame parse_key_frame(const char* op, std::optional<at::IntArrayRef> lower, int64_t bits,
                                std::string_view layout) {
  constexpr int64_t kReach = int64_t{1} << 53;
  check_value(bits >= 1 && bits <= kMostCellBits, op, "bits must be 1 to 21", bits);
  KeyFrame frame;
  frame.bits = static_cast<int>(bits);
  frame.layout =
      parse_word(op, "layout", layout, "morton", "zyx") ? KeyLayout::kZyx : KeyLayout::kMorton;
  check_value(!lower || lower->size() == 3, op, "lower must be (x, y, z)",
              lower.value_or(at::IntArrayRef()));
  for (int axis = 0; axis < 3; ++axis) {
    frame.lower[axis] = lower ? (*lower)[axis] : -(int64_t{1} << (bits - 1));
    check_value(frame.lower[axis] >= -kReach && frame.lower[axis] <= kReach, op,
                "lower must be in [-2^53, 2^53]", frame.lower[axis], " on axis ", "xyz"[axis]);
  }
  return frame;
}

// Cells are written as int32.
inline void check_int32_cells(const char* op, const KeyFrame& frame) {
  for (int axis = 0; axis < 3; ++axis) {
    const int64_t first = frame.lower[axis], end = first + (int64_t{1} << frame.bits);
    check_value(first >= -kIndexLimit && end <= kIndexLimit, op,
                "lower and bits must name cells in [-2^31, 2^31), which int32 holds", first, " to ",
                end - 1, " on axis ", "xyz"[axis]);
  }
}

// What voxel_keys is asked for, less its points and outputs.
struct KeyRequest {
  VoxelKeysArgs args;
  c10::SymInt batches;
};
inline KeyRequest parse_key_request(const char* op, const Tensor& points,
                                    c10::ArrayRef<double> voxel_size,
                                    const std::optional<c10::ArrayRef<double>>& origin,
                                    std::optional<at::IntArrayRef> lower, int64_t bits,
                                    std::string_view layout, const OptionalTensor& batch_offsets,
                                    const OptionalTensor& num_valid) {
  Inputs in(op);
  in.add("points", points, Dtypes::kFloatsOrInt32, "[N, C >= 3]");
  check_below(in["N"], kIndexLimit - 1, op, "points must have N < 2^31 - 1 rows", in["N"]);
  check_value(voxel_size.size() == 3, op, "voxel_size must be (x, y, z)", voxel_size);
  check_value(!origin || origin->size() == 3, op, "origin must be (x, y, z)",
              origin.value_or(voxel_size));
  KeyRequest request;
  // As the arithmetic has them: in fp64 for float64 and int32 points, else in fp32.
  const bool wide = points.scalar_type() == at::kDouble || points.scalar_type() == at::kInt;
  const auto rounded = [wide](double x) { return wide ? x : static_cast<float>(x); };
  for (int axis = 0; axis < 3; ++axis) {
    const double size = rounded(voxel_size[axis]);
    const double zero = origin ? rounded((*origin)[axis]) : 0;
    check_value(std::isfinite(size) && size > 0, op, "voxel_size must be finite and above 0",
                voxel_size);
    check_value(std::isfinite(zero), op, "origin must be finite", zero, " on axis ", "xyz"[axis]);
    request.args.size[axis] = size;
    request.args.origin[axis] = zero;
  }
  request.batches = add_batch(in, batch_offsets, num_valid);
  const int taken = key_bits(request.batches.maybe_as_int().value_or(1));
  const int room = (kMostKeyBits - taken) / 3;
  request.args.frame = parse_key_frame(op, lower, bits == -1 ? room : bits, layout);
  check_value(request.args.frame.bits <= room, op,
              "3 * bits must leave room for the samples in 63 bits", bits, " for ", request.batches,
              " samples");
  request.args.integers = points.scalar_type() == at::kInt;
  return request;
}

// The words of voxel_group.
inline void parse_group(const char* op, std::string_view order, std::string_view backend,
                        VoxelGroupArgs& args) {
  args.by_key = parse_word(op, "order", order, "first", "key");
  args.backend = parse_choice<GroupBackend>(op, "backend", backend,
                                            {{"auto", GroupBackend::kAuto},
                                             {"sort", GroupBackend::kSort},
                                             {"hash", GroupBackend::kHash}});
}

inline ValueType value_type_of(at::ScalarType type) {
  switch (type) {
    case at::kHalf: return ValueType::kHalf;
    case at::kBFloat16: return ValueType::kBFloat16;
    case at::kDouble: return ValueType::kDouble;
    case at::kInt: return ValueType::kInt;
    case at::kLong: return ValueType::kLong;
    default: return ValueType::kFloat;
  }
}

// Words a column.
inline int64_t sum_words(at::ScalarType type) {
  return with_value_type(value_type_of(type),
                         [](auto value) -> int64_t { return kSumWords<decltype(value)>; });
}

}  // namespace torchvox
