"""Runs in the tools where teams look at their other experiments: MLflow and TensorBoard.

What is written are settings, curves over rounds, final figures and the report: nothing that is a row's. Predictions
stay in the run folder.
"""

from wardround.tracking.export import DESTINATIONS, Exported, export_run

__all__ = ["DESTINATIONS", "Exported", "export_run"]
