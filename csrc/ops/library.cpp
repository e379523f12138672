// SPDX-License-Identifier: Apache-2.0
//
// The one table of schemas. N points of C columns, B samples, H x W cells.
#include "csrc/ops/library.h"

#include <torch/library.h>

namespace torchvox {

const std::vector<const char*>& schemas() {
  static const std::vector<const char*> table = {
      // bev: height [B, H, W], top_index [B, H, W] int32, counts [B + 1, 4] int32
      "bev_max_height(Tensor points, float[] point_cloud_range, int[] size, *, Tensor? batch_offsets=None, Tensor? num_valid=None, str orientation=\"grid\", ScalarType? out_dtype=None, float fill=0., int lowest_code=1) -> (Tensor height, Tensor counts)",
      "bev_max_height_with_index(Tensor points, float[] point_cloud_range, int[] size, *, Tensor? batch_offsets=None, Tensor? num_valid=None, str orientation=\"grid\", ScalarType? out_dtype=None, float fill=0., int lowest_code=1) -> (Tensor height, Tensor top_index, Tensor counts)",
      "_bev_max_height_backward(Tensor grad_height, Tensor top_index, Tensor points, float[] point_cloud_range, int[] size, *, Tensor? batch_offsets=None, Tensor? num_valid=None, str orientation=\"grid\") -> Tensor",  // [N, C]
  };
  return table;
}

TORCH_LIBRARY(torchvox, m) {
  for (const char* schema : schemas()) m.def(schema);
}

}  // namespace torchvox

// Registration alone leaves no symbol that a linker must resolve; torchvox.h refers to this one.
extern "C" __attribute__((visibility("default"))) int torchvox_force_link() { return 1; }
