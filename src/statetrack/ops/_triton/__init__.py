"""GPU kernels in Triton. Each module is imported when its op first runs on the GPU."""
