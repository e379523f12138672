// SPDX-License-Identifier: Apache-2.0
//
// Kernels of a row or an output each, without torch: box_decode and pillar_norm. One thread against
// a few plain lines in double, every side against one thread.
#include "csrc/kernels/detection/box_decode.h"
#include "csrc/kernels/pillars/norm.h"
#include "tests/cpp/kernel_test.h"

using namespace torchvox;
using namespace torchvox::testing;

namespace {

std::vector<double> numbers(int64_t count, uint64_t seed, float low = -1, float high = 1) {
  return Random(seed).uniforms(count, low, high);
}

bool is_near(double actual, double expected, double tolerance) {
  return std::abs(actual - expected) <= tolerance * (1 + std::abs(expected));
}

void check_decode(int64_t rows, int64_t anchor_rows, int values, int bins, DType dtype) {
  BoxCoder code;
  code.values = values, code.bins = bins;
  code.dir_offset = 0.75f, code.dir_limit = 0.5f;
  code.period = bins > 0 ? static_cast<float>(2 * 3.14159265358979 / bins) : 0;
  const std::vector<double> deltas = numbers(rows * values, 1), logits = numbers(rows * bins, 2);
  const std::vector<double> anchors = numbers(anchor_rows * 7, 3, 0.5f, 3);
  INFO("box_decode of ", rows, " rows of ", values, ", ", bins, " bins");
  CAPTURE(dtype);
  const Outputs out = on_every_side([&](Side& side) {
    BoxDecodeArgs args;
    args.deltas = side.put(store(deltas, dtype));
    args.direction = side.put(store(logits, dtype));
    args.anchors = side.put(narrowed<float>(anchors));
    args.dtype = dtype, args.rows = rows, args.anchor_rows = anchor_rows, args.coder = code;
    args.boxes = side.room<float>("boxes", rows * code.box_values());
    side.run(args);
  });
  if (dtype != DType::kFloat) return;
  const std::vector<float> boxes = out.get<float>("boxes");
  for (int64_t row = 0; row < rows; ++row) {
    const double* const d = deltas.data() + row * values;
    const double* const a = anchors.data() + row % anchor_rows * 7;
    const float* const box = boxes.data() + row * code.box_values();
    CHECK(is_near(box[0], d[0] * std::hypot(a[3], a[4]) + a[0], 1e-5));
    CHECK(is_near(box[2], d[2] * a[5] + a[2], 1e-5));
    CHECK(is_near(box[4], std::exp(d[4]) * a[4], 1e-5));
    const double yaw =
        values % 2 ? d[6] + a[6] : std::atan2(d[7] + std::sin(a[6]), d[6] + std::cos(a[6]));
    CHECK(is_near(std::cos((bins > 0 ? bins : 1) * (box[6] - yaw)), 1, 1e-5));
    if (values > 8) CHECK(is_near(box[8], d[values - 1], 1e-6));
  }
}

void check_norm(int64_t rows, int64_t columns, int64_t outputs, DType dtype) {
  const std::vector<double> inputs = numbers(rows * columns, 4, 1, 3);
  std::vector<double> moments = {static_cast<double>(rows)};
  const auto sum = [&](int64_t j, int64_t k) {
    double total = 0;
    for (int64_t i = 0; i < rows; ++i) {
      total += inputs[i * columns + j] * (k < 0 ? 1 : inputs[i * columns + k]);
    }
    return total;
  };
  for (int64_t j = 0; j < columns; ++j) moments.push_back(sum(j, -1));
  for (int64_t j = 0; j < columns; ++j) {
    for (int64_t k = j; k < columns; ++k) moments.push_back(sum(j, k));
  }
  const std::vector<double> weight = numbers(outputs * columns, 5), gamma = numbers(outputs, 6);
  const std::vector<double> beta = numbers(outputs, 7);
  INFO("pillar_norm of ", rows, " rows, ", outputs, " x ", columns);
  CAPTURE(dtype);
  const Outputs out = on_every_side([&](Side& side) {
    PillarNormArgs args;
    args.moments = side.put(moments);
    args.weight = side.put(store(weight, dtype));
    args.gamma = side.put(store(gamma, dtype));
    args.beta = side.put(store(beta, dtype));
    args.dtype = dtype, args.outputs = outputs, args.columns = columns, args.eps = 1e-3;
    args.folded_weight = side.room("weight", dtype, outputs * columns);
    args.folded_bias = side.room("bias", dtype, outputs);
    args.mean = side.room("mean", dtype, outputs);
    args.var = side.room("var", dtype, outputs);
    side.run(args);
    PillarNormBackwardArgs backward;
    backward.norm = args;
    backward.grad_weight = side.put(store(weight, dtype));
    backward.grad_bias = side.put(store(beta, dtype));
    backward.to_weight = side.room("to_weight", dtype, outputs * columns);
    backward.to_gamma = side.room("to_gamma", dtype, outputs);
    backward.to_beta = side.room("to_beta", dtype, outputs);
    side.run(backward);
  });
  if (dtype != DType::kDouble || rows < 2) return;
  const auto folded = out.get<double>("weight"), bias = out.get<double>("bias"),
             means = out.get<double>("mean"), vars = out.get<double>("var"),
             to_beta = out.get<double>("to_beta");
  for (int64_t o = 0; o < outputs; ++o) {
    std::vector<double> y;
    double mean = 0, var = 0;
    for (int64_t i = 0; i < rows; ++i) {
      y.push_back(0);
      for (int64_t j = 0; j < columns; ++j) {
        y.back() += weight[o * columns + j] * inputs[i * columns + j];
      }
      mean += y.back() / static_cast<double>(rows);
    }
    for (const double value : y) var += (value - mean) * (value - mean);
    const double r = 1 / std::sqrt(var / static_cast<double>(rows) + 1e-3);
    CHECK(is_near(folded[o * columns], gamma[o] * r * weight[o * columns], 1e-9));
    CHECK(is_near(bias[o], beta[o] - gamma[o] * r * mean, 1e-9));
    CHECK(is_near(means[o], mean, 1e-12));
    CHECK(is_near(vars[o], var / static_cast<double>(rows - 1), 1e-9));
    CHECK(is_near(to_beta[o], beta[o], 0));
  }
}

TEST_CASE("box_decode") {
  for (const DType dtype : {DType::kFloat, DType::kHalf, DType::kBFloat16}) {
    for (const int values : {7, 8, 9, 10}) {
      for (const int bins : {0, 2, 4}) check_decode(300, 300, values, bins, dtype);
    }
    check_decode(1, 1, 7, 1, dtype);
    check_decode(5000, 7, 9, 64, dtype);
  }
}

TEST_CASE("pillar_norm") {
  for (const DType dtype : {DType::kFloat, DType::kDouble, DType::kHalf, DType::kBFloat16}) {
    check_norm(50, 10, 64, dtype);
    check_norm(50, 27, 3, dtype);
    check_norm(20, 1, 130, dtype);
    check_norm(1, 9, 5, dtype);
    check_norm(0, 9, 5, dtype);
  }
}

}  // namespace
