"""Bundles: what a hospital deploys. Making, loading, predicting with and registering them."""

from typing import TYPE_CHECKING

from wardround.core.lazy import lazy

if TYPE_CHECKING:
    from wardround.bundles.build.int8 import Int8
    from wardround.bundles.build.make import (
        BundleFolders,
        FinishedRun,
        bundle_from,
        make_bundle,
        make_bundles,
        open_finished_run,
    )
    from wardround.bundles.build.onnx import export_onnx
    from wardround.bundles.build.shared_part import SharedPart, load_shared, make_shared
    from wardround.bundles.bundle import Bundle, load_bundle
    from wardround.bundles.estimator import BundleClassifier, BundleRegressor, as_estimator
    from wardround.bundles.explain.explain import explain_bundle, explain_run
    from wardround.bundles.explain.explained_rows import explain_file, explain_prepared, explain_table
    from wardround.bundles.explain.step import EXPLAIN
    from wardround.bundles.predict.pipeline import PredictOptions, Step
    from wardround.bundles.predict.predict import (
        Progress,
        Summary,
        predict_file,
        predict_images,
        predict_rows,
        predict_signals,
        predict_table,
    )
    from wardround.bundles.predict.scoring import STEPS
    from wardround.bundles.registry.registry import Registry, find_bundle

_HOMES = {
    "wardround.bundles.build.int8": ("Int8",),
    "wardround.bundles.build.make": (
        "BundleFolders",
        "FinishedRun",
        "bundle_from",
        "make_bundle",
        "make_bundles",
        "open_finished_run",
    ),
    "wardround.bundles.build.onnx": ("export_onnx",),
    "wardround.bundles.build.shared_part": ("SharedPart", "load_shared", "make_shared"),
    "wardround.bundles.bundle": ("Bundle", "load_bundle"),
    "wardround.bundles.explain.explain": ("explain_bundle", "explain_run"),
    "wardround.bundles.explain.explained_rows": ("explain_file", "explain_prepared", "explain_table"),
    "wardround.bundles.explain.step": ("EXPLAIN",),
    "wardround.bundles.estimator": ("BundleClassifier", "BundleRegressor", "as_estimator"),
    "wardround.bundles.predict.predict": (
        "Progress",
        "Summary",
        "predict_file",
        "predict_images",
        "predict_rows",
        "predict_signals",
        "predict_table",
    ),
    "wardround.bundles.predict.pipeline": ("PredictOptions", "Step"),
    "wardround.bundles.predict.scoring": ("STEPS",),
    "wardround.bundles.registry.registry": ("Registry", "find_bundle"),
}
__all__ = [
    "EXPLAIN",
    "STEPS",
    "Bundle",
    "BundleClassifier",
    "BundleFolders",
    "BundleRegressor",
    "FinishedRun",
    "Int8",
    "PredictOptions",
    "Progress",
    "Registry",
    "SharedPart",
    "Step",
    "Summary",
    "as_estimator",
    "bundle_from",
    "explain_bundle",
    "explain_file",
    "explain_prepared",
    "explain_run",
    "explain_table",
    "export_onnx",
    "find_bundle",
    "load_bundle",
    "load_shared",
    "make_bundle",
    "make_bundles",
    "make_shared",
    "open_finished_run",
    "predict_file",
    "predict_images",
    "predict_rows",
    "predict_signals",
    "predict_table",
]
__getattr__ = lazy(__name__, _HOMES)
