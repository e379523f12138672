// SPDX-License-Identifier: Apache-2.0
//
// place_boxes on the CPU: one task per scene.
#include "csrc/kernels/boxes/place_boxes.h"

namespace torchvox {

void run_cpu(const PlaceBoxesArgs& args, void* memory, const ParallelFor& parallel_for) {
  const auto scratch = carve<PlaceScratch>(memory, args);
  for_each_index(parallel_for, args.batches, 1,
                 [&](int64_t batch) { ScenePlacer(args, scratch, batch, Team()).run(); });
}

}  // namespace torchvox
