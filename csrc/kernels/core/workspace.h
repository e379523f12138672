// SPDX-License-Identifier: Apache-2.0
//
// Typed ranges of one block of scratch memory.
#pragma once

#include <cstddef>
#include <cstdint>

namespace torchvox {

// Carves typed ranges out of one block of bytes. The same carving code runs twice: over a null base
// to learn the size (`bytes()`), then over the block itself. Ranges start on 256-byte boundaries.
class Workspace {
 public:
  explicit Workspace(void* base = nullptr) : base_(static_cast<char*>(base)) {}

  template <class T>
  T* take(int64_t count) {
    T* range = base_ ? reinterpret_cast<T*>(base_ + used_) : nullptr;
    used_ += (count * static_cast<int64_t>(sizeof(T)) + 255) & ~int64_t{255};
    return range;
  }
  int64_t bytes() const { return used_; }

 private:
  char* base_;
  int64_t used_ = 0;
};

}  // namespace torchvox
