// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "csrc/kernels/spatial/morton.h"

namespace torchvox {

// Place of a cell of a cube of 2^bits cells a side on its Hilbert curve, bits 0 to 10. Cells next
// to each other on the curve share a face. (Skilling, "Programming the Hilbert curve", 2004.)
__device__ __forceinline__ uint32_t hilbert_code(uint32_t x, uint32_t y, uint32_t z, int bits) {
  if (bits == 0) return 0;
  uint32_t axis[3] = {x, y, z};
  for (uint32_t bit = 1u << (bits - 1); bit > 1; bit /= 2) {
    const uint32_t below = bit - 1;
#pragma unroll
    for (int i = 0; i < 3; ++i) {
      const bool set = axis[i] & bit;
      const uint32_t change = (axis[0] ^ axis[i]) & below;
      axis[0] ^= set ? below : change;
      axis[i] ^= set ? 0 : change;
    }
  }
  axis[1] ^= axis[0];
  axis[2] ^= axis[1];
  uint32_t flip = 0;
  for (uint32_t bit = 1u << (bits - 1); bit > 1; bit /= 2) flip ^= axis[2] & bit ? bit - 1 : 0;
  return spread_bits(axis[0] ^ flip) << 2 | spread_bits(axis[1] ^ flip) << 1 |
      spread_bits(axis[2] ^ flip);
}

}  // namespace torchvox
