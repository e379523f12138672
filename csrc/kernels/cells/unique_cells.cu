// SPDX-License-Identifier: Apache-2.0
//
// The first and last step of unique_cells on the GPU: one thread per row, which reads each column
// once.
#include "csrc/kernels/cells/unique_cells.h"
#include "csrc/kernels/core/launch.cuh"

namespace torchvox {

cudaError_t launch(const CellKeysArgs& args, void*, const CudaContext& context) {
  return launch_elements<write_cell_key>(args, args.cells.rows, context);
}

cudaError_t launch(const CellRowsArgs& args, void*, const CudaContext& context) {
  return launch_elements<write_cell_row>(args, args.cells.rows, context);
}

}  // namespace torchvox
