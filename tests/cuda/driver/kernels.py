"""Kernels in CUDA C++ that tests of drivers launch: small, and none like another."""

from __future__ import annotations

SCALE_AND_ADD = r"""
extern "C" __global__ void __launch_bounds__(64)
scale_and_add(float* y, const float* x, float a, float b, long long n) {
  const long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = a * x[i] + b;
}
"""

# All of 8 bytes, as the kernels that the compiler prints.
AXPY = r"""
extern "C" __global__ void __launch_bounds__(64)
axpy(float* y, const float* x, unsigned long long n, unsigned long long a) {
  const unsigned long long i = (unsigned long long)blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = y[i] + (float)a * x[i];
}
"""

# What a kernel is given, each argument of another size.
ARGUMENTS = r"""
extern "C" __global__ void arguments(double* y, char a, short b, int c, char d, long long e,
                                     float f, unsigned char g, double h) {
  if (threadIdx.x) return;
  const double given[] = {double(a), double(b), double(c), double(d), double(e), f, double(g), h};
  for (int i = 0; i < 8; ++i) y[i] = given[i];
}
"""

# The sum of a block by shared memory that the launch adds.
DYNAMIC_SUM = r"""
extern "C" __global__ void dynamic_sum(float* y, const float* x, int given) {
  extern __shared__ float part[];
  const int i = threadIdx.x;
  part[i] = x[i];
  __syncthreads();
  if (i == 0) {
    float sum = 0;
    for (int k = 0; k < given; ++k) sum += part[k];
    *y = sum;
  }
}
"""

TWO_KERNELS = r"""
extern "C" __global__ void first(int* y) { if (threadIdx.x == 0) *y = 1; }
extern "C" __global__ void second(int* y) { if (threadIdx.x == 0) *y += 2; }
"""

WRITES_OUTSIDE = r"""
extern "C" __global__ void writes_outside(float* y, long long at) {
  if (threadIdx.x == 0) y[at] = 1;
}
"""

WAITS_AT_DIFFERENT_BARRIERS = r"""
extern "C" __global__ void divergent(float* y) {
  if (threadIdx.x < 16) __syncthreads();
  else { *y = 1; __syncthreads(); }
}
"""
