"""Schema revisions; a released one never changes."""
