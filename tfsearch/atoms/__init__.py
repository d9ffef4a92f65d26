"""Atoms: hardware instructions with contracts, and the documents that describe hardware."""
