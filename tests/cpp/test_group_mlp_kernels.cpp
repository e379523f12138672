// SPDX-License-Identifier: Apache-2.0
//
// group_mlp_max without torch. Host results against the definition in double; with a GPU the
// portable kernel against the host, bit for bit, and the tensor cores within some roundings of it.
#include <algorithm>
#include <cmath>
#include <memory>

#include "csrc/kernels/core/plan_override.h"
#include "csrc/kernels/neighbors/group_mlp/group_mlp_max.h"
#include "tests/cpp/check.h"

using namespace torchvox;
using namespace torchvox::testing;

namespace {

#ifdef TORCHVOX_CUDA
const bool kDevice = has_device();
#else
constexpr bool kDevice = false;
#endif

constexpr int64_t kClouds = 2, kPoints = 50, kQueries = 19;

// A call with the memory that its pointers refer to.
template <class T>
struct Case {
  GroupMlpArgs args;
  std::vector<float> points, query;
  std::vector<int32_t> idx, count;
  std::vector<T> features;
  std::vector<std::vector<T>> weights, biases;

  Case(int64_t channels, const std::vector<int64_t>& widths, int64_t slots) {
    Random random(channels + slots);
    const auto fill = [&](auto& values, int64_t size, float scale) {
      using V = typename std::decay_t<decltype(values)>::value_type;
      for (int64_t i = 0; i < size; ++i) {
        values.push_back(narrow<V>(random.uniform(-scale, scale)));
      }
    };
    fill(points, kClouds * kPoints * 3, 1.0f);
    fill(query, kClouds * kQueries * 3, 1.0f);
    fill(features, kClouds * kPoints * channels, 1.0f);
    for (int64_t i = 0; i < kClouds * kQueries * slots; ++i) {
      idx.push_back(static_cast<int32_t>(random.below(kPoints + 2)) - 1);  // some of them outside
    }
    for (int64_t i = 0; i < kClouds * kQueries; ++i) {
      count.push_back(static_cast<int32_t>(random.below(slots + 3)) - 1);
    }
    args.points = padded(kClouds, kPoints), args.query = padded(kClouds, kQueries);
    args.channels = channels, args.slots = args.idx_stride = slots;
    args.layers = static_cast<int>(widths.size());
    int64_t in = 3 + channels;
    for (int l = 0; l < args.layers; ++l) {
      fill(weights.emplace_back(), in * widths[l], 2.0f / std::sqrt(static_cast<float>(in)));
      fill(biases.emplace_back(), widths[l], 0.1f);
      args.layer[l].in = in;
      args.layer[l].out = in = widths[l];
    }
  }
  int64_t outputs() const { return args.layer[args.layers - 1].out; }

  std::vector<T> on_host() const {
    std::vector<T> out(args.rows() * outputs(), narrow<T>(-5.0f));
    GroupMlpArgs bound = args;
    bound.mlp_dtype = dtype();
    bound.points.data = points.data(), bound.query.data = query.data(),
    bound.features = features.data();
    bound.idx = idx.data(), bound.count = count.data(), bound.out = out.data();
    for (int l = 0; l < args.layers; ++l) {
      bound.layer[l].weight = weights[l].data(), bound.layer[l].bias = biases[l].data();
    }
    run_on_host(bound);
    return out;
  }

#ifdef TORCHVOX_CUDA
  std::vector<T> on_device() const {
    const DeviceBuffer<T> out(std::vector<T>(args.rows() * outputs(), narrow<T>(-5.0f)));
    const DeviceBuffer<float> p(points), q(query);
    const DeviceBuffer<int32_t> i(idx), c(count);
    const DeviceBuffer<T> f(features);
    std::vector<std::unique_ptr<DeviceBuffer<T>>> layers;
    GroupMlpArgs bound = args;
    bound.mlp_dtype = dtype();
    bound.points.data = p.data(), bound.query.data = q.data(), bound.features = f.data();
    bound.idx = i.data(), bound.count = c.data(), bound.out = out.data();
    for (int l = 0; l < args.layers; ++l) {
      layers.push_back(std::make_unique<DeviceBuffer<T>>(weights[l]));
      bound.layer[l].weight = layers.back()->data();
      layers.push_back(std::make_unique<DeviceBuffer<T>>(biases[l]));
      bound.layer[l].bias = layers.back()->data();
    }
    run_on_device(bound);
    return out.host();
  }
#else
  std::vector<T> on_device() const { return {}; }
#endif

  // The definition, nothing rounded but the differences.
  std::vector<double> plainly() const {
    std::vector<double> out(args.rows() * outputs(), 0.0);
    for (int64_t row = 0; row < args.rows(); ++row) {
      const int64_t used = std::clamp<int64_t>(count[row], 1, args.slots), b = row / kQueries;
      for (int64_t s = 0; s < used; ++s) {
        const int64_t i = idx[row * args.slots + s], from = b * kPoints + i;
        const bool inside = i >= 0 && i < kPoints;
        std::vector<double> x;
        for (int axis = 0; axis < 3; ++axis) {
          x.push_back((inside ? points[from * 3 + axis] : 0.0f) - query[row * 3 + axis]);
        }
        for (int64_t c = 0; c < args.channels; ++c) {
          x.push_back(inside ? number(features[from * args.channels + c]) : 0.0);
        }
        for (int l = 0; l < args.layers; ++l) x = layer(l, x);
        for (int64_t c = 0; c < outputs(); ++c) {
          out[row * outputs() + c] = std::max(out[row * outputs() + c], x[c]);
        }
      }
    }
    return out;
  }

 private:
  static DType dtype() {
    if (std::is_same_v<T, Half>) return DType::kHalf;
    if (std::is_same_v<T, BFloat16>) return DType::kBFloat16;
    return std::is_same_v<T, double> ? DType::kDouble : DType::kFloat;
  }
  std::vector<double> layer(int l, const std::vector<double>& x) const {
    std::vector<double> y;
    for (int64_t o = 0; o < args.layer[l].out; ++o) {
      double sum = number(biases[l][o]);
      for (size_t i = 0; i < x.size(); ++i) sum += x[i] * number(weights[l][o * x.size() + i]);
      y.push_back(std::max(sum, 0.0));
    }
    return y;
  }
};

template <class T>
void check_near(const std::vector<T>& got, const std::vector<double>& want, double tolerance,
                const std::string& what) {
  double largest = 0, error = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    largest = std::max(largest, std::fabs(want[i]));
    const double apart = std::fabs(number(got[i]) - want[i]);
    error = apart <= error ? error : apart;  // NaN stays
  }
  check(error <= tolerance * largest, what + ": " + std::to_string(error / largest));
}

template <class T>
void test(double tolerance, const std::string& type, bool quick) {
  const std::vector<std::vector<int64_t>> widths = {{64, 64, 128}, {128, 128, 256}, {32, 20, 33},
                                                    {70},          {96, 5},         {256, 200, 64}};
  for (const auto& layers : widths) {
    for (const int64_t channels : {0, 1, 40}) {
      for (const int64_t slots : {1, 16, 37}) {
        if (quick && (channels != 40 || slots != 37)) continue;
        const Case<T> c(channels, layers, slots);
        const std::string what = type + ", " + std::to_string(layers[0]) + " of " +
            std::to_string(channels) + " by " + std::to_string(slots);
        const std::vector<double> want = c.plainly();
        const std::vector<T> host = c.on_host();
        check_near(host, want, tolerance, what);
        if (!kDevice) continue;
        set_plan_override("group_mlp", 0);
        check_same(c.on_device(), host, what + ", portable");
        set_plan_override("group_mlp", kAutomatic);
        check_near(c.on_device(), want, tolerance, what + ", tensor cores");
      }
    }
  }
}

void test_instruction_sets() {
  const Case<float> c(40, {64, 64, 33}, 37);
  const std::vector<float> want = c.on_host();
  for (const int plan : {0, 1, 2}) {
    set_plan_override("group_mlp_cpu", plan);
    check_same(c.on_host(), want, "instruction set " + std::to_string(plan));
  }
  set_plan_override("group_mlp_cpu", kAutomatic);
}

}  // namespace

int main(int argc, char** argv) {
  // racecheck watches every shared access: --quick leaves out most cases.
  const bool quick = argc > 1 && std::string(argv[1]) == "--quick";
  test<float>(1e-5, "float", quick);
  test<double>(1e-12, "double", quick);
  test<BFloat16>(2e-2, "bfloat16", quick);
  test<Half>(3e-3, "half", quick);
  test_instruction_sets();
  return finish("group_mlp kernels");
}
