// SPDX-License-Identifier: Apache-2.0
//
// Kernels of a row or an output each, without torch: box_decode and pillar_norm. The host against a
// few plain lines in double; on two threads, and with a GPU there, against the host on one thread,
// bit for bit.
#include <cmath>

#include "csrc/kernels/detection/box_decode.h"
#include "csrc/kernels/pillars/norm.h"
#include "tests/cpp/check.h"
#include "tests/cpp/side.h"
#include "tests/cpp/store.h"

using namespace torchvox;
using namespace torchvox::testing;

namespace {

std::vector<double> numbers(int64_t count, uint64_t seed, float low = -1, float high = 1) {
  Random random(seed);
  std::vector<double> values;
  for (int64_t i = 0; i < count; ++i) values.push_back(random.uniform(low, high));
  return values;
}

std::vector<double> read(const Bytes& bytes, DType dtype) {
  std::vector<double> values;
  with_point_type(dtype, [&](auto type) {
    using T = decltype(type);
    for (size_t at = 0; at < bytes.size(); at += sizeof(T)) {
      T value;
      std::memcpy(&value, bytes.data() + at, sizeof(T));
      values.push_back(number(value));
    }
  });
  return values;
}

void check_near(double actual, double expected, double tolerance, const std::string& what) {
  check(std::abs(actual - expected) <= tolerance * (1 + std::abs(expected)), what);
}

// The outputs of `body` on every side are those of one thread.
template <class Body>
std::vector<Bytes> on_every_side(const Body& body, const std::string& what) {
  const std::vector<Bytes> expected = body(Where::kThread);
  std::vector<Where> others = {Where::kThreads};
#ifdef TORCHVOX_CUDA
  if (has_device()) others.push_back(Where::kDevice);
#endif
  for (const Where where : others) {
    const std::vector<Bytes> outs = body(where);
    for (size_t i = 0; i < outs.size(); ++i) {
      check(outs[i] == expected[i], what + ": output " + std::to_string(i));
    }
  }
  return expected;
}

void check_decode(int64_t rows, int64_t anchor_rows, int values, int bins, DType dtype) {
  BoxCoder code;
  code.values = values, code.bins = bins;
  code.dir_offset = 0.75f, code.dir_limit = 0.5f;
  code.period = bins > 0 ? static_cast<float>(2 * 3.14159265358979 / bins) : 0;
  const std::vector<double> deltas = numbers(rows * values, 1), logits = numbers(rows * bins, 2);
  const std::vector<double> anchors = numbers(anchor_rows * 7, 3, 0.5f, 3);
  const std::string what = "box_decode of " + std::to_string(rows) + " rows of " +
      std::to_string(values) + ", " + std::to_string(bins) + " bins";
  const std::vector<Bytes> outs = on_every_side(
      [&](Where where) {
        Side side(where);
        BoxDecodeArgs args;
        args.deltas = side.put(store(deltas, dtype));
        args.direction = bins > 0 ? side.put(store(logits, dtype)) : nullptr;
        args.anchors = static_cast<const float*>(side.put(store(anchors, DType::kFloat)));
        args.dtype = dtype, args.rows = rows, args.anchor_rows = anchor_rows, args.coder = code;
        args.boxes = static_cast<float*>(side.room(rows * code.box_values() * 4));
        side.run(args);
        return std::vector<Bytes>{side.out(0)};
      },
      what);
  if (dtype != DType::kFloat) return;
  const std::vector<double> boxes = read(outs[0], DType::kFloat);
  for (int64_t row = 0; row < rows; ++row) {
    const double* const d = deltas.data() + row * values;
    const double* const a = anchors.data() + row % anchor_rows * 7;
    const double* const box = boxes.data() + row * code.box_values();
    check_near(box[0], d[0] * std::hypot(a[3], a[4]) + a[0], 1e-5, what + ": x");
    check_near(box[2], d[2] * a[5] + a[2], 1e-5, what + ": z");
    check_near(box[4], std::exp(d[4]) * a[4], 1e-5, what + ": w");
    const double yaw =
        values % 2 ? d[6] + a[6] : std::atan2(d[7] + std::sin(a[6]), d[6] + std::cos(a[6]));
    check_near(std::cos((bins > 0 ? bins : 1) * (box[6] - yaw)), 1, 1e-5, what + ": yaw");
    if (values > 8) check_near(box[8], d[values - 1], 1e-6, what + ": velocity");
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
  const int64_t size = static_cast<int64_t>(store({0.0}, dtype).size());
  const std::string what = "pillar_norm of " + std::to_string(rows) + " rows, " +
      std::to_string(outputs) + " x " + std::to_string(columns);
  const std::vector<Bytes> outs = on_every_side(
      [&](Where where) {
        Side side(where);
        PillarNormArgs args;
        args.moments = static_cast<const double*>(side.put(store(moments, DType::kDouble)));
        args.weight = side.put(store(weight, dtype));
        args.gamma = side.put(store(gamma, dtype));
        args.beta = side.put(store(beta, dtype));
        args.dtype = dtype, args.outputs = outputs, args.columns = columns, args.eps = 1e-3;
        args.folded_weight = side.room(outputs * columns * size);
        args.folded_bias = side.room(outputs * size);
        args.mean = side.room(outputs * size);
        args.var = side.room(outputs * size);
        side.run(args);
        PillarNormBackwardArgs backward;
        backward.norm = args;
        backward.grad_weight = side.put(store(weight, dtype));
        backward.grad_bias = side.put(store(beta, dtype));
        backward.to_weight = side.room(outputs * columns * size);
        backward.to_gamma = side.room(outputs * size);
        backward.to_beta = side.room(outputs * size);
        side.run(backward);
        std::vector<Bytes> found;
        for (size_t i = 0; i < 7; ++i) found.push_back(side.out(i));
        return found;
      },
      what);
  if (dtype != DType::kDouble || rows < 2) return;
  const std::vector<double> folded = read(outs[0], dtype), bias = read(outs[1], dtype);
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
    check_near(folded[o * columns], gamma[o] * r * weight[o * columns], 1e-9, what + ": weight");
    check_near(bias[o], beta[o] - gamma[o] * r * mean, 1e-9, what + ": bias");
    check_near(read(outs[2], dtype)[o], mean, 1e-12, what + ": mean");
    check_near(read(outs[3], dtype)[o], var / static_cast<double>(rows - 1), 1e-9, what + ": var");
    check_near(read(outs[6], dtype)[o], beta[o], 0, what + ": gradient of beta");
  }
}

}  // namespace

int main() {
  for (const DType dtype : {DType::kFloat, DType::kHalf, DType::kBFloat16}) {
    for (const int values : {7, 8, 9, 10}) {
      for (const int bins : {0, 2, 4}) check_decode(300, 300, values, bins, dtype);
    }
    check_decode(1, 1, 7, 1, dtype);
    check_decode(5000, 7, 9, 64, dtype);
  }
  for (const DType dtype : {DType::kFloat, DType::kDouble, DType::kHalf, DType::kBFloat16}) {
    check_norm(50, 10, 64, dtype);
    check_norm(50, 27, 3, dtype);
    check_norm(20, 1, 130, dtype);
    check_norm(1, 9, 5, dtype);
    check_norm(0, 9, 5, dtype);
  }
  return finish("layer kernels");
}
