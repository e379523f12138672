// SPDX-License-Identifier: Apache-2.0
//
// The part of ONNX Runtime's C interface that is used here, in this project's words, so that no
// header of it is needed. A host passes a table of functions. A function keeps its place in the
// table from the version of the interface that brought it; later versions only append. The same
// holds for the members of the struct that describes a custom op.
//
// Where TORCHVOX_ONNXRUNTIME_INCLUDE names a folder with the published header, the build compares
// places and sizes with it (check_abi.cpp).
#pragma once

#include <cstddef>
#include <cstdint>

namespace torchvox::ort {

inline constexpr uint32_t kVersion = 18;  // of the interface: that of ONNX Runtime 1.18

struct Status;  // null: no error
struct SessionOptions;
struct Domain;
struct KernelInfo;
struct KernelContext;
struct ShapeContext;
struct Value;
struct TensorInfo;
struct Allocator;
struct MemoryInfo;
struct CustomOp;
using Function = void (*)();
using Table = const Function*;
using Task = void (*)(void* user, size_t index);

inline constexpr int kInvalidArgument = 2, kRuntimeFailure = 6;  // codes of a status
enum Characteristic { kRequired = 0, kOptional = 1, kVariadic = 2 };

// X(place in the table, name, result, arguments..)
#define TORCHVOX_ORT_FUNCTIONS(X)                                                                  \
  X(0, CreateStatus, Status*, int code, const char* message)                                       \
  X(26, CreateCustomOpDomain, Status*, const char* name, Domain** domain)                          \
  X(27, CustomOpDomain_Add, Status*, Domain* domain, const CustomOp* op)                           \
  X(28, AddCustomOpDomain, Status*, SessionOptions* options, Domain* domain)                       \
  X(51, GetTensorMutableData, Status*, Value* value, void** data)                                  \
  X(57, CreateTensorTypeAndShapeInfo, Status*, TensorInfo** info)                                  \
  X(58, SetTensorElementType, Status*, TensorInfo* info, int type)                                 \
  X(59, SetDimensions, Status*, TensorInfo* info, const int64_t* sizes, size_t rank)               \
  X(60, GetTensorElementType, Status*, const TensorInfo* info, int* type)                          \
  X(61, GetDimensionsCount, Status*, const TensorInfo* info, size_t* rank)                         \
  X(62, GetDimensions, Status*, const TensorInfo* info, int64_t* sizes, size_t rank)               \
  X(65, GetTensorTypeAndShape, Status*, const Value* value, TensorInfo** info)                     \
  X(72, MemoryInfoGetId, Status*, const MemoryInfo* info, int* id)                                 \
  X(75, AllocatorAlloc, Status*, Allocator* allocator, size_t bytes, void** memory)                \
  X(76, AllocatorFree, Status*, Allocator* allocator, void* memory)                                \
  X(77, AllocatorGetInfo, Status*, const Allocator* allocator, const MemoryInfo** info)            \
  X(85, KernelInfoGetAttribute_float, Status*, const KernelInfo* info, const char* name,           \
    float* value)                                                                                  \
  X(86, KernelInfoGetAttribute_int64, Status*, const KernelInfo* info, const char* name,           \
    int64_t* value)                                                                                \
  X(87, KernelInfoGetAttribute_string, Status*, const KernelInfo* info, const char* name,          \
    char* value, size_t* size)                                                                     \
  X(88, KernelContext_GetInputCount, Status*, const KernelContext* context, size_t* count)         \
  X(90, KernelContext_GetInput, Status*, const KernelContext* context, size_t index,               \
    const Value** value)                                                                           \
  X(91, KernelContext_GetOutput, Status*, KernelContext* context, size_t index,                    \
    const int64_t* sizes, size_t rank, Value** value)                                              \
  X(93, ReleaseStatus, void, Status* status)                                                       \
  X(99, ReleaseTensorTypeAndShapeInfo, void, TensorInfo* info)                                     \
  X(132, ReleaseAllocator, void, Allocator* allocator)                                             \
  X(162, KernelInfoGetAttributeArray_float, Status*, const KernelInfo* info, const char* name,     \
    float* values, size_t* count)                                                                  \
  X(163, KernelInfoGetAttributeArray_int64, Status*, const KernelInfo* info, const char* name,     \
    int64_t* values, size_t* count)                                                                \
  X(193, KernelContext_GetGPUComputeStream, Status*, const KernelContext* context, void** stream)  \
  X(267, ShapeInferContext_GetInputCount, Status*, const ShapeContext* context, size_t* count)     \
  X(268, ShapeInferContext_GetInputTypeShape, Status*, const ShapeContext* context, size_t index,  \
    TensorInfo** info)                                                                             \
  X(270, ShapeInferContext_SetOutputTypeShape, Status*, const ShapeContext* context, size_t index, \
    const TensorInfo* info)                                                                        \
  X(271, SetSymbolicDimensions, Status*, TensorInfo* info, const char** names, size_t rank)        \
  X(274, KernelContext_ParallelFor, Status*, const KernelContext* context, Task task,              \
    size_t total, size_t batches, void* user)                                                      \
  X(277, KernelContext_GetScratchBuffer, Status*, const KernelContext* context,                    \
    const MemoryInfo* info, size_t bytes, void** memory)                                           \
  X(278, KernelInfoGetAllocator, Status*, const KernelInfo* info, int memory_type,                 \
    Allocator** allocator)

// The functions, called by their names.
struct Api {
  Table table = nullptr;

#define TORCHVOX_ORT_MEMBER(place, name, result, ...)                        \
  template <class... Args>                                                   \
  result name(Args... args) const {                                          \
    return reinterpret_cast<result (*)(__VA_ARGS__)>(table[place])(args...); \
  }
  TORCHVOX_ORT_FUNCTIONS(TORCHVOX_ORT_MEMBER)
#undef TORCHVOX_ORT_MEMBER
};

// What the library is given when it is loaded.
struct ApiBase {
  Table (*table)(uint32_t version);  // null: the host is older
  const char* (*host_version)();
};

// A custom op. The host passes it back as `self`.
struct CustomOp {
  using Self = const CustomOp*;
  uint32_t version;
  void* (*create_kernel)(Self self, Table table, const KernelInfo* info);  // not called
  const char* (*name)(Self self);
  const char* (*provider)(Self self);  // null: the CPU
  int (*input_type)(Self self, size_t index);
  size_t (*input_count)(Self self);
  int (*output_type)(Self self, size_t index);
  size_t (*output_count)(Self self);
  void (*compute)(void* kernel, KernelContext* context);  // not called
  void (*destroy)(void* kernel);
  int (*input_characteristic)(Self self, size_t index);
  int (*output_characteristic)(Self self, size_t index);
  int (*input_memory)(Self self, size_t index);
  int (*least_variadic_inputs)(Self self);
  int (*variadic_inputs_alike)(Self self);
  int (*least_variadic_outputs)(Self self);
  int (*variadic_outputs_alike)(Self self);
  Status* (*create_kernel_or_fail)(Self self, Table table, const KernelInfo* info, void** kernel);
  Status* (*compute_or_fail)(void* kernel, KernelContext* context);
  Status* (*infer_shapes)(Self self, ShapeContext* context);
  int (*first_version)(Self self);
  int (*last_version)(Self self);
  size_t (*may_overwrite)(int** inputs, int** outputs);
  void (*release_may_overwrite)(int* inputs, int* outputs);
  size_t (*aliases)(int** inputs, int** outputs);
  void (*release_aliases)(int* inputs, int* outputs);
};

}  // namespace torchvox::ort
