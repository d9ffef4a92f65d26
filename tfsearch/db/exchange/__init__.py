"""Records that move between databases: out of one, through a file or directly, into another."""
