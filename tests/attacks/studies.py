"""A small study to attack."""

from typing import Any


def heart(**changes: Any) -> dict[str, Any]:
    """One arm without protection, one with epsilon 8, one in which nothing leaves a site."""
    study: dict[str, Any] = {
        "name": "attacked",
        "data": {"source": "heart", "missing": "range", "scale": "ranges", "public": True},
        "sites": {"partition": "by-hospital"},
        "model": {"kind": "logistic", "l2": 0.01},
        "training": {"rounds": 2, "local_epochs": 1, "batch_size": 32, "lr": 0.5},
        "privacy": {"example": {"epsilon": 8, "delta": 1e-5, "clip": 1.0}},
        "evaluation": {"seeds": {"first": 1, "count": 1}},
        "arms": [
            {"name": "plain", "algorithm": "fedavg", "privacy.example": "off"},
            {"name": "private", "algorithm": "fedprox"},
            {"name": "local", "algorithm": "local", "privacy.example": "off"},
        ],
    }
    return {**study, **changes}
