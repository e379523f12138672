// SPDX-License-Identifier: Apache-2.0
//
// Which kernel runs a group_mlp_max and how its workspace is laid out, from sizes alone.
#pragma once

#include "csrc/kernels/neighbors/group_mlp/group_mlp_max.h"

namespace torchvox {

// What the tensor-core kernels keep of the layers, one block of bytes: biases and the weights of
// the coordinates as floats, then the weights of the other layers in the chunks of mma_tiles.cuh.
// All layers but the last are `width` groups of 32 channels wide, filled up with zeros.
struct MlpPacked {
  int width = 0;
  int last_groups = 0;
  int bias[kMostMlpLayers] = {};  // first float of a layer's bias
  int axes = 0;  // first float of the coordinates' weights, one axis after another
  int floats = 0;
  int chunk[kMostMlpLayers] = {};  // first chunk of 16 bytes of a layer, from the block's begin
  int chunks = 0;  // of all, floats included

  int64_t bytes() const { return int64_t{16} * chunks; }
};

inline constexpr int kMlpThreads = 256;  // tensor cores
inline constexpr int kMlpTileRows = 16;  // portable
inline constexpr int kMostResidentWidth = 4;  // groups; narrower kernels need all layers resident

struct GroupMlpPlan {
  bool tensor_cores = false;
  MlpPacked packed;
  int resident_chunks = 0;  // the first chunks of the block that a multiprocessor holds
  int shared_bytes = 0;
  int shared_limit = 0;  // one for all calls, so that threads may set it for a kernel side by side
  int blocks = 0;

  // Portable kernel.
  int tile = 0;  // rows
  int64_t widest = 0;  // of its two buffers, in channels
  bool in_shared = false;
};

inline int64_t bytes_of(DType dtype) {
  return dtype == DType::kDouble ? 8 : (dtype == DType::kFloat ? 4 : 2);
}

GroupMlpPlan make_group_mlp_plan(const GroupMlpArgs& args, const Target& target);

}  // namespace torchvox
