// SPDX-License-Identifier: Apache-2.0
//
// The plan of sparse_conv for Hopper GPUs.
#pragma once

#include "csrc/kernels/sparse/conv.h"

namespace torchvox {
namespace hopper {

// Whether the plan serves a call on the device.
inline bool takes(const SparseConvArgs& args, const Target& target) {
  return target.compute_capability == 90 && target.shared_bytes >= 227 << 10 &&
      (args.dtype == DType::kHalf || args.dtype == DType::kBFloat16) && args.table.rows > 0 &&
      args.in_channels > 0 && args.out_channels > 0;
}
int64_t workspace_bytes(const SparseConvArgs& args, const Target& target);
// order: [rows] in which order rows are taken, those of like offsets together; null: as they are.
cudaError_t launch(const SparseConvArgs& args, const int32_t* order, void* workspace,
                   const CudaContext& context);

}  // namespace hopper
}  // namespace torchvox
