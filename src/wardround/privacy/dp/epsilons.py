"""An epsilon as it is written down. JSON has no infinity, and null would look as if nothing had been spent."""

import math

INFINITE = "infinite"  # nothing limits what may be learnt of a patient


def to_json(epsilon: float) -> float | str:
    return INFINITE if math.isinf(epsilon) else epsilon


def from_json(epsilon: float | str | None) -> float | None:
    """None where nothing was spent."""
    if epsilon is None:
        return None
    return math.inf if epsilon == INFINITE else float(epsilon)


def format_epsilon(epsilon: float | str, form: str = "g") -> str:
    return INFINITE if epsilon == INFINITE or math.isinf(float(epsilon)) else format(float(epsilon), form)
