"""TIR: the tile-level intermediate representation of one kernel."""
