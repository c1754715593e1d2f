"""The functions that kernels in CUDA C++ call.

Input: the text of a kernel. Output: the types and functions that it uses, in text that includes
nothing, so that NVRTC needs no headers. Invariant: what is written under `__CUDA_ARCH__` gives the
same as what stands in its place elsewhere, but for the bits of NaN.
"""

from __future__ import annotations

import re
from functools import cache

_TYPES = """\
using i8 = signed char; using i16 = short; using i32 = int; using i64 = long long;
using u8 = unsigned char; using u16 = unsigned short; using u32 = unsigned int;
using u64 = unsigned long long;"""

# By the names that call for them; what a piece uses itself comes before it.
_PIECES: dict[tuple[str, ...], str] = {
    ("f16",): "struct f16 { u16 bits; };",
    ("bf16",): "struct bf16 { u16 bits; };",
    ("vec",): """\
// N elements, aligned to their size if that is a power of two, and to at most 16 bytes.
template <class T, int N>
struct alignas((N * sizeof(T)) % 16 ? N * sizeof(T) & -(N * sizeof(T)) : 16) vec {
  T lane[N];
  __device__ T& operator[](int k) { return lane[k]; }
  __device__ const T& operator[](int k) const { return lane[k]; }
};""",
    ("load", "store"): """\
// Vectors in memory, A elements at once.
template <int A, int N, class T>
__device__ inline vec<T, N> load(const T* p) {
  vec<T, N> made;
  for (int k = 0; k < N / A; ++k) {
    const vec<T, A> part = reinterpret_cast<const vec<T, A>*>(p)[k];
    for (int j = 0; j < A; ++j) made[k * A + j] = part[j];
  }
  return made;
}
template <int A, int N, class T>
__device__ inline void store(T* p, vec<T, N> value) {
  for (int k = 0; k < N / A; ++k) {
    vec<T, A> part;
    for (int j = 0; j < A; ++j) part[j] = value[k * A + j];
    reinterpret_cast<vec<T, A>*>(p)[k] = part;
  }
}""",
    ("smin", "smax"): """\
#define SIGNED_EXTREMA(U, S) \\
  __device__ inline U smin(U a, U b) { return S(a) < S(b) ? a : b; } \\
  __device__ inline U smax(U a, U b) { return S(a) > S(b) ? a : b; }
SIGNED_EXTREMA(u8, i8) SIGNED_EXTREMA(u16, i16)
SIGNED_EXTREMA(u32, i32) SIGNED_EXTREMA(u64, i64)""",
    ("umin", "umax"): """\
template <class T> __device__ inline T umin(T a, T b) { return a < b ? a : b; }
template <class T> __device__ inline T umax(T a, T b) { return a > b ? a : b; }""",
    ("upper_product",): """\
__device__ inline u8 upper_product(u8 a, u8 b) { return u8(u32(a) * b >> 8); }
__device__ inline u16 upper_product(u16 a, u16 b) { return u16(u32(a) * b >> 16); }
__device__ inline u32 upper_product(u32 a, u32 b) { return __umulhi(a, b); }
__device__ inline u64 upper_product(u64 a, u64 b) { return __umul64hi(a, b); }""",
    ("absolute",): """\
template <class T> __device__ inline T absolute(T a) {
  return a >> (8 * sizeof(T) - 1) ? T(0 - a) : a;
}""",
    ("count_ones", "leading_zeros", "trailing_zeros", "reversed_bits"): """\
__device__ inline u64 count_ones(u64 a) { return __popcll(a); }
__device__ inline u32 count_ones(u32 a) { return __popc(a); }
__device__ inline u16 count_ones(u16 a) { return u16(__popc(a)); }
__device__ inline u8 count_ones(u8 a) { return u8(__popc(a)); }
__device__ inline u64 leading_zeros(u64 a) { return __clzll(i64(a)); }
__device__ inline u32 leading_zeros(u32 a) { return __clz(i32(a)); }
__device__ inline u16 leading_zeros(u16 a) { return u16(__clz(i32(a)) - 16); }
__device__ inline u8 leading_zeros(u8 a) { return u8(__clz(i32(a)) - 24); }
__device__ inline u64 trailing_zeros(u64 a) { return a ? __ffsll(i64(a)) - 1 : 64; }
__device__ inline u32 trailing_zeros(u32 a) { return a ? __ffs(i32(a)) - 1 : 32; }
__device__ inline u16 trailing_zeros(u16 a) { return u16(a ? __ffs(i32(a)) - 1 : 16); }
__device__ inline u8 trailing_zeros(u8 a) { return u8(a ? __ffs(i32(a)) - 1 : 8); }
__device__ inline u64 reversed_bits(u64 a) { return __brevll(a); }
__device__ inline u32 reversed_bits(u32 a) { return __brev(a); }
__device__ inline u16 reversed_bits(u16 a) { return u16(__brev(a) >> 16); }
__device__ inline u8 reversed_bits(u8 a) { return u8(__brev(a) >> 24); }""",
    ("unordered",): """\
template <class T> __device__ inline bool unordered(T a, T b) { return a != a || b != b; }""",
    ("lesser", "greater"): """\
template <class T> __device__ inline T lesser(T a, T b) { return a < b ? a : b; }
template <class T> __device__ inline T greater(T a, T b) { return a > b ? a : b; }""",
    ("minimum", "maximum"): """\
// NaN propagates, -0 is less than +0.
__device__ inline double minimum(double a, double b) {
  if (a != a || b != b) return a + b;
  return a < b || (a == b && __double_as_longlong(a) < 0) ? a : b;
}
__device__ inline double maximum(double a, double b) {
  if (a != a || b != b) return a + b;
  return a > b || (a == b && __double_as_longlong(b) < 0) ? a : b;
}
#ifdef __CUDA_ARCH__
__device__ inline float minimum(float a, float b) {
  asm("min.NaN.f32 %0, %0, %1;" : "+f"(a) : "f"(b));
  return a;
}
__device__ inline float maximum(float a, float b) {
  asm("max.NaN.f32 %0, %0, %1;" : "+f"(a) : "f"(b));
  return a;
}
#else
__device__ inline float minimum(float a, float b) { return float(minimum(double(a), double(b))); }
__device__ inline float maximum(float a, float b) { return float(maximum(double(a), double(b))); }
#endif""",
    ("scaled",): """\
// a * 2^n in two exact steps, so that the product is rounded once; n is an integer.
__device__ inline float scaled(float a, float n) {
  const i32 whole = i32(fminf(fmaxf(n, -252.0f), 252.0f)), half = whole >> 1;
  return a * __uint_as_float(u32(half + 127) << 23) *
         __uint_as_float(u32(whole - half + 127) << 23);
}
__device__ inline double scaled(double a, double n) {
  const i64 whole = i64(fmin(fmax(n, -2044.0), 2044.0)), half = whole >> 1;
  return a * __longlong_as_double((half + 1023) << 52) *
         __longlong_as_double((whole - half + 1023) << 52);
}""",
    ("saturated",): """\
// Towards zero; what is too large for T becomes its largest or smallest number, NaN becomes 0.
template <class T, class F> __device__ inline T saturated(F a) {
  const bool with_sign = T(-1) < T(0);
  const F limit = F(u64(1) << (8 * sizeof(T) - 1)) * F(with_sign ? 1 : 2);
  const T last = T(with_sign ? ~u64(0) >> (65 - 8 * sizeof(T)) : ~u64(0));
  if (a >= limit) return last;
  if (a <= (with_sign ? -limit : F(0))) return T(with_sign ? last + 1ull : 0);
  return a == a ? T(a) : T(0);
}""",
    ("odd_double",): """\
// An integer with more bits than f64 has, rounded to odd: rounding again is then right.
__device__ inline double odd_double(u64 a) {
  return double(a > (1ull << 53) ? (a & ~0xfffull) | (a & 0xfff ? 0x800 : 0) : a);
}
__device__ inline double odd_double(i64 a) {
  return a < 0 ? -odd_double(0ull - u64(a)) : odd_double(u64(a));
}""",
    ("odd_float",): """\
// f64 in f32, rounded to odd: rounding again is then right.
__device__ inline float odd_float(double a) {
  const float near = float(a);
  const u32 bits = __float_as_uint(near);
  if (a != a || double(near) == a || bits & 1) return near;
  return __uint_as_float(fabs(double(near)) < fabs(a) ? bits + 1 : bits - 1);
}""",
    ("to_bf16",): """\
__device__ inline bf16 to_bf16(float a) {
  const u32 bits = __float_as_uint(a);
  if (a != a) return bf16{u16(bits >> 16 | 0x40)};
  return bf16{u16((bits + 0x7fff + (bits >> 16 & 1)) >> 16)};
}
__device__ inline bf16 to_bf16(double a) { return to_bf16(odd_float(a)); }""",
    ("to_f16",): """\
__device__ inline f16 to_f16(float a) {
#ifdef __CUDA_ARCH__
  u16 made;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(made) : "f"(a));
  return f16{made};
#else
  const u32 size = __float_as_uint(a) & 0x7fffffff, sign = __float_as_uint(a) >> 16 & 0x8000;
  if (size >= 0x47800000) return f16{u16(sign | (size > 0x7f800000 ? 0x7e00 : 0x7c00))};
  const u32 rounded = size - 0x38000000 + 0xfff + (size >> 13 & 1);
  if (size >= 0x38800000) return f16{u16(sign | rounded >> 13)};
  return f16{u16(sign | (__float_as_uint(__uint_as_float(size) + 0.5f) - 0x3f000000))};
#endif
}
__device__ inline f16 to_f16(double a) { return to_f16(odd_float(a)); }""",
    ("to_float",): """\
__device__ inline float to_float(bf16 a) { return __uint_as_float(u32(a.bits) << 16); }
__device__ inline float to_float(f16 a) {
#ifdef __CUDA_ARCH__
  float made;
  asm("cvt.f32.f16 %0, %1;" : "=f"(made) : "h"(a.bits));
  return made;
#else
  const u32 size = a.bits & 0x7fff, sign = u32(a.bits & 0x8000) << 16;
  if (size >= 0x7c00) return __uint_as_float(sign | size << 13 | 0x7f800000);
  if (size >= 0x400) return __uint_as_float(sign | ((size << 13) + (112u << 23)));
  return __uint_as_float(sign | __float_as_uint(float(size) * 0x1p-24f));
#endif
}""",
    ("to_tf32",): """\
// 10 bits of mantissa: to nearest, ties away from zero.
__device__ inline float to_tf32(float a) {
#ifdef __CUDA_ARCH__
  u32 made;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(made) : "f"(a));
  return __uint_as_float(made);
#else
  if (a - a != 0) return a == a ? a : __uint_as_float(0x7fffffff);
  return __uint_as_float((__float_as_uint(a) + 0x1000) & ~0x1fffu);
#endif
}""",
    ("lane_of_warp",): """\
__device__ inline u32 lane_of_warp() {
  return (threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z)) % 32;
}""",
    ("copy_ahead",): """\
// Starts to copy 16 bytes to shared memory: they are there once the thread has waited for them.
template <class T> __device__ inline void copy_ahead(T* to, const T* from) {
#ifdef __CUDA_ARCH__
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;"
               :: "r"(u32(__cvta_generic_to_shared(to))), "l"(__cvta_generic_to_global(from))
               : "memory");
#else
  emulation::copy_ahead(to, from);
#endif
}""",
    ("commit_copies", "wait_for_copies"): """\
// Copies are waited for by groups, those started before each `commit_copies`.
__device__ inline void commit_copies() {
#ifdef __CUDA_ARCH__
  asm volatile("cp.async.commit_group;" ::: "memory");
#else
  emulation::commit_copies();
#endif
}
template <int Behind> __device__ inline void wait_for_copies() {
#ifdef __CUDA_ARCH__
  asm volatile("cp.async.wait_group %0;" :: "n"(Behind) : "memory");
#else
  emulation::wait_for_copies(Behind);
#endif
}""",
    ("lane_xor", "lane_down", "lane_up"): """\
// Another lane, or the own one where there is none.
__device__ inline u32 lane_or_own(u64 lane) { return u32(lane < 32 ? lane : lane_of_warp()); }
__device__ inline u32 lane_xor(u64 n) { return lane_or_own(lane_of_warp() ^ n); }
__device__ inline u32 lane_down(u64 n) { return lane_or_own(lane_of_warp() + n); }
__device__ inline u32 lane_up(u64 n) { return lane_or_own(lane_of_warp() - n); }""",
    ("swizzled_matrix",): """\
// Where a matrix lies in shared memory, and how many bytes its strips and atoms are apart.
__device__ inline u64 swizzled_matrix(const void* first, u64 strips, u64 atoms) {
#ifdef __CUDA_ARCH__
  const u64 at = __cvta_generic_to_shared(first);
#else
  const u64 at = emulation::shared_address(first);
#endif
  return (at & 0x3ffff) >> 4 | strips >> 4 << 16 | atoms >> 4 << 32 | 1ull << 62;
}""",
    ("wgmma_commit",): """\
// The products since the last one are a group.
__device__ inline void wgmma_commit() {
#ifdef __CUDA_ARCH__
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
#else
  emulation::wgmma_commit();
#endif
}""",
    ("proxy_fence",): """\
// Products may see what this thread has written to shared memory, behind the next barrier.
__device__ inline void proxy_fence() {
#ifdef __CUDA_ARCH__
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#else
  emulation::proxy_fence();
#endif
}""",
    ("atomic_extremum",): """\
// One thread's change of *p at a time; gives what it was.
template <class Choose>
__device__ inline float atomic_extremum(float* p, float value, Choose choose) {
  u32 before = *reinterpret_cast<volatile u32*>(p), known;
  do {
    known = before;
    const u32 after = __float_as_uint(choose(__uint_as_float(known), value));
    before = atomicCAS(reinterpret_cast<u32*>(p), known, after);
  } while (before != known);
  return __uint_as_float(before);
}""",
}


_WORD = re.compile(r"\w+")


def preamble(text: str) -> str:
    """All that `text` needs before it."""
    wanted, words = list[str](), set(_WORD.findall(text))
    for names, piece in reversed(_ordered()):
        if not words.isdisjoint(names):
            wanted.append(piece)
            words.update(_WORD.findall(piece))
    return "\n".join([_TYPES, *reversed(wanted)])


@cache
def _ordered() -> list[tuple[tuple[str, ...], str]]:
    """Each piece after those that it uses."""
    left, done = dict(_PIECES), []
    while left:
        for names, piece in list(left.items()):
            others = [n for key in left if key != names for n in key]
            if not others or not re.search(rf"\b({'|'.join(others)})\b", piece):
                done.append((names, left.pop(names)))
    return done


RESERVED = frozenset(name for names in _PIECES for name in names)
