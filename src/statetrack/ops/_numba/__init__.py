"""The recurrences as compiled loops for the CPU; docs/cpu.md has the measurements behind them."""
