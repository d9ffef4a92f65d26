"""The contraction recipe: a sum of products over one axis, with elementwise work around it."""
