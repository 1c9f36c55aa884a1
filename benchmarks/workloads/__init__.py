"""The workloads W1 .. W5 of docs/benchmarks.md: `delayctl bench w1` and so on, each a module with Settings,
Result and run(); what they share is in target, load, ledger and machine."""
