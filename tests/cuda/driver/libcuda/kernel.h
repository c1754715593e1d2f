// What the emulated driver reads of a kernel in a "cubin" of the emulation.
#pragma once

struct EmulatedKernel {
  int count;                   // of its arguments
  const unsigned* sizes;       // of each, which is also its alignment
  unsigned most_threads;       // of a block, by its launch bounds
  unsigned shared_nbytes;      // without what a launch adds
  // Runs all blocks: arguments as they are packed, shared memory that the launch adds, the order of
  // the threads. "", or what the kernel did wrong.
  const char* (*launch)(const unsigned* grid, const char* arguments, char* shared,
                        unsigned shared_nbytes, const int* order);
};
