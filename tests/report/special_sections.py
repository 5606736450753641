"""Sections of the report that the run of a plain study does not have."""

SPECIAL = {
    *("images", "grid", "findings", "approaches", "uncertainty", "topology", "claims", "outcomes", "forgetting"),
    *("robustness.screening", "robustness.contribution", "robustness.adversaries", "participation.virtual_time"),
    *(
        "analyses.all_analyses",
        "appendix.strobe",
        "tuning",
        "explaining.explanations",
        "numbers.intervals",
        "numbers.residuals",
    ),
    *("privacy.attacks", "privacy.spending", "privacy.private_arms", "explaining.explanations"),
}
