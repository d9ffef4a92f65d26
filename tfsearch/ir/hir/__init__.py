"""HIR: tensor programs as SSA, traced from Python or parsed from text."""
