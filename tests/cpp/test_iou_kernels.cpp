// SPDX-License-Identifier: Apache-2.0
//
// Overlaps of boxes, their gradients and points in boxes, without torch: properties on the host;
// with a GPU, the device against the host, bit for bit. `--bench` times graph replays.
#include <cmath>
#include <cstdio>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "csrc/kernels/boxes/points_in_boxes.h"
#include "csrc/kernels/boxes/rotated_iou.h"
#include "tests/cpp/check.h"
#include "tests/cpp/device_buffers.h"
#include "tests/cpp/store.h"

using namespace torchvox;
using namespace torchvox::testing;

namespace {

constexpr int kColumns = 8;  // one more than the rule reads

std::vector<double> make_boxes(int64_t count, Random& random) {
  std::vector<double> boxes;
  for (int64_t i = 0; i < count; ++i) {
    const double row[kColumns] = {random.uniform(-4, 4),
                                  random.uniform(-4, 4),
                                  random.uniform(-1, 1),
                                  random.uniform(0.5f, 5),
                                  random.uniform(0.3f, 2.5f),
                                  random.uniform(0.5f, 2),
                                  i % 3 ? random.uniform(-7, 7) : 0.5 * static_cast<double>(i % 7),
                                  1};
    boxes.insert(boxes.end(), row, row + kColumns);
    if (i % 11 == 10) boxes[i * kColumns + 3 + i % 4] = i % 2 ? 0.0 : -1.0;
    if (i % 13 == 12) boxes[i * kColumns + i % 7] = NAN;
    if (i % 5 == 4) {  // the box before, or one that it touches
      for (int c = 0; c < kColumns; ++c) boxes[i * kColumns + c] = boxes[(i - 1) * kColumns + c];
      if (i % 2) boxes[i * kColumns] += boxes[i * kColumns + 3];
    }
  }
  return boxes;
}

using Bytes = std::vector<uint8_t>;

// Memory of one side for the arrays of a call.
class HostMemory {
 public:
  const void* read(const Bytes& bytes) { return bytes.data(); }
  void* write(Bytes& bytes) { return bytes.data(); }
  template <class Args>
  void run(const Args& args) {
    run_on_host(args, backward_for);
  }
  void finish() {}
};

#ifdef TORCHVOX_CUDA
class DeviceMemory {
 public:
  const void* read(const Bytes& bytes) {
    buffers_.push_back(std::make_unique<DeviceBuffer<uint8_t>>(bytes));
    return buffers_.back()->data();
  }
  void* write(Bytes& bytes) {
    outputs_.push_back({&bytes, buffers_.size()});
    buffers_.push_back(std::make_unique<DeviceBuffer<uint8_t>>(bytes));
    return buffers_.back()->data();
  }
  template <class Args>
  void run(const Args& args) {
    run_on_device(args);
  }
  void finish() {
    for (const auto& [bytes, at] : outputs_) *bytes = buffers_[at]->host();
  }

 private:
  std::vector<std::unique_ptr<DeviceBuffer<uint8_t>>> buffers_;
  std::vector<std::pair<Bytes*, size_t>> outputs_;
};
#endif

struct IouCase {
  std::string name;
  RotatedIouArgs args;
  Bytes a, b, grad;

  int64_t element() const { return args.dtype == DType::kDouble ? 8 : 4; }
  int64_t values() const { return args.batches * args.a.rows * (args.is_paired ? 1 : args.b.rows); }
};

IouCase make_iou(int64_t batches, int64_t rows, int64_t columns, DType dtype, bool is_paired,
                 bool is_volume, Random& random) {
  IouCase c;
  c.name = std::to_string(batches) + " x " + std::to_string(rows) + " x " +
      std::to_string(columns) + (dtype == DType::kDouble ? ", double" : ", float") +
      (is_paired ? ", paired" : "") + (is_volume ? ", 3d" : "");
  c.args.dtype = dtype;
  c.args.batches = batches;
  c.args.is_paired = is_paired;
  c.args.is_volume = is_volume;
  c.args.a = {nullptr, rows, kColumns, rows * kColumns};
  c.args.b = {nullptr, columns, kColumns, columns * kColumns};
  c.a = store(make_boxes(batches * rows, random), dtype);
  c.b = store(make_boxes(batches * columns, random), dtype);
  std::vector<double> grad(c.values());
  for (double& g : grad) g = random.uniform(-1, 1);
  c.grad = store(grad, dtype);
  return c;
}

template <class Memory>
std::vector<Bytes> run_iou(const IouCase& c, Memory memory) {
  std::vector<Bytes> out{Bytes(c.values() * c.element(), 0xab), Bytes(c.a.size(), 0xab),
                         Bytes(c.b.size(), 0xab)};
  RotatedIouArgs args = c.args;
  args.a.data = memory.read(c.a);
  args.b.data = memory.read(c.b);
  args.iou = memory.write(out[0]);
  memory.run(args);
  RotatedIouBackwardArgs backward;
  backward.forward = args;
  backward.grad = memory.read(c.grad);
  backward.a_columns = backward.b_columns = kColumns;
  backward.grad_a = memory.write(out[1]);
  backward.grad_b = memory.write(out[2]);
  memory.run(backward);
  memory.finish();
  return out;
}

[[maybe_unused]] void check_all_same(const std::vector<Bytes>& got, const std::vector<Bytes>& want,
                                     const std::string& name) {
  for (size_t k = 0; k < want.size(); ++k) {
    check_same(got[k], want[k], name + ", output " + std::to_string(k));
  }
}

void check_iou(const IouCase& c, [[maybe_unused]] bool on_gpu) {
  const std::vector<Bytes> want = run_iou(c, HostMemory());
  bool in_range = true;
  for (int64_t i = 0; i < c.values(); ++i) {
    const double iou = c.args.dtype == DType::kDouble
        ? reinterpret_cast<const double*>(want[0].data())[i]
        : reinterpret_cast<const float*>(want[0].data())[i];
    in_range = in_range && iou >= 0 && iou <= 1;
  }
  check(in_range, c.name + ": in [0, 1]");
#ifdef TORCHVOX_CUDA
  if (on_gpu) check_all_same(run_iou(c, DeviceMemory()), want, c.name);
#endif
}

struct InsideCase {
  std::string name;
  PointsInBoxesArgs args;
  Bytes points, boxes;
  std::vector<int32_t> lengths, box_lengths;

  int64_t bytes() const {
    const int64_t points = args.batches * args.points.rows, boxes = args.batches * args.boxes.rows;
    switch (args.mode) {
      case PointsInBoxesMode::kIndex: return 4 * points;
      case PointsInBoxesMode::kMask: return points * args.boxes.rows;
      default: return 4 * boxes;
    }
  }
};

Bytes bytes_of(const std::vector<int32_t>& values) {
  const auto* const begin = reinterpret_cast<const uint8_t*>(values.data());
  return Bytes(begin, begin + 4 * values.size());
}

template <class Memory>
Bytes run_inside(const InsideCase& c, Memory memory) {
  Bytes out(c.bytes(), 0xab);
  PointsInBoxesArgs args = c.args;
  const Bytes lengths = bytes_of(c.lengths), box_lengths = bytes_of(c.box_lengths);
  args.points.data = memory.read(c.points);
  args.boxes.data = memory.read(c.boxes);
  if (!c.lengths.empty()) args.lengths = {memory.read(lengths), false};
  if (!c.box_lengths.empty()) args.box_lengths = {memory.read(box_lengths), false};
  args.out = memory.write(out);
  memory.run(args);
  memory.finish();
  return out;
}

void check_inside(int64_t batches, int64_t points, int64_t boxes, DType dtype, Random& random,
                  [[maybe_unused]] bool on_gpu) {
  InsideCase c;
  c.args.dtype = dtype;
  c.args.batches = batches;
  c.args.points = {nullptr, points, 4, 4 * points};
  c.args.boxes = {nullptr, boxes, kColumns, kColumns * boxes};
  c.args.margin = boxes % 2 ? 0.01 : 0;
  std::vector<double> values(batches * points * 4);
  for (double& v : values) v = random.uniform(-4, 4);
  for (size_t i = 8; i < values.size(); i += 97) values[i] = NAN;
  c.points = store(values, dtype);
  c.boxes = store(make_boxes(batches * boxes, random), dtype);
  for (const bool has_lengths : {false, true}) {
    for (int64_t b = 0; b < (has_lengths ? batches : 0); ++b) {
      c.lengths.push_back(static_cast<int32_t>(b == 0 ? points / 2 : 1 << 30));
      c.box_lengths.push_back(static_cast<int32_t>(b == 0 ? 1 << 30 : boxes / 3 - 1));
    }
    int64_t counted = 0, masked = 0;
    for (const auto mode :
         {PointsInBoxesMode::kIndex, PointsInBoxesMode::kMask, PointsInBoxesMode::kCount}) {
      c.args.mode = mode;
      const Bytes want = run_inside(c, HostMemory());
      if (mode == PointsInBoxesMode::kMask) {
        for (const uint8_t held : want) masked += held;
      }
      for (size_t i = 0; mode == PointsInBoxesMode::kCount && i < want.size() / 4; ++i) {
        counted += reinterpret_cast<const int32_t*>(want.data())[i];
      }
#ifdef TORCHVOX_CUDA
      if (!on_gpu) continue;
      check_same(run_inside(c, DeviceMemory()), want,
                 "points in boxes, mode " + std::to_string(static_cast<int>(mode)) + ", " +
                     std::to_string(points) + " x " + std::to_string(boxes));
#endif
    }
    check(counted == masked, "counts are sums of masks");
  }
}

// Boxes about a street of 80 m, points of a sweep.
void bench() {
#ifdef TORCHVOX_CUDA
  Target target;
  if (!find_device(target)) return;
  Random random(5);
  DeviceBuffers device;
  const auto boxes = [&](int64_t count) {
    std::vector<double> made = make_boxes(count, random);
    for (int64_t i = 0; i < 2 * count; ++i) made[i / 2 * kColumns + i % 2] *= 10;
    return device.copy(store(made, DType::kFloat));
  };
  const auto show = [&](const char* what, int64_t rows, int64_t columns, const auto& args) {
    std::printf("%s %lld x %lld: %.1f us\n", what, static_cast<long long>(rows),
                static_cast<long long>(columns), replay_microseconds(args, device, target, 200));
  };
  for (const int64_t rows : {1024, 4096}) {
    RotatedIouArgs args;
    args.batches = 1;
    args.a = {boxes(rows), rows, kColumns, 0};
    args.b = {boxes(rows), rows, kColumns, 0};
    args.iou = device.allocate(4 * rows * rows);
    show("rotated_iou", rows, rows, args);
    args.is_volume = true;
    show("rotated_iou 3d", rows, rows, args);
    RotatedIouBackwardArgs backward;
    backward.forward = args;
    backward.grad = args.iou;
    backward.a_columns = backward.b_columns = kColumns;
    backward.grad_a = device.allocate(4 * rows * kColumns);
    backward.grad_b = device.allocate(4 * rows * kColumns);
    show("gradient 3d", rows, rows, backward);
    backward.forward.is_paired = true;
    show("paired gradient 3d", rows, 1, backward);
  }
  PointsInBoxesArgs args;
  constexpr int64_t kPoints = 111000, kBoxes = 50;
  std::vector<double> points(3 * kPoints);
  for (double& p : points) p = random.uniform(-40, 40);
  args.batches = 1;
  args.points = {device.copy(store(points, DType::kFloat)), kPoints, 3, 0};
  args.boxes = {boxes(kBoxes), kBoxes, kColumns, 0};
  args.out = device.allocate(4 * kPoints * kBoxes);
  for (const auto mode :
       {PointsInBoxesMode::kIndex, PointsInBoxesMode::kMask, PointsInBoxesMode::kCount}) {
    args.mode = mode;
    show("points_in_boxes", kPoints, kBoxes, args);
  }
#endif
}

}  // namespace

int main(int argc, char** argv) {
  if (argc > 1 && std::string(argv[1]) == "--bench") {
    bench();
    return 0;
  }
  // racecheck watches every shared access: --quick leaves out most cases.
  const bool quick = argc > 1 && std::string(argv[1]) == "--quick";
  bool on_gpu = false;
#ifdef TORCHVOX_CUDA
  on_gpu = has_device();
#endif
  if (!on_gpu) std::printf("no GPU: host only\n");
  Random random(4);
  for (const DType dtype : {DType::kFloat, DType::kDouble}) {
    for (const bool is_volume : {false, true}) {
      for (const int64_t rows : {0, 1, 64, 65, 300}) {
        if (quick && rows != 65) continue;
        check_iou(make_iou(2, rows, 70, dtype, false, is_volume, random), on_gpu);
        check_iou(make_iou(1, rows, 3, dtype, false, is_volume, random), on_gpu);
        check_iou(make_iou(2, rows, rows, dtype, true, is_volume, random), on_gpu);
      }
      check_iou(make_iou(2, 5, 0, dtype, false, is_volume, random), on_gpu);
    }
    for (const int64_t points : {0, 1, 255, 1024, 5000}) {
      for (const int64_t boxes : {0, 1, 50, 131}) {
        if (!quick || (points == 1024 && boxes != 131)) {
          check_inside(2, points, boxes, dtype, random, on_gpu);
        }
      }
    }
  }
  return finish("test_iou_kernels");
}
