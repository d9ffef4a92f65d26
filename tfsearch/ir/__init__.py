"""The two intermediate representations and what they share: element types and layouts."""
