# `just check` is what has to pass before a change lands.

export PATH := justfile_directory() / ".venv" / "bin" + ":" + env("PATH")

# Format check, lint, types, layers, tests.
check: static test

# Everything that runs no code of the package.
static: format lint types layers

format:
    ruff format --check .

lint:
    ruff check .

types:
    pyright

layers:
    lint-imports

# The README's test command after its installation; further arguments go to pytest.
test *arguments:
    pytest -n auto {{ arguments }}

# Bring the sources into shape.
fmt:
    ruff format .
    ruff check --fix-only .

# Regenerate the pages that are made from the source.
docs:
    python -m tfsearch.cli.docs > docs/commands.md
    python tools/codes.py > docs/refusals.md
