// SPDX-License-Identifier: Apache-2.0
//
// Entry of box_decode: from rows of regressed values and anchors to boxes.
#pragma once

#include <cmath>

#include "csrc/kernels/core/map.h"
#include "csrc/kernels/core/portable_math.h"

namespace torchvox {

// The way from regressed values to a box (x, y, z, l, w, h in meters, yaw in radians, and vx, vy),
// on the host and on the device. Each operation rounds once, in the order of the reference
// implementations (SECOND's residual coder, CenterPoint's bbox coder).

inline constexpr int kMostBoxValues = 9;  // with a velocity
inline constexpr int kMostDeltas = 10;  // regressed values per box, the angle as cos, sin

// The box coder of anchor heads.
struct BoxCoder {
  int values = 7;  // 7, and 8 with cos, sin instead of the angle; 2 more with a velocity
  int bins = 0;  // of the direction classifier; 0: none
  float dir_offset = 0, dir_limit = 0;
  float period = 0;  // 2 pi / bins
  bool dir_flip = false;  // bins count downwards

  TORCHVOX_HD bool angle_as_pair() const { return values % 2 == 0; }
  TORCHVOX_HD int box_values() const { return values >= 9 ? 9 : 7; }
};

// The first bin of the greatest logit that is a number, else 0. `logit(k)` reads one.
template <class Logit>
TORCHVOX_HD int direction_bin(const BoxCoder& coder, const Logit& logit) {
  int bin = 0;
  float best = logit(0);
  for (int k = 1; k < coder.bins; ++k) {
    const float value = logit(k);
    if (value > best || (is_nan(best) && !is_nan(value))) {
      best = value;
      bin = k;
    }
  }
  return coder.dir_flip ? coder.bins - 1 - bin : bin;
}

// The angle minus whole periods, plus `bin` periods.
TORCHVOX_HD float turn_to_bin(const BoxCoder& coder, float yaw, int bin) {
  const float from_offset = yaw - coder.dir_offset;
  const float periods = std::floor(from_offset / coder.period + coder.dir_limit);
  const float rest = from_offset - periods * coder.period;
  return rest + coder.dir_offset + coder.period * static_cast<float>(bin);
}

// box[box_values()] of the regressed values and an anchor (x, y, z, l, w, h, yaw).
TORCHVOX_HD void decode_anchor(const BoxCoder& coder, const float* delta, const float* anchor,
                               int bin, float* box) {
  const float diagonal = root(anchor[3] * anchor[3] + anchor[4] * anchor[4]);
  box[0] = delta[0] * diagonal + anchor[0];
  box[1] = delta[1] * diagonal + anchor[1];
  box[2] = delta[2] * anchor[5] + anchor[2];
  for (int k = 3; k < 6; ++k) box[k] = portable::exp(delta[k]) * anchor[k];
  float yaw;
  if (coder.angle_as_pair()) {
    const auto angle = portable::sin_cos(anchor[6]);
    yaw = portable::atan2(delta[7] + angle.sin, delta[6] + angle.cos);
  } else {
    yaw = delta[6] + anchor[6];
  }
  box[6] = coder.bins > 0 ? turn_to_bin(coder, yaw, bin) : yaw;
  if (coder.values >= 9) {
    box[7] = coder.values == 9 ? delta[7] : delta[8];
    box[8] = coder.values == 9 ? delta[8] : delta[9];
  }
}

// The box coder of center heads: where their cells lie.
struct CenterCoder {
  float voxel[2] = {1, 1};
  float low[2] = {0, 0};
  float stride = 1;  // voxels a cell
  bool cos_first = false;  // order of the rotation's channels
  bool velocity = false;
};

struct CenterValues {
  float offset[2], z, size[3], rotation[2], velocity[2];
};

TORCHVOX_HD void decode_center(const CenterCoder& coder, const CenterValues& value, int x, int y,
                               float* box) {
  box[0] = (static_cast<float>(x) + value.offset[0]) * coder.stride * coder.voxel[0] + coder.low[0];
  box[1] = (static_cast<float>(y) + value.offset[1]) * coder.stride * coder.voxel[1] + coder.low[1];
  box[2] = value.z;
  for (int k = 0; k < 3; ++k) box[3 + k] = portable::exp(value.size[k]);
  const float first = value.rotation[0], second = value.rotation[1];
  box[6] = coder.cos_first ? portable::atan2(second, first) : portable::atan2(first, second);
  if (coder.velocity) {
    box[7] = value.velocity[0];
    box[8] = value.velocity[1];
  }
}

// boxes[i] = decode_anchor(deltas[i], anchors[i % anchor_rows], the bin of direction[i]).
struct BoxDecodeArgs {
  const void* deltas = nullptr;  // [rows, coder.values], contiguous, as all of these
  const void* direction = nullptr;  // [rows, coder.bins]
  DType dtype = DType::kFloat;  // of deltas and direction
  const float* anchors = nullptr;  // [anchor_rows, 7]
  int64_t rows = 0, anchor_rows = 0;
  BoxCoder coder;
  float* boxes = nullptr;  // [rows, coder.box_values()]
};

// Calls body(T{}) with the type of maps: half, bfloat16 or float.
template <class Body>
auto with_map_type(DType dtype, Body&& body) {
  if (dtype == DType::kHalf) return body(Half{});
  return dtype == DType::kBFloat16 ? body(BFloat16{}) : body(float{});
}

template <class T>
TORCHVOX_HD void decode_row(const BoxDecodeArgs& args, int64_t row) {
  const T* const deltas = static_cast<const T*>(args.deltas) + row * args.coder.values;
  const T* const direction = static_cast<const T*>(args.direction) + row * args.coder.bins;
  float delta[kMostDeltas];
  for (int k = 0; k < kMostDeltas; ++k) delta[k] = k < args.coder.values ? widen(deltas[k]) : 0;
  int bin = 0;
  if (args.coder.bins > 0) {
    bin = direction_bin(args.coder, [&](int k) { return widen(direction[k]); });
  }
  float box[kMostBoxValues] = {};
  decode_anchor(args.coder, delta, args.anchors + row % args.anchor_rows * 7, bin, box);
  const int values = args.coder.box_values();
  for (int k = 0; k < kMostBoxValues; ++k) {
    if (k < values) args.boxes[row * values + k] = quiet(box[k]);
  }
}
TORCHVOX_TYPED_MAP(BoxDecodeArgs, with_map_type, args.dtype, decode_row, args.rows, 1024, 128);

}  // namespace torchvox
