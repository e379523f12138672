// SPDX-License-Identifier: Apache-2.0
//
// Calls of the detection kernels with the memory that they refer to.
#pragma once

#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "csrc/kernels/detection/decode_nms/decode_nms.h"
#include "tests/cpp/device_buffers.h"
#include "tests/cpp/store.h"

namespace torchvox {

// What the logits look like.
enum class Logits { kSpread, kTied, kEqual, kSaturated, kSpoilt };

struct DecodeResult {
  std::vector<float> boxes, scores;
  std::vector<int32_t> labels, count, overflow;
};

// All heads of a size; the maps of a head are channels of one convolution's output.
struct DecodeCase {
  std::string name;
  DecodeNmsArgs args;
  bool channels_last = true;
  std::vector<std::vector<uint8_t>> outputs;  // a head
  std::vector<std::vector<int32_t>> channels;  // of each map of a head, 0 for none
  std::vector<std::vector<float>> anchors;

  DecodeNmsArgs bind(DeviceBuffers* device, DecodeResult& result) const {
    DecodeNmsArgs bound = args;
    const int64_t bytes = args.dtype == DType::kFloat ? 4 : 2;
    for (int h = 0; h < args.heads; ++h) {
      DecodeHead& head = bound.head[h];
      int32_t all = 0, first = 0;
      for (const int32_t c : channels[h]) all += c;
      const int32_t cells = head.height * head.width;
      const void* const data = device ? device->copy(outputs[h]) : outputs[h].data();
      for (int m = 0; m < kMapKinds; ++m) {
        const int32_t channel_stride = channels_last ? 1 : cells, step = channels_last ? all : 1;
        head.map[m] = {static_cast<const char*>(data) + first * bytes * channel_stride,
                       int64_t{all} * cells, channel_stride, head.width * step, step};
        first += channels[h][m];
      }
      if (!anchors.empty()) {
        head.anchors =
            device ? static_cast<const float*>(device->copy(anchors[h])) : anchors[h].data();
      }
    }
    const int64_t rows = args.batches * args.rows();
    result.boxes.assign(rows * args.box_values(), 77);
    result.scores.assign(rows, 77);
    result.labels.assign(rows, 77);
    result.count.assign(args.batches, 77);
    result.overflow.assign(args.batches, 77);
    const auto place = [&](auto& values) {
      return device ? static_cast<decltype(values.data())>(device->copy(values)) : values.data();
    };
    bound.boxes = place(result.boxes);
    bound.scores = place(result.scores);
    bound.labels = place(result.labels);
    bound.count = place(result.count);
    bound.overflow = place(result.overflow);
    return bound;
  }
};

inline double logit(Logits kind, std::mt19937& random) {
  std::normal_distribution<double> normal(-3.0, 1.5);
  switch (kind) {
    case Logits::kTied: return std::round(normal(random) * 2) / 2;
    case Logits::kEqual: return -4.6;
    case Logits::kSaturated: return 20 + normal(random);
    case Logits::kSpoilt:
      if (random() % 5 == 0) return random() % 2 ? NAN : (random() % 2 ? INFINITY : -INFINITY);
      break;
    case Logits::kSpread: break;
  }
  return normal(random);
}

inline void add_head(DecodeCase& c, int32_t height, int32_t width, int32_t per_cell,
                     int32_t classes, const std::vector<int32_t>& channels, Logits kind,
                     std::mt19937& random) {
  DecodeNmsArgs& args = c.args;
  DecodeHead& head = args.head[args.heads];
  head.height = height;
  head.width = width;
  head.per_cell = per_cell;
  head.classes = classes;
  if (args.heads > 0) {
    const DecodeHead& before = args.head[args.heads - 1];
    head.first_class = before.first_class + before.classes;
    head.first_box = before.first_box + before.boxes();
    head.first_pair = before.first_pair + before.boxes() * before.classes;
  }
  ++args.heads;
  int64_t all = 0;
  for (const int32_t n : channels) all += n;
  const int64_t cells = int64_t{height} * width;
  std::normal_distribution<double> normal(0, 0.3);
  std::vector<double> values(args.batches * all * cells);
  for (int64_t i = 0; i < static_cast<int64_t>(values.size()); ++i) {
    const int64_t channel = c.channels_last ? i % all : i / cells % all;
    values[i] = channel < channels[0] ? logit(kind, random) : normal(random);
    if (kind == Logits::kSpoilt && channel >= channels[0] && random() % 97 == 0) values[i] = 1e4;
  }
  c.outputs.push_back(store(values, args.dtype));
  c.channels.push_back(channels);
}

inline void add_anchors(DecodeCase& c, double meters) {
  const DecodeHead& head = c.args.head[c.args.heads - 1];
  std::vector<float> anchors;
  for (int32_t y = 0; y < head.height; ++y) {
    for (int32_t x = 0; x < head.width; ++x) {
      for (int32_t a = 0; a < head.per_cell; ++a) {
        const float l = a < 2 ? 3.9f : 0.8f + 0.5f * a;
        for (const double v : {x * meters, y * meters - 20, -1.0, 1.0 * l, l * 0.4, 1.6}) {
          anchors.push_back(static_cast<float>(v));
        }
        anchors.push_back(a % 2 ? 1.57f : 0.0f);
      }
    }
  }
  c.anchors.push_back(anchors);
}

// KITTI's three classes: 6 anchors a cell.
inline DecodeCase kitti_case(DType dtype, int64_t batches, int32_t height, int32_t width,
                             bool channels_last, Logits kind, std::mt19937& random) {
  DecodeCase c;
  c.channels_last = channels_last;
  DecodeNmsArgs& args = c.args;
  args.dtype = dtype;
  args.batches = batches;
  args.coder.values = 7;
  args.coder.bins = 2;
  args.coder.dir_offset = 0.78539f;
  args.coder.period = 3.14159274f;
  args.score_threshold = 0.1f;
  args.pre = 4096;
  args.post = 500;
  args.nms_threshold[0] = args.nms_threshold[1] = args.nms_threshold[2] = 0.01f;
  for (int k = 0; k < kMostClasses; ++k) args.label[k] = k;
  add_head(c, height, width, 6, 3, {18, 42, 12, 0, 0, 0}, kind, random);
  add_anchors(c, 0.32);
  return c;
}

inline DecodeCase center_case(DType dtype, int64_t batches, int32_t size, bool channels_last,
                              Logits kind, std::mt19937& random) {
  DecodeCase c;
  c.channels_last = channels_last;
  DecodeNmsArgs& args = c.args;
  args.dtype = dtype;
  args.batches = batches;
  args.centers = true;
  args.center.velocity = true;
  args.center.stride = 4;
  args.center.voxel[0] = args.center.voxel[1] = 0.2f;
  args.center.low[0] = args.center.low[1] = -51.2f;
  args.has_range = true;
  for (int k = 0; k < 3; ++k) {
    args.range[k] = k < 2 ? -61.2f : -10;
    args.range[k + 3] = -args.range[k];
  }
  args.score_threshold = 0.1f;
  args.closed = false;
  args.group = DecodeGroup::kHead;
  args.best_class = false;
  args.pre = 500;
  args.post = 83;
  for (int k = 0; k < kMostClasses; ++k) {
    args.nms_threshold[k] = 0.2f;
    args.label[k] = k;
  }
  for (const int32_t classes : {1, 2, 2, 1, 2, 2}) {
    add_head(c, size, size, 1, classes, {classes, 2, 1, 3, 2, 2}, kind, random);
  }
  return c;
}

}  // namespace torchvox
