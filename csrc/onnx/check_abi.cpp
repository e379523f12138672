// SPDX-License-Identifier: Apache-2.0
//
// Compares ort_abi.h with a published header of ONNX Runtime; compiled only where one is given.
#include <onnxruntime_c_api.h>

#include "csrc/bind/bind.h"
#include "csrc/onnx/ort_abi.h"

namespace torchvox {

#define TORCHVOX_ORT_CHECK(place, name, result, ...) \
  static_assert(offsetof(OrtApi, name) == place * sizeof(void*), #name " has another place");
TORCHVOX_ORT_FUNCTIONS(TORCHVOX_ORT_CHECK)

static_assert(sizeof(ort::CustomOp) <= sizeof(OrtCustomOp), "a custom op has fewer members");
static_assert(offsetof(ort::CustomOp, compute_or_fail) == offsetof(OrtCustomOp, KernelComputeV2));
static_assert(offsetof(ort::CustomOp, release_aliases) == offsetof(OrtCustomOp, ReleaseAliasMap));
static_assert(ort::kInvalidArgument == int(ORT_INVALID_ARGUMENT));
static_assert(ort::kRuntimeFailure == int(ORT_RUNTIME_EXCEPTION));
static_assert(int(ort::kVariadic) == int(INPUT_OUTPUT_VARIADIC));
static_assert(int(bind::Element::kFloat) == int(ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT));
static_assert(int(bind::Element::kInt32) == int(ONNX_TENSOR_ELEMENT_DATA_TYPE_INT32));
static_assert(int(bind::Element::kInt64) == int(ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64));
static_assert(int(bind::Element::kUInt8) == int(ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT8));
static_assert(int(bind::Element::kInt8) == int(ONNX_TENSOR_ELEMENT_DATA_TYPE_INT8));
static_assert(int(bind::Element::kDouble) == int(ONNX_TENSOR_ELEMENT_DATA_TYPE_DOUBLE));
static_assert(int(bind::Element::kHalf) == int(ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT16));

}  // namespace torchvox
