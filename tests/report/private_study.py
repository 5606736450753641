"""A small study of three hospitals with arms that protect patients, whole sites, sums, and nothing."""

from typing import Any

PRIVATE: dict[str, Any] = {
    "name": "private",
    "data": {
        "source": "heart",
        "hospitals": ["cleveland", "hungarian", "va"],
        "missing": "range",
        "scale": "ranges",
        "public": True,
    },
    "training": {"rounds": 3, "lr": 0.5, "batch_size": 1000},
    "privacy": {"example": {"epsilon": 2.0, "delta": 1e-5, "clip": 1.0}},
    "evaluation": {"seeds": {"first": 1, "count": 2}, "reference": "open"},
    "arms": [
        {"name": "open", "algorithm": "fedavg", "privacy.example": "off"},
        {"name": "closed", "algorithm": "fedavg", "privacy.example.epsilon": [1.0, 8.0]},
        {"name": "ends", "algorithm": "fedavg", "privacy.example.noise": 3.0},
        {"name": "summed", "algorithm": "fedprox", "privacy.example": "off", "privacy.secure_sum": "on"},
        {"name": "alone", "algorithm": "local"},
    ],
}
