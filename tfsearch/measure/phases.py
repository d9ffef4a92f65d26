"""Phases of a job that whoever watches the clock tells apart."""

REFERENCE = "reference"
"""The phase in which the oracle works."""
BACK = ""
"""Told to a report: the phase before goes on."""
