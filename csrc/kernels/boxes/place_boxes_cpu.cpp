// SPDX-License-Identifier: Apache-2.0
//
// place_boxes on the CPU: one task per scene.
#include "csrc/kernels/boxes/place_boxes.h"

namespace torchvox {

int64_t workspace_bytes_cpu(const PlaceBoxesArgs& args) { return carved_bytes<PlaceScratch>(args); }

void run_cpu(const PlaceBoxesArgs& args, void* memory, const ParallelFor& parallel_for) {
  Workspace workspace(memory);
  const PlaceScratch scratch(args, workspace);
  for_each_index(parallel_for, args.batches, 1,
                 [&](int64_t batch) { ScenePlacer(args, scratch, batch, Team()).run(); });
}

}  // namespace torchvox
