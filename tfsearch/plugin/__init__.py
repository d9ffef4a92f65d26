"""What a target fills in, how targets are found, and the identity of what they make."""
