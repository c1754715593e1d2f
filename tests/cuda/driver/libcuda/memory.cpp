// Memory of the device: pages of the host, full of NaN, with pages beside them that nobody may touch.
//
// An allocation lies at the end of its pages, as far as an alignment of 256 bytes allows; what that
// leaves free on either side must keep its bytes. Addresses are never used again, so that a use
// after a free is found. STAGEJIT_EMULATED_NBYTES says how much there is (1 GiB).
#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "state.h"

namespace emulated {

static const size_t kPage = 4096, kAlignment = 256;
static const unsigned char kFresh = 0xFF, kBeside = 0xFB;
static std::map<uintptr_t, Allocation> allocations;
static std::map<uintptr_t, size_t> pinned;  // of the host: what the driver made or registered
static std::map<uintptr_t, size_t> mapped_pinned;
static size_t used = 0;

static size_t rounded(size_t n, size_t to) { return (n + to - 1) / to * to; }

size_t used_nbytes() { return used; }

size_t total_nbytes() {
  const char* chosen = getenv("STAGEJIT_EMULATED_NBYTES");
  return chosen ? strtoull(chosen, nullptr, 10) : size_t(1) << 30;
}

// The pages between the guards.
static char* pages_of(const Allocation& a) { return (char*)a.mapped + kPage; }
static size_t pages_nbytes(const Allocation& a) { return a.mapped_nbytes - 2 * kPage; }

void make_accessible(uintptr_t address) {
  Allocation& a = allocations.at(address);
  mprotect(pages_of(a), pages_nbytes(a), PROT_READ | PROT_WRITE);
  memset(pages_of(a), kBeside, pages_nbytes(a));
  memset((void*)a.address, kFresh, a.nbytes);
  a.accessible = true;
}

void make_inaccessible(uintptr_t address) {
  Allocation& a = allocations.at(address);
  madvise(pages_of(a), pages_nbytes(a), MADV_DONTNEED);
  mprotect(pages_of(a), pages_nbytes(a), PROT_NONE);
  a.accessible = false;
}

CUresult allocate(Context* context, size_t nbytes, bool accessible, CUdeviceptr* address) {
  if (!nbytes) return CUDA_ERROR_INVALID_VALUE;
  if (nbytes > total_nbytes() || used + nbytes > total_nbytes()) return CUDA_ERROR_OUT_OF_MEMORY;
  size_t size = rounded(nbytes, kPage) + 2 * kPage;
  void* mapped = mmap(nullptr, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapped == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
  uintptr_t at = uintptr_t(mapped) + size - kPage - rounded(nbytes, kAlignment);
  allocations[at] = {at, uintptr_t(mapped), nbytes, size, context, false};
  used += nbytes;
  if (accessible) make_accessible(at);
  *address = CUdeviceptr(at);
  return CUDA_SUCCESS;
}

bool release(uintptr_t address) {
  auto found = allocations.find(address);
  if (found == allocations.end()) return false;
  if (found->second.accessible) make_inaccessible(address);
  used -= found->second.nbytes;
  allocations.erase(found);  // the addresses stay taken
  return true;
}

void release_all(Context* context) {
  for (auto i = allocations.begin(); i != allocations.end();) {
    uintptr_t address = i->first;
    bool ours = (i++)->second.context == context;
    if (ours) release(address);
  }
}

Allocation* find(uintptr_t address) {
  auto after = allocations.upper_bound(address);
  if (after == allocations.begin()) return nullptr;
  Allocation& a = std::prev(after)->second;
  return address < a.address + a.nbytes ? &a : nullptr;
}

std::string damage() {
  for (auto& [address, a] : allocations) {
    if (!a.accessible) continue;
    const char *from = pages_of(a), *to = from + pages_nbytes(a);
    const char *first = (char*)address, *last = first + a.nbytes;
    auto is_beside = [](char c) { return (unsigned char)c == kBeside; };
    if (std::all_of(from, first, is_beside) && std::all_of(last, to, is_beside)) continue;
    memset((void*)from, kBeside, size_t(first - from));
    memset((void*)last, kBeside, size_t(to - last));
    return "a store beside an allocation of " + std::to_string(a.nbytes) + " bytes";
  }
  return "";
}

bool is_pinned(const void* address) {
  auto after = pinned.upper_bound(uintptr_t(address));
  if (after == pinned.begin()) return false;
  auto& [start, nbytes] = *std::prev(after);
  return uintptr_t(address) < start + nbytes;
}

}  // namespace emulated

using namespace emulated;

EXPORTED CUresult CUDAAPI cuMemGetInfo_v2(size_t* left, size_t* total) {
  ENTER(entry, Entry);
  *total = total_nbytes();
  *left = *total - used_nbytes();
  return CUDA_SUCCESS;
}

EXPORTED CUresult CUDAAPI cuMemAlloc_v2(CUdeviceptr* address, size_t nbytes) {
  ENTER(entry, UnsafeEntry);
  return allocate(entry.context, nbytes, true, address);
}

EXPORTED CUresult CUDAAPI cuMemAllocPitch_v2(CUdeviceptr* address, size_t* pitch, size_t width,
                                             size_t height, unsigned) {
  ENTER(entry, UnsafeEntry);
  *pitch = rounded(width, 512);
  return allocate(entry.context, *pitch * height, true, address);
}

// As on a GPU, all work of the device is done before.
EXPORTED CUresult CUDAAPI cuMemFree_v2(CUdeviceptr address) {
  ENTER(entry, UnsafeEntry);
  if (!address) return CUDA_SUCCESS;
  Allocation* found = find(uintptr_t(address));
  if (!found || found->address != address) return CUDA_ERROR_INVALID_VALUE;
  advance_all();
  release(uintptr_t(address));
  return entry.context->broken;
}

EXPORTED CUresult CUDAAPI cuMemGetAddressRange_v2(CUdeviceptr* base, size_t* nbytes,
                                                  CUdeviceptr address) {
  ENTER(entry, Entry);
  Allocation* found = find(uintptr_t(address));
  if (!found) return CUDA_ERROR_NOT_FOUND;
  if (base) *base = CUdeviceptr(found->address);
  if (nbytes) *nbytes = found->nbytes;
  return CUDA_SUCCESS;
}

EXPORTED CUresult CUDAAPI cuPointerGetAttribute(void* value, CUpointer_attribute which,
                                                CUdeviceptr address) {
  ENTER(entry, Entry, false);
  Allocation* found = find(uintptr_t(address));
  if (!found && !is_pinned((void*)uintptr_t(address))) return CUDA_ERROR_INVALID_VALUE;
  switch (int(which)) {
    case CU_POINTER_ATTRIBUTE_CONTEXT:
      *(CUcontext*)value = found ? (CUcontext)found->context : nullptr;
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
      *(unsigned*)value = found ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_HOST;
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER: *(CUdeviceptr*)value = address; return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL: *(int*)value = 0; return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
      if (!found) return CUDA_ERROR_NOT_SUPPORTED;
      *(CUdeviceptr*)value = CUdeviceptr(found->address);
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
      if (!found) return CUDA_ERROR_NOT_SUPPORTED;
      *(size_t*)value = found->nbytes;
      return CUDA_SUCCESS;
    default: return CUDA_ERROR_NOT_SUPPORTED;
  }
}

// ---------------------------------------------------------------- in the order of a stream

static CUresult allocate_in_order(CUdeviceptr* address, size_t nbytes, CUstream handle) {
  ENTER(entry, Entry);
  Stream* stream;
  if (!from_handle(handle, entry.context, &stream)) return CUDA_ERROR_INVALID_HANDLE;
  if (stream->capture) return invalidate(*stream->capture, CUDA_ERROR_NOT_SUPPORTED);
  CUresult result = allocate(entry.context, nbytes, false, address);
  if (result) return result;
  uintptr_t at = uintptr_t(*address);
  enqueue(*stream, [at] { if (find(at)) make_accessible(at); });
  return CUDA_SUCCESS;
}

EXPORTED CUresult CUDAAPI cuMemAllocAsync(CUdeviceptr* address, size_t nbytes, CUstream stream) {
  return allocate_in_order(address, nbytes, stream);
}

EXPORTED CUresult CUDAAPI cuMemAllocFromPoolAsync(CUdeviceptr* address, size_t nbytes, CUmemoryPool,
                                                  CUstream stream) {
  return allocate_in_order(address, nbytes, stream);
}

EXPORTED CUresult CUDAAPI cuMemFreeAsync(CUdeviceptr address, CUstream handle) {
  ENTER(entry, Entry);
  Stream* stream;
  if (!from_handle(handle, entry.context, &stream)) return CUDA_ERROR_INVALID_HANDLE;
  if (stream->capture) return invalidate(*stream->capture, CUDA_ERROR_NOT_SUPPORTED);
  if (!address) return CUDA_SUCCESS;
  Allocation* found = find(uintptr_t(address));
  if (!found || found->address != address) return CUDA_ERROR_INVALID_VALUE;
  uintptr_t at = uintptr_t(address);
  enqueue(*stream, [at] { release(at); });
  return CUDA_SUCCESS;
}

EXPORTED CUresult CUDAAPI cuDeviceGetDefaultMemPool(CUmemoryPool* pool, CUdevice) {
  *pool = (CUmemoryPool)1;
  return CUDA_SUCCESS;
}

EXPORTED CUresult CUDAAPI cuMemPoolSetAttribute(CUmemoryPool, CUmemPool_attribute, void*) {
  return CUDA_SUCCESS;
}

EXPORTED CUresult CUDAAPI cuMemPoolTrimTo(CUmemoryPool, size_t) { return CUDA_SUCCESS; }

// ---------------------------------------------------------------- of the host

EXPORTED CUresult CUDAAPI cuMemHostAlloc(void** address, size_t nbytes, unsigned) {
  ENTER(entry, UnsafeEntry);
  size_t size = rounded(nbytes ? nbytes : 1, kPage);
  void* mapped = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
  memset(mapped, kFresh, size);
  pinned[uintptr_t(mapped)] = size;
  mapped_pinned[uintptr_t(mapped)] = size;
  *address = mapped;
  return CUDA_SUCCESS;
}

EXPORTED CUresult CUDAAPI cuMemAllocHost_v2(void** address, size_t nbytes) {
  return cuMemHostAlloc(address, nbytes, 0);
}

EXPORTED CUresult CUDAAPI cuMemFreeHost(void* address) {
  ENTER(entry, UnsafeEntry);
  auto found = mapped_pinned.find(uintptr_t(address));
  if (found == mapped_pinned.end()) return CUDA_ERROR_INVALID_VALUE;
  advance_all();
  munmap(address, found->second);
  pinned.erase(found->first);
  mapped_pinned.erase(found);
  return CUDA_SUCCESS;
}

EXPORTED CUresult CUDAAPI cuMemHostRegister_v2(void* address, size_t nbytes, unsigned) {
  ENTER(entry, UnsafeEntry);
  pinned[uintptr_t(address)] = nbytes;
  return CUDA_SUCCESS;
}

EXPORTED CUresult CUDAAPI cuMemHostUnregister(void* address) {
  ENTER(entry, UnsafeEntry);
  advance_all();
  return pinned.erase(uintptr_t(address)) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

EXPORTED CUresult CUDAAPI cuMemHostGetDevicePointer_v2(CUdeviceptr* device, void* host, unsigned) {
  ENTER(entry, Entry);
  if (!is_pinned(host)) return CUDA_ERROR_INVALID_VALUE;
  *device = CUdeviceptr(uintptr_t(host));
  return CUDA_SUCCESS;
}

EXPORTED CUresult CUDAAPI cuMemHostGetFlags(unsigned* flags, void* host) {
  ENTER(entry, Entry);
  *flags = 0;
  return is_pinned(host) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
