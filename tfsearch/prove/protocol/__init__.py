"""What the calls of a concurrent kernel add up to: arrivals, bytes, groups, registers, order."""
