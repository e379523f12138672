# SPDX-License-Identifier: Apache-2.0
"""Writes torchvox.h, a typed C++ function for each public op, from the table of schemas.

cpp_header.py LIBRARY_CPP HEADER
"""

import re
import sys
from pathlib import Path

START = """\
// SPDX-License-Identifier: Apache-2.0
//
// The registered ops for C++ programs: typed calls through torch's dispatcher. The semantics are
// those of the Python functions of the same names; shapes stand beside the outputs. Generated from
// csrc/ops/library.cpp.
#pragma once

#include <ATen/core/List.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

extern "C" int torchvox_force_link();

namespace torchvox {
namespace detail {

// Keeps the library linked under --as-needed: nothing else refers to it.
inline const int force_link = torchvox_force_link();

template <class Signature>
c10::TypedOperatorHandle<Signature> op(const char* name) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, "").typed<Signature>();
}

}  // namespace detail

using OptionalTensor = std::optional<at::Tensor>;
// boxes, scores, labels, count and overflow of anchor_decode_nms and center_decode_nms
using Detections = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor>;

"""
FUNCTION = """\
{comment}
inline {result} {name}(
    {parameters}) {{
  static const auto op = detail::op<decltype({name})>("torchvox::{name}");
  return op.call({arguments});
}}

"""
END = """\
namespace detail {{

// Throws where an op has a kernel of another signature.
inline void look_up_all() {{
{checks}
}}

}}  // namespace detail
}}  // namespace torchvox
"""
TYPES = {
    "Tensor": "const at::Tensor&",
    "Tensor?": "const OptionalTensor&",
    "Tensor[]": "at::TensorList",
    "Tensor(a!)[]": "at::TensorList",
    "Tensor[]?": "std::optional<at::TensorList>",
    "bool": "bool",
    "int": "int64_t",
    "int[]": "at::IntArrayRef",
    "int[]?": "std::optional<at::IntArrayRef>",
    "SymInt": "c10::SymInt",
    "SymInt[]": "c10::SymIntArrayRef",
    "float": "double",
    "float?": "std::optional<double>",
    "float[]": "at::ArrayRef<double>",
    "float[]?": "std::optional<at::ArrayRef<double>>",
    "str": "std::string_view",
    "str[]": "c10::List<std::string>",
    "str[]?": "const std::optional<c10::List<std::string>>&",
    "ScalarType": "at::ScalarType",
    "ScalarType?": "std::optional<at::ScalarType>",
}
RESULTS = {"Tensor": "at::Tensor", "int[]": "std::vector<int64_t>"}
DEFAULTS = {"None": "{}", "True": "true", "False": "false"}


def parameter(argument: str) -> tuple[str, str]:
    """An argument of a schema as a parameter of the function and as an argument of its call."""
    kind, name, default = re.fullmatch(r"(\S+) (\w+)(?:=(.+))?", argument).groups()
    text = f"{TYPES[kind]} {name}"
    if default is not None:
        text += f" = {DEFAULTS.get(default, default)}"
    return text, f"std::move({name})" if kind == "SymInt" else name


def function(comment: str, schema: str) -> str:
    name, arguments, returns = re.fullmatch(r"(\w+)\((.*)\) -> (.*)", schema).groups()
    parameters = [parameter(a) for a in arguments.split(", ") if a != "*"]
    outputs = returns.count(",") + 1
    return FUNCTION.format(
        comment=comment,
        name=name,
        result=RESULTS.get(returns, f"std::tuple<{', '.join(['at::Tensor'] * outputs)}>"),
        parameters=",\n    ".join(text for text, _ in parameters),
        arguments=", ".join(value for _, value in parameters),
    )


def main() -> None:
    table = Path(sys.argv[1]).read_text(encoding="utf-8")
    functions, checks = [], []
    for comment, text in re.findall(
        r'((?:^ +// (?!--).*\n)*) +R"\(((?:.*\n)*?.*)\)",$', table, re.M
    ):
        schema = " ".join(text.split())
        name = schema.partition("(")[0]
        if not name.startswith("_"):
            functions.append(function(re.sub("^ +", "", comment, flags=re.M).strip(), schema))
            checks.append(f'  op<decltype({name})>("torchvox::{name}");')
    header = START + "".join(functions) + END.format(checks="\n".join(checks))
    Path(sys.argv[2]).write_text(header, encoding="utf-8")


if __name__ == "__main__":
    main()
