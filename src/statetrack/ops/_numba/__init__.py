"""What compiled loops for the CPU share; measured in docs/measurements/cpu.md."""
