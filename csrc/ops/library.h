// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

namespace torchvox {

// Every registered schema, without the namespace.
const std::vector<std::string>& schemas();

}  // namespace torchvox
