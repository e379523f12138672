// SPDX-License-Identifier: Apache-2.0
//
// torchvox._C: facts of the build and hooks for tests. No tensor op: those are registered with
// torch.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <map>
#include <string>

#include "csrc/kernels/core/plan_override.h"
#include "csrc/kernels/core/portable_math.h"
#include "torchvox_build_info.h"

namespace {

float portable_value(const std::string& function, float x, float y) {
  namespace portable = torchvox::portable;
  if (function == "exp") return portable::exp(x);
  if (function == "log") return portable::log(x);
  if (function == "sigmoid") return portable::sigmoid(x);
  if (function == "sin") return portable::sin(x);
  if (function == "cos") return portable::cos(x);
  if (function == "atan2") return portable::atan2(y, x);
  throw pybind11::value_error("portable_math: no function is called '" + function + "'");
}

}  // namespace

PYBIND11_MODULE(_C, m) {
  m.doc() = "Facts of this build of torchvox and hooks for its tests";
  m.def(
      "build_info",
      [] {
        return std::map<std::string, std::string>{
            {"version", TORCHVOX_VERSION},
            {"torch", TORCHVOX_BUILD_TORCH},
            {"cuda", TORCHVOX_BUILD_CUDA},
            {"archs", TORCHVOX_BUILD_ARCHS},
            {"compiler", TORCHVOX_BUILD_COMPILER},
            {"commit", TORCHVOX_BUILD_COMMIT},
            {"cpu_only_reason", TORCHVOX_CPU_ONLY_REASON},
        };
      },
      "Versions, architectures and commit of this build");
  m.def(
      "set_plan_override",
      [](const std::string& plan, int64_t value) {
        if (!torchvox::set_plan_override(plan, value)) {
          throw pybind11::value_error("set_plan_override: no plan is called '" + plan + "'");
        }
      },
      pybind11::arg("plan"), pybind11::arg("value"),
      "Forces a launch decision in this process, for tests; -1 gives it back. Never changes a "
      "result");
  m.def(
      "portable_math",
      [](const std::string& function, uintptr_t x, uintptr_t y, uintptr_t out, int64_t count) {
        for (int64_t i = 0; i < count; ++i) {
          reinterpret_cast<float*>(out)[i] =
              portable_value(function, reinterpret_cast<const float*>(x)[i],
                             y ? reinterpret_cast<const float*>(y)[i] : 0.0f);
        }
      },
      pybind11::arg("function"), pybind11::arg("x"), pybind11::arg("y"), pybind11::arg("out"),
      pybind11::arg("count"),
      "The kernels' own exp, log, sigmoid, sin, cos or atan2 of `count` floats at addresses on the "
      "host, for tests; y may be 0 except for atan2");
}
