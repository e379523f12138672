// SPDX-License-Identifier: Apache-2.0
//
// Ops as the nodes of another host: attributes and views of memory in, a call of the kernels out.
// Neither torch nor any host is needed. One rule makes a node of an op's schema:
//
//   inputs      the tensors that are given, in the order of the schema; a Tensor[] has one input
//               per member
//   given       word: the names of the optional tensors that are there, joined by commas
//   counts      integers: how many members each Tensor[] has, in the order of the schema
//   attributes  every other argument by its name; None is left out; words of a list are joined by
//               commas
//   outputs     all of them
//
// The exporter has checked an op's arguments. Here is checked again what memory safety needs:
// ranks, sizes, dtypes and known words. A refusal is an exception with one sentence.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "csrc/kernels/core/entry.h"

namespace torchvox::bind {

// By the numbers of ONNX.
enum class Element {
  kUndefined = 0,
  kFloat = 1,
  kUInt8 = 2,
  kInt8 = 3,
  kInt32 = 6,
  kInt64 = 7,
  kBool = 9,
  kHalf = 10,
  kDouble = 11
};

using Shape = std::vector<int64_t>;

// A contiguous tensor of the host.
struct View {
  const void* data = nullptr;  // may be null where there are no elements
  Element element = Element::kUndefined;
  Shape shape;

  int64_t size(size_t axis) const { return shape[axis]; }
};

struct Output {
  Element element;
  Shape shape;
};

// Memory of one call, aligned to 64 bytes; of a GPU where the call runs there. It goes back in the
// order of the stream.
using Memory = std::unique_ptr<void, std::function<void(void*)>>;

// Where and how the host runs a call.
class Host {
 public:
  virtual ~Host() = default;
  virtual Target target() const = 0;
  virtual Memory allocate(int64_t bytes) const = 0;
  virtual const ParallelFor& parallel_for() const = 0;  // CPU
  virtual void* stream() const { return nullptr; }  // CUDA
};

// What a call gives, and the function that writes it to the memory of the outputs.
struct Call {
  std::vector<Output> outputs;
  std::function<void(std::span<void* const> outputs, const Host& host)> run;
};

// What a node has beside its inputs. A missing attribute throws, unless it is asked for by has().
class Attributes {
 public:
  virtual ~Attributes() = default;
  virtual bool has(const char* name) const = 0;
  virtual int64_t integer(const char* name) const = 0;
  virtual double number(const char* name) const = 0;
  virtual std::string word(const char* name) const = 0;
  virtual std::vector<int64_t> integers(const char* name) const = 0;
  virtual std::vector<double> numbers(const char* name) const = 0;

  // A list of words.
  std::vector<std::string> words(const char* name) const;
  bool flag(const char* name) const { return integer(name) != 0; }
};

// The call of a node whose attributes are read; the views are those of its inputs.
using Planner = std::function<Call(std::span<const View> inputs)>;

struct Operator {
  const char* name;
  // A letter per output: F float32, I int32, B int8, U uint8, W the type of the last input of
  // floats.
  const char* outputs;
  size_t rank;  // of the output W
  Planner (*bind)(const Attributes&);
};

// All of them.
std::span<const Operator> operators();

}  // namespace torchvox::bind
