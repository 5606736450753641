"""Bundles: what a hospital deploys. Making, loading, predicting with and registering them."""

from typing import TYPE_CHECKING

from wardround.core.lazy import lazy

if TYPE_CHECKING:
    from wardround.bundles.build.make import BundleFolders as BundleFolders
    from wardround.bundles.build.make import FinishedRun as FinishedRun
    from wardround.bundles.build.make import bundle_from as bundle_from
    from wardround.bundles.build.make import make_bundle as make_bundle
    from wardround.bundles.build.make import make_bundles as make_bundles
    from wardround.bundles.build.make import open_finished_run as open_finished_run
    from wardround.bundles.build.onnx import export_onnx as export_onnx
    from wardround.bundles.build.shared_part import SharedPart as SharedPart
    from wardround.bundles.build.shared_part import load_shared as load_shared
    from wardround.bundles.build.shared_part import make_shared as make_shared
    from wardround.bundles.bundle import Bundle as Bundle
    from wardround.bundles.bundle import load_bundle as load_bundle
    from wardround.bundles.predict.predict import Progress as Progress
    from wardround.bundles.predict.predict import Summary as Summary
    from wardround.bundles.predict.predict import predict_file as predict_file
    from wardround.bundles.predict.predict import predict_images as predict_images
    from wardround.bundles.predict.predict import predict_rows as predict_rows
    from wardround.bundles.predict.predict import predict_table as predict_table
    from wardround.bundles.predict.scoring import PredictOptions as PredictOptions
    from wardround.bundles.registry.registry import Registry as Registry
    from wardround.bundles.registry.registry import find_bundle as find_bundle

_HOMES = {
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
    "wardround.bundles.predict.predict": (
        "Progress",
        "Summary",
        "predict_file",
        "predict_images",
        "predict_rows",
        "predict_table",
    ),
    "wardround.bundles.predict.scoring": ("PredictOptions",),
    "wardround.bundles.registry.registry": ("Registry", "find_bundle"),
}
__all__ = [
    "Bundle",
    "BundleFolders",
    "FinishedRun",
    "PredictOptions",
    "Progress",
    "Registry",
    "SharedPart",
    "Summary",
    "bundle_from",
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
    "predict_table",
]
__getattr__ = lazy(__name__, _HOMES)
