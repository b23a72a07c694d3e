"""Models and hardware as data, and what follows from them by formula: bytes, FLOPs, the bottleneck-free range."""
