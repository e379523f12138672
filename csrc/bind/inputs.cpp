// SPDX-License-Identifier: Apache-2.0
#include "csrc/bind/inputs.h"

#include <cstdlib>

namespace torchvox::bind {

void Inputs::check_layout(const char* name, const View& view, std::string_view layout) {
  const std::string_view axes = layout.substr(1, layout.size() - 2);
  const auto known = sizes_;
  bool ok = true;
  size_t rank = 0;
  for (size_t at = 0; at < axes.size(); ++rank) {
    const size_t end = std::min(axes.find(", ", at), axes.size());
    ok = ok && rank < view.shape.size() && fits(axes.substr(at, end - at), view.size(rank));
    at = end + 2;
  }
  if (ok && rank == view.shape.size()) return;
  std::string rule = std::string(name) + " must be " + std::string(layout);
  for (const char letter : layout) {
    const int64_t size = known[static_cast<size_t>(letter)];
    if (size >= 0) rule += std::string(", ") + letter + " = " + std::to_string(size);
  }
  check(false, op(), rule, view.shape);
}

bool Inputs::fits(std::string_view axis, int64_t size) {
  if (size < 0 || size >= kIndexLimit) return false;
  if (axis == "*") return true;
  const size_t digits = axis.find_first_of("0123456789");
  const int64_t number =
      digits < axis.size() ? std::atoll(std::string(axis.substr(digits)).c_str()) : 0;
  if (digits == 0) return size == number;
  const bool or_more = axis.find('>') < axis.size();
  const int64_t value = or_more ? size : size - number;
  int64_t& known = sizes_[static_cast<size_t>(axis[0])];
  if (known < 0) known = value;
  return value >= (or_more ? number : 0) && known == value;
}

const void* Inputs::floats(const char* name, const char* layout, DType* dtype, bool wide) {
  const View* const view = checked(name, layout);
  if (view == nullptr) return nullptr;
  if (wide && view->element == Element::kDouble) {
    *dtype = DType::kDouble;
  } else {
    *dtype = float_type(op(), name, *view);
  }
  return memory_of(*view);
}

const void* Inputs::floats_of(const char* name, const char* layout, DType dtype) {
  DType own = dtype;
  const void* const data = floats(name, layout, &own);
  check(own == dtype, op(), std::string(name) + " must have the type of the tensors before",
        "another");
  return data;
}

CloudBatch Inputs::cloud(const char* name, const char* layout) {
  CloudBatch cloud;
  cloud.data = floats(name, layout, &cloud.dtype);
  const Shape& shape = find(name)->shape;
  cloud.rows = shape[shape.size() - 2];
  cloud.columns = cloud.row_stride = shape.back();
  return cloud;
}

CloudBatch Inputs::padded(const char* name, const char* layout, const char* lengths) {
  CloudBatch batch = cloud(name, layout);
  batch.clouds = find(name)->size(0);
  batch.cloud_stride = batch.rows * batch.columns;
  if (lengths != nullptr) batch.lengths = indices(lengths, "[B]");
  check(batch.clouds == 0 || batch.rows < kIndexLimit / batch.clouds, op(),
        std::string(name) + " must have fewer than 2^31 rows", find(name)->shape);
  return batch;
}

CloudBatch Inputs::packed(const char* name, const char* layout, const char* offsets,
                          const char* lengths) {
  CloudBatch batch = cloud(name, layout);
  batch.packed = true;
  const View* const bounds = offsets != nullptr ? find(offsets) : nullptr;
  if (bounds == nullptr) {
    set('B', 1);
  } else {
    batch.offsets = indices(offsets, "[B + 1]");
  }
  batch.clouds = (*this)['B'];
  const View* const valid = lengths != nullptr ? find(lengths) : nullptr;
  if (valid != nullptr) {
    batch.lengths = indices(lengths, valid->shape.empty() && batch.clouds == 1 ? "[]" : "[B]");
  }
  return batch;
}

}  // namespace torchvox::bind
