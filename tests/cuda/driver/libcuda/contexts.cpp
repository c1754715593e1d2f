// Devices and contexts: one GPU, whose primary context all share; a stack of contexts a thread.
//
// STAGEJIT_EMULATED_DEVICE is h100, h200 or none; STAGEJIT_EMULATED_VERSION what the driver says it
// is (13000). After a kernel has failed, its context is broken for good, as on a GPU.
#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "state.h"

namespace emulated {

std::mutex lock;
static bool initialised = false;
static Context primary;
static std::set<Context*> own;  // made by cuCtxCreate
static std::string failure;
static thread_local std::vector<Context*> stack;

Context* current() { return stack.empty() ? nullptr : stack.back(); }
const std::string& last_failure() { return failure; }

void break_context(Context* context, CUresult code, const std::string& why) {
  if (context->broken) return;
  context->broken = code;
  context->why = failure = why;
}

bool from_handle(CUcontext handle, Context** context) {
  *context = (Context*)handle;
  return *context == &primary || own.count(*context);
}

size_t this_thread() {
  static std::atomic<size_t> count{0};
  static thread_local size_t mine = ++count;
  return mine;
}

static bool is_usable(const Context* context) {
  return context->alive && (context != &primary || context->retained > 0);
}

Entry::Entry(bool needs_context) : held(lock) {
  if (!initialised) {
    result = CUDA_ERROR_NOT_INITIALIZED;
    return;
  }
  context = current();
  if (!needs_context) return;
  if (!context) result = CUDA_ERROR_INVALID_CONTEXT;
  else if (!is_usable(context)) result = CUDA_ERROR_CONTEXT_IS_DESTROYED;
  else result = context->broken;
}

UnsafeEntry::UnsafeEntry() {
  if (result) return;
  for (Capture* capture : captures())
    if (forbids_unsafe_calls(*capture))
      result = invalidate(*capture, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
}

static void clear(Context* context) {
  if (!context->broken) advance_all();
  forget_streams(context);
  forget_modules(context);
  release_all(context);
}

static const char* device_name() {
  const char* chosen = getenv("STAGEJIT_EMULATED_DEVICE");
  return chosen ? chosen : "h100";
}

static bool is_h200() { return !strcmp(device_name(), "h200"); }

static int attribute(int which) {
  switch (which) {
    case 1: case 2: case 3: return 1024;                // threads of a block; its x; its y
    case 4: return 64;                                  // its z
    case 5: return 2147483647;                          // blocks of a grid, x
    case 6: case 7: return 65535;                       // y, z
    case 8: return 48 << 10;                            // shared memory of a block
    case 9: return 64 << 10;                            // constants
    case 10: return 32;                                 // threads of a warp
    case 11: return 2147483647;                         // bytes of a pitch
    case 12: case 82: return 65536;                     // registers of a block, a multiprocessor
    case 13: return 1980000;                            // kHz
    case 14: return 512;                                // alignment of a texture
    case 16: return 132;                                // multiprocessors
    case 36: return is_h200() ? 3201000 : 2619000;      // kHz of the memory
    case 37: return is_h200() ? 6144 : 5120;            // bits of its bus
    case 38: return (is_h200() ? 60 : 50) << 20;        // level 2 cache
    case 39: return 2048;                               // threads of a multiprocessor
    case 40: return 3;                                  // copies at a time
    case 75: return 9;                                  // compute capability
    case 81: return 228 << 10;                          // shared memory of a multiprocessor
    case 97: return 227 << 10;                          // of a block that asks for it
    case 106: return 32;                                // blocks of a multiprocessor
    case 111: return 1 << 10;                           // shared memory that the system takes
    case 15: case 19: case 31: case 32: case 41: case 78: case 79: case 80: case 83: case 95:
    case 115: return 1;  // overlaps, maps host memory, runs kernels side by side, has ECC, one
                         // address space, priorities, caches, cooperative launches, memory pools
    default: return 0;
  }
}

}  // namespace emulated

using namespace emulated;

EXPORTED CUresult CUDAAPI cuInit(unsigned) {
  std::lock_guard<std::mutex> held(lock);
  if (!strcmp(device_name(), "none")) return CUDA_ERROR_NO_DEVICE;
  if (!initialised) {
    const char* number = getenv("STAGEJIT_EMULATED_SEED");
    seed(number ? strtoull(number, nullptr, 10) : 0);
  }
  initialised = true;
  return CUDA_SUCCESS;
}

EXPORTED CUresult CUDAAPI cuDriverGetVersion(int* version) {
  const char* chosen = getenv("STAGEJIT_EMULATED_VERSION");
  *version = chosen ? atoi(chosen) : 13000;
  return CUDA_SUCCESS;
}

EXPORTED CUresult CUDAAPI cuDeviceGetCount(int* count) {
  ENTER(entry, Entry, false);
  *count = 1;
  return CUDA_SUCCESS;
}

EXPORTED CUresult CUDAAPI cuDeviceGet(CUdevice* device, int number) {
  ENTER(entry, Entry, false);
  if (number != 0) return CUDA_ERROR_INVALID_DEVICE;
  *device = 0;
  return CUDA_SUCCESS;
}

EXPORTED CUresult CUDAAPI cuDeviceGetName(char* name, int nbytes, CUdevice) {
  snprintf(name, size_t(nbytes), is_h200() ? "Emulated NVIDIA H200" : "Emulated NVIDIA H100");
  return CUDA_SUCCESS;
}

EXPORTED CUresult CUDAAPI cuDeviceTotalMem_v2(size_t* nbytes, CUdevice) {
  *nbytes = total_nbytes();
  return CUDA_SUCCESS;
}

EXPORTED CUresult CUDAAPI cuDeviceGetAttribute(int* value, CUdevice_attribute which, CUdevice) {
  *value = attribute(int(which));
  return CUDA_SUCCESS;
}

EXPORTED CUresult CUDAAPI cuDeviceComputeCapability(int* major, int* minor, CUdevice) {
  *major = attribute(75);
  *minor = attribute(76);
  return CUDA_SUCCESS;
}

EXPORTED CUresult CUDAAPI cuDeviceGetPCIBusId(char* name, int nbytes, CUdevice) {
  snprintf(name, size_t(nbytes), "0000:00:00.0");
  return CUDA_SUCCESS;
}

EXPORTED CUresult CUDAAPI cuDeviceCanAccessPeer(int* can, CUdevice, CUdevice) {
  *can = 0;
  return CUDA_SUCCESS;
}

EXPORTED CUresult CUDAAPI cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice device) {
  ENTER(entry, Entry, false);
  if (device != 0) return CUDA_ERROR_INVALID_DEVICE;
  ++primary.retained;
  *context = (CUcontext)&primary;
  return CUDA_SUCCESS;
}

EXPORTED CUresult CUDAAPI cuDevicePrimaryCtxReset_v2(CUdevice) {
  ENTER(entry, Entry, false);
  clear(&primary);
  primary.broken = CUDA_SUCCESS;
  return CUDA_SUCCESS;
}

EXPORTED CUresult CUDAAPI cuDevicePrimaryCtxRelease_v2(CUdevice) {
  ENTER(entry, Entry, false);
  if (primary.retained <= 0) return CUDA_ERROR_INVALID_CONTEXT;
  if (!--primary.retained) {
    clear(&primary);
    primary.broken = CUDA_SUCCESS;
  }
  return CUDA_SUCCESS;
}

EXPORTED CUresult CUDAAPI cuDevicePrimaryCtxGetState(CUdevice, unsigned* flags, int* active) {
  ENTER(entry, Entry, false);
  *flags = 0;
  *active = primary.retained > 0;
  return CUDA_SUCCESS;
}

EXPORTED CUresult CUDAAPI cuCtxCreate_v2(CUcontext* context, unsigned, CUdevice device) {
  ENTER(entry, Entry, false);
  if (device != 0) return CUDA_ERROR_INVALID_DEVICE;
  Context* made = new Context;
  own.insert(made);
  stack.push_back(made);
  *context = (CUcontext)made;
  return CUDA_SUCCESS;
}

EXPORTED CUresult CUDAAPI cuCtxCreate_v4(CUcontext* context, CUctxCreateParams*, unsigned flags,
                                         CUdevice device) {
  return cuCtxCreate_v2(context, flags, device);
}

EXPORTED CUresult CUDAAPI cuCtxDestroy_v2(CUcontext handle) {
  ENTER(entry, Entry, false);
  Context* context;
  if (!from_handle(handle, &context) || context == &primary) return CUDA_ERROR_INVALID_CONTEXT;
  clear(context);
  context->alive = false;  // it stays, for the threads that still have it on their stacks
  own.erase(context);
  if (current() == context) stack.pop_back();
  return CUDA_SUCCESS;
}

EXPORTED CUresult CUDAAPI cuCtxAttach(CUcontext* context, unsigned) {
  ENTER(entry, Entry);
  *context = (CUcontext)entry.context;
  ++entry.context->retained;
  return CUDA_SUCCESS;
}

EXPORTED CUresult CUDAAPI cuCtxDetach(CUcontext) {
  ENTER(entry, Entry);
  --entry.context->retained;
  return CUDA_SUCCESS;
}

EXPORTED CUresult CUDAAPI cuCtxPushCurrent_v2(CUcontext handle) {
  ENTER(entry, Entry, false);
  Context* context;
  if (!from_handle(handle, &context)) return CUDA_ERROR_INVALID_CONTEXT;
  stack.push_back(context);
  return CUDA_SUCCESS;
}

EXPORTED CUresult CUDAAPI cuCtxPopCurrent_v2(CUcontext* handle) {
  ENTER(entry, Entry, false);
  if (stack.empty()) return CUDA_ERROR_INVALID_CONTEXT;
  if (handle) *handle = (CUcontext)stack.back();
  stack.pop_back();
  return CUDA_SUCCESS;
}

EXPORTED CUresult CUDAAPI cuCtxGetCurrent(CUcontext* handle) {
  ENTER(entry, Entry, false);
  *handle = (CUcontext)current();
  return CUDA_SUCCESS;
}

EXPORTED CUresult CUDAAPI cuCtxSetCurrent(CUcontext handle) {
  ENTER(entry, Entry, false);
  Context* context;
  if (handle && !from_handle(handle, &context)) return CUDA_ERROR_INVALID_CONTEXT;
  if (!stack.empty()) stack.pop_back();
  if (handle) stack.push_back(context);
  return CUDA_SUCCESS;
}

EXPORTED CUresult CUDAAPI cuCtxGetDevice(CUdevice* device) {
  ENTER(entry, Entry);
  *device = 0;
  return CUDA_SUCCESS;
}

EXPORTED CUresult CUDAAPI cuCtxGetApiVersion(CUcontext, unsigned* version) {
  *version = 3020;
  return CUDA_SUCCESS;
}

EXPORTED CUresult CUDAAPI cuCtxSynchronize() {
  ENTER(entry, Entry);
  for (Capture* capture : captures()) {
    if (capture->origin->context != entry.context) continue;
    return invalidate(*capture, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  }
  advance_all();
  return entry.context->broken;
}

// ---------------------------------------------------------------- of the emulation alone

EXPORTED void emulated_seed(unsigned long long number) {
  std::lock_guard<std::mutex> held(lock);
  advance_all();
  seed(number);
}

EXPORTED int emulated_context_depth() { return int(stack.size()); }
EXPORTED unsigned long long emulated_pending() {
  std::lock_guard<std::mutex> held(lock);
  return pending();
}
EXPORTED unsigned long long emulated_used_nbytes() {
  std::lock_guard<std::mutex> held(lock);
  return used_nbytes();
}
