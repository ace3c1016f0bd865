// Compiles kernels by NVRTC and launches them. The first launch loads NVRTC and the driver through PyTorch's library
// `libcaffe2_nvrtc.so`. The build therefore needs no CUDA, and a program that runs without a GPU needs none either.

#include <ATen/ATen.h>
#include <cstring>
#include <dlfcn.h>
#include <map>
#include <mutex>
#include <string>
#include <vector>

void emulate(const std::string &name, unsigned columns, unsigned rows, unsigned block, void **arguments);

namespace {
// The C interfaces of NVRTC and of the driver, as far as they are used.
struct Library {
  int (*nvrtcCreateProgram)(void **, const char *, const char *, int, const char *const *, const char *const *);
  int (*nvrtcCompileProgram)(void *, int, const char *const *);
  int (*nvrtcGetProgramLogSize)(void *, size_t *);
  int (*nvrtcGetProgramLog)(void *, char *);
  int (*nvrtcGetCUBINSize)(void *, size_t *);
  int (*nvrtcGetCUBIN)(void *, char *);
  int (*nvrtcDestroyProgram)(void **);
  int (*cuDeviceGet)(int *, int);
  int (*cuDeviceGetAttribute)(int *, int, int);
  int (*cuCtxGetCurrent)(void **);
  int (*cuCtxSetCurrent)(void *);
  int (*cuDevicePrimaryCtxRetain)(void **, int);
  int (*cuModuleLoadData)(void **, const void *);
  int (*cuModuleGetFunction)(void **, void *, const char *);
  int (*cuLaunchKernel)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **,
                        void **);

  Library() {
    void *library = dlopen("libcaffe2_nvrtc.so", RTLD_NOW | RTLD_GLOBAL);
    TORCH_CHECK(library, "NVRTC was not found: ", dlerror());
    auto find = [&](auto &function, const char *name) {
      void *symbol = dlsym(library, name);
      TORCH_CHECK(symbol, name, " was not found: ", dlerror());
      std::memcpy(&function, &symbol, sizeof symbol);
    };
#define FIND(name) find(name, #name)
    FIND(nvrtcCreateProgram), FIND(nvrtcCompileProgram), FIND(nvrtcGetProgramLogSize), FIND(nvrtcGetProgramLog);
    FIND(nvrtcGetCUBINSize), FIND(nvrtcGetCUBIN), FIND(nvrtcDestroyProgram), FIND(cuDeviceGet), FIND(cuDeviceGetAttribute);
    FIND(cuCtxGetCurrent), FIND(cuCtxSetCurrent), FIND(cuDevicePrimaryCtxRetain), FIND(cuModuleLoadData);
    FIND(cuModuleGetFunction), FIND(cuLaunchKernel);
  }
};

void check(int status, const char *what) { TORCH_CHECK(status == 0, what, " failed with status ", status); }

// Compiles the kernels of `source` to machine code for a GPU.
std::string compiled(Library &lib, const char *source, int gpu) {
  int device, major, minor;
  check(lib.cuDeviceGet(&device, gpu), "cuDeviceGet");
  check(lib.cuDeviceGetAttribute(&major, 75, device), "cuDeviceGetAttribute");
  check(lib.cuDeviceGetAttribute(&minor, 76, device), "cuDeviceGetAttribute");
  auto target = "--gpu-architecture=sm_" + std::to_string(10 * major + minor);
  const char *options[] = {target.c_str(), "--std=c++17"};
  void *program;
  check(lib.nvrtcCreateProgram(&program, source, "kernels.cu", 0, nullptr, nullptr), "nvrtcCreateProgram");
  int status = lib.nvrtcCompileProgram(program, 2, options);
  size_t size = 0;
  if (status != 0) {
    lib.nvrtcGetProgramLogSize(program, &size);
    std::string log(size, 0);
    lib.nvrtcGetProgramLog(program, log.data());
    TORCH_CHECK(false, "NVRTC: ", log);
  }
  check(lib.nvrtcGetCUBINSize(program, &size), "nvrtcGetCUBINSize");
  std::string code(size, 0);
  check(lib.nvrtcGetCUBIN(program, code.data()), "nvrtcGetCUBIN");
  lib.nvrtcDestroyProgram(&program);
  return code;
}

void launch_on_gpu(const char *source, const char *name, int gpu, unsigned columns, unsigned rows, unsigned block,
                   void **arguments) {
  static std::mutex turn;
  static std::map<int, void *> modules;
  static std::map<std::pair<int, std::string>, void *> functions;
  std::lock_guard<std::mutex> lock(turn);
  static Library lib;
  // PyTorch and this program use the primary context of the GPU, which is current wherever PyTorch has worked on it.
  void *context = nullptr;
  check(lib.cuCtxGetCurrent(&context), "cuCtxGetCurrent");
  if (!context) {
    int device;
    check(lib.cuDeviceGet(&device, gpu), "cuDeviceGet");
    check(lib.cuDevicePrimaryCtxRetain(&context, device), "cuDevicePrimaryCtxRetain");
    check(lib.cuCtxSetCurrent(context), "cuCtxSetCurrent");
  }
  void *&function = functions[{gpu, name}];
  if (!function) {
    void *&module = modules[gpu];
    if (!module) check(lib.cuModuleLoadData(&module, compiled(lib, source, gpu).data()), "cuModuleLoadData");
    check(lib.cuModuleGetFunction(&function, module, name), "cuModuleGetFunction");
  }
  // The launch is on PyTorch's default stream, which nothing here changes.
  check(lib.cuLaunchKernel(function, columns, rows, 1, block, 1, 1, 0, nullptr, arguments, nullptr), name);
}
} // namespace

extern "C" char *zoo_launch(const char *source, const char *name, int gpu, unsigned columns, unsigned rows, unsigned block,
                            void **arguments) {
  try {
    if (gpu < 0)
      emulate(name, columns, rows, block, arguments);
    else
      launch_on_gpu(source, name, gpu, columns, rows, block, arguments);
    return nullptr;
  } catch (const std::exception &e) {
    return strdup(e.what());
  }
}
