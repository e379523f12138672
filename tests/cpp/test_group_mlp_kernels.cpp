// SPDX-License-Identifier: Apache-2.0
//
// group_mlp_max without torch. Host results against the definition in double; with a GPU the
// portable kernel against the host, bit for bit, and the tensor cores within some roundings of it.
#include <algorithm>

#include "csrc/kernels/neighbors/group_mlp/group_mlp_max.h"
#include "tests/cpp/kernel_test.h"

using namespace torchvox;
using namespace torchvox::testing;

namespace {

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
    points = narrowed<float>(random.uniforms(kClouds * kPoints * 3));
    query = narrowed<float>(random.uniforms(kClouds * kQueries * 3));
    features = narrowed<T>(random.uniforms(kClouds * kPoints * channels));
    for (int64_t i = 0; i < kClouds * kQueries * slots; ++i) {
      idx.push_back(static_cast<int32_t>(random.below(kPoints + 2)) - 1);  // some of them outside
    }
    for (int64_t i = 0; i < kClouds * kQueries; ++i) {
      count.push_back(static_cast<int32_t>(random.below(slots + 3)) - 1);
    }
    args.channels = channels, args.slots = args.idx_stride = slots;
    args.layers = static_cast<int>(widths.size());
    args.mlp_dtype = dtype_of<T>();
    int64_t in = 3 + channels;
    for (int l = 0; l < args.layers; ++l) {
      const float scale = 2.0f / std::sqrt(static_cast<float>(in));
      weights.push_back(narrowed<T>(random.uniforms(in * widths[l], -scale, scale)));
      biases.push_back(narrowed<T>(random.uniforms(widths[l], -0.1f, 0.1f)));
      args.layer[l].in = in;
      args.layer[l].out = in = widths[l];
    }
  }
  int64_t outputs() const { return args.layer[args.layers - 1].out; }

  std::vector<T> on(Where where) const {
    const auto call = [&](Side& side) {
      GroupMlpArgs bound = args;
      bound.points = padded({points.begin(), points.end()}, kClouds, kPoints).on(side);
      bound.query = padded({query.begin(), query.end()}, kClouds, kQueries).on(side);
      bound.features = side.put(features);
      bound.idx = side.put(idx), bound.count = side.put(count);
      for (int l = 0; l < args.layers; ++l) {
        bound.layer[l].weight = side.put(weights[l]), bound.layer[l].bias = side.put(biases[l]);
      }
      bound.out = side.room<T>("out", kClouds * kQueries * outputs());
      side.run(bound);
    };
    return run_on(where, call).template get<T>("out");
  }

  // The definition, nothing rounded but the differences.
  std::vector<double> plainly() const {
    std::vector<double> out(kClouds * kQueries * outputs(), 0.0);
    for (int64_t row = 0; row < kClouds * kQueries; ++row) {
      const int64_t used = std::clamp<int64_t>(count[row], 1, args.slots);
      for (int64_t s = 0; s < used; ++s) {
        const int64_t i = idx[row * args.slots + s], from = row / kQueries * kPoints + i;
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

// The largest error as a part of the largest value.
template <class T>
double error_of(const std::vector<T>& got, const std::vector<double>& want) {
  double largest = 0, error = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    largest = std::max(largest, std::fabs(want[i]));
    const double apart = std::fabs(number(got[i]) - want[i]);
    error = apart <= error ? error : apart;  // NaN stays
  }
  return error / largest;
}

TEST_CASE_TEMPLATE("the network and its maximum", T, float, double, BFloat16, Half) {
  const double tolerance = std::is_same_v<T, float> ? 1e-5
      : std::is_same_v<T, double>                   ? 1e-12
      : std::is_same_v<T, Half>                     ? 3e-3
                                                    : 2e-2;
  const std::vector<std::vector<int64_t>> widths = {{64, 64, 128}, {128, 128, 256}, {32, 20, 33},
                                                    {70},          {96, 5},         {256, 200, 64}};
  for (const auto& layers : widths) {
    for (const int64_t channels : {0, 1, 40}) {
      for (const int64_t slots : {1, 16, 37}) {
        if (quick && (channels != 40 || slots != 37)) continue;
        INFO(layers[0], " of ", channels, " by ", slots);
        const Case<T> c(channels, layers, slots);
        const std::vector<double> want = c.plainly();
        const std::vector<T> host = c.on(Where::kThread);
        CHECK(error_of(host, want) <= tolerance);
        CHECK_SAME(c.on(Where::kThreads), host);
        if (!has_device()) continue;
        CHECK(error_of(c.on(Where::kDevice), want) <= tolerance);  // the tensor cores, where used
        const Plan portable("group_mlp", 0);
        CHECK_SAME(c.on(Where::kDevice), host);
      }
    }
  }
}

TEST_CASE("instruction sets agree") {
  const Case<float> c(40, {64, 64, 33}, 37);
  const std::vector<float> want = c.on(Where::kThread);
  for (const int instructions : {0, 1, 2}) {
    CAPTURE(instructions);
    const Plan plan("group_mlp_cpu", instructions);
    CHECK_SAME(c.on(Where::kThread), want);
  }
}

}  // namespace
