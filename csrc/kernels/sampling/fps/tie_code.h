// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "csrc/kernels/core/arith.h"

namespace torchvox {

// The order among candidates at equal distance: the smaller code wins. Codes are unique and
// invertible, so every algorithm and every layout of the points selects the same one.
//
// mmcv's tree reduction over a block of T = 2^L threads prefers
//   code(i) = bitrev_L(i mod T) * ceil(N / T) + i div T,
// because its last step compares odd with even slots, so bit 0 of the thread decides first. Every
// power of two from 2^floor(log2 N) up orders N points alike, so T is cut down to that; the codes
// then lie in [0, T * ceil(N / T)), less than 2 N. T = 1 is "lowest index first".
struct TieRule {
  uint32_t log2_block;
  uint32_t columns;  // ceil(N / T)

  static TORCHVOX_HD TieRule make(int64_t points, int tie_block) {
    TieRule rule{0, 0};
    while ((int64_t{2} << rule.log2_block) <= points && (2 << rule.log2_block) <= tie_block) {
      ++rule.log2_block;
    }
    const int64_t block = int64_t{1} << rule.log2_block;
    rule.columns = static_cast<uint32_t>((points + block - 1) >> rule.log2_block);
    return rule;
  }

  // Codes are below this; N < 2^31 and T <= 1024 keep it within 32 bits.
  TORCHVOX_HD uint32_t space() const { return columns << log2_block; }

  TORCHVOX_HD uint32_t code(uint32_t i) const {
    if (log2_block == 0) return i;
    return reversed(i & ((1u << log2_block) - 1)) * columns + (i >> log2_block);
  }
  TORCHVOX_HD uint32_t index(uint32_t code) const {
    if (log2_block == 0) return code;
    return index_of(code, code / columns);
  }
  TORCHVOX_HD uint32_t index_of(uint32_t code, uint32_t quotient) const {
    return ((code - quotient * columns) << log2_block) | reversed(quotient);
  }

 private:
  // The low log2_block bits in reverse order; log2_block is at least 1 here.
  TORCHVOX_HD uint32_t reversed(uint32_t x) const {
#ifdef __CUDA_ARCH__
    return __brev(x) >> (32 - log2_block);
#else
    x = ((x >> 1) & 0x55555555u) | ((x & 0x55555555u) << 1);
    x = ((x >> 2) & 0x33333333u) | ((x & 0x33333333u) << 2);
    x = ((x >> 4) & 0x0f0f0f0fu) | ((x & 0x0f0f0f0fu) << 4);
    x = ((x >> 8) & 0x00ff00ffu) | ((x & 0x00ff00ffu) << 8);
    return ((x >> 16) | (x << 16)) >> (32 - log2_block);
#endif
  }
};

}  // namespace torchvox
