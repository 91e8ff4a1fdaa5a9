"""What compiled loops for the CPU share; docs/measurements/cpu.md has the measurements behind them."""
