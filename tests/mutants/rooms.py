"""The modules of mutants in this folder."""

ROOMS = (
    "algorithms",
    "training",
    "adversaries",
    "compression",
    "privacy",
    "secure_sums",
    "matching",
    "evaluation",
    "uncertainty",
    "explanations",
    "deployment",
    "continual",
)
