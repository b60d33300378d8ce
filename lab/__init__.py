"""What is run on models: benchmarks, figures, minimal pairs, attacks. Only course/ imports it."""
