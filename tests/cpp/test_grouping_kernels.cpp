// SPDX-License-Identifier: Apache-2.0
//
// Grouping kernels without torch. Inverse indices against a few plain lines that follow the
// contract; every kernel on two threads, and with a GPU there, against one thread, bit for bit.
#include <memory>

#include "csrc/kernels/core/plan_override.h"
#include "csrc/kernels/grouping/gather_points.h"
#include "csrc/kernels/grouping/interpolate.h"
#include "csrc/kernels/grouping/inverse_index/inverse_index.h"
#include "csrc/kernels/grouping/neighbor_distance.h"
#include "csrc/kernels/grouping/segment_sum.h"
#include "tests/cpp/check.h"

using namespace torchvox;
using namespace torchvox::testing;

namespace {

using Bytes = std::vector<uint8_t>;

constexpr DType kTypes[] = {DType::kHalf, DType::kBFloat16, DType::kFloat, DType::kDouble};

int64_t size_of(DType dtype) {
  return with_point_type(dtype, [](auto type) { return static_cast<int64_t>(sizeof(type)); });
}

Bytes random_values(DType dtype, int64_t count, Random& random) {
  Bytes bytes(static_cast<size_t>(count * size_of(dtype)));
  with_point_type(dtype, [&](auto type) {
    for (int64_t i = 0; i < count; ++i) {
      const auto value = narrow<decltype(type)>(random.uniform(-1.f, 1.f));
      std::memcpy(bytes.data() + i * static_cast<int64_t>(sizeof(value)), &value, sizeof(value));
    }
  });
  return bytes;
}

enum class Where { kThread, kThreads, kDevice };

// Where an op runs, with the memory that it needs there.
class Side {
 public:
  explicit Side(Where where)
      : threads_(where == Where::kThreads), device_(where == Where::kDevice) {}

  void* put(const Bytes& bytes) {
#ifdef TORCHVOX_CUDA
    if (device_) {
      on_device_.push_back(std::make_unique<DeviceBuffer<uint8_t>>(bytes));
      return on_device_.back()->data();
    }
#endif
    on_host_.push_back(std::make_unique<Bytes>(bytes));
    return on_host_.back()->data();
  }
  int32_t* put(const std::vector<int32_t>& values) {
    Bytes bytes(values.size() * sizeof(int32_t));
    if (!bytes.empty()) std::memcpy(bytes.data(), values.data(), bytes.size());
    return static_cast<int32_t*>(put(bytes));
  }
  bool device() const { return device_; }
  void* room(int64_t bytes) { return put(Bytes(static_cast<size_t>(bytes), kPoison)); }
  template <class Args>
  void run(const Args& args) {
#ifdef TORCHVOX_CUDA
    if (device_) return run_on_device(args);
#endif
    run_on_host(args, threads_ ? ParallelFor(backward_for) : ParallelFor(serial_for));
  }
  Bytes read(const void* data) const {
#ifdef TORCHVOX_CUDA
    for (const auto& buffer : on_device_) {
      if (buffer->data() == data) return buffer->host();
    }
#endif
    for (const auto& buffer : on_host_) {
      if (buffer->data() == data) return *buffer;
    }
    return {};
  }

 private:
  bool threads_;
  bool device_;
  std::vector<std::unique_ptr<Bytes>> on_host_;
#ifdef TORCHVOX_CUDA
  std::vector<std::unique_ptr<DeviceBuffer<uint8_t>>> on_device_;
#endif
};

// What the slots of a case read: every row alike, mostly the first rows, one row, or nothing.
enum class Spread { kEven, kHot, kOne, kNone };

struct Case {
  int64_t clouds, rows, queries, k, channels;
  Spread spread;
  int64_t slots() const { return queries * k; }
  std::string name(const char* what, DType dtype, bool channels_first) const {
    std::string text = what;
    for (const int64_t n : {clouds, rows, queries, k, channels, static_cast<int64_t>(spread),
                            static_cast<int64_t>(dtype), int64_t{channels_first}}) {
      text += " " + std::to_string(n);
    }
    return text;
  }
};

std::vector<int32_t> indices(const Case& c, Random& random) {
  std::vector<int32_t> idx(static_cast<size_t>(c.clouds * c.slots()));
  for (int32_t& i : idx) {
    const int64_t even = random.below(c.rows + 4) - 2;
    switch (c.spread) {
      case Spread::kEven: i = static_cast<int32_t>(even); break;
      case Spread::kHot:
        i = static_cast<int32_t>(random.below(8) ? random.below(c.rows / 50 + 1) : even);
        break;
      case Spread::kOne: i = static_cast<int32_t>(c.rows / 2); break;
      case Spread::kNone: i = -1; break;
    }
  }
  return idx;
}

InverseIndex inverse_on(Side& side, const Case& c, const int32_t* idx) {
  InverseIndexArgs args;
  args.idx = {idx, false};
  args.inverse.clouds = c.clouds, args.inverse.rows = c.rows, args.inverse.slots = c.slots();
  args.inverse.place(side.room(args.inverse.place(nullptr, side.device())), side.device());
  side.run(args);
  return args.inverse;
}

// Each slot is in the list of the row that it names, in ascending order.
void check_inverse(const Case& c, const std::vector<int32_t>& idx, Where where) {
  Side side(where);
  const InverseIndex inverse = inverse_on(side, c, side.put(idx));
  const Bytes memory = side.read(inverse.offsets);
  const auto* offsets = reinterpret_cast<const int32_t*>(memory.data());
  const int32_t* order = offsets + (inverse.order - inverse.offsets);
  bool good = true;
  for (int64_t b = 0; b < c.clouds && good; ++b) {
    std::vector<int32_t> end(offsets + b * (c.rows + 1), offsets + (b + 1) * (c.rows + 1));
    int64_t named = 0;
    for (int64_t s = 0; s < c.slots(); ++s) {
      const int32_t row = idx[static_cast<size_t>(b * c.slots() + s)];
      if (row < 0 || row >= c.rows) continue;
      ++named;
      int32_t& at = end[static_cast<size_t>(row)];
      good = good && at < c.slots() && order[b * c.slots() + at] == s;
      ++at;
    }
    for (int64_t row = 0; row < c.rows; ++row) {
      good = good && end[static_cast<size_t>(row)] == offsets[b * (c.rows + 1) + row + 1];
    }
    good = good && offsets[b * (c.rows + 1)] == 0 && end.back() == named;
  }
  check(good,
        c.name(where == Where::kDevice ? "inverse index, device" : "inverse index", DType::kFloat,
               false));
}

struct Inputs {
  DType dtype;
  bool channels_first;
  std::vector<int32_t> idx;
  Bytes features, grad, weight;
};

Bytes gathered(Side& side, const Case& c, const Inputs& in) {
  GatherPointsArgs args;
  args.features = side.put(in.features);
  args.idx = {side.put(in.idx), false};
  args.out = side.room(static_cast<int64_t>(in.grad.size()));
  args.element_bytes = size_of(in.dtype);
  args.batches = c.clouds, args.points = c.rows, args.samples = c.slots();
  args.channels = c.channels, args.channels_first = in.channels_first;
  side.run(args);
  return side.read(args.out);
}

Bytes summed(Side& side, const Case& c, const Inputs& in) {
  const InverseIndex inverse = inverse_on(side, c, side.put(in.idx));
  SegmentSumArgs args;
  args.grad = side.put(in.grad);
  args.dtype = in.dtype;
  args.inverse = inverse;
  args.out = side.room(static_cast<int64_t>(in.features.size()));
  args.channels = c.channels, args.channels_first = in.channels_first;
  side.run(args);
  return side.read(args.out);
}

// The case's first three slots of each query as an interpolation, its sum and its weights.
std::vector<Bytes> interpolated(Side& side, Case c, const Inputs& in) {
  c.k = kNearest;
  InterpolateArgs args;
  args.features = side.put(in.features);
  args.dtype = in.dtype;
  args.idx = {side.put(in.idx), false};
  args.weight = side.put(in.weight);
  const int64_t out_bytes = c.clouds * c.queries * c.channels * size_of(in.dtype);
  args.out = side.room(out_bytes);
  args.clouds = c.clouds, args.rows = c.rows, args.queries = c.queries;
  args.channels = c.channels, args.channels_first = in.channels_first;
  side.run(args);

  const InverseIndex inverse = inverse_on(side, c, static_cast<const int32_t*>(args.idx.data));
  SegmentSumArgs sum;
  sum.grad = side.put(Bytes(in.grad.begin(), in.grad.begin() + out_bytes));
  sum.dtype = in.dtype;
  Random random(6);
  sum.weight = side.put(random_values(in.dtype == DType::kDouble ? DType::kDouble : DType::kFloat,
                                      c.clouds * c.slots(), random));
  sum.inverse = inverse;
  sum.out = side.room(static_cast<int64_t>(in.features.size()));
  sum.channels = c.channels, sum.channels_first = in.channels_first;
  side.run(sum);

  InterpolateWeightGradArgs weights;
  weights.grad = sum.grad;
  weights.features = args.features;
  weights.dtype = in.dtype;
  weights.idx = args.idx;
  weights.grad_weight = side.room(c.clouds * c.slots() * 4);
  weights.clouds = c.clouds, weights.rows = c.rows, weights.queries = c.queries;
  weights.channels = c.channels, weights.channels_first = in.channels_first;
  side.run(weights);
  return {side.read(args.out), side.read(sum.out), side.read(weights.grad_weight)};
}

std::vector<Bytes> of_distances(Side& side, const Case& c, const Inputs& in, int norm) {
  constexpr int64_t kDims = 3;
  Random random(5);
  NeighborDistanceArgs args;
  args.dtype = in.dtype;
  args.norm = norm;
  args.grad = side.put(random_values(in.dtype == DType::kDouble ? DType::kDouble : DType::kFloat,
                                     c.clouds * c.slots(), random));
  args.points = side.put(random_values(in.dtype, c.clouds * c.rows * kDims, random));
  args.query = side.put(random_values(in.dtype, c.clouds * c.queries * kDims, random));
  args.idx = {side.put(in.idx), false};
  const InverseIndex inverse = inverse_on(side, c, static_cast<const int32_t*>(args.idx.data));
  args.inverse = inverse;
  args.grad_points = side.room(c.clouds * c.rows * kDims * size_of(in.dtype));
  args.grad_query = side.room(c.clouds * c.queries * kDims * size_of(in.dtype));
  args.queries = c.queries, args.k = c.k;
  side.run(args);
  return {side.read(args.grad_points), side.read(args.grad_query)};
}

void check_inputs(const Case& c, const Inputs& in, Where where) {
  Side one(Where::kThread), other(where);
  const auto check_op = [&](const char* what, const auto& op) {
    const auto expected = op(one);
    set_plan_override("interpolate_cpu", 0);
    check(op(other) == expected, c.name(what, in.dtype, in.channels_first));
    set_plan_override("interpolate_cpu", kAutomatic);
  };
  check_op("gather", [&](Side& side) { return gathered(side, c, in); });
  check_op("sum", [&](Side& side) { return summed(side, c, in); });
  if (c.k >= kNearest) {
    check_op("interpolate", [&](Side& side) { return interpolated(side, c, in); });
  }
  for (const int norm : {1, 2}) {
    if (in.channels_first) continue;
    check_op("distance", [&](Side& side) { return of_distances(side, c, in, norm); });
  }
}

void check_case(const Case& c) {
  Random random(static_cast<uint64_t>(c.rows + 31 * c.slots() + 7 * c.channels));
  std::vector<Where> others = {Where::kThreads};
#ifdef TORCHVOX_CUDA
  if (has_device()) others.push_back(Where::kDevice);
#endif
  Inputs in;
  in.idx = indices(c, random);
  for (const Where where : others) {
    check_inverse(c, in.idx, where);
    set_plan_override("inverse_index", 1);  // sorted
    check_inverse(c, in.idx, where);
    set_plan_override("inverse_index", kAutomatic);
  }
  for (const DType dtype : kTypes) {
    for (const bool channels_first : {false, true}) {
      in.dtype = dtype;
      in.channels_first = channels_first;
      in.features = random_values(dtype, c.clouds * c.rows * c.channels, random);
      in.grad = random_values(dtype, c.clouds * c.slots() * c.channels, random);
      in.weight = random_values(DType::kFloat, c.clouds * c.slots(), random);
      for (const Where where : others) check_inputs(c, in, where);
    }
  }
}

}  // namespace

int main() {
  for (const int64_t channels : {0, 1, 3, 4, 8, 33}) {
    check_case({2, 50, 30, 4, channels, Spread::kEven});
  }
  check_case({3, 0, 7, 3, 2, Spread::kEven});
  check_case({3, 7, 0, 3, 2, Spread::kEven});
  check_case({1, 100, 90, 3, 5, Spread::kNone});
  for (const Spread spread : {Spread::kEven, Spread::kHot, Spread::kOne}) {
    check_case({2, 40, 750, 4, 8, spread});
    check_case({1, 600, 1707, 3, 5, spread});
    check_case({3, 3000, 2000, 5, 1, spread});
  }
  check_case({40, 16, 5, 3, 4, Spread::kEven});
  check_case({1, 65000, 9000, 4, 1, Spread::kEven});  // rows in several tiles
  check_case({2, 5000, 40000, 3, 1, Spread::kHot});  // several parts and runs
  check_case({1, 1 << 20, 700, 3, 1, Spread::kEven});  // too many rows to count
  return finish("grouping kernels");
}
