// SPDX-License-Identifier: Apache-2.0
//
// What every file with ops needs.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "csrc/ops/core/autograd.h"
#include "csrc/ops/core/checks.h"
#include "csrc/ops/core/clouds.h"
#include "csrc/ops/core/device.h"
#include "csrc/ops/core/inputs.h"
#include "csrc/ops/core/register.h"
