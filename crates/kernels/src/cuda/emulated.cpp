// Runs the kernels of kernels.cu on the CPU, for tests. The threads of a block are coroutines: each runs up to the next
// barrier or shuffle, then the next thread runs.

#include <cmath>
#include <cstring>
#include <exception>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <tuple>
#include <ucontext.h>
#include <utility>
#include <vector>

struct Index {
  unsigned x, y;
};
static Index threadIdx, blockIdx, blockDim;

namespace {
const size_t STACK = 64 << 10;

struct Thread {
  ucontext_t context;
  std::unique_ptr<char[]> stack{new char[STACK]};
  bool done = false;
};
ucontext_t scheduler;
Thread *running;
float shuffled[1024];

// Lets all other threads of the block come to the same point.
void wait() { swapcontext(&running->context, &scheduler); }

float shuffle(float x, int by) {
  unsigned thread = threadIdx.x;
  shuffled[thread] = x;
  wait();
  x = shuffled[thread ^ by];
  wait();
  return x;
}

float as_float(unsigned bits) {
  float x;
  std::memcpy(&x, &bits, 4);
  return x;
}

unsigned as_bits(float x) {
  unsigned bits;
  std::memcpy(&bits, &x, 4);
  return bits;
}
} // namespace

#define __global__
#define __device__ static
#define __shared__ static
#define __syncthreads() wait()
#define __shfl_xor_sync(mask, x, by) shuffle(x, by)
#define __float_as_uint as_bits
#define __uint_as_float as_float
#include "kernels.cu"

static void (*body)(void **);
static void **arguments;

static void start() {
  body(arguments);
  running->done = true;
  swapcontext(&running->context, &scheduler);
}

// Runs the threads of a block in turn until all are done.
static void run_block(unsigned block) {
  static std::vector<Thread> threads;
  while (threads.size() < block) threads.emplace_back();
  for (unsigned i = 0; i < block; ++i) {
    auto &thread = threads[i];
    getcontext(&thread.context);
    thread.done = false;
    thread.context.uc_stack.ss_sp = thread.stack.get();
    thread.context.uc_stack.ss_size = STACK;
    thread.context.uc_link = nullptr;
    makecontext(&thread.context, start, 0);
  }
  for (bool left = true; left;) {
    left = false;
    for (unsigned i = 0; i < block; ++i) {
      if (threads[i].done) continue;
      left = true;
      threadIdx = {i, 0};
      running = &threads[i];
      swapcontext(&scheduler, &running->context);
    }
  }
}

template <auto kernel> struct Call;
template <class... A, void (*kernel)(A...)> struct Call<kernel> {
  template <size_t... I> static void with(void **arguments, std::index_sequence<I...>) {
    kernel(*static_cast<A *>(arguments[I])...);
  }
  static void call(void **arguments) { with(arguments, std::index_sequence_for<A...>()); }
};

struct Kernel {
  const char *name;
  void (*call)(void **);
  // Whether the threads of the kernel wait for each other.
  bool waits;
};

#define KERNEL(name, waits) {#name, Call<name>::call, waits}
static const Kernel kernels[] = {
    KERNEL(log_z, true),
    KERNEL(log_z_gradient, false),
    KERNEL(mix, false),
    KERNEL(mix_weights, true),
    KERNEL(sinkhorn, false),
    KERNEL(sinkhorn_gradient, false),
    KERNEL(theta, true),
    KERNEL(theta_gradient, true),
    KERNEL(rms_norm, true),
    KERNEL(rms_norm_gradient, true),
    KERNEL(rms_norm_gamma, false),
};

void emulate(const std::string &name, unsigned columns, unsigned rows, unsigned block, void **given) {
  static std::mutex turn;
  std::lock_guard<std::mutex> lock(turn);
  for (auto &kernel : kernels) {
    if (name != kernel.name) continue;
    body = kernel.call;
    arguments = given;
    blockDim = {block, 1};
    for (unsigned y = 0; y < rows; ++y)
      for (unsigned x = 0; x < columns; ++x) {
        blockIdx = {x, y};
        if (kernel.waits) {
          run_block(block);
          continue;
        }
        for (unsigned i = 0; i < block; ++i) {
          threadIdx = {i, 0};
          body(arguments);
        }
      }
    return;
  }
  throw std::runtime_error("there is no kernel " + name);
}
