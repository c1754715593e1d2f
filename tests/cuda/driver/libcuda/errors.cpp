// Names and descriptions of results, and functions by their names.
#include <dlfcn.h>

#include <string>

#include "state.h"

using namespace emulated;

struct Named {
  int code;
  const char *name, *text;
};
static const Named kNames[] = {
    {0, "CUDA_SUCCESS", "no error"},
    {1, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
    {2, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
    {3, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
    {100, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
    {101, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
    {200, "CUDA_ERROR_INVALID_IMAGE", "device kernel image is invalid"},
    {201, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
    {400, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"},
    {401, "CUDA_ERROR_ILLEGAL_STATE", "the operation cannot be performed in the present state"},
    {500, "CUDA_ERROR_NOT_FOUND", "named symbol not found"},
    {600, "CUDA_ERROR_NOT_READY", "device not ready"},
    {700, "CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered"},
    {701, "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES", "too many resources requested for launch"},
    {709, "CUDA_ERROR_CONTEXT_IS_DESTROYED", "context is destroyed"},
    {719, "CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure"},
    {801, "CUDA_ERROR_NOT_SUPPORTED", "operation not supported"},
    {900, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED",
     "operation not permitted when stream is capturing"},
    {901, "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED",
     "operation failed due to a previous error during capture"},
    {902, "CUDA_ERROR_STREAM_CAPTURE_MERGE",
     "operation would result in a merge of separate capture sequences"},
    {903, "CUDA_ERROR_STREAM_CAPTURE_UNMATCHED", "capture was not ended in the same stream"},
    {904, "CUDA_ERROR_STREAM_CAPTURE_UNJOINED",
     "capturing stream has unjoined work"},
    {905, "CUDA_ERROR_STREAM_CAPTURE_ISOLATION",
     "dependency created on uncaptured work in another stream"},
    {906, "CUDA_ERROR_STREAM_CAPTURE_IMPLICIT",
     "operation would make the legacy stream depend on a capturing blocking stream"},
    {907, "CUDA_ERROR_CAPTURED_EVENT",
     "operation not permitted on an event last recorded in a capturing stream"},
    {908, "CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD",
     "attempt to terminate a thread-local capture sequence from another thread"},
    {910, "CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE",
     "the graph update was not performed because it included changes which violated constraints"},
};

static const Named* named(int code) {
  for (const Named& found : kNames)
    if (found.code == code) return &found;
  return nullptr;
}

EXPORTED CUresult CUDAAPI cuGetErrorName(CUresult code, const char** name) {
  const Named* found = named(code);
  *name = found ? found->name : nullptr;
  return found ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

// Of what a kernel did wrong, also what that was.
EXPORTED CUresult CUDAAPI cuGetErrorString(CUresult code, const char** text) {
  static thread_local std::string told;
  const Named* found = named(code);
  *text = found ? found->text : nullptr;
  if (!found) return CUDA_ERROR_INVALID_VALUE;
  if (code == CUDA_ERROR_ILLEGAL_ADDRESS || code == CUDA_ERROR_LAUNCH_FAILED) {
    std::lock_guard<std::mutex> held(lock);
    told = std::string(found->text) + ": " + last_failure();
    *text = told.c_str();
  }
  return CUDA_SUCCESS;
}

EXPORTED CUresult CUDAAPI cuGetProcAddress_v2(const char* name, void** found, int, cuuint64_t,
                                              CUdriverProcAddressQueryResult* status) {
  static Dl_info own;
  static void* self = dladdr((void*)&cuGetProcAddress_v2, &own)
                          ? dlopen(own.dli_fname, RTLD_NOW | RTLD_NOLOAD) : nullptr;
  for (const char* suffix : {"_v4", "_v3", "_v2", ""}) {
    *found = dlsym(self, (std::string(name) + suffix).c_str());
    if (*found) break;
  }
  if (status)
    *status = *found ? CU_GET_PROC_ADDRESS_SUCCESS : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
  return *found ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}
