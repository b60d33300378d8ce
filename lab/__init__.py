"""What is run on models: benchmarks and figures. Nothing outside this folder imports it."""
