// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

namespace torchvox {

// Every registered schema, without the namespace.
const std::vector<const char*>& schemas();

}  // namespace torchvox
