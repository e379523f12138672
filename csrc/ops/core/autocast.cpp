// SPDX-License-Identifier: Apache-2.0
//
// Under autocast one of several arguments that must agree may come out of a layer in half
// precision. The table names, op by op, what must agree: such arguments are widened to a type that
// holds them all, those that agree stay as they are, and halves where an op takes none are
// widened. What is no float is left to the op, which refuses it.
#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/core/ScalarType.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/library.h>

#include <map>
#include <string>
#include <vector>

namespace torchvox {
namespace {

using Names = std::vector<std::string>;

struct Agreement {
  std::vector<Names> together;
  Names wide = {};  // halves become `type` first
  std::string beside = "";  // but may be halves of the dtype of this argument
  at::ScalarType type = at::kFloat;
};

const std::map<std::string, Agreement>& table() {
  static const std::map<std::string, Agreement> agreements = {
      {"knn", {{{"points", "query"}}}},
      {"three_nn", {{{"points", "query"}}}},
      {"ball_query", {{{"points", "query"}}}},
      {"query_and_group", {{{"points", "query"}}}},
      {"group_mlp_max", {{{"points", "query"}, {"features", "weights", "biases"}}}},
      {"interpolate_features", {{{"points", "query"}}}},
      {"interpolation_weights", {{}, {"dist2"}}},
      {"three_interpolate", {{}, {"weight"}, "features"}},
      {"pillar_encode", {{{"weight", "bias"}}}},
      {"pillar_norm", {{{"weight", "gamma", "beta"}}, {"moments"}, "", at::kDouble}},
      {"rotated_iou", {{{"a", "b"}}, {"a", "b"}}},
      {"rotated_nms", {{}, {"boxes", "scores"}}},
      {"points_in_boxes", {{{"points", "boxes"}}, {"points", "boxes"}}},
      {"box_decode", {{{"deltas", "direction"}}, {"anchors"}}},
      {"anchor_decode_nms", {{{"cls", "box", "direction"}}, {"anchors"}}},
      {"center_decode_nms", {{{"heatmap", "offset", "z", "dim", "rot", "vel"}}}},
  };
  return agreements;
}

// The tensors of an argument: one, a list of them, or none.
std::vector<at::Tensor> tensors_of(const c10::IValue& value) {
  if (value.isTensor() && value.toTensor().defined()) return {value.toTensor()};
  return value.isTensorList() ? value.toTensorVector() : std::vector<at::Tensor>();
}

// Replaces each tensor by what change(tensor) gives.
template <class Change>
void change_tensors(c10::IValue& value, const Change& change) {
  std::vector<at::Tensor> tensors = tensors_of(value);
  for (at::Tensor& tensor : tensors) tensor = change(tensor);
  if (value.isTensorList()) {
    value = c10::IValue(tensors);
  } else if (!tensors.empty()) {
    value = tensors[0];
  }
}

void widen_halves(c10::IValue& value, std::optional<at::ScalarType> beside, at::ScalarType wide) {
  change_tensors(value, [&](const at::Tensor& tensor) {
    const at::ScalarType type = tensor.scalar_type();
    const bool half = type == at::kHalf || type == at::kBFloat16;
    return half && type != beside ? tensor.to(wide) : tensor;
  });
}

void widen_together(const std::vector<c10::IValue*>& values) {
  std::optional<at::ScalarType> widest;
  for (const c10::IValue* value : values) {
    for (const at::Tensor& tensor : tensors_of(*value)) {
      if (!tensor.is_floating_point()) return;
      widest = c10::promoteTypes(widest.value_or(tensor.scalar_type()), tensor.scalar_type());
    }
  }
  for (c10::IValue* value : values) {
    if (widest) change_tensors(*value, [&](const at::Tensor& t) { return t.to(*widest); });
  }
}

void autocast_kernel(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const std::string& name = op.schema().name();
  const Agreement& agreement = table().at(name.substr(name.find("::") + 2));
  const auto& arguments = op.schema().arguments();
  const auto value = [&](const std::string& argument) {
    const size_t place = *op.schema().argumentIndexWithName(argument);
    return &(*stack)[stack->size() - arguments.size() + place];
  };
  std::optional<at::ScalarType> beside;
  if (!agreement.beside.empty()) beside = value(agreement.beside)->toTensor().scalar_type();
  for (const std::string& argument : agreement.wide) {
    widen_halves(*value(argument), beside, agreement.type);
  }
  for (const Names& names : agreement.together) {
    std::vector<c10::IValue*> values;
    for (const std::string& argument : names) values.push_back(value(argument));
    widen_together(values);
  }
  const c10::impl::ExcludeDispatchKeyGuard no_autocast{c10::autocast_dispatch_keyset};
  op.callBoxed(stack);
}

void register_kernels(torch::Library& m) {
  for (const auto& [op, agreement] : table()) {
    m.impl(op.c_str(), torch::CppFunction::makeFromBoxedFunction<&autocast_kernel>());
  }
}

TORCH_LIBRARY_IMPL(torchvox, AutocastCPU, m) { register_kernels(m); }
TORCH_LIBRARY_IMPL(torchvox, AutocastCUDA, m) { register_kernels(m); }

}  // namespace
}  // namespace torchvox
