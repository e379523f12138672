// SPDX-License-Identifier: Apache-2.0
//
// Pillar kernels without torch: one thread against a few plain lines in double, every side and plan
// against one thread.
#include <algorithm>

#include "csrc/kernels/pillars/encode/encode.h"
#include "csrc/kernels/pillars/moments.h"
#include "csrc/kernels/pillars/norm.h"
#include "csrc/kernels/pillars/scatter.h"
#include "tests/cpp/kernel_test.h"

using namespace torchvox;
using namespace torchvox::testing;

namespace {

constexpr int64_t kBatches = 2, kNx = 9, kNy = 5;

// Points dealt out to pillars in different cells, some unused rows and dropped points among them.
struct Scene {
  int64_t count, columns, rows, slots;
  DType dtype;
  std::vector<double> points;
  std::vector<int32_t> indices, num_points, point_voxel, point_slot;
  std::vector<std::vector<int32_t>> members;
  int center_axes = 3;
  bool legacy = false, padded = true;

  Scene(int64_t count, int64_t columns, int64_t rows, int64_t slots, DType dtype)
      : count(count), columns(columns), rows(rows), slots(slots), dtype(dtype), members(rows) {
    Random random(count + columns + rows);
    for (int64_t r = 0; r < rows; ++r) {
      const bool used = r % 5 != 3;
      const int64_t cell = r * 7 % (kBatches * kNy * kNx);
      indices.push_back(used ? static_cast<int32_t>(cell / (kNy * kNx)) : -1);
      indices.push_back(used ? 0 : -1);
      indices.push_back(used ? static_cast<int32_t>(cell / kNx % kNy) : -1);
      indices.push_back(used ? static_cast<int32_t>(cell % kNx) : -1);
    }
    for (int64_t i = 0; i < count; ++i) {
      const int64_t r = rows > 0 ? random.below(rows + 2) - 1 : -1;
      const bool used = r >= 0 && r < rows && indices[4 * r] >= 0;
      const bool full = used && slots >= 0 && static_cast<int64_t>(members[r].size()) >= slots;
      point_voxel.push_back(used ? static_cast<int32_t>(r) : -1);
      point_slot.push_back(used && !full ? static_cast<int32_t>(members[r].size()) : -1);
      if (used && !full) members[r].push_back(static_cast<int32_t>(i));
      for (int64_t c = 0; c < columns; ++c) {
        // Quantized, so that maxima tie; inside the pillar, so that means are near the center.
        const double step = 0.125 * static_cast<double>(random.below(9) - 4);
        const double at[3] = {used ? indices[4 * r + 3] + 0.5 : 0,
                              used ? indices[4 * r + 2] + 0.5 : 0, 0};
        points.push_back(c < 3 ? at[c] + step : step);
      }
    }
    for (const auto& m : members) num_points.push_back(static_cast<int32_t>(m.size()));
  }

  PillarMap map(Side& side) const {
    PillarMap m;
    m.points = side.put(store(points, dtype));
    m.dtype = dtype;
    m.count = count, m.columns = m.row_stride = columns;
    m.point_voxel = side.put(point_voxel), m.point_slot = side.put(point_slot);
    m.num_points = side.put(num_points);
    m.rows.indices = side.put(indices);
    m.rows.rows = rows, m.rows.batches = kBatches, m.rows.nx = kNx, m.rows.ny = kNy;
    m.grid.hi[0] = kNx, m.grid.hi[1] = kNy;
    m.grid.lo[2] = -1, m.grid.size[2] = 2;
    m.grid.cells[0] = kNx, m.grid.cells[1] = kNy;
    m.max_points = slots, m.center_axes = center_axes, m.legacy = legacy, m.padded = padded;
    return m;
  }
  double center(int64_t row, int64_t axis) const {
    return axis == 2 ? 0.0 : indices[4 * row + 3 - axis] + 0.5;
  }
  std::vector<double> decorated(int64_t row, int64_t point) const {
    const auto value = [&](int64_t i, int64_t c) { return points[i * columns + c]; };
    std::vector<double> f;
    for (int64_t c = 0; c < columns; ++c) {
      f.push_back(value(point, c) - (legacy && c < center_axes ? center(row, c) : 0.0));
    }
    for (int axis = 0; axis < 3; ++axis) {
      double mean = 0;
      for (const int32_t i : members[row]) mean += value(i, axis) / members[row].size();
      f.push_back(value(point, axis) - mean);
    }
    for (int axis = 0; axis < center_axes; ++axis) {
      f.push_back(value(point, axis) - center(row, axis));
    }
    return f;
  }
};

struct Layer {
  int64_t outputs, width;
  std::vector<double> weight, bias;

  Layer(int64_t outputs, int64_t width) : outputs(outputs), width(width) {
    Random random(outputs);
    for (int64_t i = 0; i < outputs * width; ++i) weight.push_back(random.uniform(-0.5f, 0.5f));
    for (int64_t i = 0; i < outputs; ++i) bias.push_back(random.uniform(-0.5f, 0.5f));
  }
};

// The ops in a row, each over the outputs of those before.
void run_ops(Side& side, const Scene& scene, const Layer& layer, DType weights, DType canvas) {
  const bool wide = scene.dtype == DType::kDouble || weights == DType::kDouble;
  const DType real = wide ? DType::kDouble : DType::kFloat;
  constexpr int64_t kCells = kBatches * kNx * kNy;
  PillarEncodeArgs encode;
  encode.map = scene.map(side);
  encode.weight = side.put(store(layer.weight, weights));
  encode.bias = side.put(store(layer.bias, weights));
  encode.weight_dtype = weights, encode.out_dtype = canvas, encode.outputs = layer.outputs;
  encode.canvas = side.room("canvas", canvas, kCells * layer.outputs);
  encode.arg = side.room<int32_t>("arg", scene.rows * layer.outputs);
  encode.mean = side.room("mean", real, 3 * scene.rows);
  side.run(encode);

  PillarEncodeBackwardArgs backward;
  backward.map = encode.map;
  backward.grad = encode.canvas, backward.grad_dtype = canvas;
  const int64_t strides[4] = {kNy * kNx * layer.outputs, 1, kNx * layer.outputs, layer.outputs};
  std::copy_n(strides, 4, backward.grad_strides);
  backward.arg = encode.arg, backward.mean = encode.mean, backward.wide = wide;
  backward.outputs = layer.outputs, backward.weight_dtype = weights;
  backward.grad_weight = side.room("grad_weight", weights, layer.outputs * layer.width);
  backward.grad_bias = side.room("grad_bias", weights, layer.outputs);
  side.run(backward);

  PillarMomentsArgs moments;
  moments.map = encode.map;
  moments.map.rows.batches = std::numeric_limits<int32_t>::max();
  moments.moments = side.room<double>("moments", moments.entries());
  side.run(moments);

  PillarScatterArgs scatter;
  scatter.rows = encode.map.rows, scatter.feats = encode.mean, scatter.channels = 3;
  scatter.dtype = real;
  scatter.canvas = side.room("scattered", real, kCells * 3);
  side.run(scatter);

  PillarScatterBackwardArgs gather;
  gather.rows = scatter.rows, gather.grad = scatter.canvas, gather.channels = 3;
  const int64_t planes[4] = {kNy * kNx * 3, 1, kNx * 3, 3};
  std::copy_n(planes, 4, gather.grad_strides);
  gather.dtype = real;
  gather.grad_feats = side.room("grad_feats", real, scene.rows * 3);
  side.run(gather);
}

// The definition, for distinct cells: canvas in double, then the sums of the moments.
void check_definition(const Scene& scene, const Layer& layer, const Outputs& got) {
  const auto canvas = got.get<double>("canvas"), moments = got.get<double>("moments");
  std::vector<double> sums((layer.width + 1) * (layer.width + 2) / 2, 0.0);
  double pillars = 0, apart = 0;
  for (int64_t r = 0; r < scene.rows; ++r) {
    if (scene.indices[4 * r] < 0) continue;
    ++pillars;
    const int64_t n = static_cast<int64_t>(scene.members[r].size());
    const bool padding = scene.padded && n < scene.slots;
    const int64_t cell =
        (scene.indices[4 * r] * kNy + scene.indices[4 * r + 2]) * kNx + scene.indices[4 * r + 3];
    for (int64_t o = 0; o < layer.outputs; ++o) {
      double best = padding ? std::max(layer.bias[o], 0.0) : 0.0;
      for (const int32_t i : scene.members[r]) {
        const std::vector<double> f = scene.decorated(r, i);
        double y = layer.bias[o];
        for (int64_t c = 0; c < layer.width; ++c) y += layer.weight[o * layer.width + c] * f[c];
        best = std::max(best, y);
      }
      apart = std::max(apart, std::fabs(canvas[cell * layer.outputs + o] - best));
    }
    for (const int32_t i : scene.members[r]) {
      std::vector<double> g = scene.decorated(r, i);
      g.insert(g.begin(), 1.0);
      size_t e = 0;
      for (size_t a = 0; a < g.size(); ++a) {
        for (size_t b = a; b < g.size(); ++b) sums[e++] += g[a] * g[b];
      }
    }
  }
  CHECK(apart < 1e-12);
  if (scene.padded && scene.slots >= 0) sums[0] = pillars * static_cast<double>(scene.slots);
  for (size_t e = 0; e < sums.size(); ++e) {
    CAPTURE(e);
    CHECK(std::fabs(sums[e] - moments[e]) <= 1e-9 * (1 + std::fabs(sums[e])));
  }
}

void check(int64_t count, int64_t columns, int64_t rows, int64_t slots, int64_t outputs,
           DType dtype, DType weights, DType canvas, int mode) {
  INFO(count, " x ", columns, " in ", rows, " of ", slots, " to ", outputs, ", mode ", mode);
  Scene scene(count, columns, rows, slots, dtype);
  scene.center_axes = mode % 2 ? 2 : 3, scene.legacy = mode & 2, scene.padded = !(mode & 4);
  const Layer layer(outputs, columns + 3 + scene.center_axes);
  const auto ops = [&](Side& side) { run_ops(side, scene, layer, weights, canvas); };
  const Outputs want = run_on(Where::kThread, ops);
  check_side(Where::kThreads, ops, want);
  for (const int instructions : {0, 1, 2}) {
    CAPTURE(instructions);
    const Plan plan("pillar_cpu", instructions);
    check_side(Where::kThread, ops, want);
  }
  for (const int packed : {0, 1}) {
    for (const int common : {0, 1}) {
      CAPTURE(packed);
      CAPTURE(common);
      const Plan lists_plan("pillar_lists", packed), common_plan("pillar_common", common);
      check_side(Where::kDevice, ops, want);
    }
  }
  if (dtype == DType::kDouble && canvas == DType::kDouble && weights == DType::kDouble) {
    check_definition(scene, layer, want);
  }
}

constexpr DType kFloat = DType::kFloat, kDouble = DType::kDouble, kHalf = DType::kHalf;

TEST_CASE("features, centers and padding") {
  for (int mode = 0; mode < 8; ++mode) {
    check(400, 4, 60, 6, 64, kFloat, kFloat, kHalf, mode);
    check(400, 4, 60, 6, 64, kDouble, kDouble, kDouble, mode);
    if (quick) continue;
    check(400, 5, 60, -1, 64, kFloat, kHalf, kHalf, mode);
    check(400, 7, 60, 6, 33, kHalf, kFloat, kFloat, mode);
    check(400, 3, 60, 6, 130, DType::kBFloat16, DType::kBFloat16, DType::kBFloat16, mode);
  }
}

TEST_CASE("sizes") {
  for (const int64_t count : {0, 1, 1025, 3000}) {
    check(count, 4, 20, -1, 64, kFloat, kFloat, kFloat, 0);  // pillars of more than 32 points
    check(count, 4, 20, 40, 64, kFloat, kFloat, kFloat, 0);
  }
  check(50, 4, 0, 6, 64, kFloat, kFloat, kFloat, 0);
  check(50, 4, 20, 0, 64, kFloat, kFloat, kFloat, 0);
  if (!quick) check(150000, 4, 90, 3000, 64, kFloat, kFloat, kHalf, 0);
}

void check_norm(int64_t rows, int64_t columns, int64_t outputs, DType dtype) {
  const auto inputs = Random(4).uniforms(rows * columns, 1, 3),
             weight = Random(5).uniforms(outputs * columns), gamma = Random(6).uniforms(outputs),
             beta = Random(7).uniforms(outputs);
  const auto value = [&](int64_t i, int64_t c) { return c == 0 ? 1 : inputs[i * columns + c - 1]; };
  std::vector<double> moments;
  for (int64_t j = 0; j <= columns; ++j) {
    for (int64_t k = j; k <= columns; ++k) {
      moments.push_back(0);
      for (int64_t i = 0; i < rows; ++i) moments.back() += value(i, j) * value(i, k);
    }
  }
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
    CHECK(folded[o * columns] == doctest::Approx(gamma[o] * r * weight[o * columns]).epsilon(1e-9));
    CHECK(bias[o] == doctest::Approx(beta[o] - gamma[o] * r * mean).epsilon(1e-9));
    CHECK(means[o] == doctest::Approx(mean).epsilon(1e-12));
    CHECK(vars[o] == doctest::Approx(var / static_cast<double>(rows - 1)).epsilon(1e-9));
    CHECK(to_beta[o] == beta[o]);
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
