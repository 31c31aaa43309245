// ATen's CUDA operators, run by the CPU's kernels on the same memory: device memory of the simulated runtime is the
// host's. Results are real, times are not. What runs while a stream captures is recorded, and a replay runs it again.
#include <ATen/ATen.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/cuda/CUDAContext.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <torch/library.h>
#include <torch/version.h>

#include <map>
#include <mutex>
#include <set>

#include "machine.h"

using at::Tensor;
using c10::IValue;
using torch::jit::Stack;
using MaybeTensor = std::optional<Tensor>;

extern "C" cudaError_t simgpu_run(cudaStream_t, int, uint64_t, int);
extern "C" int simgpu_capture_state(cudaStream_t, int);

constexpr double FEW_FLOPS = 6e8;  // larger products are not computed; they only take time

static cudaStream_t stream_on(at::Device gpu) { return at::cuda::getCurrentCUDAStream(gpu.index()).stream(); }
static bool is_capturing(at::Device gpu) { return simgpu_capture_state(stream_on(gpu), gpu.index()) != 0; }
static void take_time(at::Device gpu, double ns, bool narrow = false) {
  C10_CUDA_CHECK(simgpu_run(stream_on(gpu), gpu.index(), (uint64_t)ns, narrow));
}
static void synchronize(at::Device gpu) { at::cuda::getCurrentCUDAStream(gpu.index()).synchronize(); }

// ---- graphs: what each replays

typedef std::vector<std::function<void()>> Recording;
static std::map<int64_t, Recording> recordings;
static Recording* recording = nullptr;

extern "C" void simgpu_record_begin(int64_t graph) {
  recording = &recordings[graph];
  recording->clear();
}
extern "C" void simgpu_record_end() { recording = nullptr; }
extern "C" void simgpu_replay(int64_t graph, int gpu) {
  Recording& calls = recordings[graph];
  for (auto& call : calls) call();
  take_time(at::Device(at::kCUDA, gpu), (double)kernel_ns() * calls.size());
}

// ---- the same memory as the other device's tensor

static Tensor as_cpu(const Tensor& tensor) {
  if (!tensor.defined() || !tensor.is_cuda()) return tensor;
  auto on_cpu = tensor.options().device(at::kCPU).pinned_memory(false).requires_grad(false);
  if (tensor.numel() == 0 && !tensor.storage().data())
    return at::empty_strided(tensor.sizes(), tensor.strides(), on_cpu);
  auto plain = at::TensorOptions().dtype(tensor.dtype()).device(at::kCPU);
  void* memory = const_cast<void*>(tensor.const_data_ptr());
  auto alias = at::from_blob(memory, tensor.sizes(), tensor.strides(), [](void*) {}, plain, at::Device(at::kCPU));
  if (tensor.is_conj()) alias._set_conj(true);
  if (tensor.is_neg()) alias._set_neg(true);
  if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) alias.unsafeGetTensorImpl()->set_wrapped_number(true);
  return alias;
}

static Tensor copied_to(const Tensor& tensor, at::Device gpu) {
  if (!tensor.defined()) return tensor;
  auto copy = at::empty_strided(tensor.sizes(), tensor.strides(), tensor.options().device(gpu).requires_grad(false));
  as_cpu(copy).copy_(tensor);
  return copy;
}

// A CPU's generator for each of CUDA's, seeded like it. The weak pointer keeps a later generator from the address of one that
// is gone: with the same seed it would go on where that one had got to.
static at::Generator as_cpu(const at::Generator& generator) {
  struct Made {
    c10::weak_intrusive_ptr<c10::GeneratorImpl> cuda;
    at::Generator cpu;
  };
  static std::mutex mutex;
  static std::map<void*, Made> made;
  std::lock_guard<std::mutex> lock(mutex);
  void* key = generator.unsafeGetGeneratorImpl();
  auto found = made.find(key);
  if (found != made.end() && found->second.cpu.current_seed() == generator.current_seed()) return found->second.cpu;
  auto fresh = at::detail::getDefaultCPUGenerator().clone();
  fresh.set_current_seed(generator.current_seed());
  made.insert_or_assign(key, Made{c10::weak_intrusive_ptr<c10::GeneratorImpl>(generator.getIntrusivePtr()), fresh});
  return fresh;
}

// ---- matrix products: rounded where TF32 is on, with the time that an A100 takes

static bool tf32_is_on() {
  auto& context = at::globalContext();
#if TORCH_VERSION_MAJOR > 2 || TORCH_VERSION_MINOR >= 9
  try {
    return context.allowTF32CuBLAS();
  } catch (...) {  // the newer interface to the switch is in use
    return context.float32Precision(at::Float32Backend::CUDA, at::Float32Op::MATMUL) == at::Float32Precision::TF32;
  }
#else
  return context.allowTF32CuBLAS();
#endif
}

static Tensor rounded_to_tf32(const Tensor& tensor) {
  auto rounded = tensor.contiguous().clone();
  auto* bits = (uint32_t*)rounded.data_ptr();
  for (int64_t i = 0; i < rounded.numel(); i++) bits[i] = (bits[i] + 0x1000u) & 0xffffe000u;
  return rounded;
}

struct Product {
  size_t first = 0;   // which arguments are multiplied: this one and the next
  double flops = 0;   // 0 if the operator is no product
  double weight = 1;  // how many times as long as in fp32 it takes
  bool skipped() const { return flops > FEW_FLOPS; }
};

static Product product(const std::string& name, std::vector<IValue>& arguments) {
  static const std::set<std::string> products = {"aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm"};
  Product found;
  if (!products.count(name)) return found;
  found.first = name.find("add") != std::string::npos ? 1 : 0;
  IValue &left = arguments[found.first], &right = arguments[found.first + 1];
  auto type = left.toTensor().scalar_type();
  found.flops = 2.0 * left.toTensor().numel() * right.toTensor().size(-1);
  if (type == at::kDouble) found.weight = 2;
  if (type == at::kHalf || type == at::kBFloat16) found.weight = 1 / 13.0;
  if (type == at::kFloat && tf32_is_on()) {
    found.weight = 1 / 6.0;
    if (!found.skipped()) {
      left = rounded_to_tf32(left.toTensor());
      right = rounded_to_tf32(right.toTensor());
    }
  }
  return found;
}

static Tensor empty_product(const Product& product, const std::vector<IValue>& arguments, bool is_out) {
  if (is_out) return arguments.back().toTensor();
  Tensor left = arguments[product.first].toTensor(), right = arguments[product.first + 1].toTensor();
  auto sizes = left.sizes().vec();
  sizes.back() = right.size(-1);
  return at::zeros(sizes, left.options());
}

static double duration_ns(const Product& product, const std::vector<IValue>& arguments) {
  constexpr double FLOPS_PER_NS = 19.5e3, BYTES_PER_NS = 750;
  if (product.flops) return 5000 + product.flops * product.weight / FLOPS_PER_NS;
  int64_t bytes = 0;
  for (auto& argument : arguments)
    if (argument.isTensor() && argument.toTensor().defined()) bytes += argument.toTensor().nbytes();
  return 3000 + bytes / BYTES_PER_NS;
}

static bool is_narrow(const std::vector<IValue>& arguments) {
  for (auto& argument : arguments)
    if (argument.isTensor() && argument.toTensor().defined() && argument.toTensor().is_floating_point() &&
        argument.toTensor().element_size() == 2)
      return true;
  return false;
}

// ---- any operator: its arguments moved to the CPU, its results back

template <class Visit>
static void each_tensor(const IValue& value, Visit visit) {
  if (value.isTensor()) {
    visit(value.toTensor());
  } else if (value.isTensorList()) {
    for (const Tensor& tensor : value.toTensorVector()) visit(tensor);
  } else if (value.isOptionalTensorList()) {
    for (const auto& tensor : value.toOptionalTensorVector())
      if (tensor) visit(*tensor);
  }
}

static at::Device device_of(const std::vector<IValue>& arguments) {
  std::optional<at::Device> found;
  for (auto& argument : arguments)
    each_tensor(argument, [&](const Tensor& tensor) {
      // A scalar's device does not count where another tensor's is known.
      if (tensor.defined() && tensor.is_cuda() && (!found || tensor.dim())) found = tensor.device();
    });
  at::Device current(at::kCUDA, c10::cuda::current_device());
  for (auto& argument : arguments)
    if (argument.isDevice() && argument.toDevice().is_cuda())
      found = argument.toDevice().has_index() ? argument.toDevice() : current;
  return found.value_or(current);
}

struct Resized {  // an empty output that the operator will resize
  Tensor gpu, cpu;
  void copy_back() const {
    gpu.resize_(cpu.sizes());
    as_cpu(gpu).copy_(cpu);
  }
};

static bool is_written(const c10::Argument& argument) {
  return argument.alias_info() && argument.alias_info()->isWrite();
}

static void require_same_device(const Tensor& tensor, at::Device gpu, const std::string& name) {
  if (!tensor.defined() || !tensor.dim() || tensor.device() == gpu) return;
  TORCH_CHECK(false, "Expected all tensors to be on the same device, but found at least two devices, ", gpu, " and ",
              tensor.device(), "! (", name, ")");
}

static std::vector<IValue> to_cpu(const c10::FunctionSchema& schema, const std::vector<IValue>& arguments,
                                  at::Device gpu, std::vector<Resized>& resized) {
  std::vector<IValue> moved;
  for (size_t i = 0; i < arguments.size(); i++) {
    const c10::Argument& parameter = schema.arguments()[i];
    auto move = [&](const Tensor& tensor) -> Tensor {
      require_same_device(tensor, gpu, schema.name());
      if (tensor.defined() && tensor.is_cuda() && tensor.numel() == 0 && parameter.is_out() && is_written(parameter)) {
        auto fresh = at::empty({0}, tensor.options().device(at::kCPU));
        resized.push_back({tensor, fresh});
        return fresh;
      }
      return as_cpu(tensor);
    };
    const IValue& value = arguments[i];
    if (parameter.name() == "pin_memory") {
      moved.push_back(IValue());
    } else if (value.isTensor()) {
      moved.push_back(move(value.toTensor()));
    } else if (value.isTensorList()) {
      std::vector<Tensor> list;
      for (const Tensor& tensor : value.toTensorVector()) list.push_back(move(tensor));
      moved.push_back(c10::List<Tensor>(list));
    } else if (value.isOptionalTensorList()) {
      c10::List<MaybeTensor> list;
      for (const auto& tensor : value.toOptionalTensorVector())
        list.push_back(tensor && tensor->defined() ? MaybeTensor(as_cpu(*tensor)) : MaybeTensor());
      moved.push_back(list);
    } else if (value.isDevice()) {
      moved.push_back(at::Device(at::kCPU));
    } else if (value.isGenerator() && value.toGenerator().device().is_cuda()) {
      moved.push_back(as_cpu(value.toGenerator()));
    } else {
      moved.push_back(value);
    }
  }
  return moved;
}

// What an operator writes in place, as it was before.
struct Kept {
  std::vector<std::pair<Tensor, Tensor>> tensors;
  void keep(const Tensor& tensor) {
    if (tensor.defined()) tensors.push_back({tensor, tensor.clone()});
  }
  void restore() {
    for (auto& [tensor, before] : tensors) tensor.copy_(before);
  }
};

static Kept keep_written(const c10::FunctionSchema& schema, const std::vector<IValue>& arguments) {
  Kept kept;
  bool is_norm = schema.name().find("batch_norm") != std::string::npos;  // writes statistics that it does not declare
  for (size_t i = 0; i < arguments.size(); i++)
    if (is_norm ? arguments[i].isTensor() : is_written(schema.arguments()[i]))
      each_tensor(arguments[i], [&](const Tensor& tensor) { kept.keep(tensor); });
  return kept;
}

// Where a replay writes what the operator returns: the memory that the capture's results have.
struct Results {
  std::vector<std::pair<size_t, Tensor>> single;
  std::vector<std::tuple<size_t, size_t, Tensor>> listed;
  void write(const Stack& returned) const {
    for (auto& [i, memory] : single) Tensor(memory).copy_(returned[i].toTensor());
    for (auto& [i, k, memory] : listed) Tensor(memory).copy_(returned[i].toTensorVector()[k]);
  }
};

// The argument that a result is, such as self of add_; null if it is new.
static const IValue* same_argument(const c10::FunctionSchema& schema, size_t result,
                                   const std::vector<IValue>& arguments) {
  auto* returned = schema.returns()[result].alias_info();
  if (!returned || !returned->isWrite()) return nullptr;
  for (size_t i = 0; i < arguments.size(); i++) {
    auto* taken = schema.arguments()[i].alias_info();
    if (taken && taken->isWrite() && taken->beforeSets() == returned->beforeSets()) return &arguments[i];
  }
  return nullptr;
}

static std::vector<IValue> to_gpu(const c10::FunctionSchema& schema, const Stack& returned,
                                  const std::vector<IValue>& arguments, at::Device gpu, Results& results) {
  std::vector<IValue> moved;
  for (size_t i = 0; i < returned.size(); i++) {
    const IValue& value = returned[i];
    const IValue* same = value.isTensor() ? same_argument(schema, i, arguments) : nullptr;
    if (same) {
      moved.push_back(*same);
    } else if (value.isTensor()) {
      Tensor copy = copied_to(value.toTensor(), gpu);
      if (copy.defined()) results.single.push_back({i, as_cpu(copy)});
      moved.push_back(copy);
    } else if (value.isTensorList()) {
      std::vector<Tensor> list;
      for (const Tensor& tensor : value.toTensorVector()) {
        list.push_back(copied_to(tensor, gpu));
        results.listed.push_back({i, list.size() - 1, as_cpu(list.back())});
      }
      moved.push_back(c10::List<Tensor>(list));
    } else {  // a number: the host waits for it
      synchronize(gpu);
      moved.push_back(value);
    }
  }
  return moved;
}

static bool waits_for_gpu(const std::string& name) {  // the size of the result depends on values
  static const std::set<std::string> names = {"aten::nonzero",   "aten::masked_select", "aten::_unique2",
                                              "aten::equal",     "aten::unique_dim",    "aten::unique_consecutive",
                                              "aten::is_nonzero"};
  return names.count(name);
}

static void run_on_cpu(const c10::OperatorHandle& op, Stack* stack) {
  auto& schema = op.schema();
  size_t count = schema.arguments().size();
  std::vector<IValue> arguments(stack->end() - count, stack->end());
  at::Device gpu = device_of(arguments);
  c10::cuda::CUDAGuard guard(gpu);
  std::vector<Resized> resized;
  std::vector<IValue> moved = to_cpu(schema, arguments, gpu, resized);
  bool capturing = is_capturing(gpu);
  if (waits_for_gpu(schema.name())) synchronize(gpu);
  Product multiplied = product(schema.name(), moved);
  // A capture runs nothing: what is written in place is put back, so that only replays count.
  Kept before = capturing ? keep_written(schema, moved) : Kept();
  Stack returned = moved;
  if (multiplied.skipped()) {
    returned = {empty_product(multiplied, moved, schema.arguments().back().is_out())};
  } else {
    op.callBoxed(&returned);
  }
  before.restore();
  for (auto& output : resized) output.copy_back();
  Results results;
  std::vector<IValue> outputs = to_gpu(schema, returned, arguments, gpu, results);
  take_time(gpu, duration_ns(multiplied, moved), is_narrow(moved));
  if (capturing && recording && !multiplied.skipped())
    recording->push_back([op, moved, results, resized]() {
      Stack again = moved;
      op.callBoxed(&again);
      for (auto& output : resized) as_cpu(output.gpu).copy_(output.cpu);
      results.write(again);
    });
  stack->erase(stack->end() - count, stack->end());
  for (auto& output : outputs) stack->push_back(output);
}

// ---- copies: those between host and GPU as torch does them, by cudaMemcpyAsync, and a wait where they block

static void copy_on_gpu(Tensor& to, const Tensor& from, at::Device gpu) {
  Tensor into = as_cpu(to), out_of = as_cpu(from);
  if (!is_capturing(gpu)) {
    into.copy_(out_of);
  } else if (recording) {
    recording->push_back([into, out_of]() mutable { into.copy_(out_of); });
  }
  take_time(gpu, 3000 + (into.nbytes() + out_of.nbytes()) / 1500.0);
}

static bool same_layout(const Tensor& a, const Tensor& b) {
  return a.is_non_overlapping_and_dense() && a.sizes() == b.sizes() && a.strides() == b.strides() &&
         a.scalar_type() == b.scalar_type();
}

static void copy_to_gpu(Tensor& to, const Tensor& from, cudaStream_t stream) {
  Tensor host = from.expand(to.sizes());
  if (!same_layout(to, host)) {
    host = at::empty_strided(to.sizes(), to.strides(), host.options().dtype(to.dtype()));
    host.copy_(from);
  }
  if (to.is_non_overlapping_and_dense()) {
    C10_CUDA_CHECK(cudaMemcpyAsync(to.data_ptr(), host.const_data_ptr(), to.nbytes(), cudaMemcpyHostToDevice, stream));
  } else {
    as_cpu(to).copy_(host);
  }
}

static void copy_to_host(Tensor& to, const Tensor& from, at::Device gpu, cudaStream_t stream) {
  if (same_layout(to, from)) {
    C10_CUDA_CHECK(cudaMemcpyAsync(to.data_ptr(), from.const_data_ptr(), to.nbytes(), cudaMemcpyDeviceToHost, stream));
  } else {
    to.copy_(as_cpu(from));
    take_time(gpu, kernel_ns());
  }
}

static Tensor& copy_(Tensor& self, const Tensor& from, bool non_blocking) {
  if (self.is_same(from)) return self;
  at::Device gpu = self.is_cuda() ? self.device() : from.device();
  c10::cuda::CUDAGuard guard(gpu);
  cudaStream_t stream = stream_on(gpu);
  if (self.is_cuda() && from.is_cuda()) {
    copy_on_gpu(self, from, gpu);
    return self;
  }
  if (self.is_cuda()) {
    copy_to_gpu(self, from, stream);
  } else {
    copy_to_host(self, from, gpu, stream);
  }
  if (!non_blocking) C10_CUDA_CHECK(cudaStreamSynchronize(stream));
  return self;
}

// ---- batch norm by cuDNN, which is not there

static std::tuple<Tensor, Tensor, Tensor, Tensor> cudnn_batch_norm(const Tensor& input, const Tensor& weight,
                                                                   const MaybeTensor& bias, const MaybeTensor& mean,
                                                                   const MaybeTensor& variance, bool training,
                                                                   double momentum, double epsilon) {
  auto [output, saved_mean, saved_scale] =
      at::native_batch_norm(input, weight, bias, mean, variance, training, momentum, epsilon);
  return {output, saved_mean, saved_scale, at::empty({0}, input.options().dtype(at::kByte))};
}

static std::tuple<Tensor, Tensor, Tensor> cudnn_batch_norm_backward(const Tensor& input, const Tensor& gradient,
                                                                    const Tensor& weight, const MaybeTensor& mean,
                                                                    const MaybeTensor& variance,
                                                                    const MaybeTensor& saved_mean,
                                                                    const MaybeTensor& saved_scale, double epsilon,
                                                                    const Tensor&) {
  return at::native_batch_norm_backward(gradient, input, weight, mean, variance, saved_mean, saved_scale, true, epsilon,
                                        {true, true, true});
}

// ---- which operators

// Those that only look at memory or make it are torch's own; copies and batch norm are above.
static const std::set<std::string> not_replaced = {"_copy_from",
                                                   "_copy_from_and_resize",
                                                   "_efficientzerotensor",
                                                   "_fused_sdp_choice",
                                                   "_local_scalar_dense",
                                                   "_pin_memory",
                                                   "_reshape_alias",
                                                   "_to_copy",
                                                   "alias",
                                                   "as_strided",
                                                   "copy_",
                                                   "cudnn_batch_norm",
                                                   "cudnn_batch_norm_backward",
                                                   "detach",
                                                   "empty.memory_format",
                                                   "empty_strided",
                                                   "is_pinned",
                                                   "is_set_to",
                                                   "pin_memory",
                                                   "record_stream",
                                                   "resize_",
                                                   "resize_as_",
                                                   "set_",
                                                   "set_.source_Storage",
                                                   "set_.source_Storage_storage_offset",
                                                   "set_.source_Tensor",
                                                   "set_.source_Tensor_storage_offset",
                                                   "storage_offset",
                                                   "unfold",
                                                   "view",
                                                   "view.dtype",
                                                   "view_as_complex",
                                                   "view_as_real"};

// Replaced although they choose a kernel only in their own code.
static const std::set<std::string> replaced_whole = {"convolution", "convolution_backward", "native_batch_norm",
                                                     "native_batch_norm_backward"};

static bool is_replaced(const c10::OperatorHandle& op, const std::string& name) {
  if (not_replaced.count(name)) return false;
  if (replaced_whole.count(name)) return true;
  bool on_cpu = op.hasKernelForDispatchKey(c10::DispatchKey::CPU) ||
                op.hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutograd);
  return on_cpu && op.hasKernelForDispatchKey(c10::DispatchKey::CUDA);
}

extern "C" void simgpu_install() {
  const std::string aten = "aten::";
  static torch::Library library(torch::Library::IMPL, "aten", c10::DispatchKey::CUDA, __FILE__, __LINE__);
  auto& dispatcher = c10::Dispatcher::singleton();
  for (auto& known : dispatcher.getAllOpNames()) {
    if (known.name.rfind(aten, 0) != 0) continue;
    std::string name = known.name.substr(aten.size()) + (known.overload_name.empty() ? "" : "." + known.overload_name);
    auto op = dispatcher.findSchema(known);
    if (op && is_replaced(*op, name))
      library.impl(name.c_str(), torch::CppFunction::makeFromBoxedFunction<&run_on_cpu>());
  }
  library.impl("copy_", &copy_);
  library.impl("cudnn_batch_norm", &cudnn_batch_norm);
  library.impl("cudnn_batch_norm_backward", &cudnn_batch_norm_backward);
}
