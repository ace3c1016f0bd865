// Functions of LibTorch that the crate tch has no binding for. Each returns null, or a message that the caller frees.

#include <ATen/ATen.h>
#include <ATen/Context.h>
#include <ATen/DeviceAccelerator.h>
#include <c10/core/GradMode.h>
#include <cstdlib>
#include <cstring>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/profiler_kineto.h>
#include <vector>

typedef at::Tensor *tensor;

template <class F> static char *guarded(F f) {
  try {
    f();
    return nullptr;
  } catch (const std::exception &e) {
    return strdup(e.what());
  }
}

static std::vector<at::Tensor> all(tensor *list, int count) {
  std::vector<at::Tensor> tensors;
  for (int i = 0; i < count; ++i) tensors.push_back(*list[i]);
  return tensors;
}

extern "C" {

// The gradients of `leaves`, from the gradient `grad` of `y`.
char *zoo_gradients(tensor y, tensor grad, tensor *leaves, int count, tensor *out) {
  return guarded([&] {
    auto grads = torch::autograd::grad({*y}, all(leaves, count), {*grad});
    for (int i = 0; i < count; ++i) out[i] = new at::Tensor(grads[i]);
  });
}

// dx, dγ and dβ of a layer norm over the last axis; γ and β can be null.
char *zoo_layer_norm_backward(tensor grad, tensor x, tensor mean, tensor factor, tensor gamma, tensor beta, tensor *out) {
  return guarded([&] {
    c10::NoGradGuard guard;
    auto of = [](tensor t) { return t ? std::optional<at::Tensor>(*t) : std::nullopt; };
    auto grads = at::native_layer_norm_backward(*grad, *x, {x->size(-1)}, *mean, *factor, of(gamma), of(beta),
                                                {true, gamma != nullptr, beta != nullptr});
    out[0] = new at::Tensor(std::get<0>(grads));
    if (gamma) out[1] = new at::Tensor(std::get<1>(grads));
    if (beta) out[2] = new at::Tensor(std::get<2>(grads));
  });
}

// A step of AdamW on `count` parameters, in place. `step` is the number of the step, and the gradients are divided by
// `inverse_scale`; both are f32 on the device of the parameters.
char *zoo_adamw(tensor *x, tensor *grad, tensor *m, tensor *v, int count, tensor step, tensor inverse_scale, double lr,
                double beta_1, double beta_2, double decay, double eps) {
  return guarded([&] {
    c10::NoGradGuard guard;
    std::vector<at::Tensor> steps(count, *step);
    std::optional<at::Tensor> scale;
    if (inverse_scale) scale = *inverse_scale;
    at::_fused_adamw_(all(x, count), all(grad, count), all(m, count), all(v, count), {}, steps, lr, beta_1, beta_2, decay,
                      eps, false, false, scale);
  });
}

// The sum of squares of all elements of `count` tensors, as one number.
char *zoo_sum_of_squares(tensor *parts, int count, tensor *out) {
  return guarded([&] {
    c10::NoGradGuard guard;
    auto norms = at::stack(at::_foreach_norm(all(parts, count), 2));
    out[0] = new at::Tensor(at::mul(norms, norms).sum().reshape({1}));
  });
}

// Sets whether products and convolutions of f32 numbers on CUDA round their factors to TF32.
char *zoo_allow_tf32(int allow) {
  return guarded([&] {
    // Without a GPU, this would only make PyTorch 2.9 warn that there is a newer interface.
    if (!at::hasCUDA()) return;
    at::globalContext().setAllowTF32CuBLAS(allow != 0);
    at::globalContext().setAllowTF32CuDNN(allow != 0);
  });
}

// Sets whether all operations use reproducible kernels. An operation without such a kernel then fails.
char *zoo_deterministic(int on) {
  return guarded([&] {
    // cuBLAS reads this variable before the first product, and PyTorch demands that it is set.
    if (on) setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8", 0);
    at::globalContext().setDeterministicAlgorithms(on != 0, false);
    at::globalContext().setDeterministicCuDNN(on != 0);
  });
}

// The peak memory of tensors on a GPU since the last reset, in bytes.
char *zoo_peak_memory(int gpu, int64_t *bytes) {
  return guarded([&] { *bytes = at::accelerator::getDeviceStats(gpu).allocated_bytes[0].peak; });
}

// Returns free memory to the GPU, and restarts the measurement of the peak.
char *zoo_reset_memory(int gpu) {
  return guarded([&] {
    at::accelerator::emptyCache();
    at::accelerator::resetPeakStats(gpu);
  });
}

// Starts a recording of the operations and of the GPU's kernels.
char *zoo_start_profile() {
  return guarded([&] {
    using namespace torch::profiler::impl;
    std::set<ActivityType> activities{ActivityType::CPU};
    if (at::hasCUDA()) activities.insert(ActivityType::CUDA);
    ProfilerConfig config(ProfilerState::KINETO, false, false, false, false, false);
    torch::autograd::profiler::prepareProfiler(config, activities);
    torch::autograd::profiler::enableProfiler(config, activities, {at::RecordScope::FUNCTION, at::RecordScope::BACKWARD_FUNCTION});
  });
}

// Ends the recording, and writes it as a trace for Chrome's viewer.
char *zoo_end_profile(const char *path) {
  return guarded([&] { torch::autograd::profiler::disableProfiler()->save(path); });
}
}
