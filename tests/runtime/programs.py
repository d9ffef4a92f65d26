"""Programs as functions; annotations are the text syntax of arrays, not types of Python."""

# ruff: noqa: F722, F821


def doubled(x: "f32[rows, cols]", bias: "f32[cols]", scale: float = 2.0):
    return x * scale + bias


def renamed(x: "f32[m, n]", bias: "f32[n]"):
    return x * 2.0 + bias


def different(x: "f32[m, n]", bias: "f32[n]"):
    return x * 3.0 + bias


def summed(x: "kind[rows, 8]", y: "kind[rows, 8]:col"):
    return x + y
