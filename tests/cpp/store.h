// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <cstring>
#include <vector>

#include "csrc/kernels/core/cloud_batch.h"

namespace torchvox {

// Padded clouds without gaps, of no data yet.
inline CloudBatch padded(int64_t clouds, int64_t rows, int64_t columns = 3,
                         DType dtype = DType::kFloat) {
  CloudBatch batch;
  batch.dtype = dtype;
  batch.clouds = clouds;
  batch.rows = rows;
  batch.columns = batch.row_stride = columns;
  batch.cloud_stride = rows * columns;
  return batch;
}

// The bytes of values in a type of points.
inline std::vector<uint8_t> store(const std::vector<double>& values, DType dtype) {
  std::vector<uint8_t> bytes;
  with_point_type(dtype, [&](auto type) {
    using T = decltype(type);
    std::vector<T> typed(values.size());
    for (size_t i = 0; i < values.size(); ++i) typed[i] = narrow<T>(values[i]);
    bytes.resize(typed.size() * sizeof(T));
    if (!typed.empty()) std::memcpy(bytes.data(), typed.data(), bytes.size());
  });
  return bytes;
}

}  // namespace torchvox
