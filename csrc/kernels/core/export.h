// SPDX-License-Identifier: Apache-2.0
#pragma once

// Symbols are hidden by default; the launchers that other libraries call are exported by name.
#define TORCHVOX_EXPORT __attribute__((visibility("default")))
