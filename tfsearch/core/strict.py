"""JSON from outside: what the standard's grammar allows, and nothing that breaks later."""

from __future__ import annotations

import json
import math
from typing import Any


def loads(text: str | bytes) -> Any:
    """The value of a JSON text; ``ValueError`` with one line for everything else.

    Python's reader also takes NaN and infinities (which it then does not write), and raises other
    errors for numbers of thousands of digits and for what is nested too deeply.
    """
    try:
        found: object = json.loads(text, parse_constant=_refused, parse_float=_finite)
        json.dumps(found, allow_nan=False)
    except json.JSONDecodeError:
        raise
    except RecursionError:
        raise ValueError("nested too deeply") from None
    except ValueError as error:
        if "digits" in str(error):
            raise ValueError("a number has too many digits") from None
        raise
    return found


def _refused(name: str) -> Any:
    raise ValueError(f"{name} is no JSON number")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text[:40]} is beyond the range of floating point")
    return value
