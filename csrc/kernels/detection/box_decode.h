// SPDX-License-Identifier: Apache-2.0
//
// Entry of box_decode: rows of regressed values and anchors to boxes.
#pragma once

#include <cstdint>

#include "csrc/kernels/core/cloud_batch.h"
#include "csrc/kernels/core/entry.h"
#include "csrc/kernels/detection/box_coder.h"

namespace torchvox {

// boxes[i] = decode_anchor(deltas[i], anchors[i % anchor_rows], the bin of direction[i]).
struct BoxDecodeArgs {
  const void* deltas = nullptr;  // [rows, coder.values], contiguous, as all of these
  const void* direction = nullptr;  // [rows, coder.bins]
  DType dtype = DType::kFloat;  // of deltas and direction
  const float* anchors = nullptr;  // [anchor_rows, 7]
  int64_t rows = 0;
  int64_t anchor_rows = 0;
  BoxCoder coder;
  float* boxes = nullptr;  // [rows, coder.box_values()]
};

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

TORCHVOX_KERNEL_WITHOUT_WORKSPACE(BoxDecodeArgs);

}  // namespace torchvox
