// SPDX-License-Identifier: Apache-2.0
#include "csrc/ops/core/inputs.h"

#include <algorithm>
#include <cstdint>
#include <string>

#include "csrc/ops/core/checks.h"

namespace torchvox {
namespace {

constexpr uint64_t bit(at::ScalarType type) { return uint64_t{1} << static_cast<int>(type); }

struct DtypeRule {
  uint64_t bits;
  const char* words;
};

constexpr uint64_t kFloatBits =
    bit(at::kHalf) | bit(at::kBFloat16) | bit(at::kFloat) | bit(at::kDouble);
constexpr DtypeRule kDtypeRules[] = {
    {kFloatBits, " must be float16, bfloat16, float32 or float64"},
    {bit(at::kFloat) | bit(at::kDouble), " must be float32 or float64"},
    {bit(at::kHalf) | bit(at::kBFloat16) | bit(at::kFloat),
     " must be float16, bfloat16 or float32"},
    {kFloatBits | bit(at::kInt) | bit(at::kLong),
     " must be float16, bfloat16, float32, float64, int32 or int64"},
    {kFloatBits | bit(at::kInt), " must be float16, bfloat16, float32, float64 or int32"},
    {bit(at::kFloat), " must be float32"},
    {bit(at::kDouble), " must be float64"},
    {bit(at::kInt) | bit(at::kLong), " must be int32 or int64"},
    {bit(at::kInt), " must be int32"},
    {bit(at::kLong), " must be int64"},
    {bit(at::kBool), " must be bool"},
    {bit(at::kByte), " must be uint8"},
    {bit(at::kByte) | bit(at::kBool), " must be uint8 or bool"},
};

}  // namespace

const Inputs::Size* Inputs::find(std::string_view letter) const {
  for (const Size& size : sizes_) {
    if (size.letter[0] == letter[0] && size.letter == letter) return &size;
  }
  return nullptr;
}

// Takes "B + 1, " from the front of the layout.
Inputs::Axis Inputs::next_axis(std::string_view& layout) {
  Axis axis;
  size_t end = 0;
  if (layout.size() == 1 || layout[1] == ',') {  // one letter or digit, as most are
    if (layout[0] < 'A' && layout[0] != '*') {
      axis.number = layout[0] - '0';
    } else {
      axis.letter = layout.substr(0, 1);
    }
    layout.remove_prefix(std::min<size_t>(layout.size(), 3));
    return axis;
  }
  while (end < layout.size() && (layout[end] >= 'A' || layout[end] == '*')) ++end;
  axis.letter = layout.substr(0, end);
  for (; end < layout.size() && layout[end] != ','; ++end) {
    const char c = layout[end];
    if (c >= '0' && c <= '9') axis.number = axis.number * 10 + (c - '0');
    axis.or_more = axis.or_more || c == '>';
  }
  axis.or_more = axis.or_more || (end > 0 && layout[end - 1] == '+');
  layout.remove_prefix(std::min(layout.size(), end + 2));
  return axis;
}

void Inputs::add(const char* name, const Tensor& tensor, Dtypes dtypes, const char* layout) {
  check_given(op_, name, tensor);
  const DtypeRule& rule = kDtypeRules[static_cast<size_t>(dtypes)];
  check_type(rule.bits & bit(tensor.scalar_type()), op_, {name, rule.words}, tensor.scalar_type());
  if (first_) {
    check_device(op_, name, tensor, first_name_, *first_);
  } else {
    first_ = &tensor;
    first_name_ = name;
  }
  check_shape(name, tensor, layout);
}

// Whether `size` fits the axis, whose letter another tensor may have decided.
inline bool Inputs::agrees(const Axis& axis, const Size* decided, const c10::SymInt& size) const {
  const bool least = axis.or_more || (!decided && !axis.letter.empty());
  if (least && axis.number == 0) return true;
  const auto known = size.maybe_as_int();
  const auto base = decided && !least ? decided->value.maybe_as_int() : std::optional<int64_t>(0);
  if (known && base) return least ? *known >= axis.number : *known == *base + axis.number;
  const c10::SymInt number = axis.number;
  return (least         ? size.sym_ge(number)
              : decided ? size.sym_eq(decided->value + number)
                        : size.sym_eq(number))
      .expect_true(__FILE__, __LINE__);
}

void Inputs::check_shape(const char* name, const Tensor& tensor, std::string_view layout) {
  if (const size_t first = layout.find(']') + 1; first < layout.size()) {
    const std::string_view second = layout.substr(first + 4);
    const auto rank = 1 + std::count(second.begin(), second.end(), ',');
    check_value(tensor.dim() == rank || tensor.dim() == rank - 1, op_,
                {name, " must be ", layout.data()}, tensor.sym_sizes());
    layout = tensor.dim() == rank ? second : layout.substr(0, first);
  }
  std::string_view left = layout.substr(1, layout.size() - 2);
  const size_t earlier = sizes_.size();
  const c10::SymIntArrayRef sizes = tensor.sym_sizes();
  size_t rank = 0;
  for (; !left.empty(); ++rank) {
    const Axis axis = next_axis(left);
    if (rank >= sizes.size() || axis.letter == "*") continue;
    const c10::SymInt& size = sizes[rank];
    const Size* const decided = axis.letter.empty() ? nullptr : find(axis.letter);
    if (!agrees(axis, decided, size)) refuse_shape(name, tensor, layout, earlier);
    if (decided || axis.letter.empty()) continue;
    sizes_.push_back(
        {axis.letter, axis.or_more || axis.number == 0 ? size : size - axis.number, name});
  }
  if (rank != sizes.size()) refuse_shape(name, tensor, layout, earlier);
}

// As in "scores must be [B, N] with the B and N of boxes". Other tensors decided the first
// `earlier` sizes.
void Inputs::refuse_shape(const char* name, const Tensor& tensor, std::string_view layout,
                          size_t earlier) const {
  std::string shape, decided, least;
  const char* owner = "";
  std::string_view left = layout.substr(1, layout.size() - 2);
  while (!left.empty()) {
    const Axis axis = next_axis(left);
    const std::string letter(axis.letter), number = std::to_string(axis.number);
    shape += shape.empty() ? "" : ", ";
    if (letter.empty()) {
      shape += number;
      if (axis.or_more) least = ", with " + number + " columns or more";
      continue;
    }
    shape += letter;
    if (axis.or_more) least = " with " + letter + " >= " + number;
    if (!axis.or_more && axis.number > 0) shape += " + " + number;
    const Size* const size = find(letter);
    if (!size || size >= sizes_.begin() + earlier || !*size->owner) continue;
    if (decided.empty()) {
      decided = " with the ";
    } else {
      decided += size->owner == owner ? " and " : " of " + std::string(owner) + " and the ";
    }
    decided += letter;
    owner = size->owner;
  }
  if (!decided.empty()) decided += " of " + std::string(owner);
  const std::string rule = std::string(name) + " must be [" + shape + "]" + decided + least;
  TORCH_CHECK_VALUE(false, refusal(op_, rule, tensor.sym_sizes()));
}

}  // namespace torchvox
