// Modules and kernels. A "cubin" is a library for this machine, made of CUDA C++ with the header of
// the emulation (cubin.py); a kernel runs in whatever thread waits for it, with its threads in an
// order that the seed decides.
#include <dlfcn.h>
#include <elf.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <numeric>

#include "kernel.h"
#include "state.h"

namespace emulated {

static const unsigned kWarp = 32, kShared = 48 << 10, kMostShared = 227 << 10;

struct Kernel {
  Module* module;
  std::string name;
  EmulatedKernel code;
  unsigned most_dynamic_shared;  // that a launch may ask for
};
struct Module {
  Context* context;
  void* library;
  int file;
  std::map<std::string, std::unique_ptr<Kernel>> kernels;
};
static std::map<Module*, std::unique_ptr<Module>> modules;
static std::set<Kernel*> kernels;

static size_t elf_nbytes(const void* image) {
  Elf64_Ehdr head;
  memcpy(&head, image, sizeof head);
  if (memcmp(head.e_ident, ELFMAG, SELFMAG) || head.e_machine != EM_X86_64) return 0;
  return head.e_shoff + size_t(head.e_shentsize) * head.e_shnum;
}

// The file stays open: the loader knows libraries by their names, and this name has its number.
static CUresult load(Context* context, const void* image, CUmodule* made) {
  size_t nbytes = elf_nbytes(image);
  if (!nbytes) return CUDA_ERROR_INVALID_IMAGE;
  int file = memfd_create("cubin", MFD_CLOEXEC);
  if (write(file, image, nbytes) != ssize_t(nbytes)) return CUDA_ERROR_INVALID_IMAGE;
  void* library = dlopen(("/proc/self/fd/" + std::to_string(file)).c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!library) {
    fprintf(stderr, "emulated driver: %s\n", dlerror());
    close(file);
    return CUDA_ERROR_INVALID_IMAGE;
  }
  auto module = std::make_unique<Module>(Module{context, library, file, {}});
  *made = (CUmodule)module.get();
  modules[module.get()] = std::move(module);
  return CUDA_SUCCESS;
}

static void unload(Module* module) {
  for (auto& [name, kernel] : module->kernels) kernels.erase(kernel.get());
  dlclose(module->library);
  close(module->file);
  modules.erase(module);
}

void forget_modules(Context* context) {
  std::vector<Module*> found;
  for (auto& [module, owned] : modules)
    if (module->context == context) found.push_back(module);
  for (Module* module : found) unload(module);
}

static unsigned offset_of(const EmulatedKernel& code, int number) {
  unsigned offset = 0;
  for (int i = 0; i <= number; ++i) {
    offset = (offset + code.sizes[i] - 1) / code.sizes[i] * code.sizes[i];
    if (i < number) offset += code.sizes[i];
  }
  return offset;
}

static size_t arguments_nbytes(const EmulatedKernel& code) {
  return code.count ? offset_of(code, code.count - 1) + code.sizes[code.count - 1] : 0;
}

static bool pack(const EmulatedKernel& code, void** params, void** extra, std::vector<char>* to) {
  to->assign(arguments_nbytes(code), 0);
  if (extra) {
    const char* from = nullptr;
    size_t nbytes = 0;
    for (; *extra != CU_LAUNCH_PARAM_END; extra += 2) {
      if (extra[0] == CU_LAUNCH_PARAM_BUFFER_POINTER) from = (const char*)extra[1];
      if (extra[0] == CU_LAUNCH_PARAM_BUFFER_SIZE) nbytes = *(size_t*)extra[1];
    }
    if (params || nbytes != to->size()) return false;
    std::copy(from, from + nbytes, to->begin());
    return true;
  }
  if (code.count && !params) return false;
  for (int i = 0; i < code.count; ++i)
    memcpy(to->data() + offset_of(code, i), params[i], code.sizes[i]);
  return true;
}

static bool fits(const Kernel& kernel, const unsigned* grid, unsigned shared) {
  static const unsigned most[] = {2147483647, 65535, 65535, 1024, 1024, 64};
  for (int i = 0; i < 6; ++i)
    if (!grid[i] || grid[i] > most[i]) return false;
  unsigned threads = grid[3] * grid[4] * grid[5];
  return threads <= kernel.code.most_threads && shared <= kernel.most_dynamic_shared;
}

CUresult make_call(CUfunction function, const unsigned* grid, unsigned shared, void** params,
                   void** extra, std::shared_ptr<KernelCall>* made) {
  Kernel* kernel = (Kernel*)function;
  if (!kernels.count(kernel)) return CUDA_ERROR_INVALID_HANDLE;
  if (!fits(*kernel, grid, shared)) return CUDA_ERROR_INVALID_VALUE;
  auto call = std::make_shared<KernelCall>();
  call->kernel = kernel;
  call->shared = shared;
  std::copy(grid, grid + 6, call->grid);
  if (!pack(kernel->code, params, extra, &call->arguments)) return CUDA_ERROR_INVALID_VALUE;
  for (int i = 0; i < kernel->code.count; ++i)
    call->pointers.push_back(call->arguments.data() + offset_of(kernel->code, i));
  *made = call;
  return CUDA_SUCCESS;
}

CUfunction function_of(const KernelCall& call) { return (CUfunction)call.kernel; }

template <class T> static void shuffle(std::vector<T>& items) {
  for (size_t i = items.size(); i > 1; --i) std::swap(items[i - 1], items[draw(i)]);
}

// Warp by warp: forward, backward, or both the warps and their threads in any order.
static std::vector<int> thread_order(unsigned threads) {
  std::vector<int> order;
  std::vector<unsigned> warps((threads + kWarp - 1) / kWarp);
  std::iota(warps.begin(), warps.end(), 0);
  uint64_t kind = draw(3);
  if (kind == 2) shuffle(warps);
  for (unsigned warp : warps) {
    std::vector<int> lanes(std::min(kWarp, threads - warp * kWarp));
    std::iota(lanes.begin(), lanes.end(), int(warp * kWarp));
    if (kind == 2) shuffle(lanes);
    order.insert(order.end(), lanes.begin(), lanes.end());
  }
  if (kind == 1) std::reverse(order.begin(), order.end());
  return order;
}

// Memory that ends where a page begins that nobody may touch.
static char* shared_memory(unsigned nbytes) {
  static const size_t size = (kMostShared + 4095) / 4096 * 4096;
  static char* start = nullptr;
  if (!start) {
    start = (char*)mmap(nullptr, size + 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS,
                        -1, 0);
    mprotect(start + size, 4096, PROT_NONE);
  }
  return start + size - (nbytes + 15) / 16 * 16;
}

void run_call(Context* context, const KernelCall& call) {
  if (!kernels.count(call.kernel)) {
    break_context(context, CUDA_ERROR_LAUNCH_FAILED, "a kernel of a module that was unloaded");
    return;
  }
  const unsigned* grid = call.grid;
  std::vector<int> order = thread_order(grid[3] * grid[4] * grid[5]);
  std::string wrong = call.kernel->code.launch(grid, call.arguments.data(),
                                               shared_memory(call.shared), call.shared,
                                               order.data());
  if (wrong.empty()) wrong = damage();
  if (wrong.empty()) return;
  bool outside = wrong.find("access outside") != std::string::npos ||
                 wrong.find("a store beside") != std::string::npos;
  break_context(context, outside ? CUDA_ERROR_ILLEGAL_ADDRESS : CUDA_ERROR_LAUNCH_FAILED,
                "kernel " + call.kernel->name + ": " + wrong);
}

}  // namespace emulated

using namespace emulated;

EXPORTED CUresult CUDAAPI cuModuleLoadDataEx(CUmodule* made, const void* image, unsigned,
                                             CUjit_option*, void**) {
  ENTER(entry, Entry);
  return load(entry.context, image, made);
}

EXPORTED CUresult CUDAAPI cuModuleLoadData(CUmodule* made, const void* image) {
  ENTER(entry, Entry);
  return load(entry.context, image, made);
}

EXPORTED CUresult CUDAAPI cuModuleUnload(CUmodule handle) {
  ENTER(entry, Entry);
  if (!modules.count((Module*)handle)) return CUDA_ERROR_INVALID_HANDLE;
  advance_all();
  unload((Module*)handle);
  return CUDA_SUCCESS;
}

EXPORTED CUresult CUDAAPI cuModuleGetFunction(CUfunction* made, CUmodule handle, const char* name) {
  ENTER(entry, Entry);
  Module* module = (Module*)handle;
  if (!modules.count(module)) return CUDA_ERROR_INVALID_HANDLE;
  std::unique_ptr<Kernel>& kernel = module->kernels[name];
  if (!kernel) {
    void* found = dlsym(module->library, (std::string("emulated_kernel_") + name).c_str());
    if (!found) {
      module->kernels.erase(name);
      return CUDA_ERROR_NOT_FOUND;
    }
    EmulatedKernel code = ((EmulatedKernel(*)())found)();
    unsigned left = kShared > code.shared_nbytes ? kShared - code.shared_nbytes : 0;
    kernel.reset(new Kernel{module, name, code, left});
    kernels.insert(kernel.get());
  }
  *made = (CUfunction)kernel.get();
  return CUDA_SUCCESS;
}

EXPORTED CUresult CUDAAPI cuFuncGetAttribute(int* value, CUfunction_attribute which,
                                             CUfunction function) {
  ENTER(entry, Entry);
  Kernel* kernel = (Kernel*)function;
  if (!kernels.count(kernel)) return CUDA_ERROR_INVALID_HANDLE;
  switch (int(which)) {
    case CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK: *value = int(kernel->code.most_threads); break;
    case CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES: *value = int(kernel->code.shared_nbytes); break;
    case CU_FUNC_ATTRIBUTE_NUM_REGS: *value = 32; break;
    case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES:
      *value = int(kernel->most_dynamic_shared);
      break;
    default: *value = 0;
  }
  return CUDA_SUCCESS;
}

EXPORTED CUresult CUDAAPI cuFuncSetAttribute(CUfunction function, CUfunction_attribute which,
                                             int value) {
  ENTER(entry, Entry);
  Kernel* kernel = (Kernel*)function;
  if (!kernels.count(kernel)) return CUDA_ERROR_INVALID_HANDLE;
  if (which != CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES) return CUDA_SUCCESS;
  if (value < 0 || unsigned(value) + kernel->code.shared_nbytes > kMostShared)
    return CUDA_ERROR_INVALID_VALUE;
  kernel->most_dynamic_shared = unsigned(value);
  return CUDA_SUCCESS;
}

EXPORTED CUresult CUDAAPI cuFuncSetCacheConfig(CUfunction, CUfunc_cache) { return CUDA_SUCCESS; }

// Of an old kind of launches, without a meaning for cuLaunchKernel; PyCUDA's prepared calls say it.
EXPORTED CUresult CUDAAPI cuFuncSetBlockShape(CUfunction, int, int, int) { return CUDA_SUCCESS; }

EXPORTED CUresult CUDAAPI cuLaunchKernel(CUfunction function, unsigned gx, unsigned gy, unsigned gz,
                                         unsigned bx, unsigned by, unsigned bz, unsigned shared,
                                         CUstream handle, void** params, void** extra) {
  ENTER(entry, Entry);
  Stream* stream;
  if (!from_handle(handle, entry.context, &stream)) return CUDA_ERROR_INVALID_HANDLE;
  const unsigned grid[] = {gx, gy, gz, bx, by, bz};
  std::shared_ptr<KernelCall> call;
  CUresult result = make_call(function, grid, shared, params, extra, &call);
  if (result) return result;
  Context* context = entry.context;
  return submit(*stream, {CU_GRAPH_NODE_TYPE_KERNEL, [=] { run_call(context, *call); }, false, call});
}
