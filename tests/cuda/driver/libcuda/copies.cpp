// Copies and fills.
//
// As NVIDIA's "API synchronization behavior" has it: a copy from pageable memory of the host has read
// it when the function returns, and need not have arrived (not even one that is not called Async:
// a stream that is not blocking may come before it); one to pageable memory has. Pinned memory is
// read and written when the stream gets there. Copies and fills within the device never wait. Both
// ends must lie within one allocation each.
#include <cstring>

#include "state.h"

namespace emulated {

// Rows of bytes. A host end in pageable memory is not checked.
struct Copy {
  char *to, *from;
  size_t width, height, to_pitch, from_pitch;
  bool to_device, from_device;
  std::shared_ptr<std::vector<char>> staged;
};

static size_t extent(size_t width, size_t height, size_t pitch) {
  return width && height ? (height - 1) * pitch + width : 0;
}

static bool lies_within(const char* address, size_t nbytes, bool* there) {
  Allocation* found = find(uintptr_t(address));
  *there = is_pinned(address) || (found && found->accessible);
  if (!found) return is_pinned(address) || !nbytes;
  return uintptr_t(address) + nbytes <= found->address + found->nbytes;
}

static bool is_there(const char* address, size_t nbytes, Context* context) {
  bool there = false;
  if (!nbytes || (lies_within(address, nbytes, &there) && there)) return true;
  break_context(context, CUDA_ERROR_ILLEGAL_ADDRESS,
                "a copy or fill of memory that is freed, or not allocated yet");
  return false;
}

static void run(const Copy& c, Context* context) {
  size_t read = extent(c.width, c.height, c.from_pitch);
  size_t written = extent(c.width, c.height, c.to_pitch);
  if (c.from_device && !is_there(c.from, read, context)) return;
  if (c.to_device && !is_there(c.to, written, context)) return;
  const char* from = c.staged ? c.staged->data() : c.from;
  for (size_t row = 0; row < c.height; ++row)
    memmove(c.to + row * c.to_pitch, from + row * c.from_pitch, c.width);
}

static CUresult copy(Entry& entry, Copy c, CUstream handle, bool blocks) {
  bool there;
  size_t read = extent(c.width, c.height, c.from_pitch);
  size_t written = extent(c.width, c.height, c.to_pitch);
  if (c.from_device && !lies_within(c.from, read, &there)) return CUDA_ERROR_INVALID_VALUE;
  if (c.to_device && !lies_within(c.to, written, &there)) return CUDA_ERROR_INVALID_VALUE;
  Stream* stream;
  if (!from_handle(handle, entry.context, &stream)) return CUDA_ERROR_INVALID_HANDLE;
  bool captured = stream->capture;
  if (blocks && !captured)
    for (const OpRef& op : before_next(*stream)) advance(op);
  if (!captured && !c.from_device && !is_pinned(c.from))
    c.staged = std::make_shared<std::vector<char>>(c.from, c.from + read);
  Context* context = entry.context;
  CUresult result =
      submit(*stream, {CU_GRAPH_NODE_TYPE_MEMCPY, [=] { run(c, context); }, false, nullptr});
  if (result || captured) return result;
  bool within = c.to_device && c.from_device;
  if (c.staged || within ? false : blocks || (!c.to_device && !is_pinned(c.to))) {
    advance(stream->last);
    return context->broken;
  }
  return CUDA_SUCCESS;
}

static Copy line(const void* to, bool to_device, const void* from, bool from_device, size_t n) {
  return {(char*)to, (char*)from, n, 1, n, n, to_device, from_device, nullptr};
}

static const void* pointer(CUdeviceptr address) { return (const void*)uintptr_t(address); }
static bool is_of_device(const void* address) { return find(uintptr_t(address)); }

static bool rectangle(const CUDA_MEMCPY2D* p, Copy* c) {
  if (p->srcMemoryType == CU_MEMORYTYPE_ARRAY || p->dstMemoryType == CU_MEMORYTYPE_ARRAY)
    return false;
  bool from_host = p->srcMemoryType == CU_MEMORYTYPE_HOST;
  bool to_host = p->dstMemoryType == CU_MEMORYTYPE_HOST;
  size_t from_pitch = p->srcPitch ? p->srcPitch : p->WidthInBytes;
  size_t to_pitch = p->dstPitch ? p->dstPitch : p->WidthInBytes;
  char* from = (char*)(from_host ? p->srcHost : pointer(p->srcDevice));
  char* to = (char*)(to_host ? p->dstHost : pointer(p->dstDevice));
  from += p->srcY * from_pitch + p->srcXInBytes;
  to += p->dstY * to_pitch + p->dstXInBytes;
  *c = {to, from, p->WidthInBytes, p->Height, to_pitch, from_pitch,
        to_host ? false : is_of_device(to), from_host ? false : is_of_device(from), nullptr};
  return true;
}

static CUresult fill(Entry& entry, CUdeviceptr to, size_t pitch, unsigned value, size_t element,
                     size_t width, size_t height, CUstream handle) {
  char* first = (char*)pointer(to);
  size_t nbytes = extent(width * element, height, pitch);
  bool there;
  if (!lies_within(first, nbytes, &there) || to % element) return CUDA_ERROR_INVALID_VALUE;
  Stream* stream;
  if (!from_handle(handle, entry.context, &stream)) return CUDA_ERROR_INVALID_HANDLE;
  Context* context = entry.context;
  auto work = [=] {
    if (!is_there(first, nbytes, context)) return;
    for (size_t row = 0; row < height; ++row)
      for (size_t i = 0; i < width; ++i)
        memcpy(first + row * pitch + i * element, &value, element);  // little-endian
  };
  return submit(*stream, {CU_GRAPH_NODE_TYPE_MEMSET, work, false, nullptr});
}

}  // namespace emulated

using namespace emulated;

#define BLOCKING_COPY(to, to_device, from, from_device)                                   \
  ENTER(entry, UnsafeEntry);                                                              \
  return copy(entry, line(to, to_device, from, from_device, nbytes), nullptr, true)
#define COPY_IN_ORDER(to, to_device, from, from_device)                                   \
  ENTER(entry, Entry);                                                                    \
  return copy(entry, line(to, to_device, from, from_device, nbytes), stream, false)

EXPORTED CUresult CUDAAPI cuMemcpyHtoD_v2(CUdeviceptr to, const void* from, size_t nbytes) {
  BLOCKING_COPY(pointer(to), true, from, false);
}
EXPORTED CUresult CUDAAPI cuMemcpyDtoH_v2(void* to, CUdeviceptr from, size_t nbytes) {
  BLOCKING_COPY(to, false, pointer(from), true);
}
EXPORTED CUresult CUDAAPI cuMemcpyDtoD_v2(CUdeviceptr to, CUdeviceptr from, size_t nbytes) {
  BLOCKING_COPY(pointer(to), true, pointer(from), true);
}
EXPORTED CUresult CUDAAPI cuMemcpy(CUdeviceptr to, CUdeviceptr from, size_t nbytes) {
  BLOCKING_COPY(pointer(to), is_of_device(pointer(to)), pointer(from),
                is_of_device(pointer(from)));
}
EXPORTED CUresult CUDAAPI cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void* from, size_t nbytes,
                                               CUstream stream) {
  COPY_IN_ORDER(pointer(to), true, from, false);
}
EXPORTED CUresult CUDAAPI cuMemcpyDtoHAsync_v2(void* to, CUdeviceptr from, size_t nbytes,
                                               CUstream stream) {
  COPY_IN_ORDER(to, false, pointer(from), true);
}
EXPORTED CUresult CUDAAPI cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, size_t nbytes,
                                               CUstream stream) {
  COPY_IN_ORDER(pointer(to), true, pointer(from), true);
}
EXPORTED CUresult CUDAAPI cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, size_t nbytes,
                                        CUstream stream) {
  COPY_IN_ORDER(pointer(to), is_of_device(pointer(to)), pointer(from),
                is_of_device(pointer(from)));
}

EXPORTED CUresult CUDAAPI cuMemcpy2D_v2(const CUDA_MEMCPY2D* what) {
  ENTER(entry, UnsafeEntry);
  Copy c;
  if (!rectangle(what, &c)) return CUDA_ERROR_NOT_SUPPORTED;
  return copy(entry, c, nullptr, true);
}
EXPORTED CUresult CUDAAPI cuMemcpy2DUnaligned_v2(const CUDA_MEMCPY2D* what) {
  return cuMemcpy2D_v2(what);
}
EXPORTED CUresult CUDAAPI cuMemcpy2DAsync_v2(const CUDA_MEMCPY2D* what, CUstream stream) {
  ENTER(entry, Entry);
  Copy c;
  if (!rectangle(what, &c)) return CUDA_ERROR_NOT_SUPPORTED;
  return copy(entry, c, stream, false);
}

#define FILLS(bits, kind)                                                                       \
  EXPORTED CUresult CUDAAPI cuMemsetD##bits##_v2(CUdeviceptr to, kind value, size_t count) {    \
    ENTER(entry, UnsafeEntry);                                                                  \
    return fill(entry, to, 0, value, bits / 8, count, 1, nullptr);                              \
  }                                                                                             \
  EXPORTED CUresult CUDAAPI cuMemsetD##bits##Async(CUdeviceptr to, kind value, size_t count,    \
                                                   CUstream stream) {                           \
    ENTER(entry, Entry);                                                                        \
    return fill(entry, to, 0, value, bits / 8, count, 1, stream);                              \
  }                                                                                             \
  EXPORTED CUresult CUDAAPI cuMemsetD2D##bits##_v2(CUdeviceptr to, size_t pitch, kind value,    \
                                                   size_t width, size_t height) {               \
    ENTER(entry, UnsafeEntry);                                                                  \
    return fill(entry, to, pitch, value, bits / 8, width, height, nullptr);                     \
  }                                                                                             \
  EXPORTED CUresult CUDAAPI cuMemsetD2D##bits##Async(CUdeviceptr to, size_t pitch, kind value,  \
                                                     size_t width, size_t height,               \
                                                     CUstream stream) {                         \
    ENTER(entry, Entry);                                                                        \
    return fill(entry, to, pitch, value, bits / 8, width, height, stream);                     \
  }
FILLS(8, unsigned char)
FILLS(16, unsigned short)
FILLS(32, unsigned)
