// SPDX-License-Identifier: Apache-2.0
//
// RegisterCustomOps, the one function that ONNX Runtime looks up in this library, and the custom op
// of every operator in csrc/bind. No exception leaves a function that the host calls.
#include <map>
#include <mutex>
#include <utility>

#include "csrc/onnx/host.h"

namespace torchvox {
namespace {

using bind::Call;
using bind::Element;
using bind::View;

// What `body` throws, as a status.
template <class Body>
ort::Status* status_of(const ort::Api& api, const Body& body) noexcept {
  try {
    body();
    return nullptr;
  } catch (const HostError& error) {
    return error.status;
  } catch (const std::invalid_argument& error) {
    return api.CreateStatus(ort::kInvalidArgument, error.what());
  } catch (const std::bad_alloc&) {
    return api.CreateStatus(ort::kRuntimeFailure, "torchvox: out of memory");
  } catch (const std::exception& error) {
    return api.CreateStatus(ort::kRuntimeFailure, error.what());
  }
}

class NodeAttributes : public bind::Attributes {
 public:
  NodeAttributes(const char* op, const ort::Api& api, const ort::KernelInfo* info)
      : op_(op), api_(api), info_(info) {}

  bool has(const char* name) const override {
    int64_t integer = 0;
    float number = 0;
    size_t count = 0;
    return passes(api_.KernelInfoGetAttribute_int64(info_, name, &integer)) ||
        passes(api_.KernelInfoGetAttribute_float(info_, name, &number)) ||
        passes(api_.KernelInfoGetAttributeArray_int64(info_, name, nullptr, &count)) ||
        passes(api_.KernelInfoGetAttributeArray_float(info_, name, nullptr, &count));
  }
  int64_t integer(const char* name) const override {
    int64_t value = 0;
    find(name, api_.KernelInfoGetAttribute_int64(info_, name, &value));
    return value;
  }
  double number(const char* name) const override {
    float value = 0;
    find(name, api_.KernelInfoGetAttribute_float(info_, name, &value));
    return value;
  }
  std::string word(const char* name) const override {
    size_t size = 0;
    find(name, api_.KernelInfoGetAttribute_string(info_, name, nullptr, &size));
    std::string value(size, '\0');
    find(name, api_.KernelInfoGetAttribute_string(info_, name, value.data(), &size));
    value.resize(size > 0 ? size - 1 : 0);  // less the 0 at the end
    return value;
  }
  std::vector<int64_t> integers(const char* name) const override {
    return list<int64_t>(name, [&](int64_t* values, size_t* count) {
      return api_.KernelInfoGetAttributeArray_int64(info_, name, values, count);
    });
  }
  std::vector<double> numbers(const char* name) const override {
    const auto values = list<float>(name, [&](float* memory, size_t* count) {
      return api_.KernelInfoGetAttributeArray_float(info_, name, memory, count);
    });
    return {values.begin(), values.end()};
  }

 private:
  bool passes(ort::Status* status) const {
    if (status != nullptr) api_.ReleaseStatus(status);
    return status == nullptr;
  }
  void find(const char* name, ort::Status* status) const {
    if (passes(status)) return;
    throw std::invalid_argument(std::string(op_) + ": the attribute " + name +
                                " is missing or of another type");
  }
  template <class T, class Get>
  std::vector<T> list(const char* name, const Get& get) const {
    size_t count = 0;
    find(name, get(nullptr, &count));
    std::vector<T> values(count);
    if (count > 0) find(name, get(values.data(), &count));
    return values;
  }

  const char* op_;
  const ort::Api& api_;
  const ort::KernelInfo* info_;
};

// A node of a session. Runs may overlap, so it does not change.
struct Kernel {
  ort::Api api;
  const char* name;
  bind::Planner plan;
  std::unique_ptr<Gpu> gpu;  // null: the CPU

  View input(const ort::KernelContext* context, size_t index) const {
    const ort::Value* value = nullptr;
    require(api.KernelContext_GetInput(context, index, &value));
    if (value == nullptr)
      throw std::invalid_argument("an input of " + std::string(name) + " is left out");
    ort::TensorInfo* info = nullptr;
    require(api.GetTensorTypeAndShape(value, &info));
    const std::unique_ptr<ort::TensorInfo, std::function<void(ort::TensorInfo*)>> owner(
        info, [this](ort::TensorInfo* one) { api.ReleaseTensorTypeAndShapeInfo(one); });
    View view;
    int element = 0;
    size_t rank = 0;
    require(api.GetTensorElementType(info, &element));
    require(api.GetDimensionsCount(info, &rank));
    view.element = static_cast<Element>(element);
    view.shape.resize(rank);
    require(api.GetDimensions(info, view.shape.data(), rank));
    void* data = nullptr;
    require(api.GetTensorMutableData(const_cast<ort::Value*>(value), &data));
    view.data = data;
    return view;
  }

  void run(ort::KernelContext* context) const {
    size_t count = 0;
    require(api.KernelContext_GetInputCount(context, &count));
    std::vector<View> inputs(count);
    for (size_t k = 0; k < count; ++k) inputs[k] = input(context, k);
    const Call call = plan(inputs);
    std::vector<void*> outputs(call.outputs.size());
    for (size_t k = 0; k < outputs.size(); ++k) {
      const bind::Shape& shape = call.outputs[k].shape;
      ort::Value* value = nullptr;
      require(api.KernelContext_GetOutput(context, k, shape.data(), shape.size(), &value));
      require(api.GetTensorMutableData(value, &outputs[k]));
    }
    try {
#ifdef TORCHVOX_CUDA
      if (gpu != nullptr) return call.run(outputs, CudaHost(*gpu, context));
#endif
      call.run(outputs, CpuHost(api, context));
    } catch (const std::runtime_error& error) {
      throw std::runtime_error(std::string(name) + ": " + error.what());
    }
  }
};

// One of bind::operators() as ONNX Runtime sees it: one variadic input of tensors of any types, and
// outputs of fixed types, or one of the type of an input.
struct Op : ort::CustomOp {
  const bind::Operator* node;
  ort::Api api;
  bool cuda;

  Op(const bind::Operator& described, const ort::Api& functions, bool on_cuda);
  static const Op& of(Self self) { return *static_cast<const Op*>(self); }

  static int type_of(Self self, size_t index) {
    const char letter = of(self).node->outputs[index];
    constexpr std::pair<char, Element> kTypes[] = {{'F', Element::kFloat},
                                                   {'I', Element::kInt32},
                                                   {'B', Element::kInt8},
                                                   {'U', Element::kUInt8}};
    for (const auto& [key, element] : kTypes) {
      if (key == letter) return static_cast<int>(element);
    }
    return static_cast<int>(Element::kUndefined);
  }
  static ort::Status* create(Self self, ort::Table table, const ort::KernelInfo* info,
                             void** kernel) {
    const ort::Api api{table};
    const bind::Operator& node = *of(self).node;
    return status_of(api, [&] {
      auto gpu = of(self).cuda ? std::make_unique<Gpu>(api, info) : nullptr;
      bind::Planner plan = node.bind(NodeAttributes(node.name, api, info));
      *kernel = new Kernel{api, node.name, std::move(plan), std::move(gpu)};
    });
  }
  static ort::Status* run(void* kernel, ort::KernelContext* context) {
    const Kernel& one = *static_cast<const Kernel*>(kernel);
    return status_of(one.api, [&] { one.run(context); });
  }
  // Sets the type of the first output, a W: the others have fixed ones.
  static ort::Status* infer(Self self, ort::ShapeContext* context) {
    const bind::Operator& node = *of(self).node;
    const ort::Api& api = of(self).api;
    ort::TensorInfo* output = nullptr;
    ort::Status* const status = status_of(api, [&] {
      size_t count = 0;
      require(api.ShapeInferContext_GetInputCount(context, &count));
      int element = static_cast<int>(Element::kUndefined);
      for (size_t k = 0; k < count; ++k) {
        ort::TensorInfo* input = nullptr;
        int type = 0;
        require(api.ShapeInferContext_GetInputTypeShape(context, k, &input));
        require(api.GetTensorElementType(input, &type));
        const bool floats = Element(type) == Element::kFloat || Element(type) == Element::kHalf;
        if (floats) element = type;
      }
      if (Element(element) == Element::kUndefined) {
        throw std::invalid_argument(std::string(node.name) + ": no input is float32 or float16");
      }
      require(api.CreateTensorTypeAndShapeInfo(&output));
      require(api.SetTensorElementType(output, element));
      // Sizes that are not known are names, here ones that no other output has.
      static std::atomic<int> unknown{0};
      const std::vector<int64_t> sizes(node.rank, -1);
      std::vector<std::string> names(node.rank);
      std::vector<const char*> words(node.rank);
      for (size_t k = 0; k < node.rank; ++k) {
        names[k] = "torchvox_" + std::to_string(unknown++);
        words[k] = names[k].c_str();
      }
      require(api.SetDimensions(output, sizes.data(), sizes.size()));
      require(api.SetSymbolicDimensions(output, words.data(), words.size()));
      require(api.ShapeInferContext_SetOutputTypeShape(context, size_t{0}, output));
    });
    // The info of an input is the context's own.
    if (output != nullptr) api.ReleaseTensorTypeAndShapeInfo(output);
    return status;
  }
};

Op::Op(const bind::Operator& described, const ort::Api& functions, bool on_cuda)
    : ort::CustomOp{}, node(&described), api(functions), cuda(on_cuda) {
  constexpr auto zero = [](Self, size_t) { return 0; };
  version = ort::kVersion;
  name = [](Self self) { return of(self).node->name; };
  provider = [](Self self) { return of(self).cuda ? "CUDAExecutionProvider" : nullptr; };
  input_type = zero;  // any
  input_count = [](Self) { return size_t{1}; };
  output_type = type_of;
  output_count = [](Self self) { return std::string_view(of(self).node->outputs).size(); };
  destroy = [](void* kernel) { delete static_cast<Kernel*>(kernel); };
  input_characteristic = [](Self, size_t) { return int{ort::kVariadic}; };
  output_characteristic = [](Self, size_t) { return int{ort::kRequired}; };
  input_memory = zero;
  least_variadic_inputs = [](Self) { return 1; };
  variadic_inputs_alike = [](Self) { return 0; };
  least_variadic_outputs = [](Self) { return 1; };
  variadic_outputs_alike = [](Self) { return 0; };
  create_kernel_or_fail = create;
  compute_or_fail = run;
  if (node->outputs[0] == 'W') infer_shapes = infer;
  first_version = [](Self) { return 1; };
  last_version = first_version;
  may_overwrite = aliases = [](int**, int**) { return size_t{0}; };
  release_may_overwrite = release_aliases = [](int*, int*) {};
}

}  // namespace
}  // namespace torchvox

extern "C" TORCHVOX_EXPORT torchvox::ort::Status* RegisterCustomOps(
    torchvox::ort::SessionOptions* options, const torchvox::ort::ApiBase* base) {
  using namespace torchvox;
  const ort::Api api{base->table(ort::kVersion)};
  if (api.table == nullptr) {
    // The first functions are in the table of every version.
    const ort::Api old{base->table(1)};
    const std::string message =
        std::string("torchvox needs ONNX Runtime 1.18 or newer, got ") + base->host_version();
    return old.CreateStatus(ort::kInvalidArgument, message.c_str());
  }
  return status_of(api, [&] {
    // One domain for each host in the process, never released: sessions keep a pointer to it.
    static std::mutex mutex;
    static std::map<ort::Table, ort::Domain*> domains;
    const std::lock_guard<std::mutex> guard(mutex);
    ort::Domain*& domain = domains[api.table];
    if (domain == nullptr) {
      ort::Domain* candidate = nullptr;
      require(api.CreateCustomOpDomain("ai.torchvox", &candidate));
      for (const bind::Operator& node : bind::operators()) {
        // A host without CUDA takes the ones for CUDA, too.
        for (const bool cuda : {false, true}) {
          require(api.CustomOpDomain_Add(candidate, new Op(node, api, cuda)));
        }
      }
      domain = candidate;
    }
    require(api.AddCustomOpDomain(options, domain));
  });
}
