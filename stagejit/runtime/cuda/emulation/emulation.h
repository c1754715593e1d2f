// CUDA C++ on a CPU, where there is no GPU.
//
// Input: the sources of kernels, which stand below this (see compiling.py), and a grid. Output: what
// a kernel writes, or what it did wrong. Blocks run one after the other: from the first to the last
// where the threads do, else the other way round or in some order. Each thread is a fiber with a
// stack of its own: it runs until it waits at a barrier or exchanges something with its warp, and
// then the next one of its warp does, in the order that is asked for, which goes warp by warp.
// Numbers are those of a GPU: denormal ones are what they are, whatever the thread that calls (one
// of XLA's, say) does with its own. What is found:
//   - a barrier that is missing: different orders of the threads give different results, and shared
//     memory is full of NaN before each block;
//   - threads that wait at different barriers, exchanges that not all threads of a warp come to;
//   - elements outside an array of shared memory, a stack or a table (`-fsanitize=bounds`), and
//     accesses to global memory that leave the pages of an array (see memory.py);
//   - copies to shared memory that a thread did not wait for: until then there is NaN;
//   - accesses of several bytes at places that are no multiples of them (`-fsanitize=alignment`).
#pragma once
#include <fenv.h>
#include <math.h>
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#define __global__
#define __device__
#define __forceinline__ inline
#define __noinline__ __attribute__((noinline))
#define __launch_bounds__(...)
#define __restrict__ __restrict
// EMULATED_SHARED: the section of a kernel's shared memory.
#define __shared__ static __attribute__((section(EMULATED_SHARED), used))

struct Three { unsigned x, y, z; };
Three threadIdx, blockIdx, blockDim, gridDim;

namespace emulation {

enum State { Running, AtBarrier, InWarp, Done };
struct Fiber { void* stack_pointer; Three place; State state; const char* site; };
struct Slot { uint64_t value[32]; };
struct Copy { void* to; const void* from; unsigned group; };
struct Copies { unsigned count, groups; };  // that have not arrived; groups that were committed

const int kMostThreads = 1024, kWarp = 32, kMostCopies = 128, kCopied = 16;
const size_t kStack = 128 << 10;
Fiber fibers[kMostThreads];
Slot slots[kMostThreads / kWarp][2];
unsigned turns[kMostThreads];
Copy on_their_way[kMostThreads][kMostCopies];
Copies copies[kMostThreads];
int turn_order[kMostThreads];
int threads, current;
void* scheduler;
char* stacks;
char message[256];
void (*entry)(void*);
void* entry_arg;
struct Memory { char *start, *stop; } shared, dynamic;  // arrays; what a launch adds to them

extern "C" void emulation_switch(void** from, void* to);
#if defined(__x86_64__)
asm(R"(
.text
.hidden emulation_switch
.globl emulation_switch
emulation_switch:
  pushq %rbp; pushq %rbx; pushq %r12; pushq %r13; pushq %r14; pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15; popq %r14; popq %r13; popq %r12; popq %rbx; popq %rbp
  ret
)");
#else
#error "the emulation switches stacks on x86-64 only"
#endif

// The fiber stops for good; the launch fails with what is said first.
__attribute__((noinline)) void fail(const char* what) {
  if (!message[0])
    snprintf(message, sizeof message, "%s (block %u %u %u, thread %u %u %u)", what, blockIdx.x,
             blockIdx.y, blockIdx.z, threadIdx.x, threadIdx.y, threadIdx.z);
  fibers[current].state = Done;
  emulation_switch(&fibers[current].stack_pointer, scheduler);
}

void forget_products();  // warpgroups.h
void require_no_products();

void run_fiber() {
  entry(entry_arg);
  require_no_products();
  if (copies[current].count) fail("a thread ends before its copies have arrived");
  fibers[current].state = Done;
  emulation_switch(&fibers[current].stack_pointer, scheduler);
}

__attribute__((noinline)) void wait(State state, const char* site) {
  Fiber& fiber = fibers[current];
  fiber.state = state;
  fiber.site = site;
  emulation_switch(&fiber.stack_pointer, scheduler);
}

void start_fibers() {
  for (int i = 0; i < threads; ++i) {
    // A little apart, so that not all stacks lie in the same sets of the cache.
    uintptr_t top = (uintptr_t)(stacks + kStack * (i + 1)) - 64 - i % 61 * 192;
    void** pointer = (void**)(top & ~(uintptr_t)15);
    *--pointer = nullptr;
    *--pointer = (void*)run_fiber;
    for (int saved = 0; saved < 6; ++saved) *--pointer = nullptr;
    const unsigned n = i, x = blockDim.x, y = blockDim.y;
    fibers[i] = {pointer, {n % x, n / x % y, n / (x * y)}, Running, ""};
    turns[i] = 0;
    copies[i] = {};
  }
}

// Whether the threads from `first` on that wait in `state` can go on: all that are not done do.
bool release(int first, int count, State state, const char* what) {
  const char* site = nullptr;
  for (int i = first; i < first + count; ++i) {
    if (fibers[i].state != state) {
      if (message[0]) return false;
      snprintf(message, sizeof message, "%s that not all threads come to", what);
      return false;
    }
    if (site && strcmp(site, fibers[i].site)) {
      snprintf(message, sizeof message, "threads wait at different places: %s and %s", site,
               fibers[i].site);
      return false;
    }
    site = fibers[i].site;
  }
  for (int i = first; i < first + count; ++i) fibers[i].state = Running;
  return true;
}

// Runs the threads of one warp, from `turn` of the order on, until all are done or at a barrier.
bool run_warp(int turn, int count) {
  const int first = turn_order[turn] / kWarp * kWarp;
  for (;;) {
    bool exchanges = false;
    for (int k = turn; k < turn + count; ++k) {
      const int i = turn_order[k];
      if (fibers[i].state == Running) {
        current = i;
        threadIdx = fibers[i].place;
        emulation_switch(&scheduler, fibers[i].stack_pointer);
        if (message[0]) return false;
      }
      exchanges |= fibers[i].state == InWarp;
    }
    if (!exchanges) return true;
    if (!release(first, count, InWarp, "an exchange")) return false;
  }
}

// One warp goes as far as it can before the next one starts, so that it gets ahead of the others
// where no barrier stops it.
bool run_block() {
  if (shared.stop > shared.start) memset(shared.start, 0xff, shared.stop - shared.start);
  memset(dynamic.start, 0xff, dynamic.stop - dynamic.start);
  start_fibers();
  forget_products();
  for (;;) {
    for (int turn = 0, count; turn < threads; turn += count) {
      const int warp = turn_order[turn] / kWarp;
      for (count = 1; turn + count < threads; ++count)
        if (turn_order[turn + count] / kWarp != warp) break;
      if (!run_warp(turn, count)) return false;
    }
    int done = 0;
    for (int i = 0; i < threads; ++i) done += fibers[i].state == Done;
    if (done == threads) return true;
    if (!release(0, threads, AtBarrier, "a barrier")) return false;
  }
}

// Blocks in an order like that of the threads: a block that reads what another one writes is seen.
struct Steps { uint64_t first, each; };

Steps block_steps(uint64_t blocks) {
  bool forward = true;
  for (int k = 0; k < threads; ++k) forward &= turn_order[k] == k;
  if (forward || blocks < 2) return {0, 1};
  if (turn_order[0] == threads - 1) return {blocks - 1, blocks - 1};
  uint64_t each = blocks / 2 + blocks / 8;  // the next that meets all of them
  for (uint64_t a = 0, b;; ++each) {
    for (a = each, b = blocks; b;) { const uint64_t rest = a % b; a = b; b = rest; }
    if (a == 1) return {blocks / 2, each};
  }
}

// What all threads of the warp hand in, by lane. Two slots in turn: nobody hands in the next value
// before all have read the last but one.
inline uint64_t* exchanged(uint64_t value, const char* site) {
  Slot& slot = slots[current / kWarp][turns[current]++ % 2];
  slot.value[current % kWarp] = value;
  asm volatile("" ::: "memory");
  wait(InWarp, site);
  asm volatile("" ::: "memory");
  return slot.value;
}

template <class T> inline T from_lane(T value, unsigned lane, const char* site) {
  static_assert(sizeof(T) == 4 || sizeof(T) == 8, "CUDA exchanges 32 and 64 bits");
  uint64_t word = 0;
  memcpy(&word, &value, sizeof value);
  memcpy(&value, &exchanged(word, site)[lane], sizeof value);
  return value;
}

inline unsigned ballot(bool on, const char* site) {
  const uint64_t* votes = exchanged(on, site);
  unsigned bits = 0;
  for (int i = 0; i < kWarp; ++i) bits |= unsigned(votes[i]) << i;
  return bits;
}

inline void barrier(const char* site) {
  asm volatile("" ::: "memory");
  wait(AtBarrier, site);
  asm volatile("" ::: "memory");
}

// Nobody may look at the place until `wait_for_copies`, when the copy is made.
__attribute__((noinline)) void copy_ahead(void* to, const void* from) {
  if (((uintptr_t)to | (uintptr_t)from) % kCopied) fail("a copy that is not aligned to its size");
  Copies& own = copies[current];
  if (own.count == kMostCopies) fail("too many copies on their way");
  on_their_way[current][own.count++] = {to, from, own.groups};
  memset(to, 0xff, kCopied);
  asm volatile("" ::: "memory");
}

inline void commit_copies() { ++copies[current].groups; }

__attribute__((noinline)) void wait_for_copies(unsigned behind) {
  asm volatile("" ::: "memory");
  Copies& own = copies[current];
  unsigned left = 0;
  for (unsigned k = 0; k < own.count; ++k) {
    const Copy copy = on_their_way[current][k];
    if (copy.group + behind < own.groups)
      memcpy(copy.to, copy.from, kCopied);
    else
      on_their_way[current][left++] = copy;
  }
  own.count = left;
  asm volatile("" ::: "memory");
}

void on_fault(int, siginfo_t*, void*) { fail("an access outside the arrays of the kernel"); }

// ---------------------------------------------------------------- launches

// Shared memory that a launch asks for: it ends where a page begins that nobody may touch, and so
// is aligned as its size is.
inline Memory dynamic_memory(unsigned nbytes) {
  static const size_t most = 256 << 10;
  static char* start = nullptr;
  if (!start) {
    start = (char*)mmap(nullptr, most + 4096, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    mprotect(start + most, 4096, PROT_NONE);
  }
  char* first = start + most - (nbytes + 15) / 16 * 16;
  return {first, first + nbytes};
}

template <int... I> struct Numbers {};
template <class, int... I> using Listed = Numbers<I...>;
template <class... A> struct Call {
  void (*kernel)(A...);
  const uint64_t* args;
  template <int... I> void with(Numbers<I...>) { kernel((A)args[I]...); }
  static void go(void* self) {
#if defined(__clang__)
    static_cast<Call*>(self)->with(__make_integer_seq<Listed, int, sizeof...(A)>());
#else
    static_cast<Call*>(self)->with(Numbers<__integer_pack(sizeof...(A))...>());
#endif
  }
};

template <class... A>
const char* launch(void (*kernel)(A...), const unsigned* grid, const uint64_t* args,
                   const int* order, Memory memory, Memory added) {
  shared = memory;
  dynamic = added;
  Call<A...> call{kernel, args};
  entry = Call<A...>::go;
  entry_arg = &call;
  gridDim = {grid[0], grid[1], grid[2]};
  blockDim = {grid[3], grid[4], grid[5]};
  threads = grid[3] * grid[4] * grid[5];
  memcpy(turn_order, order, threads * sizeof *order);
  message[0] = 0;
  if (!stacks)
    stacks = (char*)mmap(nullptr, kStack * kMostThreads, PROT_READ | PROT_WRITE,
                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  struct sigaction ours = {}, before, before_bus;
  ours.sa_sigaction = on_fault;
  ours.sa_flags = SA_SIGINFO | SA_NODEFER;
  sigaction(SIGSEGV, &ours, &before);
  sigaction(SIGBUS, &ours, &before_bus);
  fenv_t numbers;
  fegetenv(&numbers);
  fesetenv(FE_DFL_ENV);
  const uint64_t blocks = (uint64_t)grid[0] * grid[1] * grid[2];
  const Steps steps = block_steps(blocks);
  bool well = true;
  for (uint64_t k = 0, n = steps.first; well && k < blocks; ++k, n = (n + steps.each) % blocks) {
    blockIdx = {unsigned(n % grid[0]), unsigned(n / grid[0] % grid[1]),
                unsigned(n / grid[0] / grid[1])};
    well = run_block();
  }
  fesetenv(&numbers);
  sigaction(SIGSEGV, &before, nullptr);
  sigaction(SIGBUS, &before_bus, nullptr);
  return message;
}

}  // namespace emulation

#include "warpgroups.h"

// What `-fsanitize=bounds` calls.
extern "C" __attribute__((visibility("hidden"))) void __ubsan_handle_out_of_bounds_abort(
    void*, uintptr_t) {
  emulation::fail("an index outside an array");
}
extern "C" __attribute__((visibility("hidden"))) void __ubsan_handle_out_of_bounds(
    void*, uintptr_t) {
  emulation::fail("an index outside an array");
}

// What `-fsanitize=alignment` calls.
extern "C" __attribute__((visibility("hidden"))) void __ubsan_handle_type_mismatch_v1_abort(
    void*, uintptr_t) {
  emulation::fail("an access that is not aligned to its size");
}
extern "C" __attribute__((visibility("hidden"))) void __ubsan_handle_type_mismatch_v1(
    void*, uintptr_t) {
  emulation::fail("an access that is not aligned to its size");
}

// ---------------------------------------------------------------- what CUDA has without headers

#define EMULATION_TEXT_(x) #x
#define EMULATION_TEXT(x) EMULATION_TEXT_(x)
#define EMULATION_SITE "line " EMULATION_TEXT(__LINE__)
#define EMULATION_LANE (emulation::current % 32)
#define __syncthreads() emulation::barrier(EMULATION_SITE)
#define __syncwarp() ((void)emulation::exchanged(0, EMULATION_SITE))
#define __shfl_sync(mask, value, lane) \
  emulation::from_lane(value, (lane) % 32, EMULATION_SITE)
#define __shfl_xor_sync(mask, value, n) \
  emulation::from_lane(value, EMULATION_LANE ^ (n), EMULATION_SITE)
#define __shfl_down_sync(mask, value, n) \
  emulation::from_lane(value, EMULATION_LANE + (n) * (EMULATION_LANE + (n) < 32), EMULATION_SITE)
#define __shfl_up_sync(mask, value, n) \
  emulation::from_lane(value, EMULATION_LANE - (n) * (EMULATION_LANE >= (n)), EMULATION_SITE)
#define __ballot_sync(mask, on) emulation::ballot(on, EMULATION_SITE)
#define __any_sync(mask, on) (emulation::ballot(on, EMULATION_SITE) != 0)
#define __all_sync(mask, on) (emulation::ballot(on, EMULATION_SITE) == ~0u)

// Fibers share one thread of the CPU, so nothing comes between.
template <class T> struct Exactly { using type = T; };
template <class T> using Same = typename Exactly<T>::type;
template <class T> inline T emulation_replaced(T* p, T value) { T was = *p; *p = value; return was; }
template <class T> inline T atomicAdd(T* p, Same<T> v) { return emulation_replaced(p, T(*p + v)); }
template <class T> inline T atomicMin(T* p, Same<T> v) {
  return emulation_replaced(p, *p < v ? *p : v);
}
template <class T> inline T atomicMax(T* p, Same<T> v) {
  return emulation_replaced(p, *p > v ? *p : v);
}
template <class T> inline T atomicCAS(T* p, Same<T> expected, Same<T> v) {
  return emulation_replaced(p, *p == expected ? v : *p);
}

template <class To, class From> inline To emulation_bits(From from) {
  static_assert(sizeof(To) == sizeof(From), "as many bits");
  To to;
  memcpy(&to, &from, sizeof to);
  return to;
}
inline unsigned __float_as_uint(float a) { return emulation_bits<unsigned>(a); }
inline float __uint_as_float(unsigned a) { return emulation_bits<float>(a); }
inline long long __double_as_longlong(double a) { return emulation_bits<long long>(a); }
inline double __longlong_as_double(long long a) { return emulation_bits<double>(a); }
inline int __popc(unsigned a) { return __builtin_popcount(a); }
inline int __popcll(unsigned long long a) { return __builtin_popcountll(a); }
inline int __clz(int a) { return a ? __builtin_clz(a) : 32; }
inline int __clzll(long long a) { return a ? __builtin_clzll(a) : 64; }
inline int __ffs(int a) { return __builtin_ffs(a); }
inline int __ffsll(long long a) { return __builtin_ffsll(a); }
inline unsigned long long __brevll(unsigned long long a) {
  unsigned long long made = 0;
  for (int k = 0; k < 64; ++k) made |= (a >> k & 1) << (63 - k);
  return made;
}
inline unsigned __brev(unsigned a) { return unsigned(__brevll(a) >> 32); }
inline unsigned __umulhi(unsigned a, unsigned b) { return unsigned((uint64_t)a * b >> 32); }
inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
  return (unsigned long long)((unsigned __int128)a * b >> 64);
}
