"""The row-wise recipe: reductions over one set of axes, any number of passes over each row."""
