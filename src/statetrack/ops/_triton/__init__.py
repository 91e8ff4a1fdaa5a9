"""What GPU kernels in Triton share; imported when an op first runs on the GPU."""
