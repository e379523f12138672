// SPDX-License-Identifier: Apache-2.0
//
// Which inputs of a node are which argument of its op, checks, and the run of a kernel.
#pragma once

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <limits>
#include <sstream>
#include <utility>

#include "csrc/bind/bind.h"
#include "csrc/kernels/spatial/distance.h"
#include "csrc/kernels/spatial/voxel_grid.h"

namespace torchvox::bind {

inline std::ostream& operator<<(std::ostream& out, const Shape& shape) {
  out << '[';
  for (size_t k = 0; k < shape.size(); ++k) out << (k > 0 ? ", " : "") << shape[k];
  return out << ']';
}

// "VoxelMap: points must be [N, C] with C >= 3, got [5, 2]"
template <class Got>
void check(bool ok, const char* op, const std::string& rule, const Got& got) {
  if (ok) return;
  std::ostringstream message;
  message << op << ": " << rule << ", got " << got;
  throw std::invalid_argument(message.str());
}

template <class Value>
Value choice(const char* op, const Attributes& attributes, const char* name,
             std::initializer_list<std::pair<const char*, Value>> choices) {
  const std::string word = attributes.word(name);
  for (const auto& [key, value] : choices) {
    if (word == key) return value;
  }
  check(false, op, std::string(name) + " must be a word of this version", "'" + word + "'");
  return choices.begin()->second;
}

// The tensors of a node: names in the order of the schema, "?" behind an optional one, "[]" behind
// a list.
class Tensors {
 public:
  Tensors(const char* op, const Attributes& attributes, std::initializer_list<const char*> names);

  // Checks how many inputs there are.
  void check_count(std::span<const View> inputs) const;
  std::span<const View> list(std::span<const View> inputs, std::string_view name) const;
  // Null where it is not given.
  const View* find(std::span<const View> inputs, std::string_view name) const {
    const auto views = list(inputs, name);
    return views.empty() ? nullptr : &views[0];
  }
  const char* op() const { return op_; }

 private:
  struct Range {
    std::string name;
    size_t begin, size;
  };
  const char* op_;
  size_t count_ = 0;
  std::vector<Range> ranges_;
};

inline constexpr int64_t kIndexLimit = int64_t{1} << 31;

inline void check_element(const char* op, const std::string& name, const View& view,
                          std::initializer_list<Element> elements, const char* words) {
  const bool ok = std::find(elements.begin(), elements.end(), view.element) != elements.end();
  check(ok, op, name + " must be " + words, "element type " + std::to_string(int(view.element)));
}

// A count or a cap; -1: no limit.
inline int64_t limit(const char* op, const Attributes& attributes, const char* name,
                     int64_t least = -1) {
  const int64_t value = attributes.integer(name);
  check(value >= least && value < kIndexLimit, op,
        std::string(name) + " must be in [" + std::to_string(least) + ", 2^31)", value);
  return value;
}

inline DType float_type(const char* op, const std::string& name, const View& view) {
  check_element(op, name, view, {Element::kFloat, Element::kHalf}, "float32 or float16");
  return view.element == Element::kHalf ? DType::kHalf : DType::kFloat;
}
// Never null, which to the kernels says that an argument is not given.
inline const void* memory_of(const View& view) {
  alignas(64) static constexpr int64_t kNone = 0;
  return view.data != nullptr ? view.data : &kNone;
}
inline IndexArray index_array(const char* op, const char* name, const View* view) {
  if (view == nullptr) return {};
  check_element(op, name, *view, {Element::kInt32, Element::kInt64}, "int32 or int64");
  return {memory_of(*view), view->element == Element::kInt64};
}

// The grid of the attributes voxel_size and point_cloud_range.
VoxelGrid voxel_grid(const char* op, const Attributes& attributes);
// Keys of all samples must fit 62 bits.
inline void check_keys(const char* op, const VoxelGrid& grid, int64_t batches) {
  const double keys = static_cast<double>(grid.cells[0]) * grid.cells[1] * grid.cells[2] *
      static_cast<double>(batches);
  check(keys < 0x1p62, op, "B * nx * ny * nz must be below 2^62", keys);
}

inline Output int32(Shape shape) { return {Element::kInt32, std::move(shape)}; }

// The words of dist_order.
inline DistOrder dist_order(const char* op, const Attributes& attributes) {
  return choice<DistOrder>(op, attributes, "dist_order",
                           {{"pn2", DistOrder::kPn2}, {"loop", DistOrder::kLoop}});
}

// Where the host gave the output W the type of the last input of floats, so does the call.
void check_type_of_output(const char* op, std::span<const View> inputs, const Call& call);

// The kernels behind `args`, which have their outputs.
template <class Args>
void run(const Args& args, const Host& host) {
  const Target target = host.target();
  const Memory workspace = host.allocate(workspace_bytes(args, target));
#ifdef TORCHVOX_CUDA
  if (target.cuda) {
    const auto stream = static_cast<cudaStream_t>(host.stream());
    const cudaError_t status = launch(args, workspace.get(), {stream, target});
    if (status == cudaSuccess) return;
    cudaGetLastError();  // somebody else's check must not report it again
    throw std::runtime_error(std::string("the CUDA launch failed: ") + cudaGetErrorString(status));
  }
#endif
  run_cpu(args, workspace.get(), host.parallel_for());
}

// The call of those kernels, which get the memory of the outputs in these members.
template <class Args, class... Members>
Call call(const Args& args, std::vector<Output> outputs, Members... members) {
  return {std::move(outputs), [=](std::span<void* const> memory, const Host& host) {
            Args own = args;
            size_t k = 0;
            ((own.*members = static_cast<std::decay_t<decltype(own.*members)>>(memory[k++])), ...);
            if constexpr (requires { own.threads; }) own.threads = host.target().threads;
            run(own, host);
          }};
}

}  // namespace torchvox::bind
