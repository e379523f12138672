// SPDX-License-Identifier: Apache-2.0
//
// Pillar kernels without torch. The host against a few plain lines in double; on two threads, and
// with a GPU there under every plan, against the host on one thread, bit for bit.
#include <algorithm>
#include <cmath>
#include <limits>

#include "csrc/kernels/core/plan_override.h"
#include "csrc/kernels/pillars/encode/encode.h"
#include "csrc/kernels/pillars/moments.h"
#include "csrc/kernels/pillars/scatter.h"
#include "tests/cpp/check.h"
#include "tests/cpp/side.h"
#include "tests/cpp/store.h"

using namespace torchvox;
using namespace torchvox::testing;

namespace {

constexpr int64_t kBatches = 2, kNx = 9, kNy = 5;

// Points dealt out to pillars in different cells, some unused rows and dropped points among them.
struct Scene {
  int64_t count, columns, rows, slots;
  DType dtype;
  std::vector<double> points;
  Ints indices, num_points, point_voxel, point_slot;
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

// Canvas, winners, means, gradients of weight and bias, moments, and a canvas of scattered rows.
std::vector<Bytes> outputs_of(const Scene& scene, const Layer& layer, DType weights, DType canvas,
                              Where where) {
  Side side(where);
  const bool wide = scene.dtype == DType::kDouble || weights == DType::kDouble;
  const int64_t cells = kBatches * kNx * kNy, real = wide ? 8 : 4;
  PillarEncodeArgs encode;
  encode.map = scene.map(side);
  encode.weight = side.put(store(layer.weight, weights));
  encode.bias = side.put(store(layer.bias, weights));
  encode.weight_dtype = weights, encode.out_dtype = canvas, encode.outputs = layer.outputs;
  encode.canvas = side.room(cells * layer.outputs * bytes_of(canvas));
  encode.arg = static_cast<int32_t*>(side.room(4 * scene.rows * layer.outputs));
  encode.mean = side.room(3 * scene.rows * real);
  side.run(encode);

  PillarEncodeBackwardArgs backward;
  backward.map = encode.map;
  backward.grad = encode.canvas, backward.grad_dtype = canvas;
  const int64_t strides[4] = {kNy * kNx * layer.outputs, 1, kNx * layer.outputs, layer.outputs};
  std::copy_n(strides, 4, backward.grad_strides);
  backward.arg = encode.arg, backward.mean = encode.mean, backward.wide = wide;
  backward.outputs = layer.outputs, backward.weight_dtype = weights;
  backward.grad_weight = side.room(layer.outputs * layer.width * bytes_of(weights));
  backward.grad_bias = side.room(layer.outputs * bytes_of(weights));
  side.run(backward);

  PillarMomentsArgs moments;
  moments.map = encode.map;
  moments.map.rows.batches = std::numeric_limits<int32_t>::max();
  moments.moments = static_cast<double*>(side.room(8 * moments.entries()));
  side.run(moments);

  PillarScatterArgs scatter;
  scatter.rows = encode.map.rows, scatter.feats = encode.mean, scatter.channels = 3;
  scatter.dtype = wide ? DType::kDouble : DType::kFloat;
  scatter.canvas = side.room(cells * 3 * real);
  side.run(scatter);

  PillarScatterBackwardArgs gather;
  gather.rows = scatter.rows, gather.grad = scatter.canvas, gather.channels = 3;
  const int64_t planes[4] = {kNy * kNx * 3, 1, kNx * 3, 3};
  std::copy_n(planes, 4, gather.grad_strides);
  gather.dtype = scatter.dtype;
  gather.grad_feats = side.room(scene.rows * 3 * real);
  side.run(gather);

  std::vector<Bytes> outs;
  for (size_t i = 0; i < 8; ++i) outs.push_back(side.out(i));
  return outs;
}

// The definition, for distinct cells: canvas in double, then the sums of the moments.
void check_definition(const Scene& scene, const Layer& layer, const std::vector<Bytes>& outs,
                      const std::string& what) {
  const auto* canvas = reinterpret_cast<const double*>(outs[0].data());
  const auto* moments = reinterpret_cast<const double*>(outs[5].data());
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
  check(apart < 1e-12, what + ": canvas " + std::to_string(apart));
  if (scene.padded && scene.slots >= 0) sums[0] = pillars * static_cast<double>(scene.slots);
  for (size_t e = 0; e < sums.size(); ++e) {
    if (std::fabs(sums[e] - moments[e]) > 1e-9 * (1 + std::fabs(sums[e]))) {
      return check(false, what + ": moment " + std::to_string(e));
    }
  }
  check(true, what);
}

void compare(const Scene& scene, const Layer& layer, DType weights, DType canvas,
             const std::string& what) {
  const char* names[] = {"canvas",    "arg",     "mean",    "grad_weight",
                         "grad_bias", "moments", "scatter", "gather"};
  const auto host = outputs_of(scene, layer, weights, canvas, Where::kThread);
  const auto same = [&](Where where, const std::string& how) {
    const auto outs = outputs_of(scene, layer, weights, canvas, where);
    for (size_t i = 0; i < outs.size(); ++i) {
      check(outs[i] == host[i], what + ", " + how + ": " + names[i]);
    }
  };
  same(Where::kThreads, "two threads");
  for (const int plan : {0, 1, 2}) {
    set_plan_override("pillar_cpu", plan);
    same(Where::kThread, "instruction set " + std::to_string(plan));
  }
  set_plan_override("pillar_cpu", kAutomatic);
#ifdef TORCHVOX_CUDA
  if (!has_device()) return;
  for (const int lists : {0, 1}) {
    for (const int common : {0, 1}) {
      set_plan_override("pillar_lists", lists), set_plan_override("pillar_common", common);
      same(Where::kDevice, "lists " + std::to_string(lists) + ", common " + std::to_string(common));
    }
  }
  set_plan_override("pillar_lists", kAutomatic);
  set_plan_override("pillar_common", kAutomatic);
#endif
}

void test_case(int64_t count, int64_t columns, int64_t rows, int64_t slots, int64_t outputs,
               DType dtype, DType weights, DType canvas, int mode) {
  Scene scene(count, columns, rows, slots, dtype);
  scene.center_axes = mode % 2 ? 2 : 3, scene.legacy = mode & 2, scene.padded = !(mode & 4);
  const Layer layer(outputs, columns + 3 + scene.center_axes);
  const std::string what = std::to_string(count) + " x " + std::to_string(columns) + " in " +
      std::to_string(rows) + " of " + std::to_string(slots) + " to " + std::to_string(outputs) +
      ", mode " + std::to_string(mode);
  compare(scene, layer, weights, canvas, what);
  if (dtype != DType::kDouble || canvas != DType::kDouble || weights != DType::kDouble) return;
  check_definition(scene, layer, outputs_of(scene, layer, weights, canvas, Where::kThread), what);
}

}  // namespace

int main(int argc, char** argv) {
  // racecheck watches every shared access: --quick leaves out the large cases.
  const bool quick = argc > 1 && std::string(argv[1]) == "--quick";
  constexpr DType kFloat = DType::kFloat, kDouble = DType::kDouble, kHalf = DType::kHalf;
  for (int mode = 0; mode < 8; ++mode) {
    test_case(400, 4, 60, 6, 64, kFloat, kFloat, kHalf, mode);
    test_case(400, 4, 60, 6, 64, kDouble, kDouble, kDouble, mode);
    if (quick) continue;
    test_case(400, 5, 60, -1, 64, kFloat, kHalf, kHalf, mode);
    test_case(400, 7, 60, 6, 33, kHalf, kFloat, kFloat, mode);
    test_case(400, 3, 60, 6, 130, DType::kBFloat16, DType::kBFloat16, DType::kBFloat16, mode);
  }
  for (const int64_t count : {0, 1, 1025, 3000}) {
    test_case(count, 4, 20, -1, 64, kFloat, kFloat, kFloat, 0);  // pillars of more than 32 points
    test_case(count, 4, 20, 40, 64, kFloat, kFloat, kFloat, 0);
  }
  test_case(50, 4, 0, 6, 64, kFloat, kFloat, kFloat, 0);
  test_case(50, 4, 20, 0, 64, kFloat, kFloat, kFloat, 0);
  if (!quick) test_case(150000, 4, 90, 3000, 64, kFloat, kFloat, kHalf, 0);
  return finish("pillar kernels");
}
