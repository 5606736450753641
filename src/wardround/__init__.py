"""Federated studies for hospitals.

import wardround
run = wardround.compare({"north": north, "south": south}, target="died", patient="patient_id")
run
"""

import os
from typing import TYPE_CHECKING

from wardround.core.lazy import lazy

# torch's matrix products (MKL) may round a row differently by its place among the others; on some processors they do.
# This makes them not to, at no cost that could be measured. It counts only if it is set before the first product.
os.environ.setdefault("MKL_CBWR", "AUTO")

if TYPE_CHECKING:
    from wardround.adaptation.adapt import adapt as adapt
    from wardround.attacks.attack import attack_run as attack_run
    from wardround.bundles import BundleClassifier as BundleClassifier
    from wardround.bundles import BundleRegressor as BundleRegressor
    from wardround.bundles import PredictOptions as PredictOptions
    from wardround.bundles import as_estimator as as_estimator
    from wardround.bundles import explain_bundle as explain_bundle
    from wardround.bundles import explain_run as explain_run
    from wardround.bundles import load_bundle as load_bundle
    from wardround.bundles import load_shared as load_shared
    from wardround.bundles import make_bundle as make_bundle
    from wardround.bundles import make_bundles as make_bundles
    from wardround.bundles import make_shared as make_shared
    from wardround.bundles import predict_file as predict_file
    from wardround.bundles import predict_images as predict_images
    from wardround.bundles import predict_signals as predict_signals
    from wardround.bundles import predict_table as predict_table
    from wardround.report.build import build_report as build_report
    from wardround.report.compare import compare_runs as compare_runs
    from wardround.runs.catalog import load_study as load_study
    from wardround.runs.decisions.decide import decide as decide
    from wardround.runs.drafting.draft import init_study as init_study
    from wardround.runs.execute import resume_study as resume_study
    from wardround.runs.execute import run_study as run_study
    from wardround.runs.interface.quick_comparison import compare as compare
    from wardround.runs.interface.study_run import StudyRun as StudyRun
    from wardround.runs.plan import check_study as check_study
    from wardround.runs.plan import load_plan as load_plan
    from wardround.runs.records import RecordFollower as RecordFollower
    from wardround.runs.records import read_records as read_records
    from wardround.tracking import export_run as export_run
    from wardround.training.round_record import RoundRecord as RoundRecord

_HOMES = {
    "wardround.adaptation.adapt": ("adapt",),
    "wardround.attacks.attack": ("attack_run",),
    "wardround.bundles": (
        "BundleClassifier",
        "BundleRegressor",
        "PredictOptions",
        "as_estimator",
        "explain_bundle",
        "explain_run",
        "load_bundle",
        "load_shared",
        "make_bundle",
        "make_bundles",
        "make_shared",
        "predict_file",
        "predict_images",
        "predict_signals",
        "predict_table",
    ),
    "wardround.report.build": ("build_report",),
    "wardround.report.compare": ("compare_runs",),
    "wardround.runs.catalog": ("load_study",),
    "wardround.runs.decisions.decide": ("decide",),
    "wardround.runs.drafting.draft": ("init_study",),
    "wardround.runs.execute": ("resume_study", "run_study"),
    "wardround.runs.interface.quick_comparison": ("compare",),
    "wardround.runs.interface.study_run": ("StudyRun",),
    "wardround.runs.plan": ("check_study", "load_plan"),
    "wardround.runs.records": ("RecordFollower", "read_records"),
    "wardround.tracking": ("export_run",),
    "wardround.training.round_record": ("RoundRecord",),
}
__all__ = [
    "BundleClassifier",
    "BundleRegressor",
    "PredictOptions",
    "RecordFollower",
    "RoundRecord",
    "StudyRun",
    "adapt",
    "as_estimator",
    "attack_run",
    "build_report",
    "check_study",
    "compare",
    "compare_runs",
    "decide",
    "explain_bundle",
    "explain_run",
    "export_run",
    "init_study",
    "load_bundle",
    "load_plan",
    "load_shared",
    "load_study",
    "make_bundle",
    "make_bundles",
    "make_shared",
    "predict_file",
    "predict_images",
    "predict_signals",
    "predict_table",
    "read_records",
    "resume_study",
    "run_study",
]
__getattr__ = lazy(__name__, _HOMES)


def __dir__() -> list[str]:
    return sorted(__all__)
