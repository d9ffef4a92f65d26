"""What is told to whoever watches the clock of a job: the phases that are not the candidate's."""

REFERENCE = "reference"
"""The phase in which the oracle works."""
READ_ONLY = "read-only"
"""The phase in which a write to an input ends the process."""
BACK = ""
"""Told to a report: the phase before goes on."""
REFERENCE_S = 600.0
"""What one case of a reference may take; a job's own time stands still meanwhile."""
