"""What every layer shares: errors, keys, records, settings."""
