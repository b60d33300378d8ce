"""What is run on models: benchmarks, figures, minimal pairs. Nothing imports it."""
