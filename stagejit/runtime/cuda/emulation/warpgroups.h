// Products of warpgroups on a CPU: `wgmma.mma_async` and what orders it, after NVIDIA's PTX ISA,
// "Asynchronous Warpgroup Level Matrix Instructions".
//
// Each thread works out its own sums when it waits for them; until then they are NaN. What a
// product sees of shared memory is what was there at the last fence of proxies, of any thread, from
// its beginning to its end, and it finds it by the two descriptors that it is given ("Matrix
// Descriptor Format", "Shared Memory Matrix Layout" and "Strides", and CUTLASS's `make_gmma_desc`).
// So a fence, commit or wait that is missing, memory that is written too early and a wrong place
// all give wrong numbers, or fail.
#pragma once

namespace emulation {

const int kMostSums = 256, kMostProducts = 64;
using Number = double (*)(uint16_t);

struct Product {
  float* sums;
  int count, group;
  uint64_t a, b;
  bool a_turned, b_turned;
  Number number;
  uint64_t digest;  // of what was seen of the operands
};
struct Asynchronous {  // of a thread
  Product queue[kMostProducts];
  int queued, groups;
  bool fenced;
  float held[kMostSums];  // the sums behind the NaN, by their place behind `first`
  float* first;
};
Asynchronous asynchronous[kMostThreads];
char* seen;  // what products see of shared memory, with that of the launch behind the arrays

inline uint64_t arrays_nbytes() { return (shared.stop - shared.start + 1023) / 1024 * 1024; }
inline uint64_t window_nbytes() { return arrays_nbytes() + (dynamic.stop - dynamic.start); }

// An address as `__cvta_generic_to_shared` gives it.
inline uint64_t shared_address(const void* p) {
  const char* at = (const char*)p;
  if (at >= shared.start && at < shared.stop) return at - shared.start;
  return arrays_nbytes() + (at - dynamic.start);
}

// Before a block.
void forget_products() {
  for (int i = 0; i < threads; ++i) {
    Asynchronous& own = asynchronous[i];
    own.queued = own.groups = 0;
    own.fenced = false;
    own.first = nullptr;
  }
  if (seen) memset(seen, 0xff, window_nbytes());
}

inline void proxy_fence() {
  if (!seen) {
    const size_t most = 512 << 10;
    seen = (char*)mmap(nullptr, most, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    memset(seen, 0xff, most);
  }
  memcpy(seen, shared.start, shared.stop - shared.start);
  memcpy(seen + arrays_nbytes(), dynamic.start, dynamic.stop - dynamic.start);
}

// The place of the element of row or column `other` and of `step` in the window. Elements of 16
// bits; T of them, 16 bytes, are what strides count. CUTLASS has the layouts, in elements, as
//   steps neighbours (K-major):   (8, m), (T, 2)   by  (W T, stride), (1, T, or leading for W = 1)
//   others neighbours (MN-major): (T, W, m), (8, k)  by  (1, T, leading), (W T, stride)
//                                 for W = 1: (T, m), (8, k)  by  (1, stride), (T, leading)
// where W is how many 16 bytes a line has: 8, 4, 2 or, if nothing is swizzled, 1.
inline uint64_t place_of(uint64_t matrix, bool turned, unsigned other, unsigned step) {
  static const unsigned widths[] = {1, 8, 4, 2};  // by the mode in bits 62 and 63
  const unsigned T = 8, W = widths[matrix >> 62];
  const uint64_t start = (matrix & 0x3fff) << 4, leading = (matrix >> 16 & 0x3fff) << 4,
                 stride = (matrix >> 32 & 0x3fff) << 4;
  uint64_t at = start;
  if (!turned)
    at += other / 8 * stride + other % 8 * 16 * W + step / T * (W > 1 ? 16 : leading) + step % T * 2;
  else if (W > 1)
    at += other % T * 2 + other / T % W * 16 + other / (T * W) * leading + step % 8 * 16 * W +
          step / 8 * stride;
  else
    at += other % T * 2 + other / T * stride + step % 8 * 16 + step / 8 * leading;
  return at ^ (at >> 7 & (W - 1)) << 4;
}

inline uint16_t bits_of(const Product& one, bool left, unsigned other, unsigned step) {
  const uint64_t at = place_of(left ? one.a : one.b, left ? one.a_turned : one.b_turned, other, step);
  if (at + 2 > window_nbytes()) fail("a matrix outside shared memory");
  uint16_t bits = 0xffff;  // nobody has passed a fence
  if (seen) memcpy(&bits, seen + at, 2);
  return bits;
}

// What a thread's sums need of the operands: its two rows, and two of each 8 columns. "Register
// Fragments" of the accumulator: its sum i is of row i / 2 % 2 and column i / 4 * 2 + i % 2 of these.
struct Operands { uint16_t rows[2][16], columns[kMostSums / 2][16]; };

inline void read_operands(const Product& one, Operands* to) {
  const unsigned thread = current % 128, lane = thread % 32, row = thread / 32 * 16 + lane / 4;
  for (unsigned k = 0; k < 16; ++k) {
    for (unsigned half = 0; half < 2; ++half) to->rows[half][k] = bits_of(one, true, row + 8 * half, k);
    for (unsigned j = 0; j < unsigned(one.count) / 2; ++j)
      to->columns[j][k] = bits_of(one, false, j / 2 * 8 + lane % 4 * 2 + j % 2, k);
  }
}

inline uint64_t digest_of(const Product& one, const Operands& read) {
  uint64_t digest = 1;
  const uint16_t* bits = read.rows[0];
  for (int i = 0; i < 32; ++i) digest = (digest ^ bits[i]) * 0x100000001b3;
  for (int j = 0; j < one.count / 2; ++j)
    for (int k = 0; k < 16; ++k) digest = (digest ^ read.columns[j][k]) * 0x100000001b3;
  return digest;
}

inline void finish_product(Asynchronous& own, const Product& one) {
  Operands read;
  read_operands(one, &read);
  if (digest_of(one, read) != one.digest)
    fail("operands of a product that change before it has been waited for");
  float* held = own.held + (one.sums - own.first);
  double rows[2][16];
  for (int i = 0; i < 32; ++i) rows[i / 16][i % 16] = one.number(read.rows[i / 16][i % 16]);
  for (int j = 0; j < one.count / 2; ++j) {
    float* pair = held + j / 2 * 4 + j % 2;
    double sum[2] = {pair[0], pair[2]};
    for (int k = 0; k < 16; ++k) {
      const double y = one.number(read.columns[j][k]);
      for (int half = 0; half < 2; ++half) sum[half] += rows[half][k] * y;
    }
    for (int half = 0; half < 2; ++half) pair[2 * half] = float(sum[half]);
  }
}

inline bool is_waited_for(const Asynchronous& own, const float* sums) {
  for (int i = 0; i < own.queued; ++i)
    if (own.queue[i].sums == sums) return true;
  return false;
}

inline void wgmma(float* sums, int count, uint64_t a, uint64_t b, bool a_turned, bool b_turned,
                  Number number) {
  Asynchronous& own = asynchronous[current];
  if (!own.fenced) fail("wgmma.mma_async without a wgmma.fence before it");
  const uint64_t both[] = {a, b};
  for (uint64_t matrix : both) {
    if (matrix & 0x3fffc000c000c000) fail("a descriptor with bits that are not known");
    if (from_lane(matrix, 0, "wgmma") != matrix) fail("threads that name different matrices");
  }
  if (!own.first) own.first = sums;
  if (sums < own.first || sums + count > own.first + kMostSums || own.queued == kMostProducts)
    fail("more products at once than the emulation knows");
  if (!is_waited_for(own, sums)) {
    memcpy(own.held + (sums - own.first), sums, count * sizeof *sums);
    memset(sums, 0xff, count * sizeof *sums);
  }
  Product& one = own.queue[own.queued++];
  one = {sums, count, -1, a, b, a_turned, b_turned, number, 0};
  Operands read;
  read_operands(one, &read);
  one.digest = digest_of(one, read);
}

inline void wgmma_fence() { asynchronous[current].fenced = true; }

inline void wgmma_commit() {
  Asynchronous& own = asynchronous[current];
  for (int i = own.queued; i-- && own.queue[i].group < 0;) own.queue[i].group = own.groups;
  ++own.groups;
}

// Finishes all groups but the last `pending`.
inline void wgmma_wait(int pending) {
  Asynchronous& own = asynchronous[current];
  own.fenced = false;
  while (own.queued && own.queue[0].group >= 0 && own.queue[0].group < own.groups - pending) {
    const Product one = own.queue[0];
    finish_product(own, one);
    memmove(own.queue, own.queue + 1, --own.queued * sizeof one);
    if (!is_waited_for(own, one.sums))
      memcpy(one.sums, own.held + (one.sums - own.first), one.count * sizeof *one.sums);
  }
  if (!own.queued) own.first = nullptr;
}

// At the end of a thread.
void require_no_products() {
  if (asynchronous[current].queued) fail("a product that nobody waits for");
}

}  // namespace emulation
