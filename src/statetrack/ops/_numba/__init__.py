"""What compiled loops for the CPU share; docs/cpu.md has the measurements behind them."""
