"""From CUDA C++ to code for a GPU: NVRTC, what is on disk already, what kernels take."""
