"""Kernels whose units are teams of warps: interpreted with everything that happens at once."""
