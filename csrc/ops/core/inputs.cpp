// SPDX-License-Identifier: Apache-2.0
#include "csrc/ops/core/inputs.h"

#include <algorithm>
#include <cctype>
#include <string>

#include "csrc/ops/core/checks.h"

namespace torchvox {
namespace {

struct DtypeRule {
  c10::SmallVector<at::ScalarType, 4> allowed;
  const char* words;
};

const DtypeRule& rule_of(Dtypes dtypes) {
  static const DtypeRule rules[] = {
      {{at::kHalf, at::kBFloat16, at::kFloat, at::kDouble},
       " must be float16, bfloat16, float32 or float64"},
      {{at::kFloat, at::kDouble}, " must be float32 or float64"},
      {{at::kFloat}, " must be float32"},
      {{at::kDouble}, " must be float64"},
      {{at::kInt, at::kLong}, " must be int32 or int64"},
      {{at::kInt}, " must be int32"},
      {{at::kLong}, " must be int64"},
      {{at::kBool}, " must be bool"},
  };
  return rules[static_cast<size_t>(dtypes)];
}

}  // namespace

const Inputs::Size* Inputs::find(std::string_view letter) const {
  for (const Size& size : sizes_) {
    if (size.letter == letter) return &size;
  }
  return nullptr;
}

// Takes "B + 1, " from the front of the layout.
Inputs::Axis Inputs::next_axis(std::string_view& layout) {
  const std::string_view text = layout.substr(0, layout.find(','));
  layout.remove_prefix(std::min(layout.size(), text.size() + 2));
  Axis axis;
  size_t end = 0;
  while (end < text.size() && (std::isalpha(text[end]) || text[end] == '_')) ++end;
  axis.letter = text.substr(0, end);
  for (const char c : text.substr(end)) {
    if (std::isdigit(c)) axis.number = axis.number * 10 + (c - '0');
  }
  axis.or_more = axis.letter.empty() && text.back() == '+';
  return axis;
}

void Inputs::add(const char* name, const Tensor& tensor, Dtypes dtypes, const char* layout) {
  check_given(op_, name, tensor);
  const DtypeRule& rule = rule_of(dtypes);
  const auto type = tensor.scalar_type();
  check_type(std::find(rule.allowed.begin(), rule.allowed.end(), type) != rule.allowed.end(), op_,
             {name, rule.words}, type);
  if (first_.defined()) {
    check_device(op_, name, tensor, first_name_, first_);
  } else {
    first_ = tensor;
    first_name_ = name;
  }
  check_shape(name, tensor, layout);
}

void Inputs::check_shape(const char* name, const Tensor& tensor, std::string_view layout) {
  std::string_view left = layout.substr(1, layout.size() - 2);
  const size_t known = sizes_.size();
  int64_t rank = 0;
  for (; !left.empty(); ++rank) {
    const Axis axis = next_axis(left);
    if (rank >= tensor.dim()) continue;
    const c10::SymInt size = tensor.sym_size(rank);
    const Size* decided = axis.letter.empty() ? nullptr : find(axis.letter);
    if (!axis.letter.empty() && !decided) {
      if (axis.number > 0 && !size.sym_ge(axis.number).expect_true(__FILE__, __LINE__)) {
        refuse_shape(name, tensor, layout, known);
      }
      sizes_.push_back({axis.letter, size - axis.number, name});
      continue;
    }
    const c10::SymInt wanted = decided ? decided->value + axis.number : c10::SymInt(axis.number);
    const auto agrees = axis.or_more ? size.sym_ge(wanted) : size.sym_eq(wanted);
    if (!agrees.expect_true(__FILE__, __LINE__)) refuse_shape(name, tensor, layout, known);
  }
  if (rank != tensor.dim()) refuse_shape(name, tensor, layout, known);
}

// `known`: the sizes that other tensors decided come first.
void Inputs::refuse_shape(const char* name, const Tensor& tensor, std::string_view layout,
                          size_t known) const {
  std::string shape, more, owners;
  std::string_view left = layout.substr(1, layout.size() - 2);
  while (!left.empty()) {
    const Axis axis = next_axis(left);
    shape += shape.empty() ? "[" : ", ";
    shape += axis.letter;
    if (!axis.letter.empty() && axis.number > 0) shape += " + ";
    if (axis.letter.empty() || axis.number > 0) shape += std::to_string(axis.number);
    if (axis.or_more) more = ", with " + std::to_string(axis.number) + " columns or more";
    const Size* decided = axis.letter.empty() ? nullptr : find(axis.letter);
    if (!decided || decided >= sizes_.begin() + known || !*decided->owner) continue;
    const std::string owner = std::string(" of ") + decided->owner;
    const bool same = owners.size() >= owner.size() &&
        owners.compare(owners.size() - owner.size(), owner.size(), owner) == 0;
    if (same) {
      owners.resize(owners.size() - owner.size());
    }
    owners += (owners.empty() ? " with the "
                   : same     ? " and "
                              : " and the ") +
        std::string(axis.letter) + owner;
  }
  check_value(false, op_, std::string(name) + " must be " + shape + "]" + owners + more,
              tensor.sym_sizes());
  __builtin_unreachable();
}

}  // namespace torchvox
