// SPDX-License-Identifier: Apache-2.0
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/util/SmallVector.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <memory>
#include <mutex>
#include <string_view>
#include <utility>

#include "csrc/ops/core/autograd.h"
#include "csrc/ops/core/checks.h"

namespace torchvox {

const char* Call::op() const {
  return schema_.name().c_str() + std::string_view("torchvox::").size();
}

OptionalTensor Call::optional(const char* name) const {
  const c10::IValue& value = (*this)[name];
  return value.isTensor() ? OptionalTensor(value.toTensor()) : std::nullopt;
}

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// Where an argument of the backward op comes from.
enum class From { kGradient, kTensor, kValue, kOutput, kNeeded };
struct Source {
  From from;
  std::string name;
  size_t place = 0;  // of the gradient, the argument, the output, or the one of Plan::inputs
  std::function<c10::IValue(const Call&)> derive = nullptr;  // in place of an argument

  c10::IValue value(const Call& call) const { return derive ? derive(call) : call.at(place); }
};

std::optional<size_t> place_of(const std::vector<c10::Argument>& list, const std::string& name) {
  for (size_t place = 0; place < list.size(); ++place) {
    if (list[place].name() == name) return place;
  }
  return std::nullopt;
}

bool is_tensor(const c10::Argument& argument) {  // Tensor or Tensor?
  return argument.type()->isSubtypeOf(*c10::OptionalType::ofTensor());
}

c10::OperatorHandle find_op(const std::string& name) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(("torchvox::" + name).c_str(), "");
}

// An op and its gradient, by the places of their arguments.
struct Plan {
  c10::OperatorHandle op, forward, backward;
  std::vector<size_t> inputs;  // arguments with a gradient, in the order of `backward`'s outputs
  std::vector<size_t> others;  // further tensors
  std::vector<size_t> required;  // tensors that may not be None
  std::vector<size_t> outputs;  // of `forward`: those that the op has
  std::vector<Source> sources;
  size_t gradients = 0;  // of outputs, the first ones

  Plan(const std::string& name, const Derivative& derivative)
      : op(find_op(name)),
        forward(derivative.train.empty() ? op : find_op(derivative.train)),
        backward(find_op(derivative.backward)) {
    const auto& arguments = op.schema().arguments();
    const auto& returns = forward.schema().returns();
    for (const auto& output : backward.schema().returns()) {
      const std::string& full = output.name();
      inputs.push_back(full.empty() ? 0 : *place_of(arguments, full.substr(full.find('_') + 1)));
    }
    for (size_t place = 0; place < arguments.size(); ++place) {
      const bool has_gradient = std::find(inputs.begin(), inputs.end(), place) != inputs.end();
      if (!is_tensor(arguments[place])) continue;
      if (!has_gradient) others.push_back(place);
      if (arguments[place].type()->kind() == c10::TypeKind::TensorType) required.push_back(place);
    }
    for (const auto& output : op.schema().returns()) {
      outputs.push_back(output.name().empty() ? 0 : *place_of(returns, output.name()));
    }
    for (const auto& argument : backward.schema().arguments()) {
      sources.push_back(source_of(argument, derivative, arguments, returns));
    }
    TORCH_INTERNAL_ASSERT(gradients >= 1 && gradients <= outputs.size(), derivative.backward,
                          " takes an argument that ", name, " has not");
  }

 private:
  Source source_of(const c10::Argument& argument, const Derivative& derivative,
                   const std::vector<c10::Argument>& arguments,
                   const std::vector<c10::Argument>& returns) {
    const std::string& name = argument.name();
    const From from = is_tensor(argument) ? From::kTensor : From::kValue;
    if (const auto derived = derivative.derived.find(name); derived != derivative.derived.end()) {
      return {from, name, 0, derived->second};
    }
    if (const auto place = place_of(arguments, name)) return {from, name, *place};
    if (const auto place = place_of(returns, name)) return {From::kOutput, name, *place};
    if (name.rfind("for_", 0) == 0) {
      const auto input =
          std::find(inputs.begin(), inputs.end(), *place_of(arguments, name.substr(4)));
      return {From::kNeeded, name, static_cast<size_t>(input - inputs.begin())};
    }
    if (const auto value = argument.default_value()) {
      return {From::kValue, name, 0, [value](const Call&) { return *value; }};
    }
    return {From::kGradient, name, gradients++};
  }
};

// An op with its gradient. The plan is made by the first call, when all schemas are known.
class DifferentiableOp {
 public:
  DifferentiableOp(std::string name, Derivative derivative)
      : name(std::move(name)), derivative(std::move(derivative)) {}

  const Plan& plan() {
    std::call_once(once_, [&] { plan_ = std::make_unique<Plan>(name, derivative); });
    return *plan_;
  }

  const std::string name;
  const Derivative derivative;

 private:
  std::once_flag once_;
  std::unique_ptr<Plan> plan_;
};

// Filled when the library is loaded; a node of a graph saves the place of its op.
std::vector<std::unique_ptr<DifferentiableOp>>& differentiable_ops() {
  static std::vector<std::unique_ptr<DifferentiableOp>> ops;
  return ops;
}

// A caller may change a list after the call.
c10::IValue copy_of(const c10::IValue& value) {
  return value.isList() ? c10::IValue(value.toList().copy()) : value;
}

// A call whose gradient is recorded.
struct Request {
  size_t op;
  const Plan& plan;
  Call call;
  int64_t left_out;  // a bit for each of Plan::inputs: None, or without a gradient in this call
  c10::DispatchKeySet keys;
  torch::jit::Stack* stack;
};

class Differentiable : public torch::autograd::Function<Differentiable> {
 public:
  // `inputs`: those of Plan::inputs that are not left out, then the other floating-point tensors.
  static variable_list forward(AutogradContext* ctx, at::TensorList /*inputs*/,
                               const Request& request) {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    const Plan& plan = request.plan;
    ctx->saved_data["op"] = static_cast<int64_t>(request.op);
    if (request.left_out != 0) ctx->saved_data["left_out"] = request.left_out;
    variable_list saved;
    saved.reserve(plan.sources.size());
    for (const Source& source : plan.sources) {
      if (source.from == From::kTensor) {
        saved.push_back(Call::tensor_of(source.value(request.call)));
      } else if (source.from == From::kValue) {
        ctx->saved_data[source.name] = copy_of(source.value(request.call));
      }
    }
    plan.forward.redispatchBoxed(request.keys & c10::after_autograd_keyset, request.stack);
    const auto returned = torch::jit::last(*request.stack, plan.forward.schema().returns().size());
    for (const Source& source : plan.sources) {
      if (source.from == From::kOutput) saved.push_back(returned[source.place].toTensor());
    }
    variable_list outputs;
    outputs.reserve(plan.outputs.size());
    for (const size_t place : plan.outputs) outputs.push_back(returned[place].toTensor());
    variable_list constants;
    for (size_t place = 0; place < outputs.size(); ++place) {
      if (place >= plan.gradients || !outputs[place].is_floating_point()) {
        constants.push_back(outputs[place]);
      }
    }
    ctx->save_for_backward(std::move(saved));
    if (!constants.empty()) ctx->mark_non_differentiable(constants);
    ctx->set_materialize_grads(false);
    return outputs;
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    auto& data = ctx->saved_data;
    const Plan& plan = differentiable_ops()[data["op"].toInt()]->plan();
    variable_list results(plan.inputs.size() + plan.others.size() + 1);
    bool any = false;
    for (size_t place = 0; place < plan.gradients; ++place) any = any || grads[place].defined();
    const auto entry = data.find("left_out");
    const int64_t left_out = entry == data.end() ? 0 : entry->second.toInt();
    Places needed;  // for each of Plan::inputs its place in `results`
    bool any_needed = false;
    for (size_t input = 0, place = 0; input < plan.inputs.size(); ++input) {
      needed.emplace_back();
      if (left_out >> input & 1) continue;
      if (ctx->needs_input_grad(place)) needed.back() = place;
      any_needed = any_needed || needed.back();
      ++place;
    }
    if (!any || !any_needed) return results;

    torch::jit::Stack stack;
    stack.reserve(plan.sources.size());
    put_arguments(plan, ctx, grads, needed, stack);
    plan.backward.callBoxed(&stack);
    for (size_t input = 0; input < needed.size(); ++input) {
      if (needed[input]) results[*needed[input]] = std::move(stack[input]).toTensor();
    }
    return results;
  }

 private:
  using Places = c10::SmallVector<std::optional<size_t>, 4>;

  static void put_arguments(const Plan& plan, AutogradContext* ctx, const variable_list& grads,
                            const Places& needed, torch::jit::Stack& stack) {
    const variable_list saved = ctx->get_saved_variables();
    const auto put = [&](const Tensor& tensor) {
      stack.push_back(tensor.defined() ? c10::IValue(tensor) : c10::IValue());
    };
    size_t tensors = 0, outputs = 0;
    for (const Source& source : plan.sources) outputs += source.from == From::kTensor;
    for (const Source& source : plan.sources) {
      switch (source.from) {
        case From::kGradient: put(grads[source.place]); break;
        case From::kTensor: put(saved[tensors++]); break;
        case From::kOutput: put(saved[outputs++]); break;
        case From::kNeeded: stack.emplace_back(needed[source.place].has_value()); break;
        case From::kValue: stack.push_back(ctx->saved_data[source.name]); break;
      }
    }
  }
};

class DifferentiableKernel : public c10::OperatorKernel {
 public:
  explicit DifferentiableKernel(size_t place) : place_(place) {}

  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                  torch::jit::Stack* stack) {
    DifferentiableOp& entry = *differentiable_ops()[place_];
    const Derivative& derivative = entry.derivative;
    const Plan& plan = entry.plan();
    const Call call(op.schema(), *stack);
    for (const char* constant : derivative.constants) {
      const Tensor& tensor = call.tensor(constant);
      TORCH_CHECK_NOT_IMPLEMENTED(!tensor.defined() || !wants_gradient(tensor), entry.name, ": ",
                                  constant, " have no gradient; detach them");
    }
    const size_t first =
        derivative.coordinates_flag && !call[derivative.coordinates_flag].toBool() ? 2 : 0;
    int64_t left_out = (int64_t{1} << first) - 1;
    bool is_recorded = false;
    for (size_t input = first; input < plan.inputs.size(); ++input) {
      const Tensor& tensor = Call::tensor_of(call.at(plan.inputs[input]));
      if (!tensor.defined()) left_out |= int64_t{1} << input;
      is_recorded = is_recorded || (tensor.defined() && wants_gradient(tensor));
    }
    if (!is_recorded) return not_differentiable_kernel(op, keys, stack);

    // torch's custom functions crash over an undefined tensor.
    for (const size_t place : plan.required) {
      check_given(call.op(), op.schema().arguments()[place].name().c_str(),
                  Call::tensor_of(call.at(place)));
    }
    if (derivative.prepare) derivative.prepare(call);
    if (derivative.compose) {
      if (const auto output = derivative.compose(call)) {
        torch::jit::drop(*stack, op.schema().arguments().size());
        return torch::jit::push(*stack, *output);
      }
    }
    variable_list inputs;
    inputs.reserve(plan.inputs.size() + plan.others.size());
    for (size_t input = first; input < plan.inputs.size(); ++input) {
      const Tensor& tensor = Call::tensor_of(call.at(plan.inputs[input]));
      if (tensor.defined()) inputs.push_back(tensor);
    }
    for (size_t input = 0; input < first; ++input) {
      inputs.push_back(Call::tensor_of(call.at(plan.inputs[input])));
    }
    for (const size_t place : plan.others) {
      const Tensor& tensor = Call::tensor_of(call.at(place));
      if (tensor.defined() && tensor.is_floating_point()) inputs.push_back(tensor);
    }
    const variable_list outputs = Differentiable::apply(
        at::TensorList(inputs), Request{place_, plan, call, left_out, keys, stack});
    torch::jit::drop(*stack, plan.forward.schema().returns().size());
    for (const Tensor& output : outputs) stack->emplace_back(output);
  }

 private:
  size_t place_;
};

}  // namespace

torch::CppFunction differentiable(std::string op, Derivative derivative) {
  auto& ops = differentiable_ops();
  ops.push_back(std::make_unique<DifferentiableOp>(std::move(op), std::move(derivative)));
  return torch::CppFunction::makeFromBoxedFunctor(
      std::make_unique<DifferentiableKernel>(ops.size() - 1));
}

}  // namespace torchvox
