// Beside kernels in CUDA C++: makes a library of them that the emulated driver loads as a cubin.
//
// Included before the source, after the header of the emulation, whose section of shared memory is
// "emulated_shared". KERNEL(name, most_threads), which stands behind the source once for each
// kernel, exports what `kernel.h` describes.
#pragma once
#include <string.h>

#include "kernel.h"

extern "C" char __start_emulated_shared[] __attribute__((weak));
extern "C" char __stop_emulated_shared[] __attribute__((weak));

namespace cubin {

template <class... A> struct Arguments {
  static constexpr int count = sizeof...(A);
  static constexpr unsigned sizes[] = {sizeof(A)..., 0};
  static constexpr unsigned at(int number) {
    unsigned offset = 0;
    for (int i = 0; i <= number; ++i) {
      offset = (offset + sizes[i] - 1) / sizes[i] * sizes[i];
      if (i < number) offset += sizes[i];
    }
    return offset;
  }
};

template <class T> T read(const char* from) {
  T value;
  memcpy(&value, from, sizeof value);
  return value;
}

template <class... A, int... I>
void call(void (*kernel)(A...), const char* arguments, emulation::Numbers<I...>) {
  kernel(read<A>(arguments + Arguments<A...>::at(I))...);
}

template <class... A> void call(void (*kernel)(A...), const char* arguments) {
  call(kernel, arguments, emulation::Numbers<__integer_pack(sizeof...(A))...>());
}

// What the emulation launches in place of the kernel: a thread of it.
template <auto kernel> void thread(uint64_t arguments) {
  call(kernel, (const char*)arguments);
}

template <auto kernel>
const char* launch(const unsigned* grid, const char* arguments, char* memory, unsigned nbytes,
                   const int* order) {
  const uint64_t packed = (uint64_t)arguments;
  return emulation::launch(thread<kernel>, grid, &packed, order,
                           {__start_emulated_shared, __stop_emulated_shared},
                           {memory, memory + nbytes});
}

template <class... A>
EmulatedKernel described(void (*)(A...), unsigned most_threads, decltype(EmulatedKernel::launch) go) {
  return {Arguments<A...>::count, Arguments<A...>::sizes, most_threads,
          unsigned(__stop_emulated_shared - __start_emulated_shared), go};
}

}  // namespace cubin

#define KERNEL(name, most_threads)                                                              \
  extern "C" __attribute__((visibility("default"))) EmulatedKernel emulated_kernel_##name() {   \
    return cubin::described(name, most_threads, cubin::launch<name>);                           \
  }
